//! What a training trains: an adapter, or the whole base model.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Tensor};

use crate::adapter;
use crate::adapter::{AdaptedLinear, AdapterPlan, AdapterSlots, LinearSlots, SavedAdapter};
use crate::base::BaseModel;
use crate::base::Weight;
use crate::model::{Trainables, update_norm};
use crate::{ParameterKind, ParameterLayout, Parameters, TrainError};
use peft_tune_core::recipe::{AdapterInit, AdapterSettings, Recipe};

/// The trained parameters and their places.
#[derive(Debug)]
pub(crate) struct TrainedSet {
    /// Absent where the whole base model trains.
    pub plan: Option<AdapterPlan>,
    slots: AdapterSlots,
    pub parameters: Parameters,
    /// Weights that stand in for the base model's, by the name of their tensor.
    replaced: HashMap<String, Weight>,
}

impl TrainedSet {
    /// The fresh or loaded adapter of `recipe`, or the base model's own values.
    pub(crate) fn new(base: &BaseModel, recipe: &Recipe) -> Result<Self, TrainError> {
        match &recipe.adapter {
            Some(settings) => Self::adapter(base, settings, recipe.training.seed),
            None if recipe.precision.is_quantized() => Err(TrainError::QuantizedWhole),
            None => Self::whole_model(base),
        }
    }

    /// The adapter in a PEFT directory, as PEFT would load it.
    pub(crate) fn saved_adapter(base: &BaseModel, directory: &Path) -> Result<Self, TrainError> {
        let settings = AdapterSettings {
            adapter_init: Some(directory.to_owned()),
            ..SavedAdapter::read(directory)?.config.settings
        };
        Self::adapter(base, &settings, 0)
    }

    /// Nothing: the base model as it is.
    pub(crate) fn nothing(base: &BaseModel) -> Result<Self, TrainError> {
        Ok(Self {
            plan: None,
            slots: AdapterSlots {
                linears: Vec::new(),
                whole: Vec::new(),
            },
            parameters: Parameters::zeros(ParameterLayout::default(), base.device())?,
            replaced: HashMap::new(),
        })
    }

    fn adapter(base: &BaseModel, settings: &AdapterSettings, seed: u64) -> Result<Self, TrainError> {
        let plan = AdapterPlan::new(settings, &base.shape())?;
        let mut layout = ParameterLayout::default();
        let slots = plan.push_slots(&mut layout);
        let parameters = Parameters::zeros(layout, base.device())?;
        adapter::fill(&plan, &slots, &parameters, seed)?;
        for (whole, slot) in plan.whole.iter().zip(&slots.whole) {
            start_from(&parameters, *slot, &base.tensor(&whole.base_name)?)?;
        }
        let replaced = match settings.init {
            AdapterInit::Pissa => start_from_principal_parts(base, &plan, &slots, &parameters)?,
            AdapterInit::Kaiming | AdapterInit::Gaussian => HashMap::new(),
        };
        start_magnitudes(base, &plan, &slots, &parameters)?;
        if let Some(directory) = &settings.adapter_init {
            SavedAdapter::read(directory)?.load_into(&parameters)?;
        }
        Ok(Self {
            plan: Some(plan),
            slots,
            parameters,
            replaced,
        })
    }

    /// Every parameter of the base model, in the checkpoint's order.
    fn whole_model(base: &BaseModel) -> Result<Self, TrainError> {
        let mut layout = ParameterLayout::default();
        let tensors = base.architecture().tensors();
        let slots: Vec<usize> = tensors
            .iter()
            .map(|tensor| layout.push(tensor.name.clone(), &tensor.shape, ParameterKind::Base))
            .collect();
        let parameters = Parameters::zeros(layout, base.device())?;
        for (tensor, slot) in tensors.iter().zip(&slots) {
            start_from(&parameters, *slot, &base.tensor(&tensor.name)?)?;
        }
        Ok(Self {
            plan: None,
            slots: AdapterSlots {
                linears: Vec::new(),
                whole: slots,
            },
            parameters,
            replaced: HashMap::new(),
        })
    }

    /// What the decoder is built from.
    pub(crate) fn trainables(&self) -> Trainables<'_> {
        let mut trainables = Trainables {
            parameters: &self.parameters,
            adapters: HashMap::new(),
            whole: HashMap::new(),
            replaced: &self.replaced,
        };
        let Some(plan) = &self.plan else {
            let slots = self.parameters.layout.slots().iter().enumerate();
            trainables.whole = slots.map(|(index, slot)| (slot.name.as_str(), index)).collect();
            return trainables;
        };
        for (linear, slots) in plan.linears.iter().zip(&self.slots.linears) {
            trainables
                .adapters
                .insert(&linear.linear.name, (*slots, linear.scaling));
        }
        for (whole, slot) in plan.whole.iter().zip(&self.slots.whole) {
            trainables.whole.insert(&whole.base_name, *slot);
        }
        trainables
    }

    /// Each adapted linear layer with its slots.
    pub(crate) fn adapted_linears(&self) -> impl Iterator<Item = (&AdaptedLinear, &LinearSlots)> {
        let linears = self.plan.iter().flat_map(|plan| &plan.linears);
        linears.zip(&self.slots.linears)
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
        let weight = Weight::store(residual, &name, true, base.precision(), base.device())?;
        replaced.insert(name, weight);
    }
    Ok(replaced)
}

/// Sets every DoRA magnitude to the row norms of its weight with the fresh adapter.
fn start_magnitudes(
    base: &BaseModel,
    plan: &AdapterPlan,
    slots: &AdapterSlots,
    parameters: &Parameters,
) -> Result<(), TrainError> {
    for (linear, slots) in plan.linears.iter().zip(&slots.linears) {
        let Some(magnitude) = slots.magnitude else { continue };
        let weight = base.tensor(&format!("{}.weight", linear.linear.name))?;
        let (a, b) = (parameters.value(slots.lora_a)?, parameters.value(slots.lora_b)?);
        start_from(parameters, magnitude, &update_norm(&weight, &a, &b, linear.scaling)?)?;
    }
    Ok(())
}
