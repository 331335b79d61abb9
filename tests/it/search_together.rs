//! Searches whose trials train together over one base model, against searches of one trial at a time.

use std::path::Path;
use std::process::Output;
use std::sync::LazyLock;

use serde_json::Value;

fn space(rest: &str) -> String {
    let quickstart = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let quickstart = quickstart.display();
    format!(
        "study: own\nmodel: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         confirm: none\nsampler: grid\nobjectives: [throughput, peak_memory, loss]\n\
         trial: {{sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_steps: 6, evaluation: {{rows: 8, times: 2}}}}\n{rest}"
    )
}

/// Settings that differ in what trainings on one base may differ in.
const RANKS: &str = "space: {rank: [2, 4], learning_rate: [1e-3, 5e-3], micro_batch: 1, global_batch: 2, precision: fp32}\n\
                     budget: {trials: 4}\n";

fn peft_tune(folder: &Path, arguments: &[&str], fault: Option<&str>) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    if let Some(fault) = fault {
        command.env("PEFT_TUNE_FAULT", fault);
    }
    command
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .env("PEFT_TUNE_CACHE", folder.join("cache"))
        .output()
        .unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The folder of a search with these options.
fn searched(rest: &str, options: &[&str], fault: Option<&str>) -> tempfile::TempDir {
    run(&space(rest), options, fault)
}

fn run(space: &str, options: &[&str], fault: Option<&str>) -> tempfile::TempDir {
    let folder = crate::folders::for_database();
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    let arguments = [&["search", "space.yaml"], options].concat();
    let output = peft_tune(folder.path(), &arguments, fault);
    assert!(output.status.success(), "{}", errors(&output));
    folder
}

/// Message of a search that refuses these options.
fn refused(space: &str, options: &[&str]) -> String {
    let folder = crate::folders::for_database();
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    let arguments = [&["search", "space.yaml"], options].concat();
    let output = peft_tune(folder.path(), &arguments, None);
    assert_eq!(output.status.code(), Some(2), "{}", errors(&output));
    errors(&output)
}

