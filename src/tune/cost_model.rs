//! [`CostModel`]: the predictions of what trains a study's trials.

use std::sync::Arc;

use super::stack_costs::StackCosts;
use crate::tools::Tool;
use peft_tune_core::plan::Memory;
use peft_tune_core::predict::{
    Correction, Imbalance, Prediction, Predictor, RowLengths, Scaling, Setting, StepSpeed, Workload,
};
use peft_tune_core::recipe::{Recipe, TrainerKind};
use peft_tune_core::study::ServePlan;

/// Predictions of what trains a study's trials: of this program's own engine, or of another stack.
#[derive(Debug)]
pub enum CostModel {
    /// Steps of the native engine on paper.
    Native(Box<Predictor>),
    /// Steps of another stack, op by op.
    Stack(Box<StackCosts>),
}

impl From<Predictor> for CostModel {
    fn from(predictor: Predictor) -> Self {
        Self::Native(Box::new(predictor))
    }
}

impl From<StackCosts> for CostModel {
    fn from(costs: StackCosts) -> Self {
        Self::Stack(Box::new(costs))
    }
}

impl CostModel {
    /// Costs of settings of this trainer. The native engine has one alone.
    #[must_use]
    pub(super) fn of_trainer(self, trainer: TrainerKind) -> Self {
        match self {
            Self::Native(predictor) => Self::Native(predictor),
            Self::Stack(costs) => Self::Stack(Box::new(costs.of_trainer(trainer))),
        }
    }

    /// Costs of settings whose models are served under this load too. What another stack serves is not predicted.
    #[must_use]
    pub(super) fn serving(self, serve: Option<ServePlan>) -> Self {
        match self {
            Self::Native(predictor) => Self::Native(Box::new(predictor.with_serving(serve))),
            Self::Stack(costs) => Self::Stack(costs),
        }
    }

    /// The stack that trains; `None` for the native engine.
    pub(super) fn stack(&self) -> Option<Tool> {
        match self {
            Self::Native(_) => None,
            Self::Stack(costs) => Some(costs.stack()),
        }
    }

    /// Whether trials run in the host's memory.
    pub(super) fn is_on_host(&self) -> bool {
        match self {
            Self::Native(predictor) => predictor.machine().host().memory() == Memory::Host,
            Self::Stack(costs) => costs.is_on_host(),
        }
    }

    /// Bytes of the device that a process takes beside what is predicted.
    pub(super) fn outside_bytes(&self) -> u64 {
        match self {
            Self::Native(_) => 0,
            Self::Stack(costs) => costs.outside_bytes(),
        }
    }

    /// The correction of predictions that is believed before any trial.
    pub(super) fn correction(&self) -> Correction {
        match self {
            Self::Native(predictor) => predictor.machine().correction(),
            Self::Stack(costs) => costs.correction(),
        }
    }

    /// Share by which predicted memory may miss the truth: beyond it a setting is certain not to fit.
    pub(super) fn memory_margin(&self) -> f64 {
        match self {
            Self::Native(predictor) => predictor.machine().memory_margin(),
            Self::Stack(costs) => costs.memory_margin(),
        }
    }

    /// Costs of a recipe on these rows, or on full ones.
    ///
    /// # Errors
    /// A recipe that does not fit the model, or that cannot be run.
    pub(super) fn predict(&self, recipe: &Recipe, rows: Option<&RowLengths>) -> Result<Prediction, Arc<str>> {
        let predictor = match self {
            Self::Native(predictor) => predictor,
            Self::Stack(costs) => return costs.predict(recipe, rows),
        };
        let workload = workload(recipe, rows);
        let setting = Setting {
            recipe,
            workload: &workload,
        };
        Ok(predictor.predict(&setting).map_err(|error| error.to_string())?)
    }

    /// The speed of a recipe on its devices against that on one; `None` for one device, where a speed is not known, and for a recipe
    /// that cannot be predicted on one.
    pub(super) fn scaling(&self, recipe: &Recipe, rows: Option<&RowLengths>) -> Option<Scaling> {
        let devices = recipe.batch.devices as u64;
        if devices <= 1 {
            return None;
        }
        let link = match self {
            Self::Native(predictor) => predictor.machine().link(),
            Self::Stack(costs) => costs.link(),
        };
        let one = self.predict(&recipe.on_one_device(), rows).ok()?;
        let all = self.predict(recipe, rows).ok()?;
        Scaling::new(devices, link, StepSpeed::from(&one), StepSpeed::from(&all))
    }

    /// The cost of crowding at experts; `None` for a model without experts, a machine whose speed is not known, a recipe that cannot be
    /// predicted, and another stack.
    pub(super) fn imbalance(&self, recipe: &Recipe, rows: Option<&RowLengths>) -> Option<Imbalance> {
        let Self::Native(predictor) = self else {
            return None;
        };
        let workload = workload(recipe, rows);
        let setting = Setting {
            recipe,
            workload: &workload,
        };
        predictor.imbalance(&setting).ok()?
    }

    /// Whether so many bytes hold the trainings of these recipes, each with its rows, at once. Another stack trains one at a time.
    pub(super) fn holds_together(&self, recipes: &[(&Recipe, Option<&RowLengths>)], bytes: f64) -> bool {
        let Self::Native(predictor) = self else {
            return recipes.len() <= 1;
        };
        let workloads: Vec<Workload> = recipes.iter().map(|(recipe, rows)| workload(recipe, *rows)).collect();
        let settings = recipes.iter().zip(&workloads);
        let settings: Vec<Setting<'_>> = settings
            .map(|((recipe, _), workload)| Setting { recipe, workload })
            .collect();
        predictor.holds_group(&settings, bytes).unwrap_or(false)
    }
}

/// Micro-batches of a recipe on these rows, or on full ones.
pub(super) fn workload(recipe: &Recipe, rows: Option<&RowLengths>) -> Workload {
    let batch = &recipe.batch;
    match rows {
        Some(rows) => rows.workload(batch.micro_batch),
        None => Workload::full(batch.micro_batch, batch.sequence_length),
    }
}
