//! A program of the user's that scores answers.
//!
//! It gets one JSON object a line on its standard input, `{"index": n, "prompt": "..", "reference": "..", "generation": ".."}`, and
//! prints a JSON object with the metrics that the study file names, `{"f1": 0.71}`; of several lines the last number of a name counts.
//! Other lines are skipped. It runs without a shell, in a process group of its own, and is ended with that after its time, when the
//! trial is stopped, and when the process that runs the trial ends.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::EvaluatorError;
use super::child::{ChildProcess, Line, Surroundings, describe_end_of, write_line};
use peft_tune_core::score::ScoreCommand;

/// Time from one look at the clock to the next while the program is silent.
const TICK: Duration = Duration::from_millis(50);
/// Time within which the output of a program has to be read once it has ended: something that it left behind may hold
/// its output.
const READ_WITHIN: Duration = Duration::from_secs(1);

/// One row that was answered, as programs that score read it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct AnsweredRow {
    /// Place among the rows that are answered, from 0.
    pub(super) index: usize,
    /// Prompt that the model read.
    pub(super) prompt: String,
    /// Answer of the row.
    pub(super) reference: String,
    /// Answer of the model.
    pub(super) generation: String,
}

/// Reason why a program gave no scores.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScorerError {
    #[error("`score.command`: {0}")]
    Start(#[from] EvaluatorError),
    #[error(
        "the program of `score.command` took longer than its {limit_s} s and was ended; raise `score.timeout`, or lower `score.rows`"
    )]
    TimedOut { limit_s: f64 },
    #[error("{how}")]
    Died { how: String },
    #[error(
        "the program of `score.command` printed no JSON object with `{metric}`; have it print one, such as {{\"{metric}\": 0.5}}{}",
        shown(last)
    )]
    Missing { metric: String, last: Option<String> },
    #[error("the program of `score.command` printed `{metric}: {value}`, which is no finite number")]
    NoNumber { metric: String, value: String },
    #[error("asked to stop")]
    Stopped,
}

/// The last line of the program, where that was no object, in words.
fn shown(last: &Option<String>) -> String {
    match last {
        Some(line) => format!(" (its last other line: {})", line.trim()),
        None => String::new(),
    }
}

/// The object that the program prints in a line.
type Printed = serde_json::Map<String, Value>;

/// The program under way.
pub(super) struct Scorer<'a> {
    command: &'a ScoreCommand,
    child: ChildProcess,
    lines: Receiver<(u64, Line<Printed>)>,
    started: Instant,
    found: BTreeMap<String, Value>,
    /// The last line that was no JSON object.
    other: Option<String>,
}

impl<'a> Scorer<'a> {
    /// Starts the program and hands it the rows, as fast as it reads them.
    ///
    /// # Errors
    /// A program that cannot be started.
    pub(super) fn start(command: &'a ScoreCommand, rows: &[AnsweredRow]) -> Result<Self, ScorerError> {
        let (sender, lines) = channel();
        let surroundings = Surroundings {
            folder: Some(command.folder.clone()),
            env: command.env.clone(),
            ..Surroundings::default()
        };
        let (program, arguments) = command.command.split_first().ok_or_else(|| EvaluatorError::Start {
            program: String::new(),
            source: std::io::Error::other("the command is empty"),
        })?;
        let mut child = ChildProcess::start(program.as_ref(), arguments, &surroundings, 0, sender)?;
        let mut text = Vec::new();
        for row in rows {
            // Writing to memory cannot fail.
            write_line(&mut text, row).unwrap_or_default();
        }
        child.feed(text);
        Ok(Self {
            command,
            child,
            lines,
            started: Instant::now(),
            found: BTreeMap::new(),
            other: None,
        })
    }

    /// Waits for the program's end and returns its numbers, one for each metric that it was to print.
    ///
    /// # Errors
    /// See [`ScorerError`]. However this ends, so have the program and its process group.
    pub(super) fn finish(mut self, is_stopped: &dyn Fn() -> bool) -> Result<Vec<(String, f64)>, ScorerError> {
        let limit = Duration::try_from_secs_f64(self.command.timeout_s).unwrap_or(Duration::MAX);
        let mut ended: Option<Instant> = None;
        loop {
            match self.lines.recv_timeout(TICK) {
                Ok((_, Line::Closed(_))) | Err(RecvTimeoutError::Disconnected) => {
                    // It may have closed its output and still compute.
                    if self.child.has_ended() {
                        break;
                    }
                    std::thread::sleep(TICK);
                }
                Ok((_, line)) => self.take(line),
                Err(RecvTimeoutError::Timeout) => {}
            }
            match ended {
                None if self.child.has_ended() => {
                    self.child.end_group();
                    ended = Some(Instant::now());
                }
                Some(at) if at.elapsed() >= READ_WITHIN => break,
                _ => {}
            }
            if is_stopped() {
                return Err(ScorerError::Stopped);
            }
            if ended.is_none() && self.started.elapsed() >= limit {
                let limit_s = self.command.timeout_s;
                return Err(ScorerError::TimedOut { limit_s });
            }
        }
        self.child.end_group();
        let tail = self.child.tail();
        let status = self.child.wait();
        if !status.is_some_and(|status| status.success()) {
            let how = describe_end_of("the program of `score.command`", status, &tail);
            return Err(ScorerError::Died { how });
        }
        self.numbers()
    }

    fn take(&mut self, line: Line<Printed>) {
        match line {
            Line::Message(printed) => self.keep(printed),
            Line::Garbled(text) => self.other = Some(text.chars().take(200).collect()),
            Line::TooLong | Line::Closed(_) => {}
        }
    }

