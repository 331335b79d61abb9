//! Round trips: what is written is what is read.

use std::cell::Cell;

use peft_tune::store::{
    DataSetRecord, EvaluationRecord, MachineRecord, ModelRecord, RequestOutcome, RowSink, SqlValue, StepRecord, Store,
    StoreError,
};
use peft_tune_core::objective::{Bound, Constraint};
use peft_tune_core::study::{
    FailReason, Metrics, ParamValue, Params, Phase, SpikeCause, StudyRequest, TrialNumber, TrialState,
};
use proptest::prelude::*;

use super::{recipe, study_record};

pub(crate) fn step(number: u64) -> StepRecord {
    StepRecord {
        phase: Phase::Train,
        step: number,
        loss: 2.5,
        learning_rate: 2e-4,
        grad_norm: 0.3,
        tokens: 100,
        target_tokens: 60,
        data_s: 0.1,
        forward_s: 0.2,
        backward_s: 0.3,
        optimizer_s: 0.1,
        total_s: 0.7,
    }
}

/// The first value of the first row.
async fn scalar(store: &Store, sql: &str) -> SqlValue<'static> {
    #[derive(Default)]
    struct First(Option<SqlValue<'static>>);
    impl RowSink for First {
        fn columns(&mut self, _: &[String]) -> std::io::Result<()> {
            Ok(())
        }
        fn row(&mut self, values: &[SqlValue<'_>]) -> std::io::Result<()> {
            self.0 = self.0.take().or(values.first().cloned().map(SqlValue::into_owned));
            Ok(())
        }
    }
    let mut first = First::default();
    store.queries().run(sql, None, &mut first).await.unwrap();
    first.0.unwrap()
}

fn metrics() -> impl Strategy<Value = Metrics> {
    let number = prop::num::f64::NORMAL | prop::num::f64::SUBNORMAL | prop::num::f64::ZERO;
    prop::collection::btree_map(".{0,12}", number, 0..6).prop_map(|values| {
        let mut metrics = Metrics::default();
        for (name, value) in values {
            metrics.insert(name, value);
        }
        metrics
    })
}

fn phase() -> impl Strategy<Value = Phase> {
    prop::sample::select(vec![Phase::Load, Phase::Profile, Phase::Train, Phase::Evaluate])
}

fn cause() -> impl Strategy<Value = Option<SpikeCause>> {
    prop::sample::select(vec![None, Some(SpikeCause::Overflow), Some(SpikeCause::Rate)])
}

fn reason() -> impl Strategy<Value = FailReason> {
    let bytes = || prop::option::of(any::<u64>());
    prop_oneof![
        (phase(), bytes(), bytes(), bytes()).prop_map(|(phase, in_use_bytes, requested_bytes, limit_bytes)| {
            FailReason::OutOfMemory {
                phase,
                in_use_bytes,
                requested_bytes,
                limit_bytes,
            }
        }),
        (any::<u64>(), prop::option::of(prop::num::f64::NORMAL), cause())
            .prop_map(|(at_step, loss, cause)| FailReason::Diverged { at_step, loss, cause }),
        (phase(), ".*").prop_map(|(phase, message)| FailReason::Crashed { phase, message }),
        (phase(), prop::num::f64::POSITIVE | prop::num::f64::ZERO)
            .prop_filter("finite", |(_, after_s)| after_s.is_finite())
            .prop_map(|(phase, after_s)| FailReason::TimedOut { phase, after_s }),
        ".*".prop_map(|message| FailReason::Invalid { message }),
    ]
}

fn state() -> impl Strategy<Value = TrialState> {
    prop_oneof![
        metrics().prop_map(|metrics| TrialState::Complete { metrics }),
        (any::<u64>(), ".*", metrics()).prop_map(|(at_step, rule, metrics)| TrialState::Pruned {
            at_step,
            rule,
            metrics
        }),
        (reason(), metrics()).prop_map(|(reason, metrics)| TrialState::Failed { reason, metrics }),
        ".*".prop_map(|reason| TrialState::Skipped { reason }),
    ]
}

fn params() -> impl Strategy<Value = Params> {
    let value = prop_oneof![
        any::<bool>().prop_map(ParamValue::Bool),
        any::<i64>().prop_map(ParamValue::Int),
        (prop::num::f64::NORMAL | prop::num::f64::ZERO).prop_map(ParamValue::Float),
        ".*".prop_map(ParamValue::from),
        prop::collection::vec(".*", 0..4).prop_map(ParamValue::list),
    ];
    prop::collection::btree_map(".{0,12}", value, 0..6).prop_map(Params::from)
}

#[test]
fn params_states_reasons_and_metrics_are_read_back_as_they_were() {
    let folder = crate::folders::for_database();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (store, study) = runtime.block_on(async {
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        let study = store.studies().begin(&study_record("first")).await.unwrap();
        (store, study)
    });
    let count = Cell::new(0);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(200));
    runner
        .run(&(params(), state()), |(params, state)| {
            count.set(count.get() + 1);
            let number = TrialNumber(count.get());
            let trials = runtime.block_on(async {
                store
                    .trials()
                    .start(study.id, number, &params, Some(&recipe()))
                    .await
                    .unwrap();
                store.trials().finish(study.id, number, &state, 1.0).await.unwrap();
                store.history().trials(study.id).await.unwrap()
            });
            let trial = trials.last().unwrap();
            prop_assert_eq!(trial.number, number);
            prop_assert_eq!(&trial.params, &params);
            prop_assert_eq!(&trial.state, &state);
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn numbers_that_are_not_finite_never_reach_the_database() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let study = store.studies().begin(&study_record("first")).await.unwrap().id;
    let number = TrialNumber(0);
    let bad = Params::from([("alpha".to_owned(), f64::INFINITY.into())]);
    let refused = store.trials().start(study, number, &bad, Some(&recipe())).await;
    assert!(matches!(refused, Err(StoreError::NotFinite { .. })), "{refused:?}");
    assert!(
        store.history().trials(study).await.unwrap().is_empty(),
        "nothing half written"
    );

    store
        .trials()
        .start(study, number, &Params::new(), Some(&recipe()))
        .await
        .unwrap();
    let diverging = StepRecord {
        loss: f64::NAN,
        grad_norm: f64::INFINITY,
        ..step(1)
    };
    store
        .steps()
        .record(study, number, &[diverging, step(2)])
        .await
        .unwrap();
    let evaluation = EvaluationRecord {
        loss: f64::INFINITY,
        ..EvaluationRecord::default()
    };
    store.evaluations().record(study, number, &evaluation).await.unwrap();
    let state = TrialState::Failed {
        reason: FailReason::TimedOut {
            phase: Phase::Train,
            after_s: f64::INFINITY,
        },
        metrics: Metrics::default(),
    };
    store.trials().finish(study, number, &state, f64::NAN).await.unwrap();
    let detail = store.trial_details().of(study, number).await.unwrap();
    assert_eq!(detail.wall_s, None);
    assert_eq!(detail.phase.as_deref(), Some("train"));
    assert_eq!(
        (
            detail.phases[0].steps,
            detail.phases[0].first_loss,
            detail.phases[0].last_loss
        ),
        (2, None, Some(2.5))
    );
    let steps = store.steps().of(study, number, Phase::Train).await.unwrap();
    assert!(steps[0].loss.is_nan() && steps[1] == step(2));
    let stored = "select count(*) from step where loss > 1e308 or grad_norm > 1e308";
    assert_eq!(scalar(&store, stored).await, SqlValue::Integer(0));
}

#[tokio::test]
async fn every_step_is_kept_whatever_their_number() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let study = store.studies().begin(&study_record("first")).await.unwrap().id;
    store
        .trials()
        .start(study, TrialNumber(0), &Params::new(), Some(&recipe()))
        .await
        .unwrap();
    for number in 1..=5000 {
        store
            .steps()
            .record(study, TrialNumber(0), &[step(number)])
            .await
            .unwrap();
    }
    store
        .steps()
        .record(study, TrialNumber(0), &[step(5000)])
        .await
        .unwrap();
    store
        .trials()
        .finish(study, TrialNumber(0), &super::complete(1.0, 1.0, 1.0), 1.0)
        .await
        .unwrap();
    let steps = store.steps().of(study, TrialNumber(0), Phase::Train).await.unwrap();
    assert_eq!(steps.len(), 5000);
    assert!(steps.iter().zip(1..).all(|(found, number)| *found == step(number)));
    let nothing = store.steps().record(study, TrialNumber(1), &[step(1)]).await;
    assert!(
        matches!(nothing, Err(StoreError::NoTrial { count: 1, .. })),
        "{nothing:?}"
    );
}

#[tokio::test]
async fn a_study_is_listed_with_all_that_was_recorded() {
    let folder = crate::folders::for_database();
    let path = folder.path().join("a.db");
    let store = Store::open(&path).await.unwrap();
    let mut record = study_record("first");
    record.objectives[0].reference = Some(5.5);
    record.objectives[1].known_after = Some(3);
    record.constraints = vec![
        Constraint {
            metric: "peak_memory".into(),
            bound: Bound::AtMost(1e9),
        },
        Constraint {
            metric: "accuracy".into(),
            bound: Bound::AtLeast(0.5),
        },
    ];
    record.model = Some(ModelRecord {
        source: "tiny".into(),
        parameters: Some(135_000_000),
        ..ModelRecord::default()
    });
    record.data_set = Some(DataSetRecord {
        source: "train.jsonl".into(),
        ..DataSetRecord::default()
    });
    record.machine = Some(MachineRecord {
        host: "here".into(),
        cpu_cores: 2,
        ..MachineRecord::default()
    });
    for name in ["first", "second"] {
        record.name = name.to_owned();
        store.studies().begin(&record).await.unwrap();
    }
    let studies = store.studies().all().await.unwrap();
    let first = &studies[0];
    assert_eq!(
        (first.name.as_str(), first.model.as_deref(), first.trials()),
        ("first", Some("tiny"), 0)
    );
    assert_eq!(
        (&first.objectives, &first.constraints),
        (&record.objectives, &record.constraints)
    );
    for table in ["machine", "model", "data_set"] {
        let count = scalar(&store, &format!("select count(*) from {table}")).await;
        assert_eq!(count, SqlValue::Integer(1), "{table} is stored once");
    }
}

#[tokio::test]
async fn the_recipe_s_columns_are_those_of_the_recipe() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let study = store.studies().begin(&study_record("first")).await.unwrap().id;
    let mut full = recipe();
    full.adapter = None;
    for (number, recipe) in [(0, &recipe()), (1, &full)] {
        store
            .trials()
            .start(study, TrialNumber(number), &Params::new(), Some(recipe))
            .await
            .unwrap();
    }
    let row = "select concat_ws(' ', rank, alpha, dropout, target_modules, micro_batch, gradient_accumulation,
               sequence_length, packing, precision, gradient_checkpointing, optimizer, learning_rate, schedule, warmup,
               weight_decay, rslora, dora) from trial_summary where trial = ";
    assert_eq!(
        scalar(&store, &format!("{row} 0")).await,
        SqlValue::Text("16 32.0 0.0 q_proj,v_proj 4 1 1024 0 bf16 none adamw 0.0002 cosine 0.0 0.0 1 0".into())
    );
    assert_eq!(
        scalar(&store, &format!("{row} 1")).await,
        SqlValue::Text("4 1 1024 0 bf16 none adamw 0.0002 cosine 0.0 0.0".into())
    );
}

#[tokio::test]
async fn requests_wait_until_they_are_settled() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("a.db")).await.unwrap();
    let study = store.studies().begin(&study_record("asked")).await.unwrap();
    let wanted = Params::from([("rank".to_owned(), 8i64.into()), ("name".to_owned(), "é\"".into())]);
    let enqueue = StudyRequest::Enqueue(wanted);
    let pause = store.requests().add(study.id, &StudyRequest::Pause).await.unwrap();
    let setting = store.requests().add(study.id, &enqueue).await.unwrap();
    let waiting = store.requests().waiting(study.id).await.unwrap();
    assert_eq!(waiting.iter().map(|one| one.id).collect::<Vec<_>>(), [pause, setting]);
    assert_eq!(waiting[1].request, enqueue);
    let refused = RequestOutcome::Refused { why: "rank".into() };
    store
        .requests()
        .settle(pause, &RequestOutcome::Done { trial: None })
        .await
        .unwrap();
    store.requests().settle(setting, &refused).await.unwrap();
    assert!(store.requests().waiting(study.id).await.unwrap().is_empty());
    assert_eq!(store.requests().refusals(study.id, 3).await.unwrap(), ["rank"]);
}
