//! The results database with real files: opening, resuming, reading back, being killed.

mod document;
mod files;
mod front;
mod killed;
pub(crate) mod round_trip;

use peft_tune::store::{EvaluationRecord, RowSink, SqlValue, Store, StoreError, StudyId, StudyRecord};
use peft_tune_core::objective::{LOSS, Objective, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::recipe::{DataSettings, Recipe, TargetModules};
use peft_tune_core::study::{FailReason, Metrics, Params, Phase, TrialNumber, TrialState};
use serde_json::json;

/// A study of the three usual objectives.
pub(crate) fn study_record(name: &str) -> StudyRecord {
    StudyRecord {
        name: name.to_owned(),
        space_path: "space.yaml".into(),
        space_text: format!("study: {name}\n"),
        definition: json!({"space": {"rank": {"low": 4, "high": 64}}, "model": "tiny"}),
        objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).to_vec(),
        constraints: Vec::new(),
        seed: u64::MAX - 1,
        sampler: "random".to_owned(),
        model: None,
        data_set: None,
        machine: None,
    }
}

pub(crate) fn recipe() -> Recipe {
    let data = DataSettings {
        train: "train.jsonl".into(),
        ..DataSettings::default()
    };
    let mut recipe = Recipe::new("tiny", data);
    let adapter = recipe.adapter.as_mut().unwrap();
    adapter.target_modules = TargetModules::Named(vec!["q_proj".into(), "v_proj".into()]);
    adapter.rslora = true;
    recipe
}

pub(crate) fn complete(throughput: f64, peak_memory: f64, loss: f64) -> TrialState {
    TrialState::Complete {
        metrics: Metrics::from([(THROUGHPUT, throughput), (PEAK_MEMORY, peak_memory), (LOSS, loss)]),
    }
}

/// A trial from its start to its end, with three steps and an evaluation.
pub(crate) async fn add_trial(store: &Store, study: StudyId, number: u64, params: &Params, state: &TrialState) {
    let number = TrialNumber(number);
    store
        .trials()
        .start(study, number, params, Some(&recipe()))
        .await
        .unwrap();
    let steps: Vec<_> = (1..=3).map(round_trip::step).collect();
    store.steps().record(study, number, &steps).await.unwrap();
    let evaluation = EvaluationRecord {
        step: 3,
        tokens: 300,
        loss: 2.125,
        accuracy: 0.5,
        target_tokens: 50,
        seconds: 0.25,
    };
    store.evaluations().record(study, number, &evaluation).await.unwrap();
    store.trials().finish(study, number, state, 12.5).await.unwrap();
}

/// Trials of a query's first column.
#[derive(Default)]
struct Numbers(Vec<TrialNumber>);

impl RowSink for Numbers {
    fn columns(&mut self, _: &[String]) -> std::io::Result<()> {
        Ok(())
    }

    fn row(&mut self, values: &[SqlValue<'_>]) -> std::io::Result<()> {
        let SqlValue::Integer(number) = values[0] else {
            panic!("{values:?} holds no trial");
        };
        self.0.push(TrialNumber(number.unsigned_abs()));
        Ok(())
    }
}

/// Numbers of the trials that the view `pareto_front` holds of a study, ascending.
pub(crate) async fn front_in_view(store: &Store, study: &str) -> Vec<TrialNumber> {
    let mut numbers = Numbers::default();
    let sql = "select trial from pareto_front where study = ?1 order by trial";
    store.queries().run(sql, Some(study), &mut numbers).await.unwrap();
    numbers.0
}

/// Failure by running out of memory while it was measured.
pub(crate) fn out_of_memory(limit_bytes: Option<u64>) -> TrialState {
    TrialState::Failed {
        reason: FailReason::OutOfMemory {
            phase: Phase::Profile,
            in_use_bytes: Some(3 << 30),
            requested_bytes: None,
            limit_bytes,
        },
        metrics: Metrics::default(),
    }
}

#[tokio::test]
async fn a_study_is_resumed_with_its_trials() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let record = study_record("first");
    let params = Params::from([("rank".to_owned(), 8i64.into())]);

