//! What a training trains: an adapter, or the whole base model.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Tensor};

use crate::adapter;
use crate::adapter::SavedAdapter;
use crate::base::BaseModel;
use crate::base::{Weight, WeightKind};
use crate::model::{Trainables, update_norm};
use crate::{Parameters, TrainError};
use peft_tune_core::plan::{AdapterPlan, AdapterSlots, ModelPlan};
use peft_tune_core::recipe::{AdapterInit, AdapterSettings, Recipe};

/// The trained parameters and their places.
#[derive(Debug)]
pub(crate) struct TrainedSet {
    pub plan: ModelPlan,
    pub parameters: Parameters,
    /// Weights that stand in for the base model's, by the name of their tensor.
    replaced: HashMap<String, Weight>,
}

impl TrainedSet {
    /// The fresh or loaded adapter of `recipe`, or the base model's own values.
    pub(crate) fn new(base: &BaseModel, recipe: &Recipe) -> Result<Self, TrainError> {
        let plan = ModelPlan::of_recipe(base.architecture(), recipe)?;
        Self::start(base, plan, recipe.training.seed)
    }

    /// The adapter in a PEFT directory, as PEFT would load it.
    pub(crate) fn saved_adapter(base: &BaseModel, directory: &Path) -> Result<Self, TrainError> {
        let settings = AdapterSettings {
            adapter_init: Some(directory.to_owned()),
            // Nothing is dropped where nothing trains, and adapters on parameters allow none.
            dropout: 0.0,
            ..SavedAdapter::read(directory)?.config.settings
        };
        Self::start(base, ModelPlan::adapted(base.architecture(), &settings)?, 0)
    }

    /// Adapters side by side, of which each row sees one; see [`ModelPlan::side_by_side`].
    pub(crate) fn side_by_side(base: &BaseModel, adapters: &[Self]) -> Result<Self, TrainError> {
        let plans: Vec<ModelPlan> = adapters.iter().map(|adapter| adapter.plan.clone()).collect();
        let plan = ModelPlan::side_by_side(base.architecture(), &plans)?;
        let set = Self {
            parameters: Parameters::zeros(plan.layout.clone(), base.device())?,
            replaced: HashMap::new(),
            plan,
        };
        let of_adapters: Vec<_> = adapters
            .iter()
            .map(|adapter| (adapter, adapter.plan.adapters()))
            .collect();
        for (joined, slots) in set.plan.adapted_linears() {
            let (mut below, mut beside) = (Vec::new(), Vec::new());
            for (adapter, linears) in &of_adapters {
                if let Some((linear, own)) = linears.get(joined.linear.name.as_str()) {
                    below.push(adapter.parameters.value(own.lora_a)?);
                    beside.push((adapter.parameters.value(own.lora_b)? * linear.scaling)?);
                }
            }
            start_from(&set.parameters, slots.lora_a, &Tensor::cat(&below, 0)?)?;
            start_from(&set.parameters, slots.lora_b, &Tensor::cat(&beside, 1)?)?;
        }
        Ok(set)
    }

    /// Nothing: the base model as it is.
    pub(crate) fn nothing(base: &BaseModel) -> Result<Self, TrainError> {
        Self::start(base, ModelPlan::frozen(base.architecture()), 0)
    }

    /// What `plan` trains, with the values that it starts from.
    fn start(base: &BaseModel, plan: ModelPlan, seed: u64) -> Result<Self, TrainError> {
        let mut set = Self {
            parameters: Parameters::zeros(plan.layout.clone(), base.device())?,
            replaced: HashMap::new(),
            plan,
        };
        for (name, slot) in set.plan.whole_slots() {
            start_from(&set.parameters, slot, &base.tensor(name)?)?;
        }
        let Some(adapter) = &set.plan.adapter else {
            return Ok(set);
        };
        adapter::fill(adapter, &set.plan.slots, &set.parameters, seed)?;
        if adapter.settings.init == AdapterInit::Pissa {
            set.replaced = start_from_principal_parts(base, adapter, &set.plan.slots, &set.parameters)?;
        }
        start_magnitudes(base, &set.plan, &set.parameters)?;
        if let Some(directory) = &adapter.settings.adapter_init {
            SavedAdapter::read(directory)?.load_into(&set.parameters)?;
        }
        Ok(set)
    }

    /// What the decoder is built from.
    pub(crate) fn trainables(&self) -> Trainables<'_> {
        Trainables {
            plan: &self.plan,
            parameters: &self.parameters,
            adapters: self.plan.adapters(),
            whole: self.plan.whole_slots(),
            replaced: &self.replaced,
        }
    }

    /// The frozen tensor `name` that this training computes with.
    pub(crate) fn frozen(&self, base: &BaseModel, name: &str) -> Result<Tensor, TrainError> {
        match self.replaced.get(name) {
            Some(weight) => Ok(weight.exact()?),
            None => base.tensor(name),
        }
    }
}

/// Sets parameter `slot` to `value`.
fn start_from(parameters: &Parameters, slot: usize, value: &Tensor) -> Result<(), TrainError> {
    let value = value.to_dtype(DType::F32)?.flatten_all()?;
    let offset = parameters.layout.slots()[slot].offset;
    Ok(parameters.values.slice_set(&value, 0, offset)?)
}

/// Fills the adapters with the principal parts of their weights (PiSSA) and returns what then stays frozen. With an
/// adapter that is loaded afterwards the frozen part is the same, as in PEFT.
fn start_from_principal_parts(
    base: &BaseModel,
    plan: &AdapterPlan,
    slots: &AdapterSlots,
    parameters: &Parameters,
) -> Result<HashMap<String, Weight>, TrainError> {
    let mut weights = HashMap::new();
    for linear in &plan.linears {
        let name = format!("{}.weight", linear.linear.name);
        weights.insert(linear.linear.name.as_str(), base.tensor(&name)?);
    }
    let weight = |module: &str| {
        let weight = weights.get(module).cloned();
        Ok(weight.ok_or_else(|| candle_core::Error::Msg(format!("no weight of {module}")))?)
    };
    let residuals = adapter::fill_pissa(plan, slots, parameters, weight)?;
    let mut replaced = HashMap::new();
    for (linear, residual) in plan.linears.iter().zip(residuals) {
        let name = format!("{}.weight", linear.linear.name);
        let weight = Weight::store(residual, &name, WeightKind::Linear, base.precision(), base.device())?;
        replaced.insert(name, weight);
    }
    Ok(replaced)
}

/// Sets every DoRA magnitude to the row norms of its weight with the fresh adapter.
fn start_magnitudes(base: &BaseModel, plan: &ModelPlan, parameters: &Parameters) -> Result<(), TrainError> {
    for (linear, slots) in plan.adapted_linears() {
        let Some(magnitude) = slots.magnitude else { continue };
        let weight = base.tensor(&format!("{}.weight", linear.linear.name))?;
        let (a, b) = (parameters.value(slots.lora_a)?, parameters.value(slots.lora_b)?);
        start_from(parameters, magnitude, &update_norm(&weight, &a, &b, linear.scaling)?)?;
    }
    Ok(())
}
