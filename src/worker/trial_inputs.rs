//! Inputs of trials that stay loaded: base weights, data, and what was found out about them.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use super::trial_memory::TrialMemory;
use peft_tune_core::recipe::{DataSettings, Precision, Recipe, RecipeKey, TrainingLength, WeightSparsity};
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::parallel::Collective;
use peft_tune_engine::{BaseModel, BaseSource, RankShare};

/// Inputs that stay loaded, one of each at a time.
#[derive(Default)]
pub(super) struct KeptInputs {
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

impl KeptInputs {
    /// The cells of the losses before a recipe's training: of its own base weights, and of the dense ones where its own are sparse. A
    /// cell is empty until the loss was measured.
    pub(super) fn losses_before(
        &mut self,
        keys: &InputKeys,
        recipe: &Recipe,
        evaluation_rows: Option<usize>,
    ) -> [Arc<OnceLock<f64>>; 2] {
        let dense = BaseKey {
            sparsity: WeightSparsity::None,
            calibration: None,
            ..keys.base.clone()
        };
        [keys.base.clone(), dense].map(|base| {
            self.loss_before(StartKey {
                base: BaseKey { share: None, ..base },
                data: keys.data.clone(),
                adapter_init: recipe.adapter.as_ref().and_then(|adapter| adapter.adapter_init.clone()),
                evaluation_rows,
            })
        })
    }

    fn loss_before(&mut self, key: StartKey) -> Arc<OnceLock<f64>> {
        if let Some((_, loss)) = self.loss_before.iter().find(|(known, _)| *known == key) {
            return loss.clone();
        }
        let loss = Arc::default();
        self.loss_before.push((key, Arc::clone(&loss)));
        loss
    }
}

/// Keys of the inputs that a recipe needs.
pub(super) struct InputKeys {
    pub(super) base: BaseKey,
    pub(super) data: DataKey,
}

impl InputKeys {
    /// The keys of a recipe's inputs on one of the ranks that train it.
    pub(super) fn of(recipe: &Recipe, collective: &dyn Collective) -> Self {
        let data = DataKey {
            model: recipe.model.clone(),
            settings: recipe.data.clone(),
            sequence_length: recipe.batch.sequence_length,
            seed: recipe.training.seed,
        };
        let sparsity = recipe.weight_sparsity;
        let base = BaseKey {
            model: recipe.model.clone(),
            precision: recipe.precision,
            share: RankShare::of(recipe, collective),
            sparsity,
            calibration: sparsity.row().reads_data.then(|| data.clone()),
        };
        Self { base, data }
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

/// Inputs of a trial, as they are before its first step.
pub(super) struct TrialInputs {
    pub(super) base: BaseSource,
    /// Folder of the model.
    pub(super) folder: PathBuf,
    pub(super) data: Arc<PreparedData>,
    /// The held-out loss before the training, once a trial that starts as this one does has measured it.
    pub(super) loss_before: Arc<OnceLock<f64>>,
    /// The held-out loss of the dense base model before the training, where this trial's is sparse, once it was
    /// measured.
    pub(super) dense_loss_before: Arc<OnceLock<f64>>,
    pub(super) memory: TrialMemory,
    /// Seconds of the loading.
    pub(super) seconds: f64,
}