    let store = Store::open(&path).await.unwrap();
    let study = store.studies().begin(&record).await.unwrap();
    assert!(!study.resumed && study.to_repeat.is_empty());
    let attempt = store
        .trials()
        .start(study.id, TrialNumber(0), &params, Some(&recipe()))
        .await
        .unwrap();
    assert_eq!(attempt, 1);
    store
        .trials()
        .finish(study.id, TrialNumber(0), &complete(10.0, 20.0, 2.0), 1.5)
        .await
        .unwrap();
    drop(study);
    store.close().await.unwrap();

    let store = Store::open(&path).await.unwrap();
    let study = store.studies().begin(&record).await.unwrap();
    assert!(study.resumed && study.to_repeat.is_empty());
    let trials = store.history().trials(study.id).await.unwrap();
    assert_eq!(trials.len(), 1);
    assert_eq!(
        (&trials[0].params, &trials[0].state),
        (&params, &complete(10.0, 20.0, 2.0))
    );
    let again = store
        .trials()
        .start(study.id, TrialNumber(0), &params, Some(&recipe()))
        .await;
    assert!(matches!(again, Err(StoreError::WrongState { .. })), "{again:?}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn another_definition_under_the_same_name_is_refused_and_says_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let mut record = study_record("first");
    drop(store.studies().begin(&record).await.unwrap());
    record.sampler = "grid".to_owned();
    record.space_text.push_str("# a comment\n");
    drop(
        store
            .studies()
            .begin(&record)
            .await
            .expect("sampler and comments may change"),
    );
    record.definition["space"]["rank"]["high"] = json!(128);
    record.objectives.pop();
    let message = store.studies().begin(&record).await.unwrap_err().to_string();
    assert!(
        message.contains("settings.space.rank.high") && message.contains("objectives.2"),
        "{message}"
    );
    assert!(message.contains("`study:`") && message.contains("`--db`"), "{message}");
}

#[tokio::test]
async fn a_study_is_run_by_one_at_a_time_and_two_studies_side_by_side() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let (one, other) = (Store::open(&path).await.unwrap(), Store::open(&path).await.unwrap());
    let study = one.studies().begin(&study_record("first")).await.unwrap();
    let refused = other.studies().begin(&study_record("first")).await.unwrap_err();
    assert!(
        refused.to_string().contains(&std::process::id().to_string()),
        "{refused}"
    );
    let second = other.studies().begin(&study_record("second")).await.unwrap();
    drop((study, second));
    other.studies().begin(&study_record("first")).await.unwrap();
    assert_eq!(other.studies().find(None).await.unwrap().name, "first", "the latest");
    assert_eq!(other.studies().find(Some("second")).await.unwrap().seed, u64::MAX - 1);
    let unknown = other.studies().find(Some("third")).await.unwrap_err().to_string();
    assert!(unknown.contains("`second`, `first`"), "{unknown}");
}

#[tokio::test]
async fn a_running_trial_of_a_search_that_is_gone_is_handed_back_without_its_steps() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let record = study_record("first");
    let number = TrialNumber(7);
    {
        let store = Store::open(&path).await.unwrap();
        let study = store.studies().begin(&record).await.unwrap();
        store
            .trials()
            .start(study.id, number, &Params::new(), Some(&recipe()))
            .await
            .unwrap();
        store
            .steps()
            .record(study.id, number, &[round_trip::step(1)])
            .await
            .unwrap();
        store.steps().flush().await.unwrap();
        // Dropped as a killed process drops it: without closing.
    }
    let store = Store::open(&path).await.unwrap();
    let study = store.studies().begin(&record).await.unwrap();
    assert_eq!(study.to_repeat, [number]);
    assert_eq!(
        store.history().trials(study.id).await.unwrap()[0].state,
        TrialState::Waiting
    );
    assert!(
        store
            .trial_details()
            .of(study.id, number)
            .await
            .unwrap()
            .phases
            .is_empty()
    );
    assert_eq!(
        store
            .trials()
            .start(study.id, number, &Params::new(), Some(&recipe()))
            .await
            .unwrap(),
        2
    );
    store
        .steps()
        .record(study.id, number, &[round_trip::step(1)])
        .await
        .unwrap();
    store.trials().release(study.id, number).await.unwrap();
    store.steps().flush().await.unwrap();
    let detail = store.trial_details().of(study.id, number).await.unwrap();
    assert!(detail.phases.is_empty() && detail.trial.state == TrialState::Waiting);
    let error = store
        .trials()
        .finish(study.id, number, &complete(1.0, 1.0, 1.0), 1.0)
        .await
        .unwrap_err();
    assert!(matches!(error, StoreError::WrongState { .. }), "{error}");
}

