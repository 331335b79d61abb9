//! The study loop with a stand-in for the trial process: budgets, resuming, what is not run twice.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use peft_tune::space::{ReadOptions, Study, StudyFile};
use peft_tune::store::{DataSetRecord, OpenStudy, Store, StudyRecord, TrialKernels};
use peft_tune::tune::{Ending, Interrupt, Tuner, TunerParts};
use peft_tune::worker::{MockEvaluator, Task, TrialRequest};
use peft_tune_core::recipe::TrainingLength;
use peft_tune_core::study::{FailReason, Metrics, ParamValue, Phase, Trial, TrialNumber, TrialState, with_confirmed};
use peft_tune_kernels::Kernels;
use peft_tune_search::{Preference, Problem, Sampler, SamplerKind, recommend};

const SPACE: &str = r#"
study: loop
model: some/model
data: {train: train.jsonl}
space:
  rank: [4, 8, 16]
  learning_rate: [1e-4, 1e-3]
  gradient_checkpointing: [none, full]
trial: {sequence_length: 64, profile_steps: 2, training_steps: 3}
budget: {trials: 12}
sampler: grid
confirm: none
"#;

/// Requests that the evaluator saw.
type Seen = Rc<RefCell<Vec<TrialRequest>>>;

pub(crate) fn study(text: &str) -> Study {
    StudyFile::parse(Path::new("space.yaml"), text, ReadOptions { check_files: false }).unwrap()
}

pub(crate) fn record(study: &Study) -> StudyRecord {
    StudyRecord {
        name: study.name.clone(),
        space_path: "space.yaml".into(),
        space_text: study.source.text().to_owned(),
        definition: serde_json::Value::Null,
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
        seed: study.seed,
        sampler: study.sampler.kind.name().to_owned(),
        model: None,
        data_set: None,
        machine: None,
    }
}

fn sampler(study: &Study) -> Box<dyn Sampler> {
    let problem = Problem {
        space: study.space.clone(),
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
    };
    peft_tune_search::build(study.sampler.kind, &problem, study.seed).unwrap()
}

/// State that a trial of the request's recipe measures: only the phases that it was asked to run.
fn measure(request: &TrialRequest) -> TrialState {
    let Task::Recipe { recipe, plan } = &request.task else {
        panic!("no recipe: {request:?}")
    };
    let rank = recipe.adapter.as_ref().unwrap().rank as f64;
    let mut metrics = Metrics::default();
    if plan.measure.is_some() {
        metrics.insert("throughput", 1000.0 / rank);
        metrics.insert("peak_memory", 100.0 * rank);
    }
    if plan.train.is_some() {
        metrics.insert("loss", 3.0 - recipe.optimizer.learning_rate - rank / 100.0);
    }
    TrialState::Complete { metrics }
}

async fn run(
    study: &Study,
    store: &Store,
    open: &OpenStudy,
    interrupt: &Interrupt,
    outcome: impl FnMut(&TrialRequest) -> TrialState + 'static,
) -> (Ending, Vec<Trial>) {
    let parts = TunerParts {
        study,
        store,
        id: open.id,
        sampler: sampler(study),
        evaluator: Box::new(MockEvaluator::new(1, outcome)),
        observer: &mut (),
        interrupt: interrupt.clone(),
    };
    let mut tuner = Tuner::new(parts).await.unwrap();
    let ending = tuner.run().await.unwrap();
    (ending, tuner.history().to_vec())
}

fn watched(seen: &Seen) -> impl FnMut(&TrialRequest) -> TrialState + 'static {
    let seen = seen.clone();
    move |request| {
        seen.borrow_mut().push(request.clone());
        measure(request)
    }
}

#[tokio::test]
async fn nothing_is_measured_or_trained_twice() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(SPACE);
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let seen = Seen::default();
    let (ending, history) = run(&study, &store, &open, &Interrupt::default(), watched(&seen)).await;
    assert_eq!((ending, history.len()), (Ending::Exhausted, 12));
    let phases = |count: fn(&TrialRequest) -> bool| seen.borrow().iter().filter(|request| count(request)).count();
    let profiled = phases(|request| matches!(&request.task, Task::Recipe { plan, .. } if plan.measure.is_some()));
    let trained = phases(|request| matches!(&request.task, Task::Recipe { plan, .. } if plan.train.is_some()));
    // Three ranks with and without checkpointing cost differently; three ranks at two learning rates lose differently.
    assert_eq!((profiled, trained), (6, 6));
    for trial in &history {
        let metrics = trial.state.metrics().unwrap();
        for name in ["throughput", "peak_memory", "loss"] {
            assert!(metrics.value(name).is_some(), "trial {} has no {name}", trial.number);
        }
    }
    assert_eq!(store.history().trials(open.id).await.unwrap(), history);
    let last = store
        .inheritance()
        .of(open.id, history.last().unwrap().number)
        .await
        .unwrap();
    assert!(!last.is_empty());
}

