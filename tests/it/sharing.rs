//! Trials side by side that need the same measurement: one measures, the others wait for it or do something else.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use peft_tune::store::Store;
use peft_tune::tune::{Interrupt, Tuner, TunerParts};
use peft_tune::worker::{Evaluator, EvaluatorError, Task, TrialEvent, TrialRequest};
use peft_tune_core::recipe::{Checkpointing, Recipe, RecipeKey};
use peft_tune_core::study::{FailReason, Metrics, Phase, Trial, TrialNumber, TrialState};
use peft_tune_search::Problem;

use crate::tune::{record, study};

/// Six costs and twelve losses in twenty-four settings.
const SPACE: &str = r#"
study: sharing
model: some/model
data: {train: train.jsonl}
space:
  rank: [4, 8, 16]
  learning_rate: [1e-4, 3e-4, 1e-3, 3e-3]
  gradient_checkpointing: [none, full]
trial: {sequence_length: 64, profile_steps: 2, training_steps: 3}
budget: {trials: 24}
sampler: grid
pruner: none
confirm: none
"#;

/// Log of what the places did.
#[derive(Default)]
struct Log {
    measured: BTreeMap<RecipeKey, u64>,
    trained: BTreeMap<RecipeKey, u64>,
    /// The most that ran side by side.
    most: usize,
}

/// Places whose trials continue by one event at a time, whichever the dice choose. The first attempt of one trial is
/// lost after so many of its events.
struct Places {
    capacity: usize,
    under_way: Vec<(TrialNumber, VecDeque<TrialEvent>)>,
    dice: u64,
    lost: Option<(TrialNumber, usize)>,
    log: Rc<RefCell<Log>>,
}

impl Places {
    fn events(&self, request: &TrialRequest) -> VecDeque<TrialEvent> {
        let number = request.number;
        let Task::Recipe { recipe, plan } = &request.task else {
            panic!("no recipe: {request:?}")
        };
        let mut metrics = Metrics::default();
        let mut events = VecDeque::from([TrialEvent::Phase {
            number,
            phase: Phase::Load,
        }]);
        if plan.measure.is_some() {
            metrics = costs(recipe);
            let metrics = metrics.clone();
            events.push_back(TrialEvent::Measured { number, metrics });
        }
        if plan.train.is_some() {
            events.push_back(TrialEvent::Training { number, steps: 3 });
            metrics.insert("loss", loss(recipe));
        }
        if let Some((_, after)) = self.lost.filter(|(lost, _)| *lost == number && request.attempt == 1) {
            events.truncate(after);
            let reason = FailReason::Crashed {
                phase: Phase::Train,
                message: "killed".to_owned(),
            };
            let wall_s = 0.0;
            events.push_back(TrialEvent::Lost { number, reason, wall_s });
            return events;
        }
        let state = TrialState::Complete { metrics };
        let wall_s = 0.0;
        events.push_back(TrialEvent::Ended { number, state, wall_s });
        events
    }
}

impl Evaluator for Places {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let events = self.events(&request);
        let Task::Recipe { recipe, plan } = &request.task else {
            panic!("no recipe: {request:?}")
        };
        let mut log = self.log.borrow_mut();
        if plan.measure.is_some() {
            *log.measured.entry(recipe.cost_key()).or_default() += 1;
        }
        if plan.train.is_some() {
            *log.trained.entry(recipe.loss_key()).or_default() += 1;
        }
        self.under_way.push((request.number, events));
        log.most = log.most.max(self.under_way.len());
        assert!(self.under_way.len() <= self.capacity);
        Ok(())
    }

    fn next_event(&mut self, _timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        assert!(!self.under_way.is_empty(), "nothing runs, and nothing was begun");
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let chosen = (self.dice >> 33) as usize % self.under_way.len();
        let event = self.under_way[chosen].1.pop_front();
        if self.under_way[chosen].1.is_empty() {
            self.under_way.remove(chosen);
        }
        Ok(event)
    }

    fn cancel(&mut self, _number: TrialNumber) -> Result<(), EvaluatorError> {
        Ok(())
    }
}

fn costs(recipe: &Recipe) -> Metrics {
    let rank = recipe.adapter.as_ref().unwrap().rank as f64;
    let saved = if recipe.gradient_checkpointing == Checkpointing::Full {
        2.0
    } else {
        1.0
    };
    [
        ("throughput", 1000.0 / rank / saved),
        ("peak_memory", 100.0 * rank / saved),
    ]
    .into()
}

