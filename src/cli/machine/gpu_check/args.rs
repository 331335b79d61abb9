//! What `gpu-check` is asked for.

use std::path::PathBuf;

use super::setting::{Rows, Setting};
use super::shapes;
use crate::cli::options::compute::KernelArgs;
use crate::cli::options::count::counts;
use crate::cli::terminal::output::tell;

/// Compare a device with the CPU (every op, small models of every family, trainings of 20 steps), run out of memory on
/// purpose, and time models of real sizes with random weights. Fail where a comparison does.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Device to check.
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub(super) device: String,
    /// What to do.
    #[arg(long, value_delimiter = ',', default_values_t = [CheckPart::Parity, CheckPart::Memory], value_name = "PART")]
    pub(super) parts: Vec<CheckPart>,
    /// Models to time: names of shapes.
    #[arg(long, value_delimiter = ',', default_values_t = shapes::names(), value_name = "SHAPE")]
    pub(super) shapes: Vec<String>,
    /// Micro-batches to time, rows x tokens.
    #[arg(long, value_delimiter = ',', default_values = ["2x4096", "8x512"], value_name = "ROWSxTOKENS")]
    pub(super) batches: Vec<Rows>,
    /// Precisions to time.
    #[arg(long, value_delimiter = ',', default_values = ["bf16", "nf4"], value_name = "PRECISION")]
    pub(super) precisions: Vec<String>,
    /// Kinds of activation checkpointing to time.
    #[arg(long, value_delimiter = ',', default_values = ["none", "full"], value_name = "KIND")]
    pub(super) checkpointing: Vec<String>,
    /// Model of the table of the literature.
    #[arg(long, default_value = "llama-2-7b", value_name = "SHAPE")]
    pub(super) literature_shape: String,
    /// Micro-batch of the model of the literature, rows x tokens.
    #[arg(long, default_value = "8x512", value_name = "ROWSxTOKENS")]
    pub(super) literature_batch: Rows,
    /// Measured steps of each timing, after two others.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = counts::<usize>(0..=u64::MAX))]
    pub(super) steps: usize,
    #[command(flatten)]
    pub(super) kernels: KernelArgs,
    /// File for all results, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
}

/// A model to time, with the names of shape and precision that it was asked for by.
pub(super) struct AskedModel<'a> {
    pub(super) shape: &'a str,
    pub(super) precision: &'a str,
    pub(super) setting: Setting,
}

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum CheckPart {
    /// Results against those of the CPU.
    Parity,
    /// Out of memory, and a good training behind it.
    Memory,
    /// Attention of models of real sizes by itself, in each form of its kernels.
    Attention,
    /// Steps of models of real sizes.
    Bench,
    /// Steps replayed from CUDA graphs against the same steps launched op by op.
    Graphs,
    /// The table of the literature: all parameters in fp32, adapters on fp32, 16-bit and NF4 weights.
    Literature,
}

impl std::fmt::Display for CheckPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Parity => "parity",
            Self::Memory => "memory",
            Self::Attention => "attention",
            Self::Bench => "bench",
            Self::Graphs => "graphs",
            Self::Literature => "literature",
        })
    }
}

impl Args {
    /// Each shape in each precision. What nobody knows is told and left out.
    pub(super) fn models(&self) -> impl Iterator<Item = AskedModel<'_>> {
        let shapes = self.shapes.iter().filter_map(|shape| match shapes::config(shape) {
            Ok(config) => Some((shape, config)),
            Err(message) => {
                tell(format_args!("{message}"));
                None
            }
        });
        shapes.flat_map(|(shape, config)| {
            self.precisions.iter().filter_map(move |name| {
                let Ok(precision) = serde_json::from_value(serde_json::Value::String(name.clone())) else {
                    tell(format_args!("no precision `{name}`"));
                    return None;
                };
                let setting = Setting {
                    config,
                    precision,
                    ..Setting::tiny()
                };
                Some(AskedModel {
                    shape,
                    precision: name,
                    setting,
                })
            })
        })
    }
}
