//! Attention by itself, in every form of its kernels that the device has.

use serde::Serialize;

use super::Args;
use super::setting::{Rows, Setting};
use crate::train::TrainError;
use crate::train::check::{FormTimes, Layer, attention_times};
use crate::train::device::Device;

/// One layer and batch.
#[derive(Debug, Serialize)]
pub(super) struct Timing {
    shape: String,
    rows: usize,
    length: usize,
    query_heads: usize,
    key_heads: usize,
    head_dim: usize,
    forms: Vec<FormTimes>,
    /// Why there are none.
    message: Option<String>,
}

/// Times the layers of the shapes that were asked for, in BF16.
pub(super) fn run(args: &Args, device: &Device, timings: &mut Vec<Timing>) {
    if device.is_cpu() {
        println!("the CPU has no forms of attention to choose from: left out");
        return;
    }
    println!("| shape | heads | batch | form | forward ms | TFLOP/s | backward ms | TFLOP/s |");
    println!("|---|---|---|---|---:|---:|---:|---:|");
    let mut models: Vec<(&str, Setting)> = args.models().map(|(shape, _, setting)| (shape, setting)).collect();
    // One for each precision.
    models.dedup_by_key(|(shape, _)| *shape);
    for (shape, setting) in models {
        for rows in &args.batches {
            let timing = time(shape, &setting, *rows, device);
            print(&timing);
            timings.push(timing);
        }
    }
}

fn time(shape: &str, setting: &Setting, Rows { rows, length }: Rows, device: &Device) -> Timing {
    let mut timing = Timing {
        shape: shape.to_owned(),
        rows,
        length,
        query_heads: 0,
        key_heads: 0,
        head_dim: 0,
        forms: Vec::new(),
        message: None,
    };
    let mut time = || -> Result<(), TrainError> {
        let dimensions = setting.architecture()?;
        (timing.query_heads, timing.key_heads) = (dimensions.heads, dimensions.kv_heads);
        timing.head_dim = dimensions.head_dim;
        let layer = Layer {
            rows,
            length,
            query_heads: timing.query_heads,
            key_heads: timing.key_heads,
            head_dim: timing.head_dim,
        };
        timing.forms = attention_times(&layer, device)?;
        Ok(())
    };
    if let Err(error) = time() {
        timing.message = Some(error.to_string());
    }
    timing
}

fn print(timing: &Timing) {
    let names = format!(
        "| {} | {}/{} of {} | {}x{} |",
        timing.shape, timing.query_heads, timing.key_heads, timing.head_dim, timing.rows, timing.length
    );
    for times in &timing.forms {
        println!(
            "{names} {} | {:.3} | {:.0} | {:.3} | {:.0} |",
            times.form,
            1e3 * times.forward_s,
            times.forward_flops_per_s / 1e12,
            1e3 * times.backward_s,
            times.backward_flops_per_s / 1e12
        );
    }
    if let Some(message) = &timing.message {
        println!("{names} {message} | | | | |");
    }
}
