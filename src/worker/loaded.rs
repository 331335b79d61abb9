//! Inputs of trials that stay loaded: base weights, data, and what was found out about them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use peft_tune_core::recipe::{DataSettings, Precision, RecipeKey, TrainingLength, WeightSparsity};
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::profile::DeviceMemory;
use peft_tune_engine::{BaseModel, BaseSource, RankShare};

/// Inputs that are loaded, one of each at a time.
#[derive(Default)]
pub(super) struct LoadedInputs {
    pub(super) base: Option<(BaseKey, Arc<BaseModel>)>,
    /// Bytes that a GPU's pool holds for that base model beside its own: it rounds each allocation up.
    pub(super) base_rounding: u64,
    pub(super) data: Option<(DataKey, Arc<PreparedData>)>,
    /// Losses of models that were not trained yet: a few numbers, so all of them.
    pub(super) loss_before: Vec<(StartKey, Arc<OnceLock<f64>>)>,
    /// Token accuracies of recipes that were trained in F32 to compare others with.
    pub(super) fp32_accuracies: Vec<(Fp32Key, f64)>,
}

/// Key of what decides the token accuracy of a training in F32.
#[derive(Clone, PartialEq)]
pub(super) struct Fp32Key {
    pub(super) training: RecipeKey,
    pub(super) length: TrainingLength,
    pub(super) evaluation_rows: Option<usize>,
}

impl LoadedInputs {
    /// The cell of the loss before a training that starts so; empty until it was measured.
    pub(super) fn loss_before(&mut self, key: StartKey) -> Arc<OnceLock<f64>> {
        if let Some((_, loss)) = self.loss_before.iter().find(|(known, _)| *known == key) {
            return loss.clone();
        }
        let loss = Arc::default();
        self.loss_before.push((key, Arc::clone(&loss)));
        loss
    }
}

/// Key of base weights.
#[derive(Clone, PartialEq)]
pub(super) struct BaseKey {
    pub(super) model: String,
    pub(super) precision: Precision,
    /// The part of the weights, where ranks share them out.
    pub(super) share: Option<RankShare>,
    pub(super) sparsity: WeightSparsity,
    /// The data whose activations decide what is left out, where they do.
    pub(super) calibration: Option<DataKey>,
}

/// Key of tokenised data.
#[derive(Clone, PartialEq)]
pub(super) struct DataKey {
    pub(super) model: String,
    pub(super) settings: DataSettings,
    pub(super) sequence_length: usize,
    pub(super) seed: u64,
}

/// Key of what decides a model's loss before its training: base weights, the adapter that it continues from, held-out
/// rows.
#[derive(PartialEq)]
pub(super) struct StartKey {
    pub(super) base: BaseKey,
    pub(super) data: DataKey,
    pub(super) adapter_init: Option<PathBuf>,
    pub(super) evaluation_rows: Option<usize>,
}

/// Inputs that a trial needs before its first step.
pub(super) struct Loaded {
    pub(super) base: BaseSource,
    /// Folder of the model.
    pub(super) folder: PathBuf,
    pub(super) data: Arc<PreparedData>,
    /// The held-out loss before the training, once a trial that starts as this one does has measured it.
    pub(super) loss_before: Arc<OnceLock<f64>>,
    /// The held-out loss of the dense base model before the training, where this trial's is sparse, once it was
    /// measured.
    pub(super) dense_loss_before: Arc<OnceLock<f64>>,
    pub(super) memory: DeviceMemory,
    /// Bytes of the device that others than the engine held before it.
    pub(super) beside_bytes: u64,
    pub(super) seconds: f64,
}
