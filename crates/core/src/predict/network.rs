//! The plans of the models that recipes train, as predictions read them.

use std::convert::Infallible;
use std::sync::{Arc, PoisonError, RwLock};

use super::host::Host;
use super::segment::{Models, TrainedModel};
use crate::architecture::Architecture;
use crate::plan::{ModelPlan, ParameterLayout, PlanError, WeightBytes, base_bytes};
use crate::recipe::{
    ActivationQuantization, AdapterSettings, OptimizerSettings, Precision, PrecisionSchedule, QuantizationAware,
    Recipe, WeightSparsity,
};

/// Trained parameters of one shape, whose states are kept alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub rows: usize,
    /// Columns of the matrix; absent for a vector.
    pub columns: Option<usize>,
    pub count: usize,
    /// Whether an optimizer in 8 bits has codes of them.
    pub coded: bool,
}

impl Slots {
    /// Elements of one.
    pub(super) fn elements(&self) -> u64 {
        (self.rows * self.columns.unwrap_or(1)) as u64
    }

    /// The slots of a layout by their shape and their states.
    fn of(layout: &ParameterLayout) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for slot in layout.slots() {
            let (rows, columns) = (slot.shape[0], slot.shape.get(1).copied());
            let coded = slot.is_coded();
            let alike = |one: &&mut Self| one.rows == rows && one.columns == columns && one.coded == coded;
            match all.iter_mut().find(alike) {
                Some(slots) => slots.count += 1,
                None => all.push(Self {
                    rows,
                    columns,
                    count: 1,
                    coded,
                }),
            }
        }
        all
    }
}

/// A plan with its slots, and the models that were made of it on one machine.
#[derive(Debug)]
pub(super) struct Network {
    pub plan: ModelPlan,
    pub slots: Vec<Slots>,
    models: RwLock<Vec<(ModelKey, Arc<dyn TrainedModel>)>>,
    base_bytes: RwLock<Vec<(Precision, Arc<WeightBytes>)>>,
}

/// Key of a model beside its network.
#[derive(Clone, Debug, PartialEq)]
struct ModelKey {
    precision: Precision,
    /// Optimizer without the learning rate.
    optimizer: OptimizerSettings,
}

impl Network {
    /// Elements of all that trains.
    pub(super) fn trained_elements(&self) -> u64 {
        self.plan.layout.elements() as u64
    }

    /// Bytes of the base weights of `recipe`, whose network this is, on one device that has all of them.
    pub(super) fn base_bytes(&self, recipe: &Recipe) -> WeightBytes {
        let make = || {
            let bytes = base_bytes(&self.plan.architecture, recipe.precision, recipe.weight_sparsity);
            Ok::<_, Infallible>(Arc::new(bytes))
        };
        let Ok(bytes) = kept(&self.base_bytes, MOST_MODELS, recipe.precision, make);
        *bytes
    }

    /// The model that `recipe`, whose network this is, trains alone.
    ///
    /// # Errors
    /// Errors of [`Models::of`].
    pub(super) fn model(
        &self,
        recipe: &Recipe,
        models: &dyn Models,
        host: Host,
    ) -> Result<Arc<dyn TrainedModel>, String> {
        let key = ModelKey {
            precision: recipe.precision,
            optimizer: OptimizerSettings {
                learning_rate: 0.0,
                ..recipe.optimizer.clone()
            },
        };
        let make = || models.of(&[(&self.plan, recipe)], host);
        kept(&self.models, MOST_MODELS, key, make)
    }
}

/// The value of `key` in a cache that keeps `most`: the one that is known, or what `make` makes.
fn kept<K: PartialEq, T: ?Sized, E>(
    cache: &RwLock<Vec<(K, Arc<T>)>>,
    most: usize,
    key: K,
    make: impl FnOnce() -> Result<Arc<T>, E>,
) -> Result<Arc<T>, E> {
    let known = cache.read().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, value)) = known.iter().find(|(known, _)| *known == key) {
        return Ok(value.clone());
    }
    drop(known);
    let value = make()?;
    let mut known = cache.write().unwrap_or_else(PoisonError::into_inner);
    if known.len() >= most {
        known.remove(0);
    }
    known.push((key, value.clone()));
    Ok(value)
}

/// Networks of one model that were asked for, by what they depend on: a study has many recipes of few adapters.
#[derive(Clone, Debug, Default)]
pub(super) struct Networks(Arc<RwLock<Vec<Known>>>);

type Known = (Key, Arc<Network>);

/// Key of a network.
#[derive(Clone, Debug, PartialEq)]
struct Key {
    /// Adapter without alpha; of the dropout only whether there is one.
    adapter: Option<AdapterSettings>,
    is_quantized: bool,
    activation_quantization: ActivationQuantization,
    weight_sparsity: WeightSparsity,
    quantization_aware: QuantizationAware,
    precision_schedule: PrecisionSchedule,
}

/// Networks that are kept, and models of each.
const MOST_NETWORKS: usize = 64;
const MOST_MODELS: usize = 16;

impl Networks {
    /// The network that `recipe` trains.
    ///
    /// # Errors
    /// Settings that do not fit the model.
    pub(super) fn of(&self, architecture: &Architecture, recipe: &Recipe) -> Result<Arc<Network>, PlanError> {
        let key = Key {
            adapter: recipe.adapter.clone().map(|settings| AdapterSettings {
                alpha: 0.0,
                dropout: f64::from(u8::from(settings.dropout > 0.0)),
                ..settings
            }),
            is_quantized: recipe.precision.is_quantized(),
            activation_quantization: recipe.activation_quantization,
            weight_sparsity: recipe.weight_sparsity,
            quantization_aware: recipe.quantization_aware,
            precision_schedule: recipe.precision_schedule,
        };
        kept(&self.0, MOST_NETWORKS, key, || {
            let plan = ModelPlan::of_recipe(architecture, recipe)?;
            let slots = Slots::of(&plan.layout);
            Ok(Arc::new(Network {
                plan,
                slots,
                models: RwLock::default(),
                base_bytes: RwLock::default(),
            }))
        })
    }
}
