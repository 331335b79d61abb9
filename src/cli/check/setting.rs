//! A recipe as both engines train it: what would make two trainings differ by chance is off in both.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::processes::interpreter::Package;
use crate::cli::search::stack_refusal::refusal_of;
use crate::space::Loader;
use peft_tune_core::recipe::{Recipe, TorchSettings};

/// A recipe for two engines.
#[derive(Clone, Debug)]
pub(super) struct CheckedRecipe {
    pub recipe: Recipe,
    /// Choices among what PyTorch's stack has, which the built-in engine does without.
    torch: TorchSettings,
    /// Settings that are not the file's, one a line for people.
    pub changed: Vec<String>,
}

impl CheckedRecipe {
    /// The recipe of `path` without dropout and in the order of the rows.
    ///
    /// # Errors
    /// Bad input: a trainer that one engine lacks, and a setting whose rows the engines choose themselves.
    pub(super) fn of(path: &Path, mut recipe: Recipe) -> Result<Self, CliError> {
        if !recipe.trainer.is_sft() {
            return Err(CliError::bad(format!(
                "{}: key `trainer`: TRL alone has `{}`, and there is no other engine to compare it with",
                path.display(),
                recipe.trainer
            )));
        }
        if recipe.batch.packing {
            return Err(CliError::bad(format!(
                "{}: key `batch.packing`: each engine packs rows in an order of its own, and steps on other rows say nothing of \
                 one another; set it to false",
                path.display()
            )));
        }
        let mut changed = Vec::new();
        if let Some(adapter) = recipe.adapter.as_mut().filter(|adapter| adapter.dropout > 0.0) {
            changed.push(format!(
                "dropout is 0 in both, for they draw other random numbers; the recipe has {}",
                adapter.dropout
            ));
            adapter.dropout = 0.0;
        }
        if recipe.batch.group_by_length {
            changed.push("rows are not grouped by length in either; the recipe groups them".to_owned());
            recipe.batch.group_by_length = false;
        }
        if recipe.training.shuffle {
            changed.push("rows come in the order of the file in both; the recipe shuffles them".to_owned());
            recipe.training.shuffle = false;
        }
        let torch = std::mem::take(&mut recipe.torch);
        if !torch.is_usual() {
            changed.push(
                "what the recipe has under `torch` holds in TRL alone, for the built-in engine has no choice there"
                    .to_owned(),
            );
        }
        Ok(Self { recipe, torch, changed })
    }

    /// The recipe as the other engine trains it, which is handed the adapter to start from.
    pub(super) fn for_other(&self) -> Recipe {
        let mut recipe = self.recipe.clone();
        recipe.torch = self.torch.clone();
        if let Some(adapter) = &mut recipe.adapter {
            adapter.adapter_init = None;
        }
        recipe
    }

    /// Refuses what TRL would not train as it is written.
    ///
    /// # Errors
    /// Bad input, with the file and the key.
    pub(super) fn check(&self, path: &Path, on_cpu: bool, packages: &[Package]) -> Result<(), CliError> {
        match refusal_of(&self.for_other(), Loader::Transformers, on_cpu, packages) {
            None => Ok(()),
            Some(reason) => Err(CliError::bad(format!("{}: {reason}", path.display()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{AdapterSettings, DataSettings, Precision, TrainerKind};

    fn recipe(change: impl FnOnce(&mut Recipe)) -> Recipe {
        let mut recipe = Recipe::new("model", DataSettings::default());
        change(&mut recipe);
        recipe
    }

    fn checked(change: impl FnOnce(&mut Recipe)) -> Result<CheckedRecipe, CliError> {
        CheckedRecipe::of(Path::new("recipe.yaml"), recipe(change))
    }

    #[test]
    fn what_is_left_to_chance_is_off_in_both_and_told() {
        let found = checked(|recipe| {
            recipe.batch.group_by_length = true;
            recipe.torch.torch_compile = true;
            recipe.adapter = Some(AdapterSettings {
                dropout: 0.1,
                adapter_init: Some("/earlier".into()),
                ..AdapterSettings::default()
            });
        });
        let found = found.unwrap();
        assert_eq!(found.changed.len(), 4, "{:?}", found.changed);
        assert!(found.changed[0].contains("the recipe has 0.1"), "{:?}", found.changed);
        assert!(!found.recipe.training.shuffle && !found.recipe.batch.group_by_length);
        assert!(found.recipe.torch.is_usual() && found.for_other().torch.torch_compile);
        let (ours, theirs) = (
            found.recipe.adapter.clone().unwrap(),
            found.for_other().adapter.unwrap(),
        );
        assert_eq!((ours.dropout, theirs.dropout), (0.0, 0.0));
        assert!(ours.adapter_init.is_some() && theirs.adapter_init.is_none());
        let plain = checked(|recipe| recipe.training.shuffle = false).unwrap();
        assert!(plain.changed.is_empty(), "{:?}", plain.changed);
    }

    #[test]
    fn what_cannot_be_compared_is_refused_by_its_key() {
        let packed = checked(|recipe| recipe.batch.packing = true).unwrap_err().to_string();
        assert!(packed.contains("recipe.yaml: key `batch.packing`"), "{packed}");
        let pairs = checked(|recipe| recipe.trainer = TrainerKind::Dpo)
            .unwrap_err()
            .to_string();
        assert!(pairs.contains("recipe.yaml: key `trainer`"), "{pairs}");
        let refused = |change: fn(&mut Recipe)| {
            let found = checked(change).unwrap();
            found
                .check(Path::new("recipe.yaml"), true, &[])
                .err()
                .map(|error| error.to_string())
        };
        let quantized = refused(|recipe| recipe.precision = Precision::Nf4).unwrap();
        assert!(
            quantized.contains("key `precision`") && quantized.contains("GPU"),
            "{quantized}"
        );
        let continued = |recipe: &mut Recipe| {
            let adapter = recipe.adapter.as_mut();
            adapter
                .into_iter()
                .for_each(|adapter| adapter.adapter_init = Some("/earlier".into()));
        };
        assert_eq!(refused(continued), None);
    }
}