#[tokio::test]
async fn what_other_kernels_cost_is_measured_again() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let mut study = study(
        &SPACE
            .replace("[4, 8, 16]", "4")
            .replace("[none, full]", "none")
            .replace("[1e-4, 1e-3]", "{low: 1e-5, high: 1e-2, scale: log}"),
    );
    study.sampler.kind = SamplerKind::Random;
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let mut profiled = Vec::new();
    for (kernels, trials) in [
        (Kernels::Fused, 3),
        (Kernels::Reference, 6),
        (Kernels::Fused, 9),
        (Kernels::Graphs, 12),
    ] {
        study.budget.trials = Some(trials);
        let seen = Seen::default();
        let parts = TunerParts {
            study: &study,
            store: &store,
            id: open.id,
            sampler: sampler(&study),
            evaluator: Box::new(MockEvaluator::new(1, watched(&seen))),
            observer: &mut (),
            interrupt: Interrupt::default(),
        };
        let mut tuner = Tuner::new(parts).await.unwrap().with_kernels(kernels);
        tuner.run().await.unwrap();
        let is_profiled =
            |request: &&TrialRequest| matches!(&request.task, Task::Recipe { plan, .. } if plan.measure.is_some());
        profiled.push(seen.borrow().iter().filter(is_profiled).count());
    }
    // One setting of the cost: each form measures it once, whatever was measured in the other one.
    assert_eq!(profiled, [1, 1, 0, 1]);
    let forms = store.kernel_forms().forms(open.id).await.unwrap();
    let reference: Vec<u64> = forms
        .iter()
        .filter(|(_, form)| *form == "reference")
        .map(|(number, _)| number.0)
        .collect();
    assert_eq!((forms.len(), reference), (12, vec![3, 4, 5]));
    assert_eq!(forms[&TrialNumber(11)], "graphs");
    // No trial took its cost over from one of the other form.
    for number in forms.keys() {
        for taken in store.inheritance().of(open.id, *number).await.unwrap() {
            assert!(!taken.is_cost() || forms[number] == forms[&taken.source], "{taken:?}");
        }
    }
    assert_eq!(
        store.trial_details().of(open.id, TrialNumber(4)).await.unwrap().kernels,
        Some(TrialKernels {
            kernels: "reference".to_owned(),
            attention: None,
            longer_sums: false,
            instead_of: None,
        })
    );
}

#[tokio::test]
async fn a_resumed_study_goes_on_as_if_it_had_not_stopped() {
    let whole = {
        let folder = crate::folders::for_database();
        let store = Store::open(&folder.path().join("study.db")).await.unwrap();
        let study = study(&SPACE.replace("grid", "tpe"));
        let open = store.studies().begin(&record(&study)).await.unwrap();
        run(&study, &store, &open, &Interrupt::default(), measure).await.1
    };
    let folder = crate::folders::for_database();
    let mut history = Vec::new();
    for trials in [1, 2, 5, 12] {
        let store = Store::open(&folder.path().join("study.db")).await.unwrap();
        let mut study = study(&SPACE.replace("grid", "tpe"));
        study.budget.trials = Some(trials);
        let open = store.studies().begin(&record(&study)).await.unwrap();
        history = run(&study, &store, &open, &Interrupt::default(), measure).await.1;
        // What takes its loss over is not counted.
        assert!(history.len() as u64 >= trials);
    }
    assert_eq!(history, whole);
}

