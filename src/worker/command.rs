//! Runs a program of the user's for each trial, so that anything that prints numbers can be tuned.
//!
//! The program gets one JSON object on its standard input, `{"params": {...}, "trial": n, "seed": n}` (with `"steps": n`
//! where the study file says how long a whole trial is), and prints JSON
//! lines: `{"step": n, "metrics": {...}}` as often as it likes, and at the end `{"metrics": {...}}`, or
//! `{"outcome": "out_of_memory"}` (`diverged`, `timed_out`, `invalid`, `crashed`; with an optional `message`). Lines that
//! are not JSON objects of these forms are skipped, so a chatty trainer needs no change. Metrics whose `step` is no whole
//! number are skipped too; `10.0` is one. A metric that is `null`, or `NaN` or `Infinity` as Python prints them, is left
//! out. Any other end is a crash, stored with the tail of its standard error and the last object that could not be read.
//! A trial that is stopped gets SIGTERM, and SIGKILL five seconds later.
//!
//! Several programs may run side by side, one a slot. `PEFT_TUNE_WORKER` tells each the number of its slot, and a slot
//! with a GPU of its own sets `CUDA_VISIBLE_DEVICES`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::child::{ChildProcess, Line, Lines, Surroundings};
use super::program::{Printed, RunningProgram, StopCause};
use super::{Evaluator, EvaluatorError, Placement, Task, TrialEvent, TrialRequest};
use peft_tune_core::study::{Metrics, Params, TrialNumber};

/// Time from one look at the clock to the next while the program is silent.
const TICK: Duration = Duration::from_millis(50);
/// Time that a stopped program may take to end by itself.
const GRACE: Duration = Duration::from_secs(5);

/// An evaluator that runs one program a trial, and as many side by side as it has slots.
pub struct CommandEvaluator {
    /// Words before the command, in which a slot's values are filled in.
    prefix: Vec<String>,
    command: Vec<String>,
    surroundings: Surroundings,
    /// Time that a stopped program may take to end by itself.
    grace: Duration,
    slots: Vec<Program>,
    lines: Receiver<(u64, Line<Printed>)>,
    sender: Lines<Printed>,
    /// Number of the last program that was started.
    serial: u64,
}

/// A slot, and the program under way there.
struct Program {
    placement: Placement,
    current: Option<RunningProgram>,
}

/// The object that the program gets on its standard input.
#[derive(Serialize)]
struct Input<'a> {
    params: &'a Params,
    trial: TrialNumber,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    steps: Option<u64>,
}

impl CommandEvaluator {
    /// An evaluator that runs `command` (program and arguments) in `folder` with the environment variables `env` for
    /// each trial.
    pub fn new(command: Vec<String>, folder: PathBuf, env: BTreeMap<String, String>) -> Self {
        let (sender, lines) = channel();
        Self {
            prefix: Vec::new(),
            command,
            surroundings: Surroundings {
                folder: Some(folder),
                env,
                ..Surroundings::default()
            },
            grace: GRACE,
            slots: vec![Program::at(Placement::whole_machine(None))],
            lines,
            sender,
            serial: 0,
        }
    }

    /// Starts the command through a launcher's words.
    #[must_use]
    pub fn through(mut self, prefix: Vec<String>) -> Self {
        self.prefix = prefix;
        self
    }

    /// Runs as many programs side by side as there are slots.
    #[must_use]
    pub fn with_slots(mut self, slots: Vec<Placement>) -> Self {
        self.slots = slots.into_iter().map(Program::at).collect();
        self
    }

    /// The end of a program whose output stays open behind it.
    fn take_ended(&mut self) -> Option<TrialEvent> {
        let is_over = |slot: &mut Program| slot.current.as_mut().is_some_and(RunningProgram::is_over);
        let slot = self.slots.iter_mut().find_map(|slot| is_over(slot).then_some(slot))?;
        let current = slot.current.take()?;
        let tail = current.child.tail();
        Some(current.end(&tail))
    }

