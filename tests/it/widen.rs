//! Ranges that widen by themselves: an optimum beyond the edge, what keeps a range as it is, and who sees that it is wider.

use peft_tune::store::{OpenStudy, Store};
use peft_tune::tune::{Interrupt, TuneObserver, Tuner, TunerParts};
use peft_tune::worker::{MockEvaluator, Task, TrialRequest};
use peft_tune_core::space::Widening;
use peft_tune_core::study::{FailReason, Metrics, ParamValue, Params, Trial, TrialState};
use peft_tune_search::{Problem, Sampler};

use crate::mocked::{errors_of, folder_with, peft_tune};
use crate::tune::{record, study};

/// How a trial ends, by what it was asked for.
type EndsAs = fn(&TrialRequest) -> TrialState;

const SPACE: &str = "
study: wider
model: some/model
data: {train: train.jsonl}
objectives: [loss]
space:
  rank: 8
  learning_rate: {low: 1e-4, high: 2e-3, scale: log}
trial: {sequence_length: 64, training_steps: 3}
budget: {trials: 14}
pruner: none
confirm: none
";

/// The rate with the least loss, beyond the file's range.
const OPTIMUM: f64 = 4e-3;

/// Goes up the range again and again, a little lower each time, and looks at its upper end more closely.
struct Climber {
    follows_best: bool,
}

impl Sampler for Climber {
    fn name(&self) -> &'static str {
        "climber"
    }

    fn ask(&mut self, problem: &Problem, history: &[Trial]) -> Option<Params> {
        const PLACES: [f64; 7] = [0.1, 0.35, 0.6, 0.85, 1.0, 0.97, 0.94];
        let (round, at) = (history.len() / PLACES.len(), history.len() % PLACES.len());
        Some(problem.space.params_at(&[PLACES[at] - 0.003 * round as f64]))
    }

    fn follows_best(&self) -> bool {
        self.follows_best
    }
}

#[derive(Default)]
struct Told(Vec<Widening>);

impl TuneObserver for Told {
    fn range_widened(&mut self, widening: &Widening) {
        self.0.push(widening.clone());
    }
}

fn rate_of(request: &TrialRequest) -> f64 {
    let Task::Recipe { recipe, .. } = &request.task else {
        panic!("no recipe: {request:?}")
    };
    recipe.optimizer.learning_rate
}

fn bowl(request: &TrialRequest) -> TrialState {
    let loss = 2.0 + 0.05 * (rate_of(request) / OPTIMUM).ln().powi(2);
    let metrics = [("loss", loss)].into();
    TrialState::Complete { metrics }
}

/// Diverges near the file's upper end.
fn cliff(request: &TrialRequest) -> TrialState {
    if rate_of(request) < 1.9e-3 {
        return bowl(request);
    }
    let reason = FailReason::Diverged {
        at_step: 1,
        loss: None,
        cause: None,
    };
    let metrics = Metrics::default();
    TrialState::Failed { reason, metrics }
}

/// A study in a database of its own.
struct StoredStudy {
    store: Store,
    open: OpenStudy,
    text: String,
    _folder: tempfile::TempDir,
}

impl StoredStudy {
    async fn new(text: &str) -> Self {
        let folder = crate::folders::for_database();
        let store = Store::open(&folder.path().join("study.db")).await.unwrap();
        let open = store.studies().begin(&record(&study(text))).await.unwrap();
        Self {
            store,
            open,
            text: text.to_owned(),
            _folder: folder,
        }
    }

    /// Searches up to so many trials: what was told, and the rates of all trials.
    async fn search(&self, trials: u64, follows_best: bool, outcome: EndsAs) -> (Vec<Widening>, Vec<f64>) {
        let mut study = study(&self.text);
        study.budget.trials = Some(trials);
        let mut told = Told::default();
        let parts = TunerParts {
            study: &study,
            store: &self.store,
            id: self.open.id,
            sampler: Box::new(Climber { follows_best }),
            evaluator: Box::new(MockEvaluator::new(1, outcome)),
            observer: &mut told,
            interrupt: Interrupt::default(),
        };
        let mut tuner = Tuner::new(parts).await.unwrap();
        tuner.run().await.unwrap();
        let rate = |trial: &Trial| trial.params.get("learning_rate").and_then(ParamValue::as_f64);
        let rates = tuner.history().iter().filter_map(rate).collect();
        drop(tuner);
        (told.0, rates)
    }
}

fn highest(rates: &[f64]) -> f64 {
    rates.iter().copied().fold(0.0, f64::max)
}

