//! Checks of the built-in engine on a GPU, each in a process of its own with a limit: code that crashes, hangs or runs out of
//! memory on the device fails its check, and ends nothing else.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::engine_gpu::{EngineGpu, checker};
use super::verdict::{Reference, Verdict};
use crate::cli::CliError;
use crate::cli::exit_codes::BAD_INPUT;
use crate::cli::options::compute::KernelArgs;
use crate::cli::processes::interpreter::Stack;
use crate::cli::processes::printed::{last_words, output_within};
use crate::report::duration;
use peft_tune_core::recipe::Precision;

/// Time that a check may take: kernels are compiled in the first one on a machine.
const LIMIT: Duration = Duration::from_secs(300);
/// Variable that gives another limit.
const LIMIT_VARIABLE: &str = "PEFT_TUNE_GPU_CHECK_SECONDS";
/// Precisions that steps are compared with TRL in: of the tightest bound, and of most trials.
const PRECISIONS: [Precision; 2] = [Precision::Fp32, Precision::Bf16];

/// A process that ended, or was ended.
struct Ran {
    /// What it printed; `None` where its time was over.
    output: Option<Output>,
    seconds: f64,
}

/// Results of `gpu-check`, as far as they are read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Results {
    parity: Vec<IgnoredAny>,
    memory: Option<IgnoredAny>,
    failed: Vec<String>,
}

/// Results of `check`, as far as they are read.
#[derive(Debug, Deserialize)]
struct Comparison {
    agrees: bool,
    reasons: Vec<String>,
}

/// Time that a check may take.
pub(super) fn limit() -> Duration {
    let given = std::env::var(LIMIT_VARIABLE).ok();
    let seconds = given.and_then(|text| text.parse().ok());
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    limit.unwrap_or(LIMIT)
}

/// Holds each op, small models of every family and running out of memory on a GPU against the CPU.
///
/// # Errors
/// Where no process can be started.
pub(super) fn against_cpu(gpu: &EngineGpu, kernels: KernelArgs) -> Result<Verdict, CliError> {
    let folder = tempfile::tempdir().map_err(CliError::failed)?;
    let file = folder.path().join("results.json");
    let mut command = checker().map_err(CliError::failed)?;
    command
        .args(["gpu-check", "--device", &gpu.device, "--json"])
        .arg(&file)
        .args(kernels.words());
    let limit = limit();
    let ran = run(command, limit)?;
    let found = results_in(&file);
    let compared = found.parity.len() + usize::from(found.memory.is_some());
    let failed = match ran.output {
        _ if !found.failed.is_empty() => found.failed,
        None => vec![too_late(limit)],
        Some(output) if output.status.success() && compared > 0 => Vec::new(),
        Some(output) => vec![ended(&output)],
    };
    Ok(Verdict {
        against: Reference::Cpu,
        compared,
        failed,
        seconds: ran.seconds,
    })
}

/// Holds steps of the quickstart's model on a GPU against those of TRL there.
///
/// # Errors
/// Where no process can be started; bad input to one, which compares nothing.
pub(super) fn against_trl(gpu: &EngineGpu, kernels: KernelArgs, stack: &Stack) -> Result<Verdict, CliError> {
    let limit = limit();
    let mut verdict = Verdict {
        against: Reference::Trl,
        compared: 0,
        failed: Vec::new(),
        seconds: 0.0,
    };
    for precision in PRECISIONS {
        let name = precision.name();
        let mut command = checker().map_err(CliError::failed)?;
        command
            .args(["check", "--backend", "trl", "--json", "--device", &gpu.device])
            .args(["--precision", name, "--python"])
            .arg(&stack.interpreter)
            .args(kernels.words());
        let left = limit.saturating_sub(Duration::from_secs_f64(verdict.seconds));
        let ran = run(command, left)?;
        verdict.seconds += ran.seconds;
        let Some(output) = ran.output else {
            verdict.failed.push(format!("{name}: {}", too_late(limit)));
            break;
        };
        match serde_json::from_slice::<Comparison>(&output.stdout) {
            Ok(found) if found.agrees => verdict.compared += 1,
            Ok(found) => {
                verdict.compared += 1;
                let reasons = found.reasons.iter().map(|reason| format!("{name}: {reason}"));
                verdict.failed.extend(reasons);
            }
            // What keeps a comparison from being made, such as a model that is not here, says nothing of the GPU.
            Err(_) if output.status.code() == Some(i32::from(BAD_INPUT)) => {
                return Err(CliError::bad(format!("{name}: {}", ended(&output))));
            }
            Err(_) => verdict.failed.push(format!("{name}: {}", ended(&output))),
        }
    }
    Ok(verdict)
}

/// Runs a command to its end, or for so long.
fn run(command: Command, limit: Duration) -> Result<Ran, CliError> {
    let began = Instant::now();
    let output = output_within(command, limit).map_err(CliError::failed)?;
    Ok(Ran {
        output,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// What a file of results has; nothing where it is not there or cannot be read.
fn results_in(file: &Path) -> Results {
    let text = std::fs::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn too_late(limit: Duration) -> String {
    format!("it was not done within {}", duration(limit.as_secs_f64()))
}

/// How a process ended that told no results, with the last that it did and said.
fn ended(output: &Output) -> String {
    let last =
        |words: &str, printed: &[u8]| last_words(printed).map_or_else(String::new, |line| format!("{words}{line}"));
    format!(
        "it ended with {}{}{}",
        output.status,
        last(", behind ", &output.stdout),
        last(": ", &output.stderr)
    )
}
