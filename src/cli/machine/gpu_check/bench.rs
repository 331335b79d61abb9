//! Steps of models of real sizes with random weights: shapes, precisions, batches and checkpointing in all combinations.

use std::sync::Arc;

use serde::Serialize;

use super::args::{Args, AskedModel};
use super::setting::Measured;
use crate::cli::terminal::output::{show, show_part, tell};
use peft_tune_kernels::device::Device;

/// One timing, or why there is none.
#[derive(Debug, Serialize)]
pub(super) struct Timing {
    shape: String,
    precision: String,
    checkpointing: String,
    rows: usize,
    length: usize,
    measured: Option<Measured>,
    message: Option<String>,
}

/// Times every combination that was asked for.
pub(super) fn run(args: &Args, device: &Device, timings: &mut Vec<Timing>) {
    show(format_args!(
        "| shape | precision | checkpointing | batch | tokens/s | TFLOP/s | MFU % | step s | peak GB | predicted GB | base GB | switch s | new GB |"
    ));
    show(format_args!(
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    ));
    for model in args.models() {
        time_base(args, model, device, timings);
    }
}

fn time_base(args: &Args, model: AskedModel<'_>, device: &Device, timings: &mut Vec<Timing>) {
    let AskedModel {
        shape,
        precision,
        mut setting,
    } = model;
    let base = match setting.base(device) {
        Ok(base) => Arc::new(base),
        Err(error) => {
            tell(format_args!("{shape} {precision}: {error}"));
            return;
        }
    };
    for rows in &args.batches {
        for kind in &args.checkpointing {
            let Ok(checkpointing) = serde_json::from_value(serde_json::Value::String(kind.clone())) else {
                tell(format_args!("no kind of checkpointing `{kind}`"));
                continue;
            };
            (setting.rows, setting.checkpointing) = (*rows, checkpointing);
            let (measured, message) = match setting.measure(Arc::clone(&base), args.steps) {
                Ok(measured) => (Some(measured), None),
                Err(error) => (None, Some(error.to_string())),
            };
            let timing = Timing {
                shape: shape.to_owned(),
                precision: precision.to_owned(),
                checkpointing: kind.clone(),
                rows: rows.rows,
                length: rows.length,
                measured,
                message,
            };
            print(&timing);
            timings.push(timing);
        }
    }
}

fn print(timing: &Timing) {
    let Timing {
        shape,
        precision,
        checkpointing,
        rows,
        length,
        ..
    } = timing;
    show_part(format_args!(
        "| {shape} | {precision} | {checkpointing} | {rows}x{length} | "
    ));
    match (&timing.measured, &timing.message) {
        (Some(m), _) => show(format_args!(
            "{:.0} | {:.1} | {} | {:.4} | {:.2} | {} | {:.2} | {:.2} | {} |",
            m.tokens_per_s,
            m.model_tflops,
            m.mfu.map_or_else(String::new, |mfu| format!("{:.1}", 100.0 * mfu)),
            m.step_s,
            m.peak_bytes as f64 / 1e9,
            gigabytes(m.predicted_bytes),
            m.base_bytes as f64 / 1e9,
            m.switch_s,
            gigabytes(m.reserved_growth_bytes)
        )),
        (None, message) => show(format_args!(
            "{} | | | | | | | | |",
            message.as_deref().unwrap_or_default()
        )),
    }
}

/// Bytes for a table; nothing where they are not known.
pub(super) fn gigabytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format!("{:.2}", bytes as f64 / 1e9))
}