#[tokio::test]
async fn what_a_trial_took_over_goes_when_it_is_handed_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let study = store.studies().begin(&study_record("first")).await.unwrap();
    let (source, number, params) = (TrialNumber(0), TrialNumber(1), Params::new());
    add_trial(&store, study.id, source.0, &params, &complete(10.0, 20.0, 2.0)).await;
    let reason = FailReason::Invalid {
        message: "no such file".to_owned(),
    };
    let failed = TrialState::Failed {
        reason,
        metrics: Metrics::default(),
    };
    for fails in [false, true] {
        store.trials().start(study.id, number, &params, None).await.unwrap();
        let inheritance = store.inheritance();
        inheritance.record(study.id, number, "loss", source).await.unwrap();
        inheritance
            .record_metric(study.id, number, "speed", source)
            .await
            .unwrap();
        assert_eq!(inheritance.of(study.id, number).await.unwrap().len(), 2);
        if fails {
            store.trials().finish(study.id, number, &failed, 1.0).await.unwrap();
            store.trials().reopen_failed(study.id, &[number]).await.unwrap();
        } else {
            store.trials().release(study.id, number).await.unwrap();
        }
        assert!(inheritance.of(study.id, number).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn seconds_of_lost_attempts_count_once_and_those_of_reopened_failures_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let study = store.studies().begin(&study_record("first")).await.unwrap();
    let (set_aside, finished, failing) = (TrialNumber(0), TrialNumber(1), TrialNumber(2));
    let crash = FailReason::Crashed {
        phase: Phase::Train,
        message: "gone".to_owned(),
    };
    let failed = TrialState::Failed {
        reason: crash.clone(),
        metrics: Metrics::default(),
    };
    let (trials, lost, params) = (store.trials(), store.lost_attempts(), Params::new());
    let spent = async || store.spent_times().of(study.id).await.unwrap().trials_s;
    for number in [set_aside, finished] {
        trials.start(study.id, number, &params, None).await.unwrap();
        lost.record(study.id, number, &crash, 1.0).await.unwrap();
        trials.release(study.id, number).await.unwrap();
    }
    assert_eq!(spent().await, 2.0);
    for number in [set_aside, finished, failing] {
        trials.start(study.id, number, &params, None).await.unwrap();
    }
    // A trial that is set aside ends with the attempt that it lost last.
    lost.record(study.id, set_aside, &crash, 4.0).await.unwrap();
    trials.finish(study.id, set_aside, &failed, 4.0).await.unwrap();
    let metrics = complete(10.0, 20.0, 2.0);
    trials.finish(study.id, finished, &metrics, 8.0).await.unwrap();
    trials.finish(study.id, failing, &failed, 16.0).await.unwrap();
    assert_eq!(spent().await, 30.0);
    trials.reopen_failed(study.id, &[failing]).await.unwrap();
    assert_eq!(spent().await, 14.0);
}

#[tokio::test]
async fn a_reopened_trial_has_all_its_attempts_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let study = store.studies().begin(&study_record("first")).await.unwrap();
    let (number, params) = (TrialNumber(0), Params::new());
    let crash = FailReason::Crashed {
        phase: Phase::Train,
        message: "gone".to_owned(),
    };
    let (trials, lost) = (store.trials(), store.lost_attempts());
    // Attempts that were lost by the end of each.
    let lose = async || {
        trials.start(study.id, number, &params, None).await.unwrap();
        lost.record(study.id, number, &crash, 1.0).await.unwrap()
    };
    assert_eq!(lose().await, 1);
    trials.release(study.id, number).await.unwrap();
    assert_eq!(lose().await, 2);
    let failed = TrialState::Failed {
        reason: crash.clone(),
        metrics: Metrics::default(),
    };
    trials.finish(study.id, number, &failed, 1.0).await.unwrap();
    trials.reopen_failed(study.id, &[number]).await.unwrap();
    assert_eq!(lose().await, 1);
    // All of them are kept, with the end that was taken back.
    assert_eq!(lost.of(study.id, number).await.unwrap().len(), 4);
}
