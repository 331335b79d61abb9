//! Budgets of time: made-up trials of a given length, and sums of what runs say that they took.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::mocked::{errors_of, folder_with};

/// Every rank costs something else, so that each trial has a profile phase; the confirmation asks for more than there is time for.
const SPACE: &str = "study: budget
model: ./base
data: {train: train.jsonl, held_out: held_out.jsonl}
space: {rank: {low: 2, high: 64, step: 1}, learning_rate: {low: 1e-4, high: 1e-2, scale: log}, precision: fp32}
trial: {sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_tokens: 300, evaluation: {rows: 4}}
training: {length: {tokens: 4000}}
sampler: random
pruner: none
confirm: {trials: 2, repeats: 3, steps: 2, interval: 0, trainings: 20, longer: 4}
budget: {time: 6s}
";

/// The program with made-up trials of a quarter of a second: a fifth of it is the profile phase.
fn peft_tune(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_MOCK", "0.2");
    let output = command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", errors_of(&output));
    output
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_slice(&peft_tune(folder, arguments).stdout).unwrap()
}

/// The one number that a query answers.
fn number(folder: &Path, sql: &str) -> f64 {
    let rows = json(folder, &["query", sql, "--format", "json"]);
    rows[0].as_object().unwrap().values().next().unwrap().as_f64().unwrap()
}

/// Budget that a study has spent, by what its search says.
struct Spent {
    trials_s: f64,
    confirming_s: f64,
    total_s: f64,
    trials: f64,
}

/// Searches, and checks that the search says what the database does, and that it kept its budget but for trials under way.
fn searched(folder: &Path, budget_s: f64, workers: usize) -> Spent {
    let (time, workers_text) = (format!("{budget_s}s"), workers.to_string());
    let summary = json(
        folder,
        &[
            "search",
            "space.yaml",
            "--json",
            "--time",
            &time,
            "--workers",
            &workers_text,
        ],
    );
    let seconds = |kind: &str| summary["spent"][kind].as_f64().unwrap();
    let (trials_s, again_s, confirming_s) = (
        seconds("trials_s"),
        seconds("measuring_again_s"),
        seconds("confirming_s"),
    );
    let spent = Spent {
        trials_s,
        confirming_s,
        total_s: trials_s + again_s + confirming_s,
        trials: number(folder, "select count(*) as n from trial where wall_s > 0"),
    };
    let stored = number(folder, "select total(wall_s) as s from trial");
    assert!((stored - spent.trials_s).abs() < 1e-6, "{stored} {summary}");
    let stored = number(
        folder,
        "select total(value) as s from confirmation_run where name = 'repeat_wall_s'",
    );
    assert!((stored - spent.confirming_s).abs() < 1e-6, "{stored} {summary}");
    let longest = number(folder, "select max(wall_s) as s from trial");
    assert!(
        spent.total_s <= 1.1 * budget_s + workers as f64 * longest,
        "{longest} {summary}"
    );
    spent
}

#[test]
fn a_budget_of_time_has_everything_in_it_and_searches_of_a_study_share_it() {
    let folder = folder_with(SPACE);
    let folder = folder.path();
    let first = searched(folder, 6.0, 1);
    assert!(first.trials_s > 0.0 && first.confirming_s > 0.0);
    let each_s = first.trials_s / first.trials;
    assert!(
        first.total_s >= 0.6 * 6.0 - each_s,
        "{} of 6 s, {each_s} s a trial",
        first.total_s
    );
    // The same budget once more has room for what was left at most.
    let again = searched(folder, 6.0, 1);
    assert!(again.total_s >= first.total_s - 0.01);
    // More of it is used.
    let output = peft_tune(folder, &["search", "space.yaml", "--time", "9s"]);
    let said = errors_of(&output);
    assert!(said.contains("spent ") && said.contains(" of 9 s: "), "{said}");
    assert!(number(folder, "select count(*) as n from trial where wall_s > 0") > again.trials);
    let longest = number(folder, "select max(wall_s) as s from trial");
    let trials = number(folder, "select total(wall_s) as s from trial");
    assert!(trials <= 1.1 * 9.0 + longest, "{trials}");
}

#[test]
fn workers_share_a_budget_of_time() {
    let folder = folder_with(SPACE);
    let spent = searched(folder.path(), 5.0, 2);
    assert!(spent.trials > 2.0 && spent.confirming_s > 0.0);
}

#[test]
fn the_first_trial_runs_whatever_the_time() {
    let folder = folder_with(SPACE);
    let summary = json(folder.path(), &["search", "space.yaml", "--json", "--time", "0.1s"]);
    assert!(summary["spent"]["trials_s"].as_f64().unwrap() > 0.1, "{summary}");
    assert_eq!(
        number(folder.path(), "select count(*) as n from trial where wall_s > 0"),
        1.0
    );
    assert_eq!(summary["spent"]["confirming_s"].as_f64(), Some(0.0), "{summary}");
}
