//! The built-in engine's steps: first for the adapter that both start from, then on the very rows that the tool trained on.

use std::path::Path;

use serde_json::Value;

use crate::cli::CliError;
use crate::cli::engines::{EngineWorker, Length, Trained};
use crate::cli::export::token_row::TokenRow;
use crate::cli::export::token_rows::{settings, write_jsonl};
use crate::cli::options::backend::BackendName;
use crate::worker::{FirstAdapter, Placement};
use peft_tune_core::recipe::{DataSettings, Recipe, TorchSettings, TrainingLength};

/// Held-out rows beside the tool's: a training has some, and nothing is compared of them.
const HELD_OUT: usize = 2;
/// File of weights in PEFT's layout.
const WEIGHTS: &str = "adapter_model.safetensors";

/// The engine on one device, with what is to be trained.
pub(super) struct EngineRun {
    recipe: Recipe,
    device: String,
    /// Steps of the whole training.
    total_steps: u64,
    /// Settings that are not the recipe's, one a line for people.
    pub changed: Vec<String>,
}

impl EngineRun {
    /// The engine on a recipe without what two trainings would differ by through chance.
    pub(super) fn new(recipe: &Recipe, device: &str, total_steps: u64) -> Self {
        let (mut recipe, mut changed) = (recipe.clone(), Vec::new());
        if let Some(adapter) = recipe.adapter.as_mut().filter(|adapter| adapter.dropout > 0.0) {
            changed.push(format!(
                "dropout is 0 in both, for they draw other random numbers; the file has {}",
                adapter.dropout
            ));
            adapter.dropout = 0.0;
        }
        recipe.batch.group_by_length = false;
        // What PyTorch's stack may choose, and the engine has no choice of.
        recipe.torch = TorchSettings::default();
        recipe.training.length = TrainingLength::Steps(total_steps);
        Self {
            recipe,
            device: device.to_owned(),
            total_steps,
            changed,
        }
    }

    /// Trains the first steps on the recipe's own rows, and leaves the adapter before them in `folder`.
    pub(super) fn with_adapter(&self, folder: &Path, steps: u64) -> Result<Trained, CliError> {
        let first = self
            .recipe
            .adapter
            .is_some()
            .then(|| FirstAdapter::Write(folder.to_owned()));
        self.worker().train(self.recipe.clone(), self.length(steps), first)
    }

    /// Trains the first steps on `rows`, so many a step and in this order, from the adapter in a folder.
    pub(super) fn on_rows(
        &self,
        rows: &[TokenRow],
        of_step: usize,
        adapter: &Path,
        scratch: &Path,
        steps: u64,
    ) -> Result<Trained, CliError> {
        let (train, held_out) = (scratch.join("tool_rows.jsonl"), scratch.join("held_out_rows.jsonl"));
        write_jsonl(&train, true, rows.iter().cloned())?;
        write_jsonl(&held_out, true, rows.iter().take(HELD_OUT).cloned())?;
        let mut recipe = self.recipe.clone();
        recipe.data = settings(&DataSettings::default(), std::slice::from_ref(&train), &held_out);
        recipe.training.shuffle = false;
        let batch = &mut recipe.batch;
        if batch.packing || !of_step.is_multiple_of(batch.micro_batch) {
            // Documents one at a time: a step's loss is the mean over all of its targets.
            (batch.packing, batch.micro_batch) = (false, 1);
        }
        batch.gradient_accumulation = of_step / batch.micro_batch;
        let longest = rows.iter().map(|row| row.ids.len()).max();
        batch.sequence_length = longest.unwrap_or_default().max(batch.sequence_length);
        if let Some(own) = &mut recipe.adapter {
            own.adapter_init = Some(adapter.to_owned());
        }
        self.worker().train(recipe, self.length(steps), None)
    }

    fn length(&self, steps: u64) -> Length {
        Length {
            made: steps.min(self.total_steps),
            of: self.total_steps,
        }
    }

    fn worker(&self) -> EngineWorker {
        EngineWorker {
            engine: BackendName::Native,
            words: Vec::new(),
            slot: Placement {
                device: Some(self.device.clone()),
                hardware: self.device.clone(),
                ..Placement::default()
            },
        }
    }
}

/// Numbers in the file of an adapter; `None` where there is none.
pub(super) fn numbers_in(folder: &Path) -> Option<u64> {
    let content = std::fs::read(folder.join(WEIGHTS)).ok()?;
    let (size, rest) = content.split_first_chunk::<8>()?;
    let header = rest.get(..usize::try_from(u64::from_le_bytes(*size)).ok()?)?;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).ok()?;
    let tensors = header.values().filter_map(|tensor| tensor.get("shape")?.as_array());
    let of_shape = |shape: &Vec<Value>| shape.iter().filter_map(Value::as_u64).product::<u64>();
    Some(tensors.map(of_shape).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_an_adapter_are_those_of_all_its_tensors() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(numbers_in(folder.path()), None);
        let header = br#"{"__metadata__": {"format": "pt"}, "a": {"shape": [2, 8]}, "b": {"shape": [16, 2]}}"#;
        let content = [(header.len() as u64).to_le_bytes().as_slice(), header.as_slice()].concat();
        std::fs::write(folder.path().join(WEIGHTS), content).unwrap();
        assert_eq!(numbers_in(folder.path()), Some(48));
    }

    #[test]
    fn what_is_left_to_chance_is_off_and_told() {
        use peft_tune_core::recipe::AdapterSettings;

        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.adapter = Some(AdapterSettings {
            dropout: 0.1,
            ..AdapterSettings::default()
        });
        recipe.torch.torch_compile = true;
        let run = EngineRun::new(&recipe, "cpu", 40);
        assert!(run.changed[0].contains("the file has 0.1"), "{:?}", run.changed);
        assert!(run.recipe.torch.is_usual() && run.recipe.adapter.unwrap().dropout == 0.0);
        let run = EngineRun::new(&Recipe::new("model", DataSettings::default()), "cpu", 40);
        assert_eq!((run.length(10), run.changed.len()), (Length { made: 10, of: 40 }, 0));
        assert_eq!(run.length(50).made, 40);
    }
}
