//! Inputs of trials that stay loaded: base weights, data, and what was found out about them.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use super::trial_memory::TrialMemory;
use peft_tune_core::recipe::{
    ActivationQuantization, DataSettings, Precision, QuantizationAware, Recipe, RecipeKey, TrainingLength,
    WeightSparsity,
};
use peft_tune_core::study::ServePlan;
use peft_tune_engine::data::{Document, PreparedData};
use peft_tune_engine::parallel::Collective;
use peft_tune_engine::profile::InferencePoint;
use peft_tune_engine::{BaseModel, BaseSource, RankShare};

/// Inputs that stay loaded, one of each at a time.
#[derive(Default)]
pub(super) struct KeptInputs {
    pub(super) base: Option<(BaseKey, Arc<BaseModel>)>,
    /// Bytes that a GPU's pool holds for that base model beside its own: it rounds each allocation up.
    pub(super) base_rounding: u64,
    pub(super) data: Option<(DataKey, Arc<PreparedData>)>,
    /// What was found out about models that were not trained yet: a few numbers and tokens, so all of them.
    untrained: Vec<(StartKey, Arc<Untrained>)>,
    /// Token accuracies of recipes that were trained in F32 to compare others with.
    pub(super) fp32_accuracies: Vec<(Fp32Key, f64)>,
    /// Times of answers, of every model that was served so far.
    pub(super) served: ServedPoints,
}

/// Times of the answers of models, by what a served model has of a recipe, and the load.
pub(super) type ServedPoints = Arc<Mutex<Vec<((Recipe, ServePlan), InferencePoint)>>>;

/// Findings about a model before its training. A cell is empty until it was measured.
#[derive(Default)]
pub(super) struct Untrained {
    /// Loss on the held-out rows.
    pub(super) loss: OnceLock<f64>,
    /// Loss on rows that the training has nothing to do with.
    pub(super) retained_loss: OnceLock<f64>,
    /// The model's own continuations of held-out prompts; their targets are what it said.
    pub(super) continuations: OnceLock<Vec<Document>>,
}

/// Key of what decides the token accuracy of a training in F32.
#[derive(Clone, PartialEq)]
pub(super) struct Fp32Key {
    pub(super) training: RecipeKey,
    pub(super) length: TrainingLength,
    pub(super) evaluation_rows: Option<usize>,
}

impl KeptInputs {
    /// Findings about a recipe's model before its training: on its own base weights, and on the dense ones where its own are sparse.
    pub(super) fn untrained(
        &mut self,
        keys: &InputKeys,
        recipe: &Recipe,
        evaluation_rows: Option<usize>,
    ) -> [Arc<Untrained>; 2] {
        let dense = BaseKey {
            sparsity: WeightSparsity::None,
            calibration: None,
            ..keys.base.clone()
        };
        [keys.base.clone(), dense].map(|base| {
            self.started(StartKey {
                base: BaseKey { share: None, ..base },
                data: keys.data.clone(),
                adapter_init: recipe.adapter.as_ref().and_then(|adapter| adapter.adapter_init.clone()),
                activation_quantization: recipe.activation_quantization,
                quantization_aware: recipe.quantization_aware,
                evaluation_rows,
            })
        })
    }

    fn started(&mut self, key: StartKey) -> Arc<Untrained> {
        if let Some((_, found)) = self.untrained.iter().find(|(known, _)| *known == key) {
            return found.clone();
        }
        let found = Arc::default();
        self.untrained.push((key, Arc::clone(&found)));
        found
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

/// Key of what decides a model's loss before its training: base weights, the adapter that it continues from, what is rounded beside
/// them, held-out rows.
#[derive(PartialEq)]
pub(super) struct StartKey {
    pub(super) base: BaseKey,
    pub(super) data: DataKey,
    pub(super) adapter_init: Option<PathBuf>,
    pub(super) activation_quantization: ActivationQuantization,
    pub(super) quantization_aware: QuantizationAware,
    pub(super) evaluation_rows: Option<usize>,
}

/// Inputs of a trial, as they are before its first step.
pub(super) struct TrialInputs {
    pub(super) base: BaseSource,
    /// Folder of the model.
    pub(super) folder: PathBuf,
    pub(super) data: Arc<PreparedData>,
    /// Findings about the model before the training, of all trials that start as this one does.
    pub(super) untrained: Arc<Untrained>,
    /// Findings about the dense base model, where this trial's is sparse.
    pub(super) untrained_dense: Arc<Untrained>,
    /// Times of the answers of all models that this process has measured so far.
    pub(super) served: ServedPoints,
    pub(super) memory: TrialMemory,
    /// Seconds of the loading.
    pub(super) seconds: f64,
}
