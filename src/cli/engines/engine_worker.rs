//! A training of a comparison: a worker of its engine, which is told what a search tells it.

use std::time::Duration;

use super::trained::Trained;
use crate::cli::CliError;
use crate::cli::options::backend::BackendName;
use crate::report::explanation::reason_message;
use crate::worker::{
    Evaluator, EvaluatorError, FirstAdapter, Launcher, Placement, PoolSettings, Task, TrialEvent, TrialRequest,
    WorkerPool,
};
use peft_tune_core::recipe::{Recipe, TrainingLength};
use peft_tune_core::study::{
    AccuracyPlan, FailReason, MeasurePlan, Phase, TrainPlan, TrialNumber, TrialPlan, TrialState,
};
use peft_tune_engine::StepEvent;

/// Time between two looks at what the worker said.
const POLL: Duration = Duration::from_secs(1);
/// Steps that memory and time are measured over; they are the training's own where it has room for them.
const MEASURED: MeasurePlan = MeasurePlan {
    steps: 3,
    max_warmup_steps: 2,
    serve: None,
};
/// Held-out rows that the loss is measured on.
const HELD_OUT_ROWS: usize = 16;

/// Steps of a training, of which the first ones alone may be made: the schedule is that of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) struct Length {
    pub made: u64,
    pub of: u64,
}

impl Length {
    /// A training to its end.
    pub(in crate::cli) fn whole(steps: u64) -> Self {
        Self { made: steps, of: steps }
    }
}

/// A worker that is yet to be started.
pub(in crate::cli) struct EngineWorker {
    pub engine: BackendName,
    /// Words that make a worker one of this engine.
    pub words: Vec<String>,
    pub slot: Placement,
}

impl EngineWorker {
    /// Trains steps of a recipe, and returns what was told of them.
    ///
    /// # Errors
    /// Bad input: settings that the engine does not train. Failures: memory, a process that ends or cannot be started.
    pub(in crate::cli) fn train(
        self,
        recipe: Recipe,
        length: Length,
        first_adapter: Option<FirstAdapter>,
    ) -> Result<Trained, CliError> {
        let program = std::env::current_exe().map_err(CliError::failed)?;
        let launcher = Launcher::local(program).with_arguments(self.words);
        let mut pool = WorkerPool::new(PoolSettings::new(launcher, vec![self.slot]));
        let request = request(recipe, length.of, first_adapter);
        let number = request.number;
        pool.submit(request).map_err(lost)?;
        let mut told: Vec<StepEvent> = Vec::new();
        loop {
            match pool.next_event(POLL).map_err(lost)? {
                Some(TrialEvent::Step {
                    phase: Phase::Train,
                    step,
                    ..
                }) => {
                    // Steps that the worker took before it heard that these are enough count for nothing.
                    if (told.len() as u64) < length.made {
                        told.push(step);
                    }
                    if told.len() as u64 == length.made && length.made < length.of {
                        pool.cancel(number).map_err(lost)?;
                    }
                }
                Some(TrialEvent::Ended { state, .. }) => return ended(self.engine, told, &state, length),
                Some(TrialEvent::Lost { reason, .. }) => return Err(failure(self.engine, &reason)),
                _ => {}
            }
        }
    }
}

/// A trial that measures what steps cost, trains, and evaluates at the end.
fn request(recipe: Recipe, steps: u64, first_adapter: Option<FirstAdapter>) -> TrialRequest {
    let train = TrainPlan {
        length: TrainingLength::Steps(steps),
        evaluations: 1,
        evaluation_rows: Some(HELD_OUT_ROWS),
        accuracy: AccuracyPlan::default(),
        seed_offset: 0,
    };
    TrialRequest {
        number: TrialNumber(0),
        attempt: 1,
        task: Task::Recipe {
            recipe: Box::new(recipe),
            plan: TrialPlan {
                measure: Some(MEASURED),
                train: Some(train),
            },
        },
        memory_limit_bytes: None,
        time_limit_s: None,
        kernels: None,
        assignments: Vec::new(),
        pairing: None,
        first_adapter,
    }
}

fn ended(engine: BackendName, steps: Vec<StepEvent>, state: &TrialState, length: Length) -> Result<Trained, CliError> {
    match state {
        TrialState::Complete { metrics } => Ok(Trained::new(steps, metrics)),
        TrialState::Pruned { metrics, .. } if steps.len() as u64 == length.made => Ok(Trained::new(steps, metrics)),
        TrialState::Failed { reason, .. } => Err(failure(engine, reason)),
        _ => Err(CliError::failed(anyhow::anyhow!(
            "{} did not train to the end",
            engine.text()
        ))),
    }
}

/// The error that a failed training means.
fn failure(engine: BackendName, reason: &FailReason) -> CliError {
    let (title, message) = (engine.text(), reason_message(reason));
    match reason {
        FailReason::Invalid { .. } => CliError::bad(format!("{title} does not train this recipe: {message}")),
        _ => CliError::failed(anyhow::anyhow!(
            "{title} ended with {} and nothing can be compared: {message}",
            reason.name()
        )),
    }
}

fn lost(error: EvaluatorError) -> CliError {
    CliError::Workers(error.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_that_fails_says_whose_it_is() {
        let invalid = FailReason::Invalid {
            message: "no module `x`".to_owned(),
        };
        let error = failure(BackendName::Trl, &invalid);
        assert_eq!(
            (error.exit_code(), error.to_string().contains("TRL does not train")),
            (2, true)
        );
        let memory = FailReason::OutOfMemory {
            phase: Phase::Train,
            in_use_bytes: None,
            requested_bytes: None,
            limit_bytes: None,
        };
        let error = failure(BackendName::Native, &memory);
        assert_eq!(error.exit_code(), 1);
        assert!(error.to_string().contains("ended with out_of_memory"), "{error}");
    }
}
