//! Questions to a results database of 10,000 trials and 1.2 million steps, and the rate at which steps are written:
//! `cargo bench --bench store`. Filling the database takes half a minute first.

use std::future::poll_fn;
use std::io;
use std::sync::LazyLock;
use std::task::Poll;

use divan::Bencher;
use divan::counter::ItemsCount;
use futures_util::StreamExt;
use peft_tune::store::{EvaluationRecord, NamedQuery, RowSink, SqlValue, StepRecord, Store, StudyId, StudyRecord};
use peft_tune_core::objective::{LOSS, Objective, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::study::{FailReason, Metrics, Params, Phase, TrialNumber, TrialState};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Row, TypeInfo, ValueRef};
use tempfile::TempDir;
use tokio::runtime::Runtime;

const TRIALS: u64 = 10_000;
const STEPS: u64 = 120;
const STUDY: &str = "many";

/// Metrics beside the objectives, as the engine reports them.
const OTHER_METRICS: [&str; 10] = [
    "step_s",
    "data_s",
    "forward_s",
    "backward_s",
    "optimizer_s",
    "base_memory_bytes",
    "reserved_memory_bytes",
    "accuracy",
    "train_s",
    "load_s",
];

const VIEWS: [&str; 13] = [
    "trial_summary",
    "feasible_trial",
    "pareto_front",
    "best_by_objective",
    "study_summary",
    "study_ending",
    "trial_stop",
    "trial_metric where study = 'many' and name = 'loss'",
    "trial_param where study = 'many' and name = 'rank'",
    "trial_step where study = 'many' and trial = 5000",
    "trial_evaluation where study = 'many'",
    "trial_metric",
    "trial_param",
];

fn main() {
    divan::main();
}

/// A database in a folder of its own, open for reading.
struct Filled {
    runtime: Runtime,
    store: Store,
    folder: TempDir,
}

static FILLED: LazyLock<Filled> = LazyLock::new(|| {
    let runtime = Runtime::new().expect("threads");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("many.db");
    let store = runtime.block_on(async {
        let store = Store::open(&path).await.expect("a new database");
        fill(&store).await;
        store.close().await.expect("nothing else writes");
        Store::open_read_only(&path).await.expect("the database")
    });
    Filled { runtime, store, folder }
});

async fn fill(store: &Store) {
    let study = store.studies().begin(&record()).await.expect("a new study");
    let mut random = SmallRng::seed_from_u64(1);
    for number in (0..TRIALS).map(TrialNumber) {
        let params = params(&mut random);
        store
            .trials()
            .start(study.id, number, &params, None)
            .await
            .expect("a new trial");
        let steps: Vec<StepRecord> = (1..=STEPS).map(step).collect();
        store
            .steps()
            .record(study.id, number, &steps)
            .await
            .expect("steps are new");
        let evaluation = EvaluationRecord {
            step: STEPS,
            tokens: 100 * STEPS,
            loss: 2.0,
            accuracy: 0.5,
            target_tokens: 500,
            seconds: 0.5,
        };
        store
            .evaluations()
            .record(study.id, number, &evaluation)
            .await
            .expect("the first evaluation");
        let state = state(&mut random);
        store
            .trials()
            .finish(study.id, number, &state, 3.0)
            .await
            .expect("the trial runs");
    }
}

fn record() -> StudyRecord {
    StudyRecord {
        name: STUDY.to_owned(),
        space_path: "space.yaml".into(),
        space_text: String::new(),
        definition: serde_json::Value::Null,
        objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).to_vec(),
        constraints: Vec::new(),
        seed: 0,
        sampler: "random".to_owned(),
        model: None,
        data_set: None,
        machine: None,
    }
}

/// Eight params, as the quickstart has.
fn params(random: &mut SmallRng) -> Params {
    let names = [
        "rank",
        "micro_batch",
        "global_batch",
        "optimizer",
        "precision",
        "checkpointing",
        "targets",
    ];
    let mut params: Params = names
        .map(|name| (name.to_owned(), (1i64 << random.random_range(0..6)).into()))
        .into();
    params.insert("learning_rate".to_owned(), random.random_range(1e-5..1e-2).into());
    params
}

