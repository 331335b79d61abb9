//! A study to do harm to.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::signals::heeds_signals;

/// Trials that differ in cost and in loss.
pub(crate) const SPACE: &str = r#"
space:
  rank: [2, 4, 8, 16]
  micro_batch: [1, 2, 4]
  learning_rate: {low: 1e-4, high: 1e-2, scale: log}
  precision: fp32
trial: {sequence_length: 64, profile_steps: 1, training_steps: 4, evaluation: {rows: 4}}
sampler: random
pruner: none
confirm: none
budget: {trials: 8}
"#;

/// A folder with a study.
pub(crate) struct Bench {
    folder: tempfile::TempDir,
}

/// A finished trial: when and at which attempt it ended.
pub(crate) type Finished = BTreeMap<u64, (String, u64, Value)>;

impl Bench {
    /// The study of [`SPACE`].
    pub(crate) fn new() -> Self {
        Self::of(SPACE)
    }

    /// A bench of trials that train at once: a profile phase of long trials would have to be waited for.
    pub(crate) fn of_trainings() -> Self {
        Self::of(&(SPACE.replace("profile_steps: 1, ", "") + "objectives: [loss]\n"))
    }

    /// A study on the quickstart's model and data.
    pub(crate) fn of(space: &str) -> Self {
        let folder = crate::folders::for_database();
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
        let head = format!(
            "study: faults\nmodel: {assets}/base\ndata: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}\n",
            assets = assets.display()
        );
        std::fs::write(folder.path().join("space.yaml"), head + space).unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program with this study's database.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = crate::program();
        command.args(arguments).current_dir(self.folder.path());
        command
            .env("PEFT_TUNE_DB", self.path("study.db"))
            .env("PEFT_TUNE_CACHE", self.path("cache"))
            .env_remove("RUST_LOG");
        heeds_signals(&mut command);
        command
    }

    /// A search whose trials are made up and take so many seconds.
    pub(crate) fn search(&self, seconds: &str, arguments: &[&str]) -> Command {
        let mut command = self.command(&["search", "space.yaml"]);
        command.args(arguments).env("PEFT_TUNE_MOCK", seconds);
        command
    }

    /// Starts a command whose messages are kept.
    pub(crate) fn start(mut command: Command) -> Child {
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs a command that must succeed, and returns what it printed.
    pub(crate) fn succeed(mut command: Command) -> String {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", messages(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn rows(&self, sql: &str) -> Vec<Value> {
        serde_json::from_str(&Self::succeed(self.command(&["query", sql, "--format", "json"]))).unwrap()
    }

    /// Number from the database.
    pub(crate) fn count(&self, sql: &str) -> u64 {
        let rows = self.rows(sql);
        rows[0].as_object().unwrap().values().next().unwrap().as_u64().unwrap()
    }

    /// Checks that the database is sound, and that what was finished before is still there and was not run again. Returns
    /// what is finished now.
    pub(crate) fn sound(&self, before: &Finished) -> Finished {
        assert_eq!(self.rows("pragma integrity_check")[0]["integrity_check"], "ok");
        let rows = self.rows(
            "select number, ended_at, attempt, wall_s from trial where state not in ('waiting', 'running') order by number",
        );
        let finished: Finished = rows
            .iter()
            .map(|row| {
                let ended = row["ended_at"].as_str().unwrap().to_owned();
                let attempt = row["attempt"].as_u64().unwrap();
                (row["number"].as_u64().unwrap(), (ended, attempt, row["wall_s"].clone()))
            })
            .collect();
        for (number, trial) in before {
            assert_eq!(
                finished.get(number),
                Some(trial),
                "trial {number} was lost or run again"
            );
        }
        finished
    }

    /// Waits until the database answers a question with something other than 0.
    pub(crate) fn wait_for(&self, sql: &str) {
        let began = Instant::now();
        loop {
            let output = self.command(&["query", sql, "--format", "json"]).output().unwrap();
            let rows: Option<Vec<Value>> = serde_json::from_slice(&output.stdout).ok();
            let count = rows.and_then(|rows| rows.first()?.as_object()?.values().next()?.as_u64());
            if count.is_some_and(|count| count > 0) {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(120), "nothing for `{sql}`");
            std::thread::sleep(Duration::from_millis(30));
        }
    }
}

/// Text that a process wrote to standard error.
pub(crate) fn messages(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sends a signal.
pub(crate) fn signal(process: u32, signal: libc::c_int) {
    // SAFETY: sending a signal has no precondition.
    unsafe { libc::kill(libc::pid_t::try_from(process).unwrap(), signal) };
}

/// The processes that a process has started, with the words of their command lines.
pub(crate) fn children(process: u32) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in text.split_whitespace() {
            let words = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
            found.push((
                child.parse().unwrap(),
                String::from_utf8_lossy(&words).replace('\0', " "),
            ));
        }
    }
    found
}

/// Numbers that look random and are the same in every run (a linear congruential generator, Knuth's constants).
pub(crate) struct Dice(pub u64);

impl Dice {
    /// A number below `most`.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}
