//! [`PredictedModel`]: a model's dimensions, as predictions of what trains it need them.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::data::model_config::model_shape;
use crate::cli::data::model_family::{SEARCH_IN_TRL, architecture_of};
use crate::space::Backend;
use crate::tools::Tool;
use crate::tune::{CostModel, StackCosts};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::stack::{ModelShape, StackDevice};
use peft_tune_core::predict::{DataSheet, Machine};
use peft_tune_core::recipe::Recipe;

/// Refuses a recipe whose costs nothing predicts where this backend trains it.
///
/// # Errors
/// Bad input: a trainer of preferences anywhere but in TRL.
pub(in crate::cli) fn check_predicted(backend: &Backend, recipe: &Recipe) -> Result<(), CliError> {
    match backend {
        Backend::Trl(_) => Ok(()),
        Backend::Native | Backend::Command(_) => recipe.check_trained_here().map_err(CliError::bad_input),
    }
}

/// Dimensions of a model, as predictions of what trains it need them.
#[derive(Clone)]
pub(in crate::cli) enum PredictedModel {
    /// Model that this program's own engine trains.
    Native(Box<Architecture>),
    /// Model that another stack trains, whose family need not be known here.
    Stack(Tool, Box<ModelShape>),
}

impl PredictedModel {
    /// The model of this `config.json`, on which `backend` trains `recipe`.
    ///
    /// # Errors
    /// Bad input: a config that says too little; a recipe whose costs nothing predicts.
    pub(in crate::cli) fn of(backend: &Backend, recipe: &Recipe, config: &Path) -> Result<Self, CliError> {
        check_predicted(backend, recipe)?;
        match backend {
            Backend::Trl(backend) => Ok(Self::Stack(backend.loader.tool(), Box::new(model_shape(config)?))),
            Backend::Native | Backend::Command(_) => {
                let architecture = architecture_of(config, SEARCH_IN_TRL)?;
                Ok(Self::Native(Box::new(architecture)))
            }
        }
    }

    /// Costs of the model on a device that is known by its data sheet alone.
    pub(in crate::cli) fn on_sheet(self, sheet: &'static DataSheet) -> CostModel {
        match self {
            Self::Native(architecture) => peft_tune_engine::predictor(*architecture, Machine::DataSheet(sheet)).into(),
            Self::Stack(stack, shape) => StackCosts::new(stack, *shape, Some(StackDevice { sheet })).into(),
        }
    }
}
