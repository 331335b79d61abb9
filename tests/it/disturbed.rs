//! Measurements that something else slowed down: repeated, replaced or marked, with a stand-in for the machine's counters.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use peft_tune::store::Store;
use peft_tune::tune::{Interrupt, Tuner, TunerParts};
use peft_tune::worker::{MockEvaluator, Task, TrialRequest};
use peft_tune_core::study::{Metrics, Trial, TrialState, disturbed, mark_disturbed};
use serde_json::Value;

use crate::tune::{record, study};

const SPACE: &str = r#"
study: busy
model: some/model
data: {train: train.jsonl}
space: {rank: [4, 8, 16], learning_rate: [1e-4, 1e-3]}
trial: {sequence_length: 64, profile_steps: 2, training_steps: 3}
sampler: grid
confirm: none
"#;

/// A trial whose profile phases lose what `lost` says of their number, from 0.
fn measured(request: &TrialRequest, profiled: &Cell<usize>, lost: &[f64]) -> TrialState {
    let Task::Recipe { recipe, plan } = &request.task else {
        panic!("no recipe: {request:?}")
    };
    let rank = recipe.adapter.as_ref().unwrap().rank as f64;
    let mut metrics = Metrics::default();
    if plan.measure.is_some() {
        let lost = lost.get(profiled.get()).or(lost.last()).copied().unwrap_or(0.0);
        profiled.set(profiled.get() + 1);
        metrics.insert("throughput", (1.0 - lost) * 1000.0 / rank);
        metrics.insert("peak_memory", 100.0 * rank);
        mark_disturbed(&mut metrics, lost);
    }
    if plan.train.is_some() {
        metrics.insert("loss", 3.0 - recipe.optimizer.learning_rate);
    }
    TrialState::Complete { metrics }
}

/// Searches in a folder; how often a profile phase ran, and the trials.
async fn search(folder: &Path, lost: &'static [f64]) -> (usize, Vec<Trial>) {
    let store = Store::open(&folder.join("study.db")).await.unwrap();
    let study = study(SPACE);
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let profiled = Rc::new(Cell::new(0));
    let counter = profiled.clone();
    let parts = TunerParts {
        study: &study,
        store: &store,
        id: open.id,
        sampler: peft_tune_search::build(study.sampler.kind, &study.problem(), study.seed).unwrap(),
        evaluator: Box::new(MockEvaluator::new(1, move |request| measured(request, &counter, lost))),
        observer: &mut (),
        interrupt: Interrupt::default(),
    };
    // Whether or not other tests leave the processors alone.
    let mut tuner = Tuner::new(parts).await.unwrap().waiting_for_quiet(Some(1.0));
    tuner.run().await.unwrap();
    let history = tuner.history().to_vec();
    assert_eq!(store.history().trials(open.id).await.unwrap().len(), history.len());
    for (trial, stored) in history.iter().zip(store.history().trials(open.id).await.unwrap()) {
        let value = |trial: &Trial, name: &str| trial.state.metrics().unwrap().value(name);
        for name in ["throughput", "disturbed", "throughput_interval", "loss"] {
            assert_eq!(
                value(trial, name),
                value(&stored, name),
                "trial {}: {name}",
                trial.number
            );
        }
    }
    (profiled.get(), history)
}

fn marked(history: &[Trial]) -> Vec<u64> {
    let is_marked = |trial: &&Trial| disturbed(trial.state.metrics().unwrap()).is_some();
    history.iter().filter(is_marked).map(|trial| trial.number.0).collect()
}

#[tokio::test]
async fn a_disturbed_trial_is_measured_again_once_it_is_quiet_and_its_value_replaced() {
    let folder = crate::folders::for_database();
    // The first profile phase is disturbed, and all others are quiet.
    let (profiled, history) = search(folder.path(), &[0.6, 0.0]).await;
    assert_eq!((profiled, marked(&history)), (4, vec![]));
    let (undisturbed, expected) = search(crate::folders::for_database().path(), &[0.0]).await;
    assert_eq!(
        (undisturbed, &history),
        (3, &expected),
        "also those that took the cost over"
    );
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = store.studies().find(None).await.unwrap();
    let kept = store.measurements().of(study.id).await.unwrap();
    let (number, both) = kept.first_key_value().unwrap();
    assert_eq!((kept.len(), number.0, both.len()), (1, 0, 2), "nothing is lost");
    assert_eq!(disturbed(&both[0]), Some(0.6));
}

