//! Runs a program of the user's for each trial, so that anything that prints numbers can be tuned.
//!
//! The program gets one JSON object on its standard input, `{"params": {...}, "trial": n, "seed": n}` (with `"steps": n`
//! where the study file says how long a whole trial is), and prints JSON
//! lines: `{"step": n, "metrics": {...}}` as often as it likes, and at the end `{"metrics": {...}}`, or
//! `{"outcome": "out_of_memory"}` (`diverged`, `timed_out`, `invalid`, `crashed`; with an optional `message`). Lines that
//! are not JSON objects of these forms are passed over, so a chatty trainer needs no change. Any other end is a crash,
//! stored with the tail of its standard error. A trial that is stopped gets SIGTERM, and SIGKILL five seconds later.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::child::{ChildProcess, Line, Surroundings, describe_end};
use super::{Evaluator, EvaluatorError, Task, TrialEvent, TrialRequest};
use crate::study::{FailReason, Metrics, Params, Phase, TrialNumber, TrialState};

/// How often the clock is looked at while the program is silent.
const TICK: Duration = Duration::from_millis(50);
/// How long a stopped program may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// An evaluator that runs one program a trial.
pub struct CommandEvaluator {
    command: Vec<String>,
    surroundings: Surroundings,
    /// How long a stopped program may take to end by itself.
    grace: Duration,
    current: Option<Current>,
}

/// The program under way.
struct Current {
    number: TrialNumber,
    child: ChildProcess<Output>,
    started: Instant,
    time_limit_s: Option<f64>,
    last_step: u64,
    /// Everything reported so far; later values replace earlier ones.
    metrics: Metrics,
    /// How the program said that it ended.
    ending: Option<TrialState>,
    stop: Option<Stop>,
}

/// Why and when the program was asked to stop.
struct Stop {
    at: Instant,
    timed_out: bool,
}

/// What the program gets.
#[derive(Serialize)]
struct Input<'a> {
    params: &'a Params,
    trial: TrialNumber,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
}

/// What the program prints.
#[derive(Deserialize)]
#[serde(untagged)]
enum Output {
    Step { step: u64, metrics: Values },
    Outcome { outcome: Outcome, message: Option<String> },
    Final { metrics: Values },
}

/// Reported numbers; `null` (as many serialisers write NaN) is no number.
type Values = BTreeMap<String, Option<f64>>;

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    OutOfMemory,
    Diverged,
    TimedOut,
    Invalid,
    Crashed,
}

impl CommandEvaluator {
    /// An evaluator that runs `command` (program and arguments) in `folder` with the environment variables `env` for
    /// each trial.
    pub fn new(command: Vec<String>, folder: PathBuf, env: BTreeMap<String, String>) -> Self {
        Self {
            command,
            surroundings: Surroundings {
                folder: Some(folder),
                env,
            },
            grace: GRACE,
            current: None,
        }
    }

    fn take_line(&mut self, line: Line<Output>) -> Option<TrialEvent> {
        let current = self.current.as_mut()?;
        match line {
            Line::Message(Output::Step { step, metrics }) => {
                current.last_step = step;
                let metrics = current.keep(metrics);
                Some(TrialEvent::Report {
                    number: current.number,
                    step,
                    metrics,
                })
            }
            Line::Message(Output::Final { metrics }) => {
                current.keep(metrics);
                current.ending = Some(TrialState::Complete {
                    metrics: current.metrics.clone(),
                });
                None
            }
            Line::Message(Output::Outcome { outcome, message }) => {
                let reason = current.reason(outcome, message);
                current.ending = Some(TrialState::Failed {
                    reason,
                    metrics: current.metrics.clone(),
                });
                None
            }
            Line::Garbled(text) => {
                tracing::debug!(line = text, "passed over a line of the trial's program");
                None
            }
            Line::Closed(tail) => self.current.take().map(|current| current.end(&tail)),
        }
    }
}