fn step(number: u64) -> StepRecord {
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

/// One in ten runs out of memory.
fn state(random: &mut SmallRng) -> TrialState {
    if random.random_bool(0.1) {
        return TrialState::Failed {
            reason: FailReason::OutOfMemory {
                phase: Phase::Profile,
                in_use_bytes: Some(1 << 30),
                requested_bytes: None,
                limit_bytes: Some(1 << 30),
            },
            metrics: Metrics::default(),
        };
    }
    let mut metrics = Metrics::from([
        (THROUGHPUT, random.random_range(1e3..1e4)),
        (PEAK_MEMORY, random.random_range(1e9..1e10)),
        (LOSS, random.random_range(1.5..3.0)),
    ]);
    for name in OTHER_METRICS {
        metrics.insert(name, random.random_range(0.0..1.0));
    }
    TrialState::Complete { metrics }
}

/// Counts the rows of a result and drops them.
#[derive(Default)]
struct Rows(u64);

impl RowSink for Rows {
    fn columns(&mut self, _: &[String]) -> io::Result<()> {
        Ok(())
    }

    fn row(&mut self, _: &[SqlValue<'_>]) -> io::Result<()> {
        self.0 += 1;
        Ok(())
    }
}

fn ask(sql: &str) -> u64 {
    let filled = &*FILLED;
    let mut rows = Rows::default();
    let asked = filled.store.queries().run(sql, Some(STUDY), &mut rows);
    filled.runtime.block_on(asked).expect("a sound query");
    rows.0
}

#[divan::bench(args = NamedQuery::all().map(|query| query.name), sample_count = 9, sample_size = 1)]
fn named_query(bencher: Bencher, name: &str) {
    LazyLock::force(&FILLED);
    let query = NamedQuery::find(name).expect("a name from the list");
    bencher.bench_local(|| ask(query.sql));
}

#[divan::bench(args = VIEWS, sample_count = 9, sample_size = 1)]
fn view(bencher: Bencher, view: &str) {
    LazyLock::force(&FILLED);
    let sql = format!("select * from {view}");
    bencher.bench_local(|| ask(&sql));
}

/// Reads a view through the driver's own stream, from its thread to this one, every value copied: how queries were read
/// once.
#[divan::bench(args = VIEWS, sample_count = 9, sample_size = 1)]
fn view_through_the_driver(bencher: Bencher, view: &str) {
    let filled = &*FILLED;
    let options = SqliteConnectOptions::new()
        .filename(filled.folder.path().join("many.db"))
        .read_only(true)
        .immutable(true)
        .row_buffer_size(1024)
        .pragma("temp_store", "memory")
        .pragma("cache_size", "-32000");
    let opened = filled.runtime.block_on(options.connect());
    let mut connection = opened.expect("the database");
    let sql = format!("select * from {view}");
    bencher.bench_local(|| filled.runtime.block_on(drain(&mut connection, &sql)));
}

async fn drain(connection: &mut SqliteConnection, sql: &str) -> u64 {
    let mut stream = sqlx::query(AssertSqlSafe(sql.to_owned())).fetch(connection);
    let mut rows = 0;
    loop {
        // Asked a few times before it waits: to sleep and be woken takes longer than a row.
        let row = poll_fn(|context| {
            for _ in 0..200 {
                if let Poll::Ready(row) = stream.poll_next_unpin(context) {
                    return Poll::Ready(row);
                }
                std::hint::spin_loop();
            }
            Poll::Pending
        });
        let Some(row) = row.await else { return rows };
        std::hint::black_box(values(&row.expect("a sound query")));
        rows += 1;
    }
}

fn values(row: &SqliteRow) -> Vec<SqlValue<'static>> {
    let value = |index: usize| {
        let raw = row.try_get_raw(index).expect("a column of the row");
        match (raw.is_null(), raw.type_info().name()) {
            (true, _) => SqlValue::Null,
            (_, "INTEGER") => SqlValue::Integer(row.get_unchecked(index)),
            (_, "REAL") => SqlValue::Real(row.get_unchecked(index)),
            _ => {
                let bytes: Vec<u8> = row.get_unchecked(index);
                SqlValue::Text(String::from_utf8_lossy(&bytes).into_owned().into())
            }
        }
    };
    (0..row.len()).map(value).collect()
}

/// Steps a second that a running trial can hand over one by one.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn steps_one_by_one(bencher: Bencher) {
    let (runtime, store, study, _folder) = empty();
    let mut number = 0;
    bencher.counter(ItemsCount::new(20_000u64)).bench_local(|| {
        number += 1;
        runtime.block_on(async {
            let number = TrialNumber(number);
            store
                .trials()
                .start(study, number, &Params::new(), None)
                .await
                .expect("a new trial");
            for step in (1..=20_000).map(step) {
                store.steps().record(study, number, &[step]).await.expect("a new step");
            }
            store.steps().flush().await.expect("steps are new");
        });
    });
}

/// An empty study that this process runs; its lock is held until the process ends.
fn empty() -> (Runtime, Store, StudyId, TempDir) {
    let runtime = Runtime::new().expect("threads");
    let folder = tempfile::tempdir().expect("a folder");
    let (store, study) = runtime.block_on(async {
        let store = Store::open(&folder.path().join("steps.db"))
            .await
            .expect("a new database");
        let study = store.studies().begin(&record()).await.expect("a new study");
        let id = study.id;
        std::mem::forget(study);
        (store, id)
    });
    (runtime, store, study, folder)
}
