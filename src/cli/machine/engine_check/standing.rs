//! Standing of the built-in engine where its trials would run: what `backend: auto` goes by.

use serde::Serialize;

use super::check_run::{against_cpu, against_trl, limit};
use super::engine_gpu::EngineGpu;
use super::kept_verdict::Subject;
use super::verdict::{Reference, Verdict};
use crate::cli::options::backend::BackendName;
use crate::cli::options::compute::KernelArgs;
use crate::cli::processes::interpreter::Stack;
use crate::cli::terminal::output::tell;
use crate::report::duration;

/// How a verdict is come by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Asking {
    /// Takes what is kept, and none where nothing is.
    Kept,
    /// Takes what is kept, and checks where nothing is.
    Once,
    /// Checks, whatever is kept.
    Anew,
}

/// What the engine is asked beside a GPU: its kernels, the Python to be compared with, and whether it is checked now.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Beside<'a> {
    pub kernels: KernelArgs,
    /// The Python that has TRL; `None` where there is none.
    pub stack: Option<&'a Stack>,
    pub asking: Asking,
}

/// What is known of the engine where its trials would run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::cli) enum Standing {
    /// Trials run on the processor, in either engine.
    Cpu,
    /// Trials run on the processor, and would run on a GPU in TRL.
    WithoutGpu,
    /// Trials run on other machines, whose GPUs are not checked from here.
    Elsewhere,
    /// Trials run on a GPU that has not been held against all that it can be.
    Unchecked { gpu: String, against: Reference },
    /// Trials run on a GPU where all checks passed.
    Passed { gpu: String, verdicts: Vec<Verdict> },
    /// Trials would run on a GPU where a check failed.
    Failed { gpu: String, verdict: Verdict },
}

impl Standing {
    /// The engine on these GPUs; on the processor where there are none.
    pub(in crate::cli) fn on(gpus: &[EngineGpu], beside: Beside<'_>) -> Self {
        if gpus.is_empty() {
            let has_gpu = beside.stack.is_some_and(|stack| !stack.devices.is_empty());
            return if has_gpu { Self::WithoutGpu } else { Self::Cpu };
        }
        let mut verdicts = Vec::new();
        for gpu in gpus {
            let trl = beside.stack.filter(|stack| stack.has_device(&gpu.device));
            for stack in [None].into_iter().chain(trl.map(Some)) {
                let gpu_name = gpu.name.clone();
                match verdict_on(gpu, Beside { stack, ..beside }) {
                    Some(verdict) if verdict.has_passed() => verdicts.push(verdict),
                    Some(verdict) => return Self::Failed { gpu: gpu_name, verdict },
                    None => {
                        return Self::Unchecked {
                            gpu: gpu_name,
                            against: Reference::by(stack),
                        };
                    }
                }
            }
        }
        let names: Vec<&str> = gpus.iter().map(|gpu| gpu.name.as_str()).collect();
        Self::Passed {
            gpu: names.join(", "),
            verdicts,
        }
    }

    /// The engine to take where both can train a study.
    pub(in crate::cli) fn preferred(&self) -> BackendName {
        match self {
            Self::Cpu | Self::Elsewhere | Self::Passed { .. } => BackendName::Native,
            Self::WithoutGpu | Self::Unchecked { .. } | Self::Failed { .. } => BackendName::Trl,
        }
    }

    /// Reason why the engine is never taken, with what to do; `None` where it may be.
    pub(in crate::cli) fn lack(&self) -> Option<String> {
        matches!(self, Self::Failed { .. }).then(|| {
            format!(
                "{}; `peft-tune doctor --check` checks it again, and `--devices cpu` trains on the processor",
                self.text()
            )
        })
    }

    /// The standing in words.
    pub(in crate::cli) fn text(&self) -> String {
        match self {
            Self::Cpu => "trials run on the CPU".to_owned(),
            Self::WithoutGpu => {
                "PyTorch has a GPU here, and the built-in engine none that it can use (`peft-tune doctor` says why)"
                    .to_owned()
            }
            Self::Elsewhere => "trials run on other machines, whose GPUs are not checked from here".to_owned(),
            Self::Unchecked { gpu, against } => format!(
                "the built-in engine has not been checked against {} on {gpu} so far, which a search does first",
                against.text()
            ),
            Self::Passed { gpu, verdicts } => {
                let all: Vec<String> = verdicts.iter().map(Verdict::text).collect();
                format!("its checks on {gpu} passed: {}", all.join(", "))
            }
            Self::Failed { gpu, verdict } => {
                format!("it failed its check on {gpu}, {}", verdict.text())
            }
        }
    }
}

/// The verdict on a GPU against TRL in a Python, or against the CPU; `None` where there is none and none is to be made.
fn verdict_on(gpu: &EngineGpu, beside: Beside<'_>) -> Option<Verdict> {
    let Beside { kernels, stack, asking } = beside;
    let subject = Subject::new(gpu, kernels.form(), stack);
    let kept = match asking {
        Asking::Kept => return subject.kept(),
        Asking::Once => subject.kept(),
        Asking::Anew => None,
    };
    kept.or_else(|| Some(made(gpu, kernels, stack, &subject)))
}

/// A verdict that is made now and kept. Says what runs, how long it may take and how long it took.
fn made(gpu: &EngineGpu, kernels: KernelArgs, stack: Option<&Stack>, subject: &Subject) -> Verdict {
    let (name, against) = (&gpu.name, Reference::by(stack));
    tell(format_args!(
        "checking the built-in engine on {name} against {}, once for this GPU, its driver and this version: {} at most, which no budget \
         counts",
        against.text(),
        duration(limit().as_secs_f64())
    ));
    let made = match stack {
        None => against_cpu(gpu, kernels),
        Some(stack) => against_trl(gpu, kernels, stack),
    };
    let verdict = match made {
        Ok(verdict) => {
            if let Err(error) = subject.keep(&verdict) {
                tell(format_args!(
                    "warning: the verdict cannot be kept, and the check is made each time: {error}"
                ));
            }
            verdict
        }
        // What keeps a check from being made says nothing of the GPU for the next time.
        Err(error) => Verdict {
            against,
            compared: 0,
            failed: vec![format!("it cannot be made: {error}")],
            seconds: 0.0,
        },
    };
    match verdict.has_passed() {
        true => tell(format_args!("the built-in engine passed on {name}: {}", verdict.text())),
        false => tell(format_args!(
            "warning: the built-in engine failed on {name}, {}",
            verdict.text()
        )),
    }
    verdict
}
