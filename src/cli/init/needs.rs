//! What a setting needs of the device's memory, by the prediction that `plan` and every search use.

use super::find::Machine;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict::{Host, PredictError, Predictor, Setting, Workload};
use peft_tune_core::recipe::{AdapterSettings, Checkpointing, DataSettings, Precision, Recipe};
use peft_tune_engine::profile::ceilings;

/// A setting, as far as its memory depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Values {
    pub precision: Precision,
    pub rank: usize,
    /// Rows that go through the model at once.
    pub rows: usize,
    pub checkpointing: Checkpointing,
}

/// The memory of one model's settings on one machine.
#[derive(Debug)]
pub(super) struct Needs {
    predictor: Predictor,
    sequence_length: usize,
}

impl Needs {
    /// For rows of up to `sequence_length` tokens.
    pub(super) fn new(architecture: &Architecture, machine: &Machine, sequence_length: usize) -> Self {
        let host = match machine.is_gpu {
            true => Host::gpu(machine.device_bytes),
            false => ceilings::host(),
        };
        Self {
            predictor: Predictor::new(architecture.clone(), peft_tune_core::predict::Machine::Unmeasured(host)),
            sequence_length,
        }
    }

    /// The predictor, for whoever looks at whole studies.
    pub(super) fn into_predictor(self) -> Predictor {
        self.predictor
    }

    /// Bytes at the highest moment of a step that trains adapters on all linear layers, every row full.
    ///
    /// # Errors
    /// Values that the model cannot have.
    pub(super) fn bytes(&self, values: Values) -> Result<u64, PredictError> {
        let mut recipe = Recipe::new("", DataSettings::default());
        recipe.precision = values.precision;
        recipe.gradient_checkpointing = values.checkpointing;
        recipe.batch.micro_batch = values.rows;
        recipe.batch.sequence_length = self.sequence_length;
        recipe.adapter = Some(AdapterSettings {
            rank: values.rank,
            ..AdapterSettings::default()
        });
        let workload = Workload::full(values.rows, self.sequence_length);
        let setting = Setting {
            recipe: &recipe,
            workload: &workload,
        };
        self.predictor
            .predict(&setting)
            .map(|prediction| prediction.peak_bytes())
    }
}
