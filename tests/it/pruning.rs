//! Pruners in the study loop, with a stand-in for the trial process that reports on its way.

use std::collections::VecDeque;
use std::time::Duration;

use peft_tune::store::Store;
use peft_tune::tune::{Interrupt, Tuner, TunerParts};
use peft_tune::worker::{Evaluator, EvaluatorError, TrialEvent, TrialRequest};
use peft_tune_core::study::{Metrics, Params, Trial, TrialNumber, TrialState};
use peft_tune_search::{CandidateScore, Predicted, Problem, Sampler};

use super::tune::{record, study};

const SPACE: &str = "
study: reports
backend: {command: [unused]}
objectives: [{metric: speed, direction: maximize, known_after: 10}, loss]
space: {x: [0, 1, 2]}
trial: {steps: 20}
pruner: dominance
budget: {trials: 3}
confirm: none
";
const STEPS: u64 = 20;

/// Proposes x = 0, 1, 2, and is sure that the last two are slower and no better than the first.
struct Sure;

impl Sampler for Sure {
    fn name(&self) -> &'static str {
        "sure"
    }

    fn ask(&mut self, _: &Problem, history: &[Trial]) -> Option<Params> {
        let next = i64::try_from(history.len()).unwrap();
        (next < 3).then(|| Params::from([("x".to_owned(), next.into())]))
    }

    fn choose(
        &mut self,
        problem: &Problem,
        history: &[Trial],
        _: &[Params],
    ) -> Option<Vec<(Params, Option<CandidateScore>)>> {
        let params = self.ask(problem, history)?;
        let predicted = |metric: &str, low: f64, high: f64| Predicted {
            metric: metric.to_owned(),
            median: (low + high) / 2.0,
            low,
            high,
        };
        let score = CandidateScore {
            expected_improvement: 1.0,
            log_acquisition: 0.0,
            predicted: vec![predicted("speed", 4_500.0, 4_800.0), predicted("loss", 2.2, 2.6)],
        };
        let score = (!history.is_empty()).then_some(score);
        Some(vec![(params, score)])
    }
}

/// Reports speed and a falling loss at each step, until it is told to stop.
#[derive(Default)]
struct Reporting {
    under_way: VecDeque<TrialEvent>,
}

impl Evaluator for Reporting {
    fn capacity(&self) -> usize {
        1
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let number = request.number;
        let speed = [4_988.0, 6_174.0, 4_400.0][number.0 as usize];
        let metrics = |step: u64| {
            Metrics::from([
                ("speed", speed),
                ("loss", 2.0 + 0.1 * number.0 as f64 + 1.0 / step as f64),
            ])
        };
        self.under_way = (1..=STEPS)
            .map(|step| TrialEvent::Report {
                number,
                step,
                metrics: metrics(step),
            })
            .collect();
        self.under_way.push_back(TrialEvent::Ended {
            number,
            state: TrialState::Complete {
                metrics: metrics(STEPS),
            },
            wall_s: 0.0,
        });
        Ok(())
    }

    fn next_event(&mut self, _: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        Ok(self.under_way.pop_front())
    }

    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError> {
        self.under_way = [TrialEvent::Ended {
            number,
            state: TrialState::Complete {
                metrics: Metrics::default(),
            },
            wall_s: 0.0,
        }]
        .into();
        Ok(())
    }
}

#[tokio::test]
async fn a_trial_whose_own_reports_beat_the_others_is_not_stopped_for_what_was_expected_of_it() {
    let folder = crate::folders::for_database();
    let store = Store::open(&folder.path().join("study.db")).await.unwrap();
    let study = study(SPACE);
    let open = store.studies().begin(&record(&study)).await.unwrap();
    let parts = TunerParts {
        study: &study,
        store: &store,
        id: open.id,
        sampler: Box::new(Sure),
        evaluator: Box::new(Reporting::default()),
        observer: &mut (),
        interrupt: Interrupt::default(),
    };
    let mut tuner = Tuner::new(parts).await.unwrap();
    tuner.run().await.unwrap();
    let states: Vec<&str> = tuner.history().iter().map(|trial| trial.state.name()).collect();
    // The second is faster than the first from its first report on, before its speed is final; the third is not.
    assert_eq!(states, ["complete", "complete", "pruned"]);
}