#[tokio::test]
async fn an_optimum_beyond_the_edge_is_reached_and_told() {
    let stored = StoredStudy::new(SPACE).await;
    let (told, rates) = stored.search(14, true, bowl).await;
    let lines: Vec<String> = told.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        ["learning_rate: range widened to 1e-4..0.008: the best of 6 trainings sits on its upper edge, 0.002"]
    );
    assert_eq!(told[0].best.0, 4);
    assert!(rates[..6].iter().all(|rate| *rate <= 2e-3));
    assert!((7e-3..=8e-3).contains(&highest(&rates)), "{rates:?}");
    let nearest = rates.iter().map(|rate| (rate / OPTIMUM).ln().abs()).fold(1.0, f64::min);
    assert!(nearest < 0.05, "{rates:?}");
    assert_eq!(stored.store.widenings().of(stored.open.id).await.unwrap(), told);
}

#[tokio::test]
async fn a_resumed_search_goes_on_with_the_wider_range() {
    let whole = StoredStudy::new(SPACE).await;
    let (_, all) = whole.search(14, true, bowl).await;
    let stored = StoredStudy::new(SPACE).await;
    assert_eq!(stored.search(8, true, bowl).await.0.len(), 1);
    let (told, rates) = stored.search(14, true, bowl).await;
    assert!(told.is_empty(), "{told:?}");
    assert_eq!(rates, all);
}

#[tokio::test]
async fn a_range_stays_where_it_is_fixed_where_trials_diverge_and_in_a_design() {
    let fixed = SPACE.replace("scale: log}", "scale: log, fixed: true}");
    let cases: [(&str, bool, EndsAs); 3] = [(&fixed, true, bowl), (SPACE, true, cliff), (SPACE, false, bowl)];
    for (text, follows_best, outcome) in cases {
        let stored = StoredStudy::new(text).await;
        let (told, rates) = stored.search(14, follows_best, outcome).await;
        assert!(told.is_empty(), "{told:?}");
        assert!(highest(&rates) <= 2e-3 * (1.0 + 1e-12), "{rates:?}");
    }
}

/// The mocked trials' best rate is 3e-3.
const MOCKED: &str = "study: own\nmodel: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl}\n\
                      objectives: [throughput, loss]\n\
                      space: {rank: 8, micro_batch: [1, 2], learning_rate: {low: 1e-4, high: 1e-3, scale: log}}\n\
                      trial: {sequence_length: 128}\npruner: none\nconfirm: none\nbudget: {trials: 24}\n";

fn queried(folder: &std::path::Path, statement: &str) -> String {
    let output = peft_tune(folder, &["query", statement, "--format", "csv"]);
    assert!(output.status.success(), "{}", errors_of(&output));
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    text.lines().last().unwrap_or_default().to_owned()
}

fn highest_rate(folder: &std::path::Path) -> f64 {
    let statement = "select max(value) as most from trial_param where name = 'learning_rate'";
    queried(folder, statement).parse().unwrap()
}

#[test]
fn a_search_says_that_it_widened_a_range_and_so_does_whoever_looks_at_the_study() {
    let folder = folder_with(MOCKED);
    let folder = folder.path();
    let output = peft_tune(folder, &["search", "space.yaml"]);
    let said = errors_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("learning_rate: range widened to 1e-4..0.002: the best of "),
        "{said}"
    );
    assert!(
        said.contains("trainings sits on its upper edge, 0.001; `fixed: true` keeps it"),
        "{said}"
    );
    assert!(highest_rate(folder) > 1e-3);
    let stdout = |arguments: &[&str]| {
        let output = peft_tune(folder, arguments);
        assert!(output.status.success(), "{}", errors_of(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(stdout(&["status"]).contains("learning_rate: range widened to 1e-4..0.002"));
    assert!(stdout(&["explain"]).contains("learning_rate: the search widened its range to 1e-4.."));
    assert!(stdout(&["search", "space.yaml", "--dry-run", "--trials", "30"]).contains("learning_rate"));

    // The study is the same one when its range is fixed from now on, and the file's range holds again.
    let beyond = "select count(*) as n from trial_param where name = 'learning_rate' and value > 0.001";
    let before = queried(folder, beyond);
    let fixed = MOCKED.replace("scale: log}", "scale: log, fixed: true}");
    std::fs::write(folder.join("space.yaml"), fixed).unwrap();
    let again = peft_tune(folder, &["search", "space.yaml", "--trials", "30"]);
    assert!(again.status.success(), "{}", errors_of(&again));
    assert!(!errors_of(&again).contains("range widened"), "{}", errors_of(&again));
    assert_eq!(queried(folder, beyond), before);
}

#[test]
fn a_range_that_the_file_fixes_stays() {
    let folder = folder_with(&MOCKED.replace("scale: log}", "scale: log, fixed: true}"));
    let output = peft_tune(folder.path(), &["search", "space.yaml"]);
    let said = errors_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("widened"), "{said}");
    assert!(highest_rate(folder.path()) <= 1e-3);
    assert_eq!(queried(folder.path(), "select count(*) as n from range_widening"), "0");
}
