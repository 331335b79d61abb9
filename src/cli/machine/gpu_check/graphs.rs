//! Steps replayed from CUDA graphs against the same steps launched op by op: the same kernels run in the same order, on other memory.

use std::sync::Arc;

use serde::Serialize;

use super::args::{Args, AskedModel};
use super::setting::{Rows, Setting};
use crate::cli::terminal::output::{show, show_part};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::profile::{DeviceMemory, median};
use peft_tune_engine::{BaseModel, TrainError, Trainer};
use peft_tune_kernels::device::Device;
use peft_tune_kernels::{Kernels, kernels, set_kernels};

/// Steps of each form. They differ in their tokens, dropout masks and learning rates.
const STEPS: usize = 20;
/// Micro-batches of a step, all of one shape.
const MICRO_BATCHES: u32 = 2;
/// Passes that are launched before a shape has a graph.
const LAUNCHED: u64 = 2;
/// Updates that are launched before they have one.
const LAUNCHED_UPDATES: u64 = 1;
/// Micro-batches of the tiny model, which does little else than launch.
const TINY_ROWS: Rows = Rows { rows: 2, length: 16 };
/// Largest relative difference of losses in 16 bits and less: as between a device and the CPU.
const TOLERANCE: f64 = 1e-2;

/// One setting in both forms.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    shape: String,
    precision: Precision,
    rows: usize,
    length: usize,
    launched: Option<Run>,
    replayed: Option<Run>,
    /// Largest relative difference of the losses of a step.
    difference: Option<f64>,
    /// Reason why there is no comparison.
    message: Option<String>,
}

/// Some steps.
#[derive(Debug, Serialize)]
struct Run {
    losses: Vec<f64>,
    /// Tokens per second in the second half of the steps.
    tokens_per_s: f64,
    /// Bytes at the highest moment, allocated and reserved, weights included.
    peak_bytes: u64,
    reserved_bytes: Option<u64>,
    /// Micro-batches that came from a graph.
    replayed_passes: u64,
    /// Updates that came from a graph.
    replayed_updates: u64,
}

impl Comparison {
    pub(super) fn passed(&self) -> bool {
        let allowed = if self.precision == Precision::Fp32 {
            0.0
        } else {
            TOLERANCE
        };
        let passes = STEPS as u64 * u64::from(MICRO_BATCHES) - LAUNCHED;
        let updates = STEPS as u64 - LAUNCHED_UPDATES;
        let all = |run: &Run| (run.replayed_passes, run.replayed_updates) == (passes, updates);
        self.replayed.as_ref().is_some_and(all) && self.difference.is_some_and(|difference| difference <= allowed)
    }

    /// What did not pass, in words.
    pub(super) fn failure(&self) -> String {
        let name = format!("{} {:?} from CUDA graphs", self.shape, self.precision);
        match (&self.message, &self.replayed) {
            (Some(message), _) => format!("{name}: {message}"),
            (None, Some(replayed)) => format!(
                "{name}: {} passes and {} updates replayed, losses {:.1e} apart",
                replayed.replayed_passes,
                replayed.replayed_updates,
                self.difference.unwrap_or(f64::NAN)
            ),
            (None, None) => format!("{name}: no result"),
        }
    }
}

/// Compares a tiny model in fp32 and bf16, then what was asked for, without checkpointing.
pub(super) fn run(args: &Args, device: &Device, comparisons: &mut Vec<Comparison>) {
    if device.is_cpu() {
        show(format_args!("the CPU has no CUDA graphs: left out"));
        return;
    }
    show(format_args!(
        "| shape | precision | batch | tokens/s launched | replayed | peak GB launched | replayed | losses differ by | |"
    ));
    show(format_args!("|---|---|---|---:|---:|---:|---:|---:|---|"));
    let mut compare = |shape: &str, setting: Setting| {
        let comparison = compare(shape, &setting, device);
        print(&comparison);
        comparisons.push(comparison);
    };
    for precision in [Precision::Fp32, Precision::Bf16] {
        let setting = Setting {
            precision,
            rows: TINY_ROWS,
            ..Setting::tiny()
        };
        compare("tiny", setting);
    }
    for AskedModel { shape, setting, .. } in args.models() {
        for rows in &args.batches {
            compare(shape, Setting { rows: *rows, ..setting });
        }
    }
}

