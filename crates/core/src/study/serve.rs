//! How a trained model is served, where a study counts what that costs.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::recipe::{AdapterInit, Recipe};

/// Tokens that each sequence has seen, where nobody says how many.
const CONTEXT: usize = 512;

/// Load under which the time of a token is predicted and measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ServePlan {
    pub mode: ServeMode,
    /// Sequences that are answered at once.
    pub batch: usize,
    /// Tokens of the prompt of each; 512, or as many as the model has positions for, where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// Tokens that are generated for each in a measurement.
    pub new_tokens: usize,
}

/// Form in which adapters are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ServeMode {
    /// Adapter folded into the base weights.
    Merged,
    /// Adapter beside the base weights.
    #[default]
    Beside,
    /// Number of adapters beside the base weights, one for each sequence in turn.
    Together(usize),
}

impl ServePlan {
    /// Tokens of each prompt on a model with so many positions.
    pub fn context_in(&self, positions: usize) -> usize {
        let most = positions.saturating_sub(self.new_tokens).max(1);
        self.context.unwrap_or_else(|| CONTEXT.min(most))
    }

    /// The part of a recipe that its served model has: what only a training reads is as usual, so that recipes which are served alike
    /// are equal.
    pub fn served(recipe: &Recipe) -> Recipe {
        let mut served = Recipe::new(&recipe.model, recipe.data.clone());
        served.precision = recipe.precision;
        served.weight_sparsity = recipe.weight_sparsity;
        served.activation_quantization = recipe.activation_quantization;
        served.quantization_aware = recipe.quantization_aware;
        served.adapter = recipe.adapter.clone();
        if let Some(adapter) = &mut served.adapter {
            adapter.alpha = 1.0;
            adapter.alpha_pattern.clear();
            adapter.dropout = 0.0;
            adapter.rslora = false;
            adapter.init = AdapterInit::default();
            adapter.adapter_init = None;
        }
        served
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::DataSettings;

    #[test]
    fn prompts_are_as_long_as_the_model_has_room_for() {
        let plan = |context| ServePlan {
            mode: ServeMode::Beside,
            batch: 1,
            context,
            new_tokens: 16,
        };
        assert_eq!(
            [4096, 128, 8].map(|positions| plan(None).context_in(positions)),
            [512, 112, 1]
        );
        assert_eq!(
            plan(Some(900)).context_in(128),
            900,
            "what was asked for is not changed"
        );
    }

    #[test]
    fn recipes_that_are_served_alike_are_equal() {
        let served = |change: fn(&mut Recipe)| {
            let mut recipe = Recipe::new("model", DataSettings::default());
            change(&mut recipe);
            ServePlan::served(&recipe)
        };
        let plain = served(|_| ());
        assert_eq!(served(|recipe| recipe.optimizer.learning_rate = 1.0), plain);
        assert_eq!(served(|recipe| recipe.batch.micro_batch = 64), plain);
        assert_eq!(served(|recipe| recipe.adapter.as_mut().unwrap().rslora = true), plain);
        assert_ne!(served(|recipe| recipe.adapter.as_mut().unwrap().rank = 64), plain);
        assert_ne!(served(|recipe| recipe.adapter.as_mut().unwrap().dora = true), plain);
        assert_ne!(served(|recipe| recipe.precision = crate::recipe::Precision::Nf4), plain);
    }
}
