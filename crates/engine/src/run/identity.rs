//! Identity of a training, to tell whether a folder holds the same one.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RunError;
use crate::data::PreparedData;
use peft_tune_core::hexadecimal;
use peft_tune_core::recipe::{Difference, OptimizerOffload, Recipe};

/// Layout of the output folder that this version writes.
const VERSION: u64 = 1;

/// Identity of a training: all that decides its bits, besides the weights of the base model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Identity {
    version: u64,
    pub recipe: Recipe,
    /// Fingerprint of the documents, in hexadecimal.
    data: String,
    pub total_steps: u64,
}

impl Identity {
    pub(super) fn new(recipe: &Recipe, data: &PreparedData, total_steps: u64) -> Self {
        Self {
            version: VERSION,
            recipe: recipe.clone(),
            data: hexadecimal(&data.fingerprint()),
            total_steps,
        }
    }

    /// Numbers that ranks compare: the fingerprint of the documents, and the steps. Their recipe is one.
    pub(super) fn numbers(&self) -> Vec<f64> {
        let data = self.data.bytes().map(f64::from);
        data.chain([self.total_steps as f64]).collect()
    }

    /// Reads what was written to `path`.
    pub(super) fn read(path: &Path) -> Result<Self, RunError> {
        let json = |source| RunError::Json {
            path: path.to_owned(),
            source,
        };
        let text = std::fs::read(path).map_err(RunError::file(path))?;
        let value: Value = serde_json::from_slice(&text).map_err(json)?;
        let found = value["version"].as_u64().unwrap_or_default();
        if found != VERSION {
            return Err(RunError::OtherVersion {
                path: path.to_owned(),
                found,
                expected: VERSION,
            });
        }
        serde_json::from_value(value).map_err(json)
    }

    /// Fails unless `now` is the training that `folder` was started with, which is `self`.
    pub(super) fn check(&self, now: &Self, folder: &Path) -> Result<(), RunError> {
        let folder = folder.to_owned();
        if let Some(Difference { key, first, second }) = recipe_difference(&self.recipe, &now.recipe) {
            return Err(RunError::OtherRecipe {
                folder,
                key,
                before: first,
                now: second,
            });
        }
        // The steps follow from recipe and data.
        if self.data != now.data || self.total_steps != now.total_steps {
            return Err(RunError::OtherData { folder });
        }
        Ok(())
    }
}

/// The first difference of two recipes. Where updates are computed is no part of what a training is: its
/// checkpoints hold the same states.
fn recipe_difference(before: &Recipe, now: &Recipe) -> Option<Difference> {
    let json = |recipe: &Recipe| {
        let mut recipe = recipe.clone();
        recipe.optimizer.offload = OptimizerOffload::None;
        serde_json::to_value(recipe).unwrap_or(Value::Null)
    };
    Difference::of("", &json(before), &json(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::DataSettings;

    #[test]
    fn the_first_changed_key_is_named() {
        let before = Recipe::new("model", DataSettings::default());
        let named = |change: fn(&mut Recipe)| {
            let mut now = before.clone();
            change(&mut now);
            recipe_difference(&before, &now).map(|found| format!("{}: {} -> {}", found.key, found.first, found.second))
        };
        assert_eq!(named(|_| {}), None);
        assert_eq!(named(|recipe| recipe.optimizer.offload = OptimizerOffload::Host), None);
        let rate = named(|recipe| recipe.optimizer.learning_rate = 0.5);
        assert_eq!(rate.unwrap(), "optimizer.learning_rate: 0.0002 -> 0.5");
        let every = named(|recipe| recipe.training.evaluate_every = Some(4));
        assert_eq!(every.unwrap(), "training.evaluate_every: absent -> 4");
        let adapter = named(|recipe| recipe.adapter = None).unwrap();
        assert!(adapter.starts_with("adapter: {"), "{adapter}");
    }
}
