//! The table that blog posts and papers print of fine-tuning a model of 7 billion parameters: everything in fp32, adapters on 16-bit
//! weights, adapters on NF4.
//!
//! Published for an A100 with 80 GB: 1,200, 15,000 and 30,000 tokens a second in 48.2, 12.5 and 9.8 GB. The first of these cannot
//! be a training of all parameters with AdamW: values, gradients and states of 6.7 billion parameters take 108 GB in fp32, values
//! and gradients alone 54. Hence a row more, adapters on fp32 weights (27 GB), and for the first row the first optimizer, in this
//! order, that the device's memory holds; what was skipped stays in the results with its predicted bytes.

use std::sync::Arc;

use serde::Serialize;

use super::args::Args;
use super::bench::gigabytes;
use super::setting::{Measured, Method, Setting};
use super::shapes;
use crate::cli::terminal::output::show;
use peft_tune_core::recipe::{Checkpointing, OptimizerKind, Precision};
use peft_tune_engine::TrainError;
use peft_tune_kernels::device;
use peft_tune_kernels::device::Device;

/// Rows of the table: name, what trains, precision.
const ROWS: [(&str, Method, Precision); 4] = [
    ("all parameters, fp32", Method::Full, Precision::Fp32),
    ("LoRA on fp32", Method::Lora, Precision::Fp32),
    ("LoRA on bf16", Method::Lora, Precision::Bf16),
    ("LoRA on NF4", Method::Lora, Precision::Nf4),
];

/// Share of the device's memory that a setting may be predicted to take: the rest is the driver's and the libraries'.
const MOST_FILLED: f64 = 0.97;

/// One row, or why there is none.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    name: &'static str,
    method: Method,
    precision: Precision,
    shape: String,
    rows: usize,
    length: usize,
    /// Optimizer that ran.
    optimizer: Option<OptimizerKind>,
    checkpointing: Option<Checkpointing>,
    measured: Option<Measured>,
    /// Settings that were preferred, but do not fit.
    passed_over: Vec<PassedOver>,
}

/// A setting that the device's memory does not hold.
#[derive(Debug, Serialize)]
struct PassedOver {
    optimizer: OptimizerKind,
    checkpointing: Checkpointing,
    predicted_bytes: Option<u64>,
    /// Message of a step that was tried all the same.
    message: Option<String>,
}

/// Measures every row.
pub(super) fn run(args: &Args, device: &Device, table: &mut Vec<Row>) -> Result<(), String> {
    let config = shapes::config(&args.literature_shape)?;
    let memory_bytes = device::facts(device).map(|facts| facts.memory_bytes);
    show(format_args!(
        "| {} | optimizer | checkpointing | batch | tokens/s | peak GB | predicted GB |",
        args.literature_shape
    ));
    show(format_args!("|---|---|---|---|---:|---:|---:|"));
    for (name, method, precision) in ROWS {
        let setting = Setting {
            config,
            method,
            precision,
            rows: args.literature_batch,
            ..Setting::tiny()
        };
        let mut row = Row {
            name,
            method,
            precision,
            shape: args.literature_shape.clone(),
            rows: setting.rows.rows,
            length: setting.rows.length,
            optimizer: None,
            checkpointing: None,
            measured: None,
            passed_over: Vec::new(),
        };
        let ways = Ways {
            predict: &|setting: &Setting| setting.predicted_bytes(device),
            measure: &|setting: &Setting| {
                let base = Arc::new(setting.base(device)?);
                setting.measure(base, args.steps)
            },
        };
        fill(&mut row, setting, memory_bytes, &ways);
        print(&row);
        table.push(row);
    }
    Ok(())
}

/// Ways to know what a setting takes.
struct Ways<'a> {
    /// Bytes that it is predicted to need.
    predict: &'a dyn Fn(&Setting) -> Option<u64>,
    measure: &'a dyn Fn(&Setting) -> Result<Measured, TrainError>,
}

/// Runs the first candidate that fits.
fn fill(row: &mut Row, setting: Setting, memory_bytes: Option<u64>, ways: &Ways<'_>) {
    for (optimizer, checkpointing) in candidates(row.method) {
        let setting = Setting {
            optimizer,
            checkpointing,
            ..setting
        };
        let predicted_bytes = (ways.predict)(&setting);
        let too_large = |limit: u64| predicted_bytes.is_some_and(|bytes| bytes as f64 > MOST_FILLED * limit as f64);
        let message = match memory_bytes.is_some_and(too_large) {
            true => None,
            false => match (ways.measure)(&setting) {
                Ok(measured) => {
                    row.measured = Some(measured);
                    (row.optimizer, row.checkpointing) = (Some(optimizer), Some(checkpointing));
                    return;
                }
                Err(error) => Some(error.to_string()),
            },
        };
        row.passed_over.push(PassedOver {
            optimizer,
            checkpointing,
            predicted_bytes,
            message,
        });
    }
}

/// Settings of a row in the order of preference: the usual optimizer before smaller ones, and before one whose states lie in the
/// host's memory.
fn candidates(method: Method) -> impl Iterator<Item = (OptimizerKind, Checkpointing)> {
    let optimizers: &[OptimizerKind] = match method {
        Method::Full => &[
            OptimizerKind::AdamW,
            OptimizerKind::AdamW8bit,
            OptimizerKind::PagedAdamW,
        ],
        Method::Lora => &[OptimizerKind::AdamW],
    };
    optimizers
        .iter()
        .flat_map(|optimizer| [Checkpointing::None, Checkpointing::Full].map(|kind| (*optimizer, kind)))
}

