//! Faults that a worker causes on purpose, so that tests meet the real thing: a process that is really dead, really hangs,
//! or is really out of memory.
//!
//! `PEFT_TUNE_FAULT=KIND:WHERE[,trial=N][,attempts=N]`, where `WHERE` is a phase (`load`, `profile`, `train`, `evaluate`) or
//! `start` (before the greeting), and `KIND` is one of [`Kind`]. `trial` limits it to one trial, `attempts` to a trial's
//! first so many attempts.

use super::{MemoryLimiter, TrialRequest, memory_limiter};
use peft_tune_core::study::Phase;
use peft_tune_engine::profile::HostMemory;
use peft_tune_kernels::Kernels;

/// The fault to cause, if any.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fault(Option<Plan>);

#[derive(Clone, Debug, PartialEq)]
struct Plan {
    kind: Kind,
    /// Phase in which the fault is caused; `None` is the start of the process.
    phase: Option<Phase>,
    trial: Option<u64>,
    attempts: Option<u64>,
}

/// Kinds of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The computing thread stands still; heartbeats continue.
    Hang,
    /// The whole process stands still.
    Freeze,
    /// The process aborts.
    Crash,
    /// The process is killed from outside, as the kernel does when memory runs out.
    Kill,
    /// The process ends without a word, with exit code 0.
    Exit,
    Panic,
    /// More is allocated than the trial may have.
    Oom,
    /// More is allocated than the process may have, past the count of the allocator.
    OomSystem,
    /// The training loss is NaN.
    Nan,
    /// Lines that are no messages, one of them not whole.
    Garble,
    /// A kernel fails, in every form of the ops but plain tensor ops. Made-up trials alone meet it.
    Trap,
    /// The machine says that another program takes half of each processor.
    Busy,
}

/// Bytes of a block that is asked for on the way out of memory.
const BLOCK: usize = 32 << 20;
/// Bytes at which a process gives up running out of memory: there is no limit.
const ENOUGH: usize = 6 << 30;

impl Fault {
    /// Reads a fault and causes it at once where it belongs to the start.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub(super) fn read(text: Option<&str>) -> Result<Self, String> {
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(Self::default());
        };
        let wrong = || format!("PEFT_TUNE_FAULT: `{text}` is not KIND:WHERE[,trial=N][,attempts=N]");
        let mut parts = text.split(',');
        let (kind, place) = parts.next().and_then(|first| first.split_once(':')).ok_or_else(wrong)?;
        let mut plan = Plan {
            kind: Kind::of(kind).ok_or_else(wrong)?,
            phase: match place {
                "start" => None,
                "load" => Some(Phase::Load),
                "profile" => Some(Phase::Profile),
                "train" => Some(Phase::Train),
                "evaluate" => Some(Phase::Evaluate),
                _ => return Err(wrong()),
            },
            trial: None,
            attempts: None,
        };
        for part in parts {
            let (name, value) = part.split_once('=').ok_or_else(wrong)?;
            let value = value.parse().map_err(|_| wrong())?;
            match name {
                "trial" => plan.trial = Some(value),
                "attempts" => plan.attempts = Some(value),
                _ => return Err(wrong()),
            }
        }
        if plan.phase.is_none() {
            plan.kind.cause();
        }
        Ok(Self(Some(plan)))
    }

    /// Causes the fault where it belongs to this phase of this trial.
    pub(super) fn at(&self, request: &TrialRequest, phase: Phase) {
        let is_met_later = |plan: &&Plan| matches!(plan.kind, Kind::Nan | Kind::Trap | Kind::Busy);
        if let Some(plan) = self.meant(request, phase).filter(|plan| !is_met_later(plan)) {
            plan.kind.cause();
        }
    }

    /// Whether the training loss of this phase is to be NaN.
    pub(super) fn spoils_loss(&self, request: &TrialRequest, phase: Phase) -> bool {
        self.meant(request, phase).is_some_and(|plan| plan.kind == Kind::Nan)
    }

    /// Whether a kernel is to fail in this phase.
    pub(super) fn traps(&self, request: &TrialRequest, phase: Phase) -> bool {
        let is_plain = request.kernels == Some(Kernels::Reference);
        !is_plain && self.meant(request, phase).is_some_and(|plan| plan.kind == Kind::Trap)
    }

    /// Whether the machine is to look busy in this phase.
    pub(super) fn makes_busy(&self, request: &TrialRequest, phase: Phase) -> bool {
        self.meant(request, phase).is_some_and(|plan| plan.kind == Kind::Busy)
    }

    fn meant(&self, request: &TrialRequest, phase: Phase) -> Option<&Plan> {
        // A rehearsal is no trial; a fault that names one means a trial.
        self.0.as_ref().filter(|plan| {
            plan.phase == Some(phase)
                && !request.number.is_rehearsal()
                && plan.trial.is_none_or(|trial| trial == request.number.0)
                && plan.attempts.is_none_or(|attempts| request.attempt <= attempts)
        })
    }
}

