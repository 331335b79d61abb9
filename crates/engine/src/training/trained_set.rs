//! Parameters that a training trains: an adapter, or the whole base model.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Tensor};

use crate::adapter;
use crate::adapter::{AdapterError, SavedAdapter};
use crate::base::BaseModel;
use crate::base::{Weight, WeightKind};
use crate::model::{Trainables, update_norm};
use crate::{Parameters, TrainError};
use peft_tune_core::architecture::Architecture;
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
    /// The fresh or loaded adapter of `recipe`, or the base model's own values. A loaded adapter starts as PEFT would load it, and goes
    /// on with the recipe's scaling.
    pub(crate) fn new(base: &BaseModel, recipe: &Recipe) -> Result<Self, TrainError> {
        let seed = recipe.training.seed;
        let initial = recipe
            .adapter
            .as_ref()
            .and_then(|adapter| adapter.adapter_init.as_ref());
        let Some(directory) = initial else {
            return Self::start(base, ModelPlan::of_recipe(base.architecture(), recipe)?, seed, None);
        };
        let saved = SavedAdapter::read(directory)?;
        let own = saved.config.settings.clone();
        let plan = ModelPlan::of_recipe(&architecture_with(&saved, base), recipe)?;
        let set = Self::start(base, plan, seed, Some(saved))?;
        set.warn_of_other_init(directory, &own);
        set.rescale(directory, own)?;
        Ok(set)
    }

    /// The adapter in a PEFT directory, as PEFT would load it.
    pub(crate) fn saved_adapter(base: &BaseModel, directory: &Path) -> Result<Self, TrainError> {
        let saved = SavedAdapter::read(directory)?;
        let settings = AdapterSettings {
            adapter_init: Some(directory.to_owned()),
            // Nothing is dropped where nothing trains, and adapters on parameters allow none.
            dropout: 0.0,
            ..saved.config.settings.clone()
        };
        let plan = ModelPlan::adapted(&architecture_with(&saved, base), &settings)?;
        Self::start(base, plan, 0, Some(saved))
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

    /// Trains nothing: the base model as it is.
    pub(crate) fn nothing(base: &BaseModel) -> Result<Self, TrainError> {
        Self::start(base, ModelPlan::frozen(base.architecture()), 0, None)
    }

    /// Parameters that `plan` trains, with the values that they start from: those of `saved`, where there is an adapter
    /// to start from.
    fn start(base: &BaseModel, plan: ModelPlan, seed: u64, saved: Option<SavedAdapter>) -> Result<Self, TrainError> {
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
        if let Some(saved) = saved {
            let saved = saved.for_model(&set.plan.architecture)?;
            saved.load_into(&set.parameters)?;
        }
        Ok(set)
    }

    /// Brings every lora_b that was loaded from `directory`, whose settings are `own`, to the scaling of the plan, so that the product
    /// of both is what it was: the model is the one that the adapter was trained to.
    fn rescale(&self, directory: &Path, own: AdapterSettings) -> Result<(), TrainError> {
        let own = AdapterSettings { dropout: 0.0, ..own };
        let own = ModelPlan::adapted(&self.plan.architecture, &own)?;
        let (before, mut rescaled) = (own.adapters(), None);
        for (linear, slots) in self.plan.adapted_linears() {
            let name = linear.linear.name.as_str();
            let Some(scaling) = before.get(name).map(|(loaded, _)| loaded.scaling) else {
                continue;
            };
            // Alphas of joined experts are rounded.
            if (scaling - linear.scaling).abs() <= 1e-9 * scaling.abs() {
                continue;
            }
            if linear.scaling == 0.0 {
                let (path, name) = (directory.to_owned(), name.to_owned());
                return Err(AdapterError::NoScaling { path, name, scaling }.into());
            }
            for slot in [Some(slots.lora_b), slots.lora_bias].into_iter().flatten() {
                let value = (self.parameters.value(slot)? * (scaling / linear.scaling))?;
                start_from(&self.parameters, slot, &value)?;
            }
            rescaled.get_or_insert((name, scaling, linear.scaling));
        }
        if let Some((name, before, now)) = rescaled {
            tracing::warn!(
                "{}/adapter_config.json has a scaling of {before} for `{name}`, and the recipe one of {now} (`alpha`, `rslora` and their \
                 patterns decide it): its lora_B starts as {} times the adapter's, so that the model starts as it was; for the values \
                 that the adapter has, write its alpha",
                directory.display(),
                before / now
            );
        }
        Ok(())
    }

    /// Says where an adapter that was loaded from `directory` and the recipe disagree on what is left of the base weights.
    fn warn_of_other_init(&self, directory: &Path, own: &AdapterSettings) {
        let is_pissa = |settings: &AdapterSettings| settings.init == AdapterInit::Pissa;
        let Some(adapter) = self.plan.adapter.as_ref() else {
            return;
        };
        match (is_pissa(own), is_pissa(&adapter.settings)) {
            (true, false) => tracing::warn!(
                "{}/adapter_config.json has `init_lora_weights: pissa`, and the recipe has not `init: pissa`: the base weights stay whole, \
                 which is right only where `model` is what PiSSA left of them",
                directory.display()
            ),
            (false, true) => tracing::warn!(
                "the recipe has `init: pissa`, and {}/adapter_config.json has not: the adapter starts on what PiSSA leaves of the base \
                 weights, and was trained on whole ones",
                directory.display()
            ),
            (true, true) | (false, false) => {}
        }
    }

    /// Parameters that the decoder is built with.
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

/// The base model's dimensions as `saved` was trained on them: tied embeddings may have become two.
fn architecture_with(saved: &SavedAdapter, base: &BaseModel) -> Architecture {
    match saved.unties_embeddings() {
        true => base.architecture().with_own_head(),
        false => base.architecture().clone(),
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