impl Current {
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
    fn enforce_stop(&mut self, grace: Duration) {
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

    fn ask_to_stop(&mut self, timed_out: bool) {
        if self.stop.is_none() {
            self.child.terminate();
            self.stop = Some(Stop {
                at: Instant::now(),
                timed_out,
            });
        }
    }

    fn end(mut self, tail: &str) -> TrialEvent {
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

impl Evaluator for CommandEvaluator {
    fn capacity(&self) -> usize {
        1
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        if self.current.is_some() {
            return Err(EvaluatorError::Full { capacity: 1 });
        }
        let Task::Params { params, seed, steps } = &request.task else {
            return Err(EvaluatorError::Unsupported { task: "a recipe" });
        };
        let Some((program, arguments)) = self.command.split_first() else {
            let source = std::io::Error::other("the command is empty");
            return Err(EvaluatorError::Start {
                program: String::new(),
                source,
            });
        };
        let mut child = ChildProcess::start(program.as_ref(), arguments, &self.surroundings)?;
        // A program that does not read its input is not wrong: the params may reach it another way.
        if let Err(error) = child.send(&Input {
            params,
            trial: request.number,
            seed: *seed,
            steps: *steps,
        }) {
            tracing::debug!(%error, "the trial's program does not read its input");
        }
        child.close_input();
        self.current = Some(Current {
            number: request.number,
            child,
            started: Instant::now(),
            time_limit_s: request.time_limit_s,
            last_step: 0,
            metrics: Metrics::default(),
            ending: None,
            stop: None,
        });
        Ok(())
    }

    fn next_event(&mut self, timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        let deadline = Instant::now() + timeout;
        loop {
            let Some(current) = &mut self.current else {
                return Ok(None);
            };
            current.enforce_stop(self.grace);
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(line) = current.child.next_line(left.min(TICK)) else {
                if left.is_zero() {
                    return Ok(None);
                }
                continue;
            };
            if let Some(event) = self.take_line(line) {
                return Ok(Some(event));
            }
        }
    }

    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError> {
        if let Some(current) = self.current.as_mut().filter(|current| current.number == number) {
            current.ask_to_stop(false);
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;

    fn run(script: &str, time_limit_s: Option<f64>) -> (Vec<TrialEvent>, TrialState) {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let mut evaluator = CommandEvaluator::new(command, std::env::temp_dir(), BTreeMap::new());
        let params = Params::from([("x".to_owned(), 0.5.into())]);
        let task = Task::Params {
            params,
            seed: 3,
            steps: None,
        };
        let request = TrialRequest {
            number: TrialNumber(7),
            task,
            memory_limit_bytes: None,
            time_limit_s,
        };
        evaluator.submit(request).unwrap();
        let mut events = Vec::new();
        loop {
            match evaluator.next_event(Duration::from_secs(10)).unwrap() {
                Some(TrialEvent::Ended { state, .. }) => return (events, state),
                Some(event) => events.push(event),
                None => panic!("no event in ten seconds"),
            }
        }
    }

    #[test]
    fn the_program_gets_its_params_and_its_metrics_are_kept() {
        let script = r#"read line; echo "$line" | grep -q '"x":0.5.*"trial":7.*"seed":3' && echo 'noise'
            echo '{"step": 1, "metrics": {"f1": 2.0, "f2": null}}'; echo '{"metrics": {"f2": 4.5}}'"#;
        let (events, state) = run(script, None);
        let number = TrialNumber(7);
        assert_eq!(
            events,
            [TrialEvent::Report {
                number,
                step: 1,
                metrics: [("f1", 2.0)].into()
            }]
        );
        assert_eq!(
            state,
            TrialState::Complete {
                metrics: [("f1", 2.0), ("f2", 4.5)].into()
            }
        );
    }

    #[test]
    fn an_outcome_is_kept_with_what_was_known() {
        let (_, state) = run(
            r#"echo '{"step":3,"metrics":{"loss":9}}'; echo '{"outcome":"diverged"}'"#,
            None,
        );
        let reason = FailReason::Diverged {
            at_step: 3,
            loss: Some(9.0),
        };
        assert_eq!(
            state,
            TrialState::Failed {
                reason,
                metrics: [("loss", 9.0)].into()
            }
        );
    }

    #[test]
    fn any_other_end_is_a_crash_with_the_tail_of_standard_error() {
        let (_, state) = run("echo 'no such file' >&2; exit 3", None);
        let message = "the trial process ended with exit code 3: no such file".to_owned();
        let reason = FailReason::Crashed {
            phase: Phase::Train,
            message,
        };
        assert_eq!(
            state,
            TrialState::Failed {
                reason,
                metrics: Metrics::default()
            }
        );
    }

    #[test]
    fn a_program_past_its_time_is_stopped() {
        let (_, state) = run("exec sleep 30", Some(0.2));
        assert!(
            matches!(
                state,
                TrialState::Failed {
                    reason: FailReason::TimedOut { .. },
                    ..
                }
            ),
            "{state:?}"
        );
    }

    /// Runs a script, cancels it at its first report, and returns how it ended and after how long.
    fn cancelled(script: &str) -> (TrialState, Duration) {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let mut evaluator = CommandEvaluator::new(command, std::env::temp_dir(), BTreeMap::new());
        evaluator.grace = Duration::from_millis(300);
        let task = Task::Params {
            params: Params::new(),
            seed: 0,
            steps: None,
        };
        let request = TrialRequest {
            number: TrialNumber(1),
            task,
            memory_limit_bytes: None,
            time_limit_s: None,
        };
        evaluator.submit(request).unwrap();
        let mut started = Instant::now();
        loop {
            match evaluator.next_event(Duration::from_secs(20)).unwrap() {
                Some(TrialEvent::Ended { state, .. }) => return (state, started.elapsed()),
                Some(TrialEvent::Report { number, .. }) => {
                    started = Instant::now();
                    evaluator.cancel(number).unwrap();
                }
                event => panic!("{event:?}"),
            }
        }
    }

    fn pruned(at_step: u64, loss: f64) -> TrialState {
        TrialState::Pruned {
            at_step,
            rule: "stopped".to_owned(),
            metrics: [("loss", loss)].into(),
        }
    }

    #[test]
    fn a_cancelled_program_may_end_by_itself() {
        let script = r#"trap 'exit 0' TERM; echo '{"step":4,"metrics":{"loss":2}}'; while :; do sleep 0.01; done"#;
        let (state, took) = cancelled(script);
        assert_eq!(state, pruned(4, 2.0));
        assert!(took < Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn one_that_does_not_end_is_killed_with_what_it_started() {
        let script =
            r#"trap '' TERM; (trap '' TERM; exec sleep 30) & echo '{"step":4,"metrics":{"loss":2}}'; sleep 30"#;
        let (state, took) = cancelled(script);
        assert_eq!(state, pruned(4, 2.0));
        assert!(
            took >= Duration::from_millis(300) && took < Duration::from_secs(15),
            "{took:?}"
        );
    }
}
