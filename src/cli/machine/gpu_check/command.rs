//! `gpu-check`: is a device right, and how fast is it? For a machine with a GPU and no compiler.

use serde::Serialize;

use super::args::{Args, CheckPart};
use super::{attention, bench, graphs, literature, memory};
use crate::cli::CliError;
use crate::cli::terminal::output::show;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::check;
use peft_tune_engine::check::Check;
use peft_tune_kernels::device;
use peft_tune_kernels::{AttentionKernels, attention_kernels, longer_sums, set_kernels};

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
    /// What is not as on the CPU, a line each.
    failed: Vec<String>,
}

impl Results {
    /// What did not pass so far, in words.
    fn failures(&self) -> Vec<String> {
        let checks = self.parity.iter().filter(|check| !check.passed()).map(failure_of);
        let memory = self.memory.iter().filter(|outcome| !outcome.passed());
        let graphs = self.graphs.iter().filter(|one| !one.passed());
        checks
            .chain(memory.map(|outcome| format!("memory: {outcome}")))
            .chain(graphs.map(graphs::Comparison::failure))
            .collect()
    }
}

/// A comparison that did not pass, in words.
fn failure_of(check: &Check) -> String {
    let Check {
        name,
        error,
        allowed,
        message,
    } = check;
    match error {
        Some(error) => format!("{name}: {error:.1e} apart, and {allowed:.1e} is rounding"),
        None => format!("{name}: {}", message.as_deref().unwrap_or("no result")),
    }
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
        results.failed = results.failures();
        // What is known so far is kept, whatever comes.
        write(&args, &results)?;
    }
    report(&results)
}

fn write(args: &Args, results: &Results) -> Result<(), CliError> {
    let Some(path) = &args.json else { return Ok(()) };
    let text = serde_json::to_string_pretty(results).map_err(CliError::failed)?;
    write_whole(path, text.as_bytes(), true).map_err(CliError::failed)
}

fn report(results: &Results) -> Result<(), CliError> {
    let passed = results.parity.iter().filter(|check| check.passed()).count();
    if !results.parity.is_empty() {
        show(format_args!("parity: {passed} of {} passed", results.parity.len()));
    }
    if let Some(outcome) = &results.memory {
        show(format_args!("memory: {outcome}"));
    }
    match results.failed.first() {
        None => Ok(()),
        Some(first) => Err(CliError::failed(anyhow::anyhow!(
            "{} does not compute what the CPU does in {} of the checks, the first of them {first}",
            results.device,
            results.failed.len()
        ))),
    }
}