#[tokio::test]
async fn an_interrupted_confirmation_goes_on_where_it_was() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(&SPACE.replace("confirm: none", "confirm: {repeats: 2, trainings: 4, longer: 0}"));
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let interrupt = Interrupt::default();
    let (requested, again) = (interrupt.clone(), Seen::default());
    let offset = |request: &TrialRequest| match &request.task {
        Task::Recipe { plan, .. } => plan.train.as_ref().map_or(0, |train| train.seed_offset),
        Task::Params { .. } => 0,
    };
    let outcome = move |request: &TrialRequest| {
        if offset(request) > 0 {
            requested.request();
        }
        measure(request)
    };
    run(&study, &store, &open, &interrupt, outcome).await;
    let trained = || async {
        let repeats = store.repeats().of(open.id).await.unwrap();
        let runs = repeats.values().flatten();
        runs.filter(|run| run.value("loss").is_some()).count()
    };
    assert_eq!(trained().await, 1);
    run(&study, &store, &open, &Interrupt::default(), watched(&again)).await;
    assert_eq!(trained().await, 4);
    // The seed of the first was not taken again for that trial.
    let mut seeds: Vec<(u64, u64)> = again.borrow().iter().map(|one| (one.number.0, offset(one))).collect();
    seeds.retain(|(_, offset)| *offset > 0);
    assert_eq!(seeds.len(), 3, "{seeds:?}");
}

#[tokio::test]
async fn an_interrupt_finishes_the_trial_under_way() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(SPACE);
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let interrupt = Interrupt::default();
    let requested = interrupt.clone();
    let mut trials = 0;
    let outcome = move |request: &TrialRequest| {
        trials += 1;
        if trials == 3 {
            requested.request();
        }
        measure(request)
    };
    let (ending, history) = run(&study, &store, &open, &interrupt, outcome).await;
    assert_eq!((ending, history.len()), (Ending::Interrupted, 3));
    assert!(history.iter().all(|trial| trial.state.is_finished()));
}

#[tokio::test]
async fn what_ran_out_of_memory_fails_again_without_running() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(SPACE);
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let seen = Seen::default();
    let requests = seen.clone();
    let outcome = move |request: &TrialRequest| {
        requests.borrow_mut().push(request.clone());
        let Task::Recipe { recipe, .. } = &request.task else {
            panic!("no recipe")
        };
        if recipe.adapter.as_ref().unwrap().rank < 16 {
            return measure(request);
        }
        let reason = FailReason::OutOfMemory {
            phase: Phase::Profile,
            in_use_bytes: Some(8),
            requested_bytes: Some(2),
            limit_bytes: Some(9),
        };
        TrialState::Failed {
            reason,
            metrics: Metrics::default(),
        }
    };
    let (_, history) = run(&study, &store, &open, &Interrupt::default(), outcome).await;
    let failed: Vec<TrialNumber> = history
        .iter()
        .filter(|trial| trial.state.name() == "failed")
        .map(|trial| trial.number)
        .collect();
    assert_eq!(
        failed.len(),
        4,
        "two learning rates and two kinds of checkpointing at rank 16"
    );
    let run_at_16 = seen
        .borrow()
        .iter()
        .filter(|request| {
            matches!(&request.task, Task::Recipe { recipe, .. } if recipe.adapter.as_ref().unwrap().rank == 16)
        })
        .count();
    assert_eq!(run_at_16, 2);
}

/// A study whose finalists are trained longer.
const LONGER: &str = r#"
study: longer
model: some/model
data: {train: train.jsonl}
objectives: [throughput, loss]
space: {rank: [4, 8], learning_rate: [1e-3, 5e-4]}
trial: {sequence_length: 64, profile_steps: 2, training_tokens: 300}
training: {length: {tokens: 4000}}
budget: {trials: 4}
sampler: grid
confirm: {trials: 1, repeats: 2, steps: 2, trainings: 0, longer: 12}
"#;

/// Whether a request is for a training of more than a trial's tokens.
fn trains_longer(request: &TrialRequest) -> bool {
    let Task::Recipe { plan, .. } = &request.task else {
        panic!("no recipe: {request:?}")
    };
    let train = plan.train.as_ref();
    train.is_some_and(|train| train.length != TrainingLength::Tokens(300))
}

/// Whether a request has the higher of the two rates.
fn has_high_rate(request: &TrialRequest) -> bool {
    let Task::Recipe { recipe, .. } = &request.task else {
        panic!("no recipe: {request:?}")
    };
    recipe.optimizer.learning_rate > 7e-4
}

/// State of a trial whose higher rate is better after a trial's tokens, and diverges after more.
fn diverges_later(request: &TrialRequest) -> TrialState {
    if trains_longer(request) && has_high_rate(request) {
        let reason = FailReason::Diverged {
            at_step: 12,
            loss: Some(9.0),
            cause: None,
        };
        let metrics = Metrics::default();
        return TrialState::Failed { reason, metrics };
    }
    learns(request)
}

