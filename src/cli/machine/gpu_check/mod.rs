//! `gpu-check`: is a device right, and how fast is it? For a machine with a GPU and no compiler.

mod attention;
mod bench;
mod graphs;
mod literature;
mod memory;
mod setting;
mod shapes;

use std::path::PathBuf;

use serde::Serialize;

use crate::cli::CliError;
use crate::cli::options::compute::KernelArgs;
use crate::cli::options::count::counts;
use crate::cli::terminal::output::{show, tell};
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::check;
use peft_tune_engine::check::Check;
use peft_tune_kernels::device;
use peft_tune_kernels::{AttentionKernels, attention_kernels, longer_sums, set_kernels};
use setting::Setting;

/// Compare a device with the CPU (every op, small models of every family, trainings of 20 steps), run out of memory on
/// purpose, and time models of real sizes with random weights. Fail where a comparison does.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Device to check.
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    device: String,
    /// What to do.
    #[arg(long, value_delimiter = ',', default_values_t = [CheckPart::Parity, CheckPart::Memory], value_name = "PART")]
    parts: Vec<CheckPart>,
    /// Models to time: names of shapes.
    #[arg(long, value_delimiter = ',', default_values_t = shapes::names(), value_name = "SHAPE")]
    shapes: Vec<String>,
    /// Micro-batches to time, rows x tokens.
    #[arg(long, value_delimiter = ',', default_values = ["2x4096", "8x512"], value_name = "ROWSxTOKENS")]
    batches: Vec<setting::Rows>,
    /// Precisions to time.
    #[arg(long, value_delimiter = ',', default_values = ["bf16", "nf4"], value_name = "PRECISION")]
    precisions: Vec<String>,
    /// Kinds of activation checkpointing to time.
    #[arg(long, value_delimiter = ',', default_values = ["none", "full"], value_name = "KIND")]
    checkpointing: Vec<String>,
    /// Model of the table of the literature.
    #[arg(long, default_value = "llama-2-7b", value_name = "SHAPE")]
    literature_shape: String,
    /// Its micro-batch, rows x tokens.
    #[arg(long, default_value = "8x512", value_name = "ROWSxTOKENS")]
    literature_batch: setting::Rows,
    /// Measured steps of each timing, after two others.
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = counts::<usize>(0..=u64::MAX))]
    steps: usize,
    #[command(flatten)]
    kernels: KernelArgs,
    /// File for all results, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A part of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CheckPart {
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

/// All results.
#[derive(Debug, Default, Serialize)]
struct Results {
    device: String,
    /// What the driver calls it.
    name: Option<String>,
    /// Form of the ops, and the fastest kernels that attention ran in.
    kernels: &'static str,
    attention_kernels: Option<&'static str>,
    /// Whether products of quantized weights took those of adapters along.
    longer_sums: bool,
    parity: Vec<Check>,
    memory: Option<memory::Outcome>,
    attention: Vec<attention::Timing>,
    bench: Vec<bench::Timing>,
    graphs: Vec<graphs::Comparison>,
    literature: Vec<literature::Row>,
}

/// Runs the subcommand.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    set_kernels(args.kernels.form());
    let device = device::open(&args.device).map_err(CliError::bad_input)?;
    let mut results = Results {
        device: format!("{:?}", device.location()),
        name: device::facts(&device).map(|facts| facts.name),
        kernels: args.kernels.form().name(),
        ..Results::default()
    };
    for part in &args.parts {
        match part {
            CheckPart::Parity => results.parity = check::all(&device, &mut |check| show(format_args!("{check}"))),
            CheckPart::Memory => results.memory = Some(memory::run(&device)),
            CheckPart::Attention => attention::run(&args, &device, &mut results.attention),
            CheckPart::Bench => bench::run(&args, &device, &mut results.bench),
            CheckPart::Graphs => graphs::run(&args, &device, &mut results.graphs),
            CheckPart::Literature => literature::run(&args, &device, &mut results.literature)
                .map_err(|message| CliError::bad_input(anyhow::anyhow!(message)))?,
        }
        results.attention_kernels = attention_kernels().map(AttentionKernels::name);
        results.longer_sums = longer_sums();
        // What is known so far is kept, whatever comes.
        write(&args, &results)?;
    }
    report(&results)
}

impl Args {
    /// Each shape in each precision, with the names that they were asked for by. What nobody knows is told and left out.
    fn models(&self) -> impl Iterator<Item = (&str, &str, Setting)> {
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
                Some((shape.as_str(), name.as_str(), setting))
            })
        })
    }
}

fn write(args: &Args, results: &Results) -> Result<(), CliError> {
    let Some(path) = &args.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(results).map_err(CliError::failed)?;
    write_whole(path, text.as_bytes(), true).map_err(CliError::failed)
}

fn report(results: &Results) -> Result<(), CliError> {
    let failed = results.parity.iter().filter(|check| !check.passed()).count();
    if !results.parity.is_empty() {
        show(format_args!(
            "parity: {} of {} passed",
            results.parity.len() - failed,
            results.parity.len()
        ));
    }
    let memory_failed = results.memory.as_ref().is_some_and(|outcome| !outcome.passed());
    if let Some(outcome) = &results.memory {
        show(format_args!("memory: {outcome}"));
    }
    let graphs_failed = results.graphs.iter().any(|one| !one.passed());
    match failed > 0 || memory_failed || graphs_failed {
        true => Err(CliError::failed(anyhow::anyhow!(
            "{} on {} does not compute what the CPU does",
            failed,
            results.device
        ))),
        false => Ok(()),
    }
}