    fn take_line(&mut self, serial: u64, line: Line<Printed>) -> Option<TrialEvent> {
        let is_its = |slot: &&mut Program| slot.current.as_ref().is_some_and(|current| current.serial == serial);
        let slot = self.slots.iter_mut().find(is_its)?;
        let current = slot.current.as_mut()?;
        match line {
            Line::Message(printed) => current.take(&printed),
            Line::Garbled(text) => {
                current.note_unread(&text);
                None
            }
            Line::TooLong => {
                tracing::warn!(
                    trial = current.number.0,
                    "ignored a line of the trial's program without end"
                );
                None
            }
            Line::Closed(tail) => slot.current.take().map(|current| current.end(&tail)),
        }
    }
}

impl Program {
    fn at(placement: Placement) -> Self {
        let current = None;
        Self { placement, current }
    }

    /// Variables that tell the program about its slot.
    fn env(&self) -> [Option<(String, String)>; 2] {
        let gpu = self
            .placement
            .device
            .as_deref()
            .and_then(|device| device.strip_prefix("cuda:"));
        [
            Some(("PEFT_TUNE_WORKER".to_owned(), self.placement.number.to_string())),
            gpu.map(|gpu| ("CUDA_VISIBLE_DEVICES".to_owned(), gpu.to_owned())),
        ]
    }
}