fn rows(folder: &Path, sql: &str) -> Vec<Value> {
    let output = peft_tune(folder, &["query", sql, "--format", "json"], None);
    assert!(output.status.success(), "{}", errors(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A metric of each trial that has it, by number.
fn metric(folder: &Path, name: &str) -> Vec<(u64, f64)> {
    let sql = format!("select trial, value from trial_metric where name = '{name}' order by trial");
    let rows = rows(folder, &sql);
    rows.iter()
        .map(|row| (row["trial"].as_u64().unwrap(), row["value"].as_f64().unwrap()))
        .collect()
}

/// Losses of the evaluations, and of the steps, of all trials.
fn curves(folder: &Path) -> Vec<Value> {
    let steps = "select trial, step, loss, tokens from trial_step where phase = 'train' order by trial, step";
    let evaluations = "select trial, step, loss, accuracy from trial_evaluation order by trial, step";
    [rows(folder, steps), rows(folder, evaluations)].concat()
}

/// Results of trials of [`RANKS`] that run one at a time.
struct Alone {
    curves: Vec<Value>,
    losses: Vec<(u64, f64)>,
    accuracies: Vec<(u64, f64)>,
    peaks: Vec<(u64, f64)>,
    beside: Vec<(u64, f64)>,
}

/// One search for all tests that compare with it.
static ALONE: LazyLock<Alone> = LazyLock::new(|| {
    let folder = searched(RANKS, &[], None);
    let folder = folder.path();
    Alone {
        curves: curves(folder),
        losses: metric(folder, "loss"),
        accuracies: metric(folder, "token_accuracy"),
        peaks: metric(folder, "peak_memory"),
        beside: metric(folder, "trainings_beside"),
    }
});

#[test]
fn losses_are_those_of_trials_alone_and_costs_are_measured_alone() {
    let together = searched(RANKS, &["--together", "3"], None);
    let (alone, together) = (&*ALONE, together.path());
    assert_eq!(alone.curves, curves(together));
    assert_eq!(alone.losses, metric(together, "loss"));
    assert_eq!(alone.accuracies, metric(together, "token_accuracy"));
    // Three at a time: whoever ends leaves room for the fourth.
    assert!(alone.beside.is_empty());
    let beside = metric(together, "trainings_beside");
    assert_eq!(
        beside.iter().map(|(_, count)| *count).fold(0.0, f64::max),
        2.0,
        "{beside:?}"
    );
    // What others hold meanwhile is none of a trial's memory.
    let all = metric(together, "peak_memory");
    assert_eq!(alone.peaks.len(), all.len());
    for ((trial, one), (_, all)) in alone.peaks.iter().zip(&all) {
        assert!((all / one - 1.0).abs() < 0.01, "trial {trial}: {one} {all}");
    }
}

#[test]
fn a_dry_run_says_how_many_train_together() {
    let folder = crate::folders::for_database();
    std::fs::write(folder.path().join("space.yaml"), space(RANKS)).unwrap();
    let output = peft_tune(
        folder.path(),
        &["search", "space.yaml", "--together", "3", "--dry-run"],
        None,
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("up to 3 trials train together on a worker"), "{text}");
}

#[test]
fn only_trials_of_one_base_train_together() {
    // Every other trial has the other base: whoever fits passes one that does not.
    let space = "space: {rank: [2, 4], learning_rate: [1e-3, 5e-3], micro_batch: 1, global_batch: 2, precision: [fp32, bf16]}\n\
                 budget: {trials: 8}\n";
    let alone = searched(space, &[], None);
    let folder = searched(space, &["--together", "4"], None);
    // Which settings are proposed next depends on what is known by then.
    let losses = |folder: &Path| {
        let mut losses: Vec<f64> = metric(folder, "loss").into_iter().map(|(_, loss)| loss).collect();
        losses.sort_by(f64::total_cmp);
        losses
    };
    assert_eq!(losses(alone.path()), losses(folder.path()));
    assert_eq!(metric(folder.path(), "loss").len(), 8);
    let beside = metric(folder.path(), "trainings_beside");
    let most = beside.iter().map(|(_, count)| *count).fold(0.0, f64::max);
    assert!((1.0..=3.0).contains(&most), "{beside:?}");
}

#[test]
fn a_pruner_stops_one_and_the_others_go_on() {
    // Rates at which something is learned, and others at which nothing is.
    let space = |pruner: &str| {
        let space = space(&format!(
            "space: {{rank: [2], learning_rate: [5e-3, 4e-3, 3e-3, 1e-8, 2e-8, 3e-8], micro_batch: 1, precision: fp32}}\n\
             budget: {{trials: 6}}\npruner: {pruner}\n"
        ));
        space.replace(
            "training_steps: 6, evaluation: {rows: 8, times: 2}",
            "training_steps: 24, evaluation: {rows: 8, times: 6}",
        )
    };
    let median = "{kind: median, least_trials: 2, warm_up: 0}";
    let alone = run(&space("none"), &[], None);
    let folder = run(&space(median), &["--together", "3"], None);
    let (alone, folder) = (alone.path(), folder.path());
    let stopped = rows(
        folder,
        "select trial from trial_summary where state = 'pruned' order by trial",
    );
    let stopped: Vec<u64> = stopped.iter().map(|row| row["trial"].as_u64().unwrap()).collect();
    assert!(!stopped.is_empty());
    let beside = metric(folder, "trainings_beside");
    assert!(
        beside.iter().any(|(trial, _)| stopped.contains(trial)),
        "{beside:?} {stopped:?}"
    );
    // All losses up to wherever a trial came are those of a search that stops nobody.
    let expected = curves(alone);
    let found = curves(folder);
    assert!(found.iter().all(|point| expected.contains(point)));
    let steps = |trial: u64, points: &[Value]| points.iter().filter(|point| point["trial"] == trial).count();
    for trial in 0..6 {
        match stopped.contains(&trial) {
            true => assert!(steps(trial, &found) < steps(trial, &expected), "trial {trial}"),
            false => assert_eq!(steps(trial, &found), steps(trial, &expected), "trial {trial}"),
        }
    }
}

#[test]
fn what_takes_all_of_them_along_gives_each_back_to_run_alone() {
    let fault = "crash:evaluate,trial=1,attempts=1";
    let folder = searched(RANKS, &["--together", "4"], Some(fault));
    assert_eq!(ALONE.losses, metric(folder.path(), "loss"));
    let lost = rows(
        folder.path(),
        "select distinct trial from trial_lost_attempt order by trial",
    );
    assert!(lost.len() > 1, "{lost:?}");
    // Nobody trains beside a trial that may be what took the others along.
    let again: Vec<u64> = lost.iter().map(|row| row["trial"].as_u64().unwrap()).collect();
    let beside = metric(folder.path(), "trainings_beside");
    assert!(
        beside.iter().all(|(trial, _)| !again.contains(trial)),
        "{beside:?} {again:?}"
    );
}

#[test]
fn one_that_diverges_leaves_the_others_as_they_were() {
    let folder = searched(RANKS, &["--together", "4"], Some("nan:train,trial=2"));
    let expected: Vec<_> = ALONE.losses.iter().filter(|(trial, _)| *trial != 2).copied().collect();
    assert_eq!(metric(folder.path(), "loss"), expected);
    let failed = rows(folder.path(), "select trial from trial_summary where state = 'failed'");
    assert_eq!(failed.len(), 1, "{failed:?}");
}

#[test]
fn a_group_takes_no_more_than_memory_is_predicted_to_hold() {
    let highest = ALONE.peaks.iter().map(|(_, bytes)| *bytes).fold(0.0, f64::max);
    // A trial alone has room there whatever its threads come to keep, two have not.
    let limited = space(RANKS).replace(
        "trial: {",
        &format!("trial: {{memory_limit: {}KiB, ", (highest * 1.15 / 1024.0) as u64),
    );
    let folder = run(&limited, &["--together", "4"], None);
    assert_eq!(metric(folder.path(), "loss"), ALONE.losses);
    assert_eq!(metric(folder.path(), "trainings_beside"), []);
}

#[test]
fn what_cannot_train_together_is_refused_with_the_remedy() {
    let shared = refused(&space(RANKS), &["--together", "2", "--workers", "2"]);
    assert!(
        shared.contains("`--together 2`: workers on the same hardware"),
        "{shared}"
    );
    let command = "study: own\nbackend: {command: ['true']}\nobjectives: [{metric: loss, reference: 10}]\nspace: {x: [1, 2]}\n\
                   budget: {trials: 2}\n";
    let command = refused(command, &["--together", "2"]);
    assert!(command.contains("trials of a command train by themselves"), "{command}");
}