    fn keep(&mut self, printed: Printed) {
        let named = printed
            .into_iter()
            .filter(|(name, _)| self.command.metrics.contains_key(name));
        self.found.extend(named);
    }

    fn numbers(self) -> Result<Vec<(String, f64)>, ScorerError> {
        let Self {
            command, found, other, ..
        } = self;
        let number = |name: &String| {
            let value = found.get(name).ok_or_else(|| ScorerError::Missing {
                metric: name.clone(),
                last: other.clone(),
            })?;
            match value.as_f64().filter(|value| value.is_finite()) {
                Some(number) => Ok((name.clone(), number)),
                None => Err(ScorerError::NoNumber {
                    metric: name.clone(),
                    value: value.as_str().map_or_else(|| value.to_string(), str::to_owned),
                }),
            }
        };
        command.metrics.keys().map(number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::Direction;

    fn rows(count: usize) -> Vec<AnsweredRow> {
        let row = |index| AnsweredRow {
            index,
            prompt: "2 + 2 = ".to_owned(),
            reference: "4".to_owned(),
            generation: "x".repeat(100),
        };
        (0..count).map(row).collect()
    }

    fn scored(script: &str, timeout_s: f64, count: usize) -> Result<Vec<(String, f64)>, ScorerError> {
        let command = ScoreCommand {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            folder: std::env::temp_dir(),
            env: BTreeMap::new(),
            timeout_s,
            metrics: [("f1".to_owned(), Direction::Maximize)].into(),
        };
        Scorer::start(&command, &rows(count))?.finish(&|| false)
    }

    fn said(script: &str) -> String {
        scored(script, 20.0, 2).unwrap_err().to_string()
    }

    #[test]
    fn a_program_reads_rows_and_prints_numbers() {
        let script = r#"grep -c '"reference":"4"' | sed 's/.*/{"f1": &, "other": "x"}/'; echo done"#;
        assert_eq!(scored(script, 20.0, 3).unwrap(), [("f1".to_owned(), 3.0)]);
    }

    #[test]
    fn the_last_number_of_a_name_counts_and_noise_is_skipped() {
        let script = r#"cat > /dev/null; echo '{"f1": 0.1}'; echo noise; echo '{"f1": 0.7}'; echo '[1]'"#;
        assert_eq!(scored(script, 20.0, 1).unwrap()[0].1, 0.7);
    }

    #[test]
    fn a_program_need_not_read_what_it_gets() {
        // More than a pipe holds.
        let script = r#"exec < /dev/null; echo '{"f1": 1}'"#;
        assert_eq!(scored(script, 20.0, 5000).unwrap()[0].1, 1.0);
    }

    #[test]
    fn each_way_to_give_no_score_is_told() {
        insta::assert_snapshot!(said("cat > /dev/null"), @r#"the program of `score.command` printed no JSON object with `f1`; have it print one, such as {"f1": 0.5}"#);
        insta::assert_snapshot!(said("echo garbage"), @r#"the program of `score.command` printed no JSON object with `f1`; have it print one, such as {"f1": 0.5} (its last other line: garbage)"#);
        insta::assert_snapshot!(said(r#"echo '{"f2": 1}'"#), @r#"the program of `score.command` printed no JSON object with `f1`; have it print one, such as {"f1": 0.5}"#);
        insta::assert_snapshot!(said(r#"echo '{"f1": NaN}'"#), @"the program of `score.command` printed `f1: NaN`, which is no finite number");
        insta::assert_snapshot!(said(r#"echo '{"f1": null}'"#), @"the program of `score.command` printed `f1: null`, which is no finite number");
        insta::assert_snapshot!(said(r#"echo '{"f1": "much"}'"#), @"the program of `score.command` printed `f1: much`, which is no finite number");
        insta::assert_snapshot!(said(r#"echo '{"f1": 1}'; echo 'no module named rouge' >&2; exit 3"#), @"the program of `score.command` ended with exit code 3: no module named rouge");
        insta::assert_snapshot!(said("kill -SEGV $$"), @"the program of `score.command` was ended by signal 11");
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let command = ScoreCommand {
            command: vec!["/nowhere/score".to_owned()],
            folder: std::env::temp_dir(),
            env: BTreeMap::new(),
            timeout_s: 1.0,
            metrics: BTreeMap::new(),
        };
        let error = Scorer::start(&command, &rows(1)).err().unwrap().to_string();
        assert!(
            error.starts_with("`score.command`: ") && error.contains("/nowhere/score"),
            "{error}"
        );
    }

    #[test]
    fn a_program_that_hangs_is_ended_with_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("child");
        // A child of its own, which would go on for a minute, and no reading of more than a pipe holds.
        let script = format!("sleep 60 & echo $! > {}; wait", mark.display());
        let began = Instant::now();
        let error = scored(&script, 0.5, 5000).unwrap_err();
        assert!(matches!(error, ScorerError::TimedOut { .. }), "{error}");
        assert!(began.elapsed() < Duration::from_secs(20));
        let child: i32 = std::fs::read_to_string(mark).unwrap().trim().parse().unwrap();
        let is_gone = || {
            let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            state.is_empty() || state.contains(") Z ")
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_gone() && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        assert!(is_gone());
    }

    #[test]
    fn a_stop_ends_it_at_once() {
        let command = ScoreCommand {
            command: ["sleep", "60"].map(str::to_owned).to_vec(),
            folder: std::env::temp_dir(),
            env: BTreeMap::new(),
            timeout_s: 60.0,
            metrics: BTreeMap::new(),
        };
        let began = Instant::now();
        let error = Scorer::start(&command, &rows(1)).unwrap().finish(&|| true).unwrap_err();
        assert!(matches!(error, ScorerError::Stopped));
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
