//! Runs trials in a process of their own, which stays alive between trials with the base model loaded.
//!
//! A trial that runs out of memory, crashes or hangs takes only its process with it: the death becomes the trial's
//! outcome, and the next trial gets a fresh process.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::child::{ChildProcess, Line, Surroundings, describe_end};
use super::protocol::{ControlMessage, Message, PROTOCOL_VERSION, Request};
use super::{Evaluator, EvaluatorError, TrialEvent, TrialRequest};
use crate::profile::OUT_OF_MEMORY_EXIT;
use crate::study::{FailReason, Metrics, Phase, TrialNumber, TrialState};

/// How often the clock is looked at while the trial is silent.
const TICK: Duration = Duration::from_millis(50);
/// How long past its time limit a trial may take to stop by itself before its process is killed.
const GRACE: Duration = Duration::from_secs(5);

/// An evaluator with one trial process.
pub struct ProcessEvaluator {
    program: PathBuf,
    arguments: Vec<String>,
    surroundings: Surroundings,
    worker: Option<ChildProcess<Message>>,
    current: Option<Current>,
}

/// The trial under way.
struct Current {
    number: TrialNumber,
    phase: Phase,
    started: Instant,
    time_limit_s: Option<f64>,
    out_of_memory: Option<FailReason>,
}

impl ProcessEvaluator {
    /// An evaluator that starts `program` with `arguments` as its worker, at the first trial. `threads` limits how many
    /// threads a trial computes with.
    pub fn new(program: PathBuf, arguments: Vec<String>, threads: Option<usize>) -> Self {
        // rayon, and candle with it, reads this once in each process.
        let threads = threads.map(|threads| ("RAYON_NUM_THREADS".to_owned(), threads.to_string()));
        let surroundings = Surroundings {
            env: threads.into_iter().collect(),
            ..Surroundings::default()
        };
        Self {
            program,
            arguments,
            surroundings,
            worker: None,
            current: None,
        }
    }

    /// Turns one line into an event; `None` for lines that are not for the caller.
    fn take_line(&mut self, line: Line<Message>) -> Result<Option<TrialEvent>, EvaluatorError> {
        match line {
            Line::Message(Message::Trial(event)) => Ok(Some(self.take_event(event))),
            Line::Message(Message::Control(message)) => self.take_control(message).map(|()| None),
            Line::Garbled(text) => {
                tracing::warn!(line = text, "the trial process printed a line that is not a message");
                Ok(None)
            }
            Line::Closed(tail) => Ok(self.worker_died(&tail)),
        }
    }

    fn take_control(&mut self, message: ControlMessage) -> Result<(), EvaluatorError> {
        match message {
            ControlMessage::Hello {
                protocol: PROTOCOL_VERSION,
                ..
            } => Ok(()),
            ControlMessage::Hello { protocol, version } => {
                self.worker = None;
                Err(EvaluatorError::Protocol {
                    expected: PROTOCOL_VERSION,
                    found: protocol,
                    version,
                })
            }
            ControlMessage::OutOfMemory {
                in_use_bytes,
                requested_bytes,
                limit_bytes,
            } => {
                if let Some(current) = &mut self.current {
                    current.out_of_memory = Some(FailReason::OutOfMemory {
                        phase: current.phase,
                        in_use_bytes: Some(in_use_bytes),
                        requested_bytes: Some(requested_bytes),
                        limit_bytes: Some(limit_bytes),
                    });
                }
                Ok(())
            }
        }
    }

    fn take_event(&mut self, event: TrialEvent) -> TrialEvent {
        match (&event, &mut self.current) {
            (TrialEvent::Phase { phase, .. }, Some(current)) => current.phase = *phase,
            (TrialEvent::Ended { .. }, current) => *current = None,
            _ => {}
        }
        event
    }

    /// The worker's output ended: whatever trial was under way has failed.
    fn worker_died(&mut self, tail: &str) -> Option<TrialEvent> {
        let status = self.worker.take()?.wait();
        let current = self.current.take()?;
        let phase = current.phase;
        let reason = current.out_of_memory.unwrap_or_else(|| {
            if status.and_then(|status| status.code()) == Some(OUT_OF_MEMORY_EXIT) {
                FailReason::OutOfMemory {
                    phase,
                    in_use_bytes: None,
                    requested_bytes: None,
                    limit_bytes: None,
                }
            } else {
                FailReason::Crashed {
                    phase,
                    message: describe_end(status, tail),
                }
            }
        });
        Some(ended(current.number, reason, current.started))
    }

    /// Kills the worker of a trial that is past its time limit.
    fn end_overdue(&mut self) -> Option<TrialEvent> {
        let current = self.current.as_ref()?;
        let limit = Duration::try_from_secs_f64(current.time_limit_s?).ok()?;
        if current.started.elapsed() < limit + GRACE {
            return None;
        }
        self.worker = None;
        let current = self.current.take()?;
        let reason = FailReason::TimedOut {
            phase: current.phase,
            after_s: current.started.elapsed().as_secs_f64(),
        };
        Some(ended(current.number, reason, current.started))
    }

    /// A write that fails means that the worker is dying; the reader tells of its end.
    fn send(&mut self, request: &Request) {
        let Some(worker) = &mut self.worker else { return };
        if let Err(error) = worker.send(request) {
            tracing::warn!(%error, "cannot write to the trial process");
        }
    }
}

impl Evaluator for ProcessEvaluator {
    fn capacity(&self) -> usize {
        1
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        if self.current.is_some() {
            return Err(EvaluatorError::Full { capacity: 1 });
        }
        // A worker that died between two trials is replaced without a word.
        if !self.worker.as_mut().is_some_and(ChildProcess::is_alive) {
            self.worker = Some(ChildProcess::start(&self.program, &self.arguments, &self.surroundings)?);
        }
        self.current = Some(Current {
            number: request.number,
            phase: Phase::Load,
            started: Instant::now(),
            time_limit_s: request.time_limit_s,
            out_of_memory: None,
        });
        self.send(&Request::Trial(Box::new(request)));
        Ok(())
    }

    fn next_event(&mut self, timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.end_overdue() {
                return Ok(Some(event));
            }
            let Some(worker) = &mut self.worker else {
                return Ok(None);
            };
            let left = deadline.saturating_duration_since(Instant::now());
            let Some(line) = worker.next_line(left.min(TICK)) else {
                if left.is_zero() {
                    return Ok(None);
                }
                continue;
            };
            if let Some(event) = self.take_line(line)? {
                return Ok(Some(event));
            }
        }
    }

    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError> {
        self.send(&Request::Cancel { number });
        Ok(())
    }
}

fn ended(number: TrialNumber, reason: FailReason, started: Instant) -> TrialEvent {
    let state = TrialState::Failed {
        reason,
        metrics: Metrics::default(),
    };
    TrialEvent::Ended {
        number,
        state,
        wall_s: started.elapsed().as_secs_f64(),
    }
}