fn compare(shape: &str, setting: &Setting, device: &Device) -> Comparison {
    let Rows { rows, length } = setting.rows;
    let mut comparison = Comparison {
        shape: shape.to_owned(),
        precision: setting.precision,
        rows,
        length,
        launched: None,
        replayed: None,
        difference: None,
        message: None,
    };
    let before = kernels();
    let mut both = || -> Result<(), TrainError> {
        let base = Arc::new(setting.base(device)?);
        let steps = |form| {
            set_kernels(form);
            take_steps(setting, &base)
        };
        let (launched, replayed) = (steps(Kernels::Fused)?, steps(Kernels::Graphs)?);
        comparison.difference = Some(largest_difference(&launched.losses, &replayed.losses));
        (comparison.launched, comparison.replayed) = (Some(launched), Some(replayed));
        Ok(())
    };
    let done = both();
    set_kernels(before);
    comparison.message = done.err().map(|error| error.to_string());
    comparison
}

fn take_steps(setting: &Setting, base: &Arc<BaseModel>) -> Result<Run, TrainError> {
    let mut recipe = setting.recipe();
    if let Some(adapter) = &mut recipe.adapter {
        adapter.dropout = 0.1;
    }
    let memory = DeviceMemory::of(base.device())?;
    memory.reset_peak();
    let mut trainer = Trainer::new(Arc::clone(base), &recipe, STEPS as u64)?;
    let (mut losses, mut seconds, mut tokens) = (Vec::new(), Vec::new(), 0);
    for step in 0..STEPS as u32 {
        let seeds = (0..MICRO_BATCHES).map(|index| 1 + step * MICRO_BATCHES + index);
        let batches: Vec<_> = seeds.map(|seed| setting.batch(base.architecture(), seed)).collect();
        let event = trainer.step(&batches)?;
        losses.push(event.loss);
        seconds.push(event.seconds.total);
        tokens = event.tokens;
    }
    let step_s = median(seconds[STEPS / 2..].iter().copied()).unwrap_or(f64::NAN);
    Ok(Run {
        losses,
        tokens_per_s: tokens as f64 / step_s,
        peak_bytes: memory.peak_bytes(),
        reserved_bytes: memory.peak_reserved_bytes(),
        replayed_passes: trainer.replayed_passes(),
        replayed_updates: trainer.replayed_updates(),
    })
}

/// The largest difference of two losses over the first; infinite where one is not a number.
fn largest_difference(launched: &[f64], replayed: &[f64]) -> f64 {
    let differences = launched.iter().zip(replayed).map(|(a, b)| (a - b).abs() / a.abs());
    differences.fold(
        0.0,
        |largest, one| if one.is_nan() { f64::INFINITY } else { one.max(largest) },
    )
}

fn print(comparison: &Comparison) {
    let Comparison {
        shape, rows, length, ..
    } = comparison;
    show_part(format_args!(
        "| {shape} | {:?} | {rows}x{length} | ",
        comparison.precision
    ));
    let state = if comparison.passed() { "ok" } else { "FAIL" };
    match (&comparison.launched, &comparison.replayed) {
        (Some(launched), Some(replayed)) => show(format_args!(
            "{:.0} | {:.0} | {:.2} | {:.2} | {:.1e} | {state}, {} passes and {} updates replayed |",
            launched.tokens_per_s,
            replayed.tokens_per_s,
            launched.peak_bytes as f64 / 1e9,
            replayed.peak_bytes as f64 / 1e9,
            comparison.difference.unwrap_or(f64::NAN),
            replayed.replayed_passes,
            replayed.replayed_updates
        )),
        _ => show(format_args!(
            "{} | | | | | {state} |",
            comparison.message.as_deref().unwrap_or_default()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(losses: Vec<f64>, replayed_passes: u64, replayed_updates: u64) -> Run {
        Run {
            losses,
            tokens_per_s: 1.0,
            peak_bytes: 1,
            reserved_bytes: None,
            replayed_passes,
            replayed_updates,
        }
    }

    #[test]
    fn losses_in_fp32_may_not_differ_and_graphs_must_have_run() {
        let comparison = |precision, other: f64, passes, updates| {
            let (launched, replayed) = (run(vec![2.0, 1.0], 0, 0), run(vec![2.0, other], passes, updates));
            Comparison {
                shape: "tiny".to_owned(),
                precision,
                rows: 1,
                length: 1,
                difference: Some(largest_difference(&launched.losses, &replayed.losses)),
                launched: Some(launched),
                replayed: Some(replayed),
                message: None,
            }
        };
        let passed = |precision, other, passes| comparison(precision, other, passes, 19).passed();
        assert!(passed(Precision::Fp32, 1.0, 38));
        assert!(!passed(Precision::Fp32, 1.0 + 1e-9, 38));
        assert!(passed(Precision::Bf16, 1.001, 38));
        assert!(!passed(Precision::Bf16, 1.1, 38));
        assert!(!passed(Precision::Bf16, f64::NAN, 38));
        assert!(!passed(Precision::Fp32, 1.0, 0), "nothing was replayed");
        assert!(
            !comparison(Precision::Fp32, 1.0, 38, 0).passed(),
            "no update was replayed"
        );
    }
}
