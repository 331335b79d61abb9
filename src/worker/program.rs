//! A program of the user's under way: what it prints, and how its end is read.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::TrialEvent;
use super::child::{ChildProcess, describe_end};
use super::not_a_number::is_no_number;
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
    /// The last line that was meant to be read and could not be; its beginning.
    pub(super) unread: Option<String>,
    /// Whether it was told that a step cannot be counted.
    pub(super) has_refused_step: bool,
    pub(super) stop: Option<Stop>,
    /// Time at which the program was found to have ended.
    pub(super) ended: Option<Instant>,
}

/// Request to the program to stop.
pub(super) struct Stop {
    at: Instant,
    cause: StopCause,
}

/// Reason why a program is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopCause {
    /// The trial was cancelled.
    Cancelled,
    /// The trial's time is up.
    TimedOut,
}

/// Time within which the output of a program has to be read once it has ended: another that it left behind may hold its
/// output.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// Characters that are shown of a line that could not be read.
const SHOWN_CHARACTERS: usize = 200;

/// Largest step that is read from a float: up to it each whole number has a float of its own.
const LARGEST_FLOAT_STEP: f64 = 9_007_199_254_740_992.0;

/// The object that the program prints in a line.
pub(super) type Printed = serde_json::Map<String, Value>;

/// What a line of the program says.
#[derive(Debug, PartialEq)]
enum Output {
    Step {
        step: u64,
        metrics: Values,
    },
    /// Metrics of a step that cannot be counted: neither a report nor the end.
    Uncounted {
        step: Value,
    },
    Outcome {
        outcome: Outcome,
        message: Option<String>,
    },
    Final {
        metrics: Values,
    },
}

/// Reported numbers; `null` (as many serialisers write NaN) and the names of numbers that are none have no value.
type Values = BTreeMap<String, Option<f64>>;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    OutOfMemory,
    Diverged,
    TimedOut,
    Invalid,
    Crashed,
}

impl Output {
    /// What an object says; `None` where it has none of the forms that a program may print.
    fn of(printed: &Printed) -> Option<Self> {
        let step = printed.get("step");
        let metrics = printed.get("metrics").and_then(values_of);
        let outcome = printed
            .get("outcome")
            .and_then(|outcome| Outcome::deserialize(outcome).ok());
        match (step.and_then(count_of), outcome, step, metrics) {
            (Some(step), _, _, Some(metrics)) => Some(Self::Step { step, metrics }),
            (_, Some(outcome), _, _) => {
                let message = printed.get("message").and_then(Value::as_str).map(str::to_owned);
                Some(Self::Outcome { outcome, message })
            }
            (None, None, Some(step), Some(_)) => Some(Self::Uncounted { step: step.clone() }),
            (None, None, None, Some(metrics)) => Some(Self::Final { metrics }),
            (_, None, _, None) => None,
        }
    }
}

/// A step as it is counted: a whole number, also one that is written as a float, that the database can hold.
fn count_of(step: &Value) -> Option<u64> {
    let is_whole = |step: &f64| step.fract() == 0.0 && (0.0..=LARGEST_FLOAT_STEP).contains(step);
    let of_float = || step.as_f64().filter(is_whole).map(|step| step as u64);
    let count = step.as_u64().or_else(of_float);
    count.filter(|step| i64::try_from(*step).is_ok())
}

/// Reported values; `None` where one is neither a number nor the name of one that is none.
fn values_of(metrics: &Value) -> Option<Values> {
    let value_of = |value: &Value| match value {
        Value::Null => Some(None),
        Value::Number(number) => Some(number.as_f64()),
        Value::String(text) if is_no_number(text) => Some(None),
        _ => None,
    };
    let values = metrics.as_object()?.iter();
    values
        .map(|(name, value)| Some((name.clone(), value_of(value)?)))
        .collect()
}

impl RunningProgram {
    /// Takes in an object that the program printed, and returns the report that it holds.
    pub(super) fn take(&mut self, printed: &Printed) -> Option<TrialEvent> {
        match Output::of(printed) {
            Some(Output::Step { step, metrics }) => {
                self.last_step = step;
                let metrics = self.keep(metrics);
                let number = self.number;
                return Some(TrialEvent::Report { number, step, metrics });
            }
            Some(Output::Final { metrics }) => {
                self.keep(metrics);
                let metrics = self.metrics.clone();
                self.ending = Some(TrialState::Complete { metrics });
            }
            Some(Output::Outcome { outcome, message }) => {
                let reason = self.reason(outcome, message);
                let metrics = self.metrics.clone();
                self.ending = Some(TrialState::Failed { reason, metrics });
            }
            Some(Output::Uncounted { step }) => {
                self.refuse_step(&step);
                self.note_unread(&serde_json::to_string(printed).unwrap_or_default());
            }
            None => self.note_unread(&serde_json::to_string(printed).unwrap_or_default()),
        }
        None
    }

    /// Notes a line that says nothing of the trial, and keeps its beginning where it was meant to: it looks like an object.
    pub(super) fn note_unread(&mut self, line: &str) {
        tracing::debug!(line, "ignored a line of the trial's program");
        if line.trim_start().starts_with('{') {
            self.unread = Some(line.trim().chars().take(SHOWN_CHARACTERS).collect());
        }
    }

    /// Tells once a trial that metrics are lost because of their step.
    fn refuse_step(&mut self, step: &Value) {
        if !std::mem::replace(&mut self.has_refused_step, true) {
            tracing::warn!(
                trial = self.number.0,
                %step,
                "ignored metrics of the trial's program whose `step` is no whole number that can be counted"
            );
        }
    }

    /// Adds reported values and returns those that are numbers.
    fn keep(&mut self, values: Values) -> Metrics {
        let mut reported = Metrics::default();
        for (name, value) in values {
            let Some(value) = value else { continue };
            if reported.insert(name.clone(), value) {
                self.metrics.insert(name, value);
            }
        }
        reported
    }

    fn reason(&self, outcome: Outcome, message: Option<String>) -> FailReason {
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
                cause: None,
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
            self.ask_to_stop(StopCause::TimedOut);
        }
        if self.stop.as_ref().is_some_and(|stop| stop.at.elapsed() >= grace) {
            self.child.kill();
        }
    }

    pub(super) fn ask_to_stop(&mut self, cause: StopCause) {
        if self.stop.is_none() {
            self.child.terminate();
            self.stop = Some(Stop {
                at: Instant::now(),
                cause,
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
            (
                Some(Stop {
                    cause: StopCause::TimedOut,
                    ..
                }),
                _,
            ) => TrialState::Failed {
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
                let how = describe_end(status, tail);
                let message = match &self.unread {
                    Some(line) => format!("{how} (the last line that could not be read: {line})"),
                    None => how,
                };
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