fn loss(recipe: &Recipe) -> f64 {
    let rank = recipe.adapter.as_ref().unwrap().rank as f64;
    3.0 - recipe.optimizer.learning_rate - rank / 100.0
}

/// Runs a study on so many places; returns what they did, and the stored trials.
async fn run(text: &str, capacity: usize, dice: u64, lost: Option<(TrialNumber, usize)>) -> (Log, Vec<Trial>) {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(text);
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let problem = Problem {
        space: study.space.clone(),
        objectives: study.objectives.clone(),
        constraints: study.constraints.clone(),
    };
    let log = Rc::new(RefCell::new(Log::default()));
    let parts = TunerParts {
        study: &study,
        store: &store,
        id: open.id,
        sampler: peft_tune_search::build(study.sampler.kind, &problem, study.seed).unwrap(),
        evaluator: Box::new(Places {
            capacity,
            under_way: Vec::new(),
            dice,
            lost,
            log: log.clone(),
        }),
        observer: &mut (),
        interrupt: Interrupt::default(),
    };
    let mut tuner = Tuner::new(parts).await.unwrap();
    tuner.run().await.unwrap();
    drop(tuner);
    let trials = store.history().trials(open.id).await.unwrap();
    for trial in &trials {
        for taken in store.inheritance().of(open.id, trial.number).await.unwrap() {
            let back = store.inheritance().of(open.id, taken.source).await.unwrap();
            assert!(
                !back
                    .iter()
                    .any(|one| one.part == taken.part && one.source == trial.number),
                "two trials took a part from each other: {taken:?}"
            );
        }
    }
    (Rc::into_inner(log).unwrap().into_inner(), trials)
}

/// Every trial is complete and has the values of its own setting, whoever measured them.
fn assert_right(trials: &[Trial]) {
    for trial in trials {
        let TrialState::Complete { metrics } = &trial.state else {
            panic!("{trial:?}")
        };
        let number = |name: &str| trial.params[name].as_f64().unwrap();
        let saved = if trial.params["gradient_checkpointing"] == "full".into() {
            2.0
        } else {
            1.0
        };
        assert_eq!(metrics.value("throughput"), Some(1000.0 / number("rank") / saved));
        assert_eq!(
            metrics.value("loss"),
            Some(3.0 - number("learning_rate") - number("rank") / 100.0)
        );
    }
}

#[tokio::test]
async fn no_cost_and_no_loss_is_measured_twice_side_by_side() {
    for dice in 0..crate::cases_of(20, 10) as u64 {
        let (log, trials) = run(SPACE, 4, dice, None).await;
        assert_eq!(trials.len(), 24);
        assert_right(&trials);
        assert_eq!((log.measured.len(), log.trained.len()), (6, 12));
        assert!(
            log.measured
                .values()
                .chain(log.trained.values())
                .all(|times| *times == 1)
        );
        assert_eq!(log.most, 4, "others are handed out meanwhile");
    }
}

#[tokio::test]
async fn where_the_one_that_measures_is_lost_another_does_and_nobody_waits_for_ever() {
    // Lost before it has measured, after that, and while it trains.
    for after in 1..4 {
        for dice in 0..crate::cases_of(20, 5) as u64 {
            let (log, trials) = run(SPACE, 4, dice, Some((TrialNumber(0), after))).await;
            assert_eq!(trials.len(), 24);
            assert_right(&trials);
            let more = |counts: &BTreeMap<RecipeKey, u64>| counts.values().map(|times| times - 1).sum::<u64>();
            // What the lost attempt had started, and no more than that, is done again.
            assert!(
                more(&log.measured) <= 1 && more(&log.trained) <= 1,
                "after {after}, dice {dice}"
            );
        }
    }
}

#[tokio::test]
async fn where_all_share_one_cost_the_others_train_as_soon_as_it_is_known() {
    let space = SPACE
        .replace("rank: [4, 8, 16]", "rank: 4")
        .replace("[none, full]", "none");
    let (log, trials) = run(&space.replace("24", "4"), 4, 1, None).await;
    assert_eq!((trials.len(), log.measured.len(), log.trained.len()), (4, 1, 4));
    assert_eq!(log.measured.values().sum::<u64>(), 1);
    assert_eq!(log.most, 4, "they do not wait for the end of the one that measures");
}
