//! One trial of the engine through a pool of workers; no tests of its own.

use std::time::Duration;

use peft_tune::worker::{Evaluator, Task, TrialEvent, TrialRequest, WorkerPool};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::study::{Metrics, TrialNumber, TrialPlan, TrialState};

/// Runs a trial to its end and calls `watch` with each event before that; nothing may be silent for longer than `patience`.
pub(crate) fn run(
    evaluator: &mut WorkerPool,
    number: u64,
    (recipe, plan): (Recipe, TrialPlan),
    patience: Duration,
    mut watch: impl FnMut(&mut WorkerPool, &TrialEvent),
) -> TrialState {
    let request = TrialRequest {
        number: TrialNumber(number),
        attempt: 1,
        task: Task::Recipe {
            recipe: Box::new(recipe),
            plan,
        },
        memory_limit_bytes: None,
        time_limit_s: None,
        kernels: None,
        assignments: Vec::new(),
        pairing: None,
        first_adapter: None,
    };
    evaluator.submit(request).unwrap();
    loop {
        match evaluator.next_event(patience).unwrap() {
            Some(TrialEvent::Ended { state, .. }) => return state,
            Some(TrialEvent::Lost { reason, .. }) => {
                let metrics = Metrics::default();
                return TrialState::Failed { reason, metrics };
            }
            Some(event) => watch(evaluator, &event),
            None => panic!("nothing for {patience:?}"),
        }
    }
}

/// The metrics of a trial that has to be complete.
pub(crate) fn complete(state: TrialState) -> Metrics {
    match state {
        TrialState::Complete { metrics } => metrics,
        other => panic!("{other:?}"),
    }
}