impl Evaluator for CommandEvaluator {
    fn capacity(&self) -> usize {
        self.slots.len()
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let capacity = self.slots.len();
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.current.is_none()) else {
            return Err(EvaluatorError::Full { capacity });
        };
        let Task::Params { params, seed, steps } = &request.task else {
            return Err(EvaluatorError::Unsupported { task: "a recipe" });
        };
        let prefix = self.prefix.iter().map(|word| slot.placement.fill_in(word));
        let words: Vec<String> = prefix.chain(self.command.iter().cloned()).collect();
        let Some((program, arguments)) = words.split_first() else {
            let source = std::io::Error::other("the command is empty");
            return Err(EvaluatorError::Start {
                program: String::new(),
                source,
            });
        };
        self.serial += 1;
        let mut surroundings = self.surroundings.clone();
        surroundings.env.extend(slot.env().into_iter().flatten());
        let (serial, lines) = (self.serial, self.sender.clone());
        let mut child = ChildProcess::start(program.as_ref(), arguments, &surroundings, serial, lines)?;
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
        slot.current = Some(RunningProgram {
            number: request.number,
            serial: self.serial,
            child,
            started: Instant::now(),
            time_limit_s: request.time_limit_s,
            last_step: 0,
            metrics: Metrics::default(),
            ending: None,
            unread: None,
            has_refused_step: false,
            stop: None,
            ended: None,
        });
        Ok(())
    }

    fn next_event(&mut self, timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        let deadline = Instant::now() + timeout;
        loop {
            let under_way = self.slots.iter_mut().filter_map(|slot| slot.current.as_mut());
            let mut any = false;
            for current in under_way {
                any = true;
                current.enforce_stop(self.grace);
            }
            if !any {
                return Ok(None);
            }
            if let Some(event) = self.take_ended() {
                return Ok(Some(event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((serial, line)) = self.lines.recv_timeout(left.min(TICK)) else {
                if left.is_zero() {
                    return Ok(None);
                }
                continue;
            };
            if let Some(event) = self.take_line(serial, line) {
                return Ok(Some(event));
            }
        }
    }

    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError> {
        let mut under_way = self.slots.iter_mut().filter_map(|slot| slot.current.as_mut());
        if let Some(current) = under_way.find(|current| current.number == number) {
            current.ask_to_stop(StopCause::Cancelled);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::{FailReason, Metrics, Phase, TrialState};

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
            attempt: 1,
            task,
            memory_limit_bytes: None,
            time_limit_s,
            kernels: None,
            assignments: Vec::new(),
            pairing: None,
            first_adapter: None,
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
            cause: None,
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

    #[test]
    fn a_trial_ends_with_its_program_whatever_holds_its_output() {
        let left = tempfile::NamedTempFile::new().unwrap();
        let path = left.path().display();
        // One in its group, which is ended with it, and one that left it.
        let script =
            format!(r#"sh -c 'sleep 3; echo in >> {path}' & setsid sleep 60 & echo '{{"metrics": {{"loss": 2}}}}'"#);
        let started = Instant::now();
        let (_, state) = run(&script, None);
        let metrics = [("loss", 2.0)].into();
        assert_eq!(state, TrialState::Complete { metrics });
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        std::thread::sleep(Duration::from_secs(4));
        assert_eq!(std::fs::read_to_string(left.path()).unwrap(), "");
    }

    #[test]
    fn a_step_that_cannot_be_counted_is_ignored() {
        let script =
            r#"echo '{"step": 18446744073709551615, "metrics": {"loss": 9}}'; echo '{"metrics": {"loss": 2}}'"#;
        let (events, state) = run(script, None);
        let metrics = [("loss", 2.0)].into();
        assert_eq!((events.len(), state), (0, TrialState::Complete { metrics }));
        let alone = r#"echo '{"step": 9223372036854775808, "metrics": {"loss": 9}}'"#;
        let (events, state) = run(alone, None);
        assert_eq!(events, []);
        let TrialState::Failed {
            reason: FailReason::Crashed { .. },
            metrics,
        } = state
        else {
            panic!("{state:?}");
        };
        assert_eq!(metrics, Metrics::default());
    }

    #[test]
    fn a_whole_float_is_a_step_and_any_other_step_is_neither_a_report_nor_the_end() {
        let (events, state) = run(
            r#"echo '{"step": 10.0, "metrics": {"loss": 3}}'; echo '{"metrics": {"loss": 2}, "run": "a"}'"#,
            None,
        );
        let report = TrialEvent::Report {
            number: TrialNumber(7),
            step: 10,
            metrics: [("loss", 3.0)].into(),
        };
        let metrics = [("loss", 2.0)].into();
        assert_eq!((events, state), (vec![report], TrialState::Complete { metrics }));
        for step in [r#""10""#, "-1", "1.5", "null", "9223372036854775808"] {
            let script = format!(r#"echo '{{"step": {step}, "metrics": {{"loss": 9}}}}'; exit 1"#);
            let (events, state) = run(&script, None);
            let shown = format!(r#"{{"step":{step},"metrics":{{"loss":9}}}}"#);
            let unread = format!("the last line that could not be read: {shown}");
            let message = format!("the trial process ended with exit code 1 ({unread})");
            let reason = FailReason::Crashed {
                phase: Phase::Train,
                message,
            };
            let metrics = Metrics::default();
            assert_eq!(
                (events.len(), state),
                (0, TrialState::Failed { reason, metrics }),
                "{step}"
            );
        }
    }

    #[test]
    fn numbers_that_are_none_are_left_out_as_python_prints_them() {
        let script = r#"echo '{"step": 2, "metrics": {"loss": NaN, "speed": 4}}'
            echo '{"metrics": {"error": 1.5, "slack": -Infinity}}'"#;
        let (events, state) = run(script, None);
        let report = TrialEvent::Report {
            number: TrialNumber(7),
            step: 2,
            metrics: [("speed", 4.0)].into(),
        };
        let metrics = [("speed", 4.0), ("error", 1.5)].into();
        assert_eq!((events, state), (vec![report], TrialState::Complete { metrics }));
    }

    #[test]
    fn an_end_without_a_result_names_the_last_object_that_could_not_be_read() {
        let (_, state) = run(r#"echo '{"metrics": {"loss": 2,}}'; echo done"#, None);
        let TrialState::Failed { reason, .. } = state else {
            panic!("{state:?}");
        };
        let unread = r#"the last line that could not be read: {"metrics": {"loss": 2,}}"#;
        let message = format!("the trial process ended with exit code 0 ({unread})");
        assert_eq!(reason.message(), message);
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
            attempt: 1,
            task,
            memory_limit_bytes: None,
            time_limit_s: None,
            kernels: None,
            assignments: Vec::new(),
            pairing: None,
            first_adapter: None,
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
