//! Predictions of what settings cost: from steps of this engine's models on paper.

use std::sync::Arc;

use crate::model::PaperModel;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::ModelPlan;
use peft_tune_core::predict::{ExpertLoad, Host, Machine, Models, Predictor, StepModel, StreamShape, TrainedModel};
use peft_tune_core::recipe::Recipe;

/// A predictor of a model's settings on a machine.
pub fn predictor(architecture: Architecture, machine: Machine) -> Predictor {
    Predictor::new(architecture, machine, Arc::new(OnPaper))
}

/// The models of this engine, on paper.
#[derive(Debug)]
struct OnPaper;

impl Models for OnPaper {
    fn of(&self, trainings: &[(&ModelPlan, &Recipe)], host: Host) -> Result<Arc<dyn TrainedModel>, String> {
        let model = match trainings {
            [(plan, recipe)] => PaperModel::new(plan, recipe, host),
            several => PaperModel::of_group(several, host),
        };
        Ok(Arc::new(model.map_err(|error| error.to_string())?))
    }
}

impl TrainedModel for PaperModel {
    fn on(&self, streams: &[&StreamShape], load: ExpertLoad) -> Result<Box<dyn StepModel + '_>, String> {
        let step = Self::on(self, streams, load);
        Ok(Box::new(step.map_err(|error| error.to_string())?))
    }
}

#[cfg(test)]
mod tests;