/// State of a trial whose higher rate and rank are better, after more tokens too.
fn learns(request: &TrialRequest) -> TrialState {
    let Task::Recipe { recipe, plan } = &request.task else {
        panic!("no recipe: {request:?}")
    };
    let rank = recipe.adapter.as_ref().unwrap().rank;
    let mut metrics = Metrics::default();
    if plan.measure.is_some() {
        metrics.insert("throughput", 1000.0 / rank as f64);
    }
    if plan.train.is_some() {
        let of_rate = if has_high_rate(request) { 0.0 } else { 0.1 };
        let of_length = if trains_longer(request) { 0.3 } else { 0.0 };
        metrics.insert("loss", 2.4 - rank as f64 / 20.0 + of_rate - of_length);
        metrics.insert("train_tokens", 300.0);
    }
    TrialState::Complete { metrics }
}

/// Record of a study with the data whose rows it trains on.
pub(crate) fn with_data(study: &Study) -> StudyRecord {
    let data_set = Some(DataSetRecord {
        source: "train.jsonl".to_owned(),
        fingerprint: String::new(),
        rows: Some(100),
        tokens: Some(6400),
        held_out_rows: Some(10),
        learnt: None,
    });
    StudyRecord {
        data_set,
        ..record(study)
    }
}

#[tokio::test]
async fn what_diverges_in_a_longer_training_is_not_recommended() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(LONGER);
    let open = store.studies().begin(&with_data(&study)).await.unwrap();
    run(&study, &store, &open, &Interrupt::default(), diverges_later).await;
    let repeats = store.repeats().of(open.id).await.unwrap();
    let runs: Vec<&Metrics> = repeats.values().flatten().collect();
    let values = |name: &str| -> Vec<f64> { runs.iter().filter_map(|run| run.value(name)).collect() };
    assert!(values("loss_longer").len() > 2, "{runs:?}");
    let diverged = values("longer_diverged_step");
    assert!(
        !diverged.is_empty() && diverged.iter().all(|step| *step == 12.0),
        "{runs:?}"
    );
    // What stands for their losses is far above the others.
    let standing = |run: &&&Metrics| run.value("longer_diverged_step").is_some();
    let longer = |run: &&Metrics| run.value("loss_longer");
    let least = runs
        .iter()
        .filter(standing)
        .filter_map(longer)
        .fold(f64::INFINITY, f64::min);
    let others = runs.iter().filter(|run| !standing(run)).filter_map(longer);
    assert!(others.fold(0.0, f64::max) * 1.5 < least, "{runs:?}");
    let history = store.history().trials(open.id).await.unwrap();
    let confirmed = store.repeats().confirmations(open.id).await.unwrap();
    let rate = |history: &[Trial]| {
        let chosen = recommend(&study.problem(), history, &Preference::default()).unwrap();
        chosen.trial.params.get("learning_rate").and_then(ParamValue::as_f64)
    };
    assert_eq!(rate(&history), Some(1e-3), "by short trainings alone");
    assert_eq!(rate(&with_confirmed(&history, &confirmed)), Some(5e-4));
    // Another search knows it.
    let seen = Seen::default();
    let requests = seen.clone();
    let outcome = move |request: &TrialRequest| {
        requests.borrow_mut().push(request.clone());
        diverges_later(request)
    };
    run(&study, &store, &open, &Interrupt::default(), outcome).await;
    assert!(!seen.borrow().iter().any(trains_longer), "{:?}", seen.borrow());
}

#[tokio::test]
async fn where_half_the_rate_is_not_tried_the_next_best_trainings_go_the_full_length() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    // Under three times a trial's length the best rate hardly changes.
    let study = study(&LONGER.replace("tokens: 4000", "tokens: 750"));
    let open = store.studies().begin(&with_data(&study)).await.unwrap();
    let seen = Seen::default();
    let requests = seen.clone();
    let outcome = move |request: &TrialRequest| {
        requests.borrow_mut().push(request.clone());
        learns(request)
    };
    run(&study, &store, &open, &Interrupt::default(), outcome).await;
    let longer = seen.borrow().iter().filter(|one| trains_longer(one)).count();
    assert_eq!(longer, 4, "{:?}", seen.borrow());
}