fn print(row: &Row) {
    let batch = format!("{}x{}", row.rows, row.length);
    let measured = row.measured.as_ref();
    let (Some(optimizer), Some(checkpointing), Some(measured)) = (&row.optimizer, &row.checkpointing, measured) else {
        show(format_args!("| {} | nothing fits | | {batch} | | | |", row.name));
        return;
    };
    show(format_args!(
        "| {} | {} | {} | {batch} | {:.0} | {:.2} | {} |",
        row.name,
        name(optimizer),
        name(checkpointing),
        measured.tokens_per_s,
        measured.peak_bytes as f64 / 1e9,
        gigabytes(measured.predicted_bytes)
    ));
}

/// The name of a variant as recipe files have it.
fn name(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H100: u64 = 84_900_000_000;
    const H200: u64 = 150_000_000_000;

    fn setting(method: Method, precision: Precision) -> Setting {
        Setting {
            config: shapes::config("llama-2-7b").unwrap(),
            method,
            precision,
            rows: "8x512".parse().unwrap(),
            ..Setting::tiny()
        }
    }

    fn row(method: Method, precision: Precision) -> Row {
        Row {
            name: "row",
            method,
            precision,
            shape: "llama-2-7b".to_owned(),
            rows: 8,
            length: 512,
            optimizer: None,
            checkpointing: None,
            measured: None,
            passed_over: Vec::new(),
        }
    }

    /// The bytes that a GPU's memory has to hold.
    fn on_a_gpu(setting: &Setting) -> Option<u64> {
        setting.predicted_on(peft_tune_core::predict::Host::GPU)
    }

    /// What would run of a row on a device of so many bytes, and what was skipped.
    fn chosen(method: Method, memory_bytes: u64) -> (Option<(OptimizerKind, Checkpointing)>, usize) {
        let ran = std::cell::Cell::new(None);
        let measure = |setting: &Setting| {
            ran.set(Some((setting.optimizer, setting.checkpointing)));
            Err(TrainError::from(candle_stand_in()))
        };
        let mut row = row(method, Precision::Fp32);
        // What runs first is what fits; that it fails here makes it try the rest.
        let first = std::cell::Cell::new(None);
        let watch = |setting: &Setting| {
            let result = measure(setting);
            first.set(first.get().or(ran.get()));
            result
        };
        fill(
            &mut row,
            setting(method, Precision::Fp32),
            Some(memory_bytes),
            &Ways {
                predict: &on_a_gpu,
                measure: &watch,
            },
        );
        let unfit = row.passed_over.iter().filter(|one| one.message.is_none()).count();
        assert!(row.measured.is_none());
        (first.get(), unfit)
    }

    fn candle_stand_in() -> peft_tune_kernels::device::DeviceError {
        peft_tune_kernels::device::DeviceError::Unknown {
            name: "stand-in".to_owned(),
        }
    }

    #[test]
    fn the_usual_optimizer_runs_where_its_state_fits() {
        let (kind, checkpointing) = chosen(Method::Full, H200).0.unwrap();
        assert_eq!(kind, OptimizerKind::AdamW);
        assert_eq!(checkpointing, Checkpointing::None);
        // 80 GB hold no F32 states beside values and gradients.
        let (first, unfit) = chosen(Method::Full, H100);
        assert_eq!(first, Some((OptimizerKind::AdamW8bit, Checkpointing::Full)));
        assert!(unfit >= 3, "{unfit}");
        assert_eq!(
            chosen(Method::Lora, H100).0,
            Some((OptimizerKind::AdamW, Checkpointing::None))
        );
        assert_eq!(chosen(Method::Full, 24 << 30).0, None);
    }

    #[test]
    fn what_is_published_for_fp32_cannot_be_a_training_of_all_parameters() {
        let least = candidates(Method::Full)
            .filter_map(|(optimizer, checkpointing)| {
                on_a_gpu(&Setting {
                    optimizer,
                    checkpointing,
                    ..setting(Method::Full, Precision::Fp32)
                })
            })
            .min();
        assert!(least.unwrap() > 54_000_000_000, "{least:?}");
    }

    #[test]
    fn the_published_table_is_what_is_predicted() {
        let mut rows = String::from("setting,peak_gb_no_checkpointing,peak_gb_full_checkpointing\n");
        for (name, method, precision) in ROWS {
            let plain = candidates(method).filter(|(_, checkpointing)| *checkpointing == Checkpointing::None);
            for (optimizer, _) in plain {
                let peak = |checkpointing| {
                    let setting = Setting {
                        optimizer,
                        checkpointing,
                        ..setting(method, precision)
                    };
                    on_a_gpu(&setting).unwrap() as f64 / 1e9
                };
                let (without, with) = (peak(Checkpointing::None), peak(Checkpointing::Full));
                rows += &format!("\"{name}, {}\",{without:.0},{with:.0}\n", super::name(&optimizer));
            }
        }
        assert_eq!(include_str!("../../../../docs/benchmarks/literature.csv"), rows);
    }

    #[test]
    fn a_row_keeps_what_was_tried_in_vain() {
        let mut row = row(Method::Lora, Precision::Fp32);
        let measure = |_: &Setting| Err(TrainError::from(candle_stand_in()));
        fill(
            &mut row,
            setting(Method::Lora, Precision::Fp32),
            None,
            &Ways {
                predict: &|_: &Setting| None,
                measure: &measure,
            },
        );
        assert_eq!(row.passed_over.len(), 2);
        assert!(row.passed_over.iter().all(|one| one.message.is_some()));
    }
}
