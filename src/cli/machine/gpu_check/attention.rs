//! Attention by itself, in every form of its kernels that the device has.

use serde::Serialize;

use super::args::Args;
use super::setting::{Rows, Setting};
use crate::cli::terminal::output::{show, tell};
use peft_tune_engine::check::{FormTimes, Layer, attention_times};
use peft_tune_kernels::device::Device;

/// One layer and batch.
#[derive(Debug, Serialize)]
pub(super) struct Timing {
    shape: String,
    #[serde(flatten)]
    layer: Layer,
    forms: Vec<FormTimes>,
    /// Reason why there are no times.
    message: Option<String>,
}

/// Times the layers of the shapes that were asked for, in BF16.
pub(super) fn run(args: &Args, device: &Device, timings: &mut Vec<Timing>) {
    if device.is_cpu() {
        show(format_args!(
            "the CPU has no forms of attention to choose from: left out"
        ));
        return;
    }
    show(format_args!(
        "| shape | heads | batch | form | forward ms | TFLOP/s | backward ms | TFLOP/s |"
    ));
    show(format_args!("|---|---|---|---|---:|---:|---:|---:|"));
    let mut models: Vec<(&str, Setting)> = args.models().map(|model| (model.shape, model.setting)).collect();
    // One for each precision.
    models.dedup_by_key(|(shape, _)| *shape);
    for (shape, setting) in models {
        let architecture = match setting.architecture() {
            Ok(architecture) => architecture,
            Err(error) => {
                tell(format_args!("{shape}: {error}"));
                continue;
            }
        };
        for Rows { rows, length } in args.batches.iter().copied() {
            let layer = Layer {
                rows,
                length,
                query_heads: architecture.heads,
                key_heads: architecture.kv_heads,
                head_dim: architecture.head_dim,
            };
            let (forms, message) = match attention_times(&layer, device) {
                Ok(forms) => (forms, None),
                Err(error) => (Vec::new(), Some(error.to_string())),
            };
            let timing = Timing {
                shape: shape.to_owned(),
                layer,
                forms,
                message,
            };
            print(&timing);
            timings.push(timing);
        }
    }
}

fn print(timing: &Timing) {
    let names = format!(
        "| {} | {}/{} of {} | {}x{} |",
        timing.shape,
        timing.layer.query_heads,
        timing.layer.key_heads,
        timing.layer.head_dim,
        timing.layer.rows,
        timing.layer.length
    );
    for times in &timing.forms {
        show(format_args!(
            "{names} {} | {:.3} | {:.0} | {:.3} | {:.0} |",
            times.form,
            1e3 * times.forward_s,
            times.forward_flops_per_s / 1e12,
            1e3 * times.backward_s,
            times.backward_flops_per_s / 1e12
        ));
    }
    if let Some(message) = &timing.message {
        show(format_args!("{names} {message} | | | | |"));
    }
}
