//! Studies in experiment trackers, while the search runs and afterwards: what is written, continued after a kill, and what
//! becomes of a search whose tracker fails. `scripts/peers/trackers_with_tools.py` reads the same with the trackers' own
//! packages.

mod files;
mod mlflow;
mod study_file;
mod tensorboard;

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::mocked;

const SPACE: &str = "study: tracked
model: base
data: {train: train.jsonl, held_out: held_out.jsonl}
space:
  rank: [2, 4, 8]
  learning_rate: {low: 1e-4, high: 1e-2, scale: log}
trial: {sequence_length: 64, profile_steps: 2, training_steps: 4, evaluation: {rows: 4}}
sampler: random
pruner: none
confirm: none
budget: {trials: 3}
";

/// A study to be tracked.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        Self {
            folder: mocked::folder_with(SPACE),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        mocked::peft_tune(self.folder.path(), arguments)
    }

    /// Text that a command that succeeds writes to standard error.
    fn said(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", mocked::errors_of(&output));
        mocked::errors_of(&output)
    }
}

/// Every file below a folder with its bytes, in order of name.
fn files(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push((path.clone(), std::fs::read(&path).unwrap())),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn a_tracker_that_nobody_knows_is_told_before_anything_runs() {
    let bench = Bench::new();
    for (given, expected) in [
        ("comet=x", "no tracker `comet`"),
        ("tensorboard", "tensorboard=a folder"),
    ] {
        let output = bench.run(&["search", "space.yaml", "--track", given]);
        assert_eq!(output.status.code(), Some(2));
        assert!(
            mocked::errors_of(&output).contains(expected),
            "{}",
            mocked::errors_of(&output)
        );
    }
    assert!(!bench.path("study.db").exists());
}
