//! A search that is killed with SIGKILL, and started again.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use peft_tune::store::{RowSink, SqlValue, Store};
use peft_tune_core::study::{Params, TrialNumber, TrialState};

use super::{complete, recipe, round_trip, study_record};

/// Names the database of the child process.
const DATABASE: &str = "PEFT_TUNE_TEST_DATABASE";

/// Runs as the child process: begins or resumes the study and runs trials as fast as it can, telling each that is
/// stored. As a test of its own it has nothing to do.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(DATABASE) else {
        return;
    };
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = Store::open(&PathBuf::from(path)).await.unwrap();
        let study = store.studies().begin(&study_record("killed")).await.unwrap();
        let known = store.history().trials(study.id).await.unwrap();
        let next = known.last().map_or(0, |trial| trial.number.0 + 1);
        let to_run = study.to_repeat.iter().copied().chain((next..).map(TrialNumber));
        for number in to_run {
            store
                .trials()
                .start(study.id, number, &Params::new(), Some(&recipe()))
                .await
                .unwrap();
            for step in 1..=300 {
                store
                    .steps()
                    .record(study.id, number, &[round_trip::step(step)])
                    .await
                    .unwrap();
                if step % 100 == 0 {
                    store.steps().flush().await.unwrap();
                }
            }
            let state = complete(number.0 as f64, 1.0, 2.0);
            store.trials().finish(study.id, number, &state, 1.0).await.unwrap();
            tell(number);
        }
    });
}

#[expect(clippy::print_stdout, reason = "the parent reads it")]
fn tell(number: TrialNumber) {
    println!("stored {number}");
}

/// Starts the child, kills it `after` the first trial it stores, and returns the trials that it told.
fn run_and_kill(path: &Path, after: Duration) -> Vec<u64> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "store::killed::child_that_writes_until_it_is_killed",
            "--exact",
            "--nocapture",
        ])
        .env(DATABASE, path)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let number = |line: &str| {
        line.split("stored ")
            .nth(1)
            .and_then(|number| number.trim().parse().ok())
    };
    let first: u64 = lines
        .by_ref()
        .find_map(|line| number(&line.unwrap()))
        .expect("the child stored no trial");
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    let rest = lines.map_while(Result::ok).filter_map(|line| number(&line));
    [first].into_iter().chain(rest).collect()
}

#[test]
fn no_stored_trial_is_lost_or_repeated_when_the_search_is_killed() {
    let folder = crate::folders::for_database();
    let path = folder.path().join("a.db");
    let mut stored = BTreeSet::new();
    for round in 0..6u64 {
        for number in run_and_kill(&path, Duration::from_millis(7 + 13 * round)) {
            assert!(stored.insert(number), "trial {number} was run again");
        }
        stored = check(&path, &stored);
    }
    assert!(stored.len() > 6);
}

/// Reads the database as it lies there, with the log of the killed process: every trial of `stored` is in it. Returns the
/// finished trials, which are those and at most one that the child was killed too early to tell.
fn check(path: &Path, stored: &BTreeSet<u64>) -> BTreeSet<u64> {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = Store::open_read_only(path).await.unwrap();
        let study = store.studies().find(Some("killed")).await.unwrap();
        let trials = store.history().trials(study.id).await.unwrap();
        for number in stored {
            let trial = trials.iter().find(|trial| trial.number.0 == *number);
            let state = &trial.expect("a stored trial is gone").state;
            assert_eq!(*state, complete(*number as f64, 1.0, 2.0), "trial {number}");
        }
        let finished = trials.iter().filter(|trial| trial.state.is_finished());
        let finished: BTreeSet<u64> = finished.map(|trial| trial.number.0).collect();
        assert!(
            finished.len() <= stored.len() + 1,
            "finished {finished:?}, told {stored:?}"
        );
        let running = trials.iter().filter(|trial| trial.state == TrialState::Running).count();
        assert!(running <= 1, "{running} running");
        let mut verdict = Verdict(Vec::new());
        store
            .queries()
            .run("pragma integrity_check", None, &mut verdict)
            .await
            .unwrap();
        assert_eq!(verdict.0, [SqlValue::Text("ok".into())]);
        store.close().await.unwrap();
        finished
    })
}

struct Verdict(Vec<SqlValue<'static>>);

impl RowSink for Verdict {
    fn columns(&mut self, _: &[String]) -> std::io::Result<()> {
        Ok(())
    }

    fn row(&mut self, values: &[SqlValue<'_>]) -> std::io::Result<()> {
        self.0.extend(values.iter().cloned().map(SqlValue::into_owned));
        Ok(())
    }
}
