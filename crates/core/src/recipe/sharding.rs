//! Whether the devices of a training share out its frozen weights, one row for each form.

use serde::Serialize;

use super::Recipe;
use super::adapter::AdapterInit;
use super::named::named;

/// Part of the frozen weights that each of several devices holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Sharding {
    #[default]
    None,
    Full,
}

/// Row of the table of shardings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ShardingRow {
    #[serde(skip)]
    pub kind: Sharding,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
}

const ROWS: &[ShardingRow] = &[
    ShardingRow {
        kind: Sharding::None,
        name: "none",
        aliases: &[],
        about: "Each device holds all frozen weights.",
    },
    ShardingRow {
        kind: Sharding::Full,
        name: "full",
        aliases: &[],
        about: "Each holds its part of every layer's, and gathers a layer before it is computed.",
    },
];

named!(
    Sharding,
    ShardingRow,
    ROWS,
    "Sharding",
    "What each of several devices holds of the frozen weights of linear layers."
);

impl Sharding {
    /// Whether each device holds all weights.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}

/// Why the weights of a recipe cannot be shared out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSharding {
    #[error(
        "`sharding: full` shares weights out among devices, and `devices` is 1; raise `devices`, or write `sharding: none`"
    )]
    OneDevice,
    #[error(
        "`sharding: full` shares out frozen weights, and full fine-tuning has none; train an adapter, or write \
         `sharding: none`"
    )]
    NothingFrozen,
    #[error("`sharding: full` does not go with {with} so far, {why}; leave one of the two out")]
    Unsupported { with: String, why: &'static str },
}

/// Modules beside the layers, which every device holds whole.
const BESIDE_LAYERS: [&str; 2] = ["embed_tokens", "lm_head"];

impl Recipe {
    /// The recipe on one device, with as many micro-batches in a step as each of its devices has.
    #[must_use]
    pub fn on_one_device(&self) -> Self {
        let mut alone = self.clone();
        (alone.batch.devices, alone.batch.sharding) = (1, Sharding::None);
        alone
    }

    /// Refuses a recipe whose weights cannot be shared out as it asks for.
    ///
    /// # Errors
    /// One device; nothing that is frozen; settings that read whole weights outside a layer's turn.
    pub fn check_sharding(&self) -> Result<(), BadSharding> {
        if self.batch.sharding.is_none() {
            return Ok(());
        }
        if self.batch.devices < 2 {
            return Err(BadSharding::OneDevice);
        }
        let Some(adapter) = &self.adapter else {
            return Err(BadSharding::NothingFrozen);
        };
        let unsupported = |with: &str, why| {
            let with = with.to_owned();
            Err(BadSharding::Unsupported { with, why })
        };
        if adapter.dora {
            return unsupported("`dora: true`", "which reads all layers' weights before each pass");
        }
        if adapter.init == AdapterInit::Pissa {
            return unsupported(
                "`init: pissa`",
                "which replaces all layers' weights before the first step",
            );
        }
        if !self.weight_sparsity.is_none() {
            let with = format!("`weight_sparsity: {}`", self.weight_sparsity);
            return unsupported(&with, "whose positions are no part of what devices share out");
        }
        if !self.quantization_aware.is_none() {
            return unsupported(
                &format!("`quantization_aware: {}`", self.quantization_aware),
                "which rounds all layers' weights before each pass",
            );
        }
        let inside = |name: &&String| !BESIDE_LAYERS.contains(&name.rsplit('.').next().unwrap_or(name));
        match adapter.modules_to_save.iter().find(inside) {
            Some(name) => unsupported(
                &format!("`{name}` in `modules_to_save`"),
                "since it trains weights inside layers",
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{AdapterSettings, DataSettings, WeightSparsity};

    fn refused(change: impl FnOnce(&mut Recipe)) -> String {
        let mut recipe = Recipe::new("model", DataSettings::default());
        (recipe.batch.devices, recipe.batch.sharding) = (2, Sharding::Full);
        assert_eq!(recipe.check_sharding(), Ok(()));
        change(&mut recipe);
        recipe.check_sharding().unwrap_err().to_string()
    }

    fn adapter(change: impl FnOnce(&mut AdapterSettings)) -> String {
        refused(|recipe| change(recipe.adapter.as_mut().unwrap()))
    }

    #[test]
    fn what_cannot_be_shared_out_is_refused_by_name() {
        assert!(refused(|recipe| recipe.batch.devices = 1).contains("`devices` is 1"));
        assert!(refused(|recipe| recipe.adapter = None).contains("full fine-tuning"));
        assert!(adapter(|adapter| adapter.dora = true).contains("`dora: true`"));
        let sparse = |recipe: &mut Recipe| recipe.weight_sparsity = WeightSparsity::Magnitude;
        assert!(refused(sparse).contains("`weight_sparsity: magnitude_2_4`"));
        let aware = refused(|recipe| recipe.quantization_aware = super::super::QuantizationAware::Nf4);
        assert!(aware.contains("`quantization_aware: nf4`"), "{aware}");
        assert!(adapter(|adapter| adapter.init = AdapterInit::Pissa).contains("`init: pissa`"));
        assert!(adapter(|adapter| adapter.modules_to_save.push("q_proj".into())).contains("`q_proj`"));
    }

    #[test]
    fn whole_modules_beside_the_layers_train_as_ever() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        (recipe.batch.devices, recipe.batch.sharding) = (2, Sharding::Full);
        let adapter = recipe.adapter.as_mut().unwrap();
        adapter.modules_to_save = vec!["embed_tokens".into(), "model.lm_head".into()];
        assert_eq!(recipe.check_sharding(), Ok(()));
    }
}