#[tokio::test]
async fn where_it_is_never_quiet_repeats_are_few_and_the_rest_is_marked_until_the_search_goes_on() {
    let folder = crate::folders::for_database();
    let (profiled, history) = search(folder.path(), &[0.6, 0.5, 0.6]).await;
    assert_eq!((profiled, history.len()), (3 + 4, 6));
    assert_eq!(marked(&history), (0..6).collect::<Vec<_>>());
    let metrics = history[0].state.metrics().unwrap();
    assert!(metrics.value("throughput_interval").unwrap() >= 1.0, "{metrics:?}");
    // Resumed in peace: what is marked is measured again, and nothing else.
    let (again, history) = search(folder.path(), &[0.0]).await;
    assert_eq!((again, marked(&history)), (3, vec![]));
    assert_eq!(search(folder.path(), &[0.0]).await.0, 0);
}

/// The program with made-up trials, in a folder of its own.
fn program(folder: &Path, arguments: &[&str], fault: Option<&str>) -> String {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .env("PEFT_TUNE_MOCK", "0");
    if let Some(fault) = fault {
        command.env("PEFT_TUNE_FAULT", fault);
    }
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn rows(folder: &Path, sql: &str) -> Vec<Value> {
    serde_json::from_str(&program(folder, &["query", sql, "--format", "json"], None)).unwrap()
}

fn folder_with_study() -> tempfile::TempDir {
    let folder = crate::folders::for_database();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
    let space = format!(
        "study: busy\nmodel: {assets}/base\ndata: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}\n\
         space: {{rank: [4, 8]}}\ntrial: {{sequence_length: 64}}\nsampler: grid\nconfirm: none\nbudget: {{trials: 2}}\n",
        assets = assets.display()
    );
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    folder
}

#[test]
fn the_program_shows_what_stayed_disturbed_everywhere() {
    let folder = folder_with_study();
    let folder = folder.path();
    let text = program(folder, &["search", "space.yaml"], Some("busy:profile,trial=1"));
    assert!(text.contains("measured, disturbed"), "{text}");
    assert!(
        text.contains("disturbed: something else slowed these measurements down"),
        "{text}"
    );
    let found = rows(folder, "select trial, lost, throughput, at_most from disturbed_trial");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["trial"], 1);
    assert!(found[0]["at_most"].as_f64().unwrap() > 2.0 * found[0]["throughput"].as_f64().unwrap());
    assert!(program(folder, &["show"], None).contains("complete, disturbed"));
    assert!(program(folder, &["show", "--trial", "1"], None).contains("disturbed: something else slowed"));
    program(
        folder,
        &["export", "--format", "recipe", "--trial", "1", "--output", "out"],
        None,
    );
    let recipe = std::fs::read_to_string(folder.join("out/recipe.yaml")).unwrap();
    assert!(recipe.contains("disturbed"), "{recipe}");
    let repeats = rows(
        folder,
        "select max(attempt) as n from trial_measurement where trial = 1",
    );
    assert_eq!(repeats[0]["n"], 3);
}

#[test]
fn the_program_replaces_what_a_quiet_repeat_measures() {
    let folder = folder_with_study();
    let folder = folder.path();
    program(
        folder,
        &["search", "space.yaml"],
        Some("busy:profile,trial=0,attempts=1"),
    );
    assert!(rows(folder, "select * from disturbed_trial").is_empty());
    let values = rows(
        folder,
        "select attempt, value from trial_measurement where metric = 'throughput' order by attempt",
    );
    assert_eq!(values.len(), 2, "{values:?}");
    let value = |index: usize| values[index]["value"].as_f64().unwrap();
    assert!(value(0) < 0.5 * value(1), "{values:?}");
    let counts = rows(folder, "select throughput from trial_summary where trial = 0");
    assert_eq!(counts[0]["throughput"].as_f64(), Some(value(1)));
}