impl Kind {
    fn of(name: &str) -> Option<Self> {
        Some(match name {
            "hang" => Self::Hang,
            "freeze" => Self::Freeze,
            "crash" => Self::Crash,
            "kill" => Self::Kill,
            "exit" => Self::Exit,
            "panic" => Self::Panic,
            "oom" => Self::Oom,
            "oom_system" => Self::OomSystem,
            "nan" => Self::Nan,
            "garble" => Self::Garble,
            "trap" => Self::Trap,
            "busy" => Self::Busy,
            _ => return None,
        })
    }

    #[expect(clippy::panic, reason = "a panic is what was asked for")]
    fn cause(self) {
        match self {
            Self::Hang => loop {
                std::thread::park();
            },
            Self::Freeze => signal_self(Signal::Stop),
            Self::Crash => std::process::abort(),
            Self::Kill => signal_self(Signal::Kill),
            Self::Exit => std::process::exit(0),
            Self::Panic => panic!("a fault that was asked for"),
            Self::Oom => fill_memory(false),
            Self::OomSystem => {
                HostMemory::set_limit(None);
                // A control group counts what is touched, the limit on address space what is reserved.
                fill_memory(memory_limiter() == MemoryLimiter::Cgroup);
            }
            Self::Nan | Self::Trap | Self::Busy => {}
            Self::Garble => {
                use std::io::Write;
                let mut output = std::io::stdout().lock();
                let _ = output.write_all(b"not a message\n{\"event\":\"phase\",\"num\n");
                let _ = output.flush();
            }
        }
    }
}

enum Signal {
    Stop,
    Kill,
}

fn signal_self(signal: Signal) {
    let signal = match signal {
        Signal::Stop => libc::SIGSTOP,
        Signal::Kill => libc::SIGKILL,
    };
    // SAFETY: raising a signal has no precondition.
    unsafe { libc::raise(signal) };
}

/// Asks for memory until there is no more. Where it need not be touched the machine has it still.
fn fill_memory(touched: bool) {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    while blocks.len() * BLOCK < ENOUGH {
        let mut block = Vec::with_capacity(BLOCK);
        if touched {
            block.resize(BLOCK, 1);
        }
        blocks.push(std::hint::black_box(block));
    }
    drop(blocks);
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::super::Task;
    use super::*;
    use peft_tune_core::study::{Params, TrialNumber};

    fn request(number: u64, attempt: u64) -> TrialRequest {
        TrialRequest {
            number: TrialNumber(number),
            attempt,
            task: Task::Params {
                params: Params::new(),
                seed: 0,
                steps: None,
            },
            memory_limit_bytes: None,
            time_limit_s: None,
            kernels: None,
            assignments: Vec::new(),
            pairing: None,
            first_adapter: None,
        }
    }

    #[test]
    fn a_fault_is_meant_for_its_phase_trial_and_attempts() {
        let fault = Fault::read(Some("nan:train,trial=3,attempts=2")).unwrap();
        assert!(fault.spoils_loss(&request(3, 2), Phase::Train));
        assert!(!fault.spoils_loss(&request(3, 3), Phase::Train));
        assert!(!fault.spoils_loss(&request(2, 1), Phase::Train));
        assert!(!fault.spoils_loss(&request(3, 1), Phase::Profile));
        assert_eq!(Fault::read(None).unwrap(), Fault::default());
    }

    #[test]
    fn what_is_no_fault_is_refused() {
        for text in [
            "hang",
            "hang:there",
            "melt:train",
            "hang:train,x=1",
            "hang:train,trial=x",
        ] {
            assert!(Fault::read(Some(text)).is_err(), "{text}");
        }
    }
}
