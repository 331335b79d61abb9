//! A program of the user's under way: what it prints, and how its end is read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::TrialEvent;
use super::child::{ChildProcess, describe_end};
use peft_tune_core::study::{FailReason, Metrics, Phase, TrialNumber, TrialState};

/// The program under way.
pub(super) struct RunningProgram {
    pub(super) number: TrialNumber,
    /// Number under which the program's lines come.
    pub(super) serial: u64,
    pub(super) child: ChildProcess,
    pub(super) started: Instant,
    pub(super) time_limit_s: Option<f64>,
    pub(super) last_step: u64,
    /// Metrics that were reported so far; later values replace earlier ones.
    pub(super) metrics: Metrics,
    /// End that the program told of itself.
    pub(super) ending: Option<TrialState>,
    pub(super) stop: Option<Stop>,
    /// Time at which the program was found to have ended.
    pub(super) ended: Option<Instant>,
}

/// Request to the program to stop: when it was made, and why.
pub(super) struct Stop {
    pub(super) at: Instant,
    pub(super) timed_out: bool,
}

/// Time within which the output of a program has to be read once it has ended: another that it left behind may hold its
/// output.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// A line that the program prints.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Output {
    Step { step: u64, metrics: Values },
    Outcome { outcome: Outcome, message: Option<String> },
    Final { metrics: Values },
}

/// Reported numbers; `null` (as many serialisers write NaN) is not a number.
pub(super) type Values = BTreeMap<String, Option<f64>>;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    OutOfMemory,
    Diverged,
    TimedOut,
    Invalid,
    Crashed,
}

impl RunningProgram {
    /// Adds reported values and returns those that are numbers.
    pub(super) fn keep(&mut self, values: Values) -> Metrics {
        let mut reported = Metrics::default();
        for (name, value) in values {
            let Some(value) = value else { continue };
            if reported.insert(name.clone(), value) {
                self.metrics.insert(name, value);
            }
        }
        reported
    }

    pub(super) fn reason(&self, outcome: Outcome, message: Option<String>) -> FailReason {
        let phase = Phase::Train;
        let message = message.unwrap_or_else(|| "the program gave no message".to_owned());
        match outcome {
            Outcome::OutOfMemory => FailReason::OutOfMemory {
                phase,
                in_use_bytes: None,
                requested_bytes: None,
                limit_bytes: None,
            },
            Outcome::Diverged => FailReason::Diverged {
                at_step: self.last_step,
                loss: self.metrics.value("loss"),
            },
            Outcome::TimedOut => FailReason::TimedOut {
                phase,
                after_s: self.started.elapsed().as_secs_f64(),
            },
            Outcome::Invalid => FailReason::Invalid { message },
            Outcome::Crashed => FailReason::Crashed { phase, message },
        }
    }

    /// Asks the program to stop, and kills it when it does not.
    pub(super) fn enforce_stop(&mut self, grace: Duration) {
        let limit = self
            .time_limit_s
            .and_then(|limit| Duration::try_from_secs_f64(limit).ok());
        if self.stop.is_none() && limit.is_some_and(|limit| self.started.elapsed() >= limit) {
            self.ask_to_stop(true);
        }
        if self.stop.as_ref().is_some_and(|stop| stop.at.elapsed() >= grace) {
            self.child.kill();
        }
    }

    pub(super) fn ask_to_stop(&mut self, timed_out: bool) {
        if self.stop.is_none() {
            self.child.terminate();
            self.stop = Some(Stop {
                at: Instant::now(),
                timed_out,
            });
        }
    }

    /// Ends what the program left behind once it has ended. Returns whether nothing more is to be waited for: something
    /// that left its process group may hold its output for ever.
    pub(super) fn is_over(&mut self) -> bool {
        match self.ended {
            None if self.child.has_ended() => {
                self.child.end_group();
                self.ended = Some(Instant::now());
                false
            }
            None => false,
            Some(ended) => ended.elapsed() >= READ_WITHIN,
        }
    }

    pub(super) fn end(mut self, tail: &str) -> TrialEvent {
        let status = self.child.wait();
        let metrics = self.metrics.clone();
        let wall_s = self.started.elapsed().as_secs_f64();
        let phase = Phase::Train;
        let state = match (&self.stop, self.ending.take()) {
            (Some(Stop { timed_out: true, .. }), _) => TrialState::Failed {
                reason: FailReason::TimedOut { phase, after_s: wall_s },
                metrics,
            },
            (Some(_), _) => TrialState::Pruned {
                at_step: self.last_step,
                rule: "stopped".to_owned(),
                metrics,
            },
            (None, Some(ending)) => ending,
            (None, None) => {
                let message = describe_end(status, tail);
                TrialState::Failed {
                    reason: FailReason::Crashed { phase, message },
                    metrics,
                }
            }
        };
        TrialEvent::Ended {
            number: self.number,
            state,
            wall_s,
        }
    }
}
