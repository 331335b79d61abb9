//! A model on paper: its layers without weights, whose passes say what they allocate.
//!
//! Of layers that are alike there is one. The passes are those of a training; what they run on has shapes and no values
//! ([`crate::tensor`]).

mod step;

use std::collections::HashMap;

use candle_core::{DType, Device, Error, Result};

use super::decoder::Decoder;
use super::paper_batch::PaperBatch;
use super::trainables::Trainables;
use super::{DropoutKey, RopeTables};
use crate::base::{BaseModel, compute_dtype};
use crate::optimizer::{Optimizer, unscale};
use crate::tensor::Ledger;
use crate::{Parameters, TrainError};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::attention::Heads;
use peft_tune_core::plan::{KeySharing, Memory, ModelPlan, alike_layers};
use peft_tune_core::predict::{ExpertLoad, Host, StreamShape};
use peft_tune_core::recipe::{Precision, Recipe};

pub(crate) use step::PaperStep;

/// The model of one recipe, or of several that train together, on a machine: only its sizes are there. A [`PaperStep`] says
/// what a step of it allocates and computes on a micro-batch.
#[derive(Debug)]
pub(crate) struct PaperModel {
    /// Sizes of the training whose gradients reach furthest down.
    sizes: StreamSizes,
    host: Host,
    /// Numbers of [`alike_layers`].
    layers: Vec<usize>,
    /// Decoder of the first layer of each number.
    decoder: Decoder,
    /// Decoder in F32, where some steps compute in it.
    fp32: Option<Decoder>,
    ropes: RopeTables,
    trainings: Vec<PaperTraining>,
    /// Whether rows go through the layers as parts of several trainings.
    is_group: bool,
}

/// Sizes of what is beside the layers in a step, and of what they have of each other.
#[derive(Debug)]
struct StreamSizes {
    hidden: usize,
    /// Width of all layers' inputs beside the stream, where there are some.
    inputs: Option<usize>,
    layers: Vec<LayerKeys>,
}

/// Keys and values of a layer, which may be those of another.
#[derive(Clone, Copy, Debug)]
struct LayerKeys {
    sharing: KeySharing,
    heads: Heads,
}

impl StreamSizes {
    fn of(plan: &ModelPlan) -> Self {
        let of_layer = |kind: &usize| LayerKeys {
            sharing: plan.kinds[*kind].sharing,
            heads: plan.kinds[*kind].heads,
        };
        let inputs = plan.architecture.layer_inputs;
        Self {
            hidden: plan.architecture.hidden_size,
            inputs: inputs.map(|inputs| inputs.width * plan.layers.len()),
            layers: plan.layers.iter().map(of_layer).collect(),
        }
    }
}

/// Dropout and update that one training has of its own beside its adapters.
#[derive(Debug)]
struct PaperTraining {
    dropout: Option<DropoutKey>,
    update: PaperUpdate,
}

/// The update of one training.
#[derive(Debug)]
struct PaperUpdate {
    optimizer: Optimizer,
    elements: usize,
    is_unscaled: bool,
    is_on_host: bool,
}

impl PaperUpdate {
    fn of(plan: &ModelPlan, recipe: &Recipe) -> Result<Self> {
        Ok(Self {
            optimizer: Optimizer::on_paper(&recipe.optimizer, &plan.layout)?,
            elements: plan.layout.elements(),
            is_unscaled: recipe.precision == Precision::Fp16,
            is_on_host: !recipe.optimizer.offload.is_none(),
        })
    }

    /// Runs the update on paper. Where a GPU's host updates, the GPU takes nothing; its kernels unscale as they clip.
    fn run(&self, ledger: &Ledger) -> Result<()> {
        let on_gpu = ledger.host().memory() == Memory::Device;
        if self.is_unscaled && !on_gpu {
            unscale(&ledger.uncounted(self.elements, DType::F32).into(), 1.0)?;
        }
        match on_gpu && self.is_on_host {
            true => Ok(()),
            false => self.optimizer.update_on_paper(ledger),
        }
    }
}

impl PaperTraining {
    fn of(plan: &ModelPlan, recipe: &Recipe) -> Result<Self> {
        Ok(Self {
            dropout: dropout_of(recipe),
            update: PaperUpdate::of(plan, recipe)?,
        })
    }
}

impl PaperModel {
    /// The model that `recipe` trains, whose plan is `plan`, or differs from it in nothing but scales.
    ///
    /// # Errors
    /// Errors of candle.
    pub(crate) fn new(plan: &ModelPlan, recipe: &Recipe, host: Host) -> std::result::Result<Self, TrainError> {
        let (architecture, layers) = (&plan.architecture, alike_layers(&[plan]));
        let base = BaseModel::on_paper(architecture, recipe, host.memory(), firsts(&layers))?;
        let in_dtype = |dtype| decoder_of(&base, plan, &layers, dtype);
        let (decoder, has_fp32) = (
            in_dtype(compute_dtype(recipe.precision))?,
            !recipe.precision_schedule.is_none(),
        );
        Ok(Self {
            host,
            decoder,
            fp32: has_fp32.then(|| in_dtype(DType::F32)).transpose()?,
            ropes: ropes_of(architecture)?,
            trainings: vec![PaperTraining::of(plan, recipe)?],
            is_group: false,
            sizes: StreamSizes::of(plan),
            layers,
        })
    }

    /// The model that several recipes train together, each with its plan as for [`PaperModel::new`].
    ///
    /// # Errors
    /// No recipes; those that cannot train together; one that cannot be run on paper yet.
    pub(crate) fn of_group(recipes: &[(&ModelPlan, &Recipe)], host: Host) -> std::result::Result<Self, TrainError> {
        let Some((any, first)) = recipes.first() else {
            return Err(Error::Msg("there is no training to share passes".to_owned()).into());
        };
        let architecture = &any.architecture;
        let (mut plans, mut trainings) = (Vec::new(), Vec::new());
        for (plan, recipe) in recipes {
            recipe.check_in_group()?;
            recipe.check_shares_base(first)?;
            trainings.push(PaperTraining::of(plan, recipe)?);
            plans.push(*plan);
        }
        let layers = alike_layers(&plans);
        let (base, dtype) = (
            BaseModel::on_paper(architecture, first, host.memory(), firsts(&layers))?,
            compute_dtype(first.precision),
        );
        let members = plans.iter().map(|plan| decoder_of(&base, plan, &layers, dtype));
        let members = members.collect::<std::result::Result<Vec<_>, _>>()?;
        let frozen = decoder_of(&base, &ModelPlan::frozen(architecture), &layers, dtype)?;
        let lowest = plans.into_iter().min_by_key(|plan| plan.first_on_tape()).unwrap_or(any);
        Ok(Self {
            host,
            decoder: frozen.joined(&members.iter().collect::<Vec<_>>())?,
            fp32: None,
            layers,
            ropes: ropes_of(architecture)?,
            trainings,
            is_group: true,
            sizes: StreamSizes::of(lowest),
        })
    }

    /// A step in which each training has its own micro-batch of `streams`, and whose tokens lie on experts as `load` says.
    ///
    /// # Errors
    /// More or fewer micro-batches than trainings.
    pub(crate) fn on(
        &self,
        streams: &[&StreamShape],
        load: ExpertLoad,
    ) -> std::result::Result<PaperStep<'_>, TrainError> {
        let (expected, got) = (self.trainings.len(), streams.len());
        if expected != got {
            return Err(Error::Msg(format!("{got} micro-batches of {expected} trainings")).into());
        }
        Ok(PaperStep::new(self, PaperBatch::of(streams), load))
    }
}

fn dropout_of(recipe: &Recipe) -> Option<DropoutKey> {
    let dropout = recipe.adapter.as_ref().map_or(0.0, |adapter| adapter.dropout);
    (dropout > 0.0).then(|| DropoutKey::new(dropout, 0, 0, 0))
}

fn ropes_of(architecture: &Architecture) -> Result<RopeTables> {
    let mut ropes = RopeTables::new(&architecture.ropes, &Device::Cpu);
    ropes.prepare(1)?;
    Ok(ropes)
}

/// The first layer of each number.
fn firsts(layers: &[usize]) -> impl Iterator<Item = usize> {
    let numbered = layers.iter().enumerate();
    let is_first = |(index, number): &(usize, &usize)| !layers[..*index].contains(number);
    numbered.filter(is_first).map(|(index, _)| index)
}

/// A decoder of the first layer of each number, with activations in `dtype`.
fn decoder_of(
    base: &BaseModel,
    plan: &ModelPlan,
    layers: &[usize],
    dtype: DType,
) -> std::result::Result<Decoder, TrainError> {
    let (parameters, replaced) = (Parameters::on_paper(plan.layout.clone())?, HashMap::new());
    let names: Vec<String> = firsts(layers)
        .map(|layer| format!("{}.", Architecture::layer_name(layer)))
        .collect();
    let any_layer = Architecture::layer_name(0);
    let of_layers = any_layer.trim_end_matches('0');
    let is_there = |name: &str| !name.starts_with(of_layers) || names.iter().any(|layer| name.starts_with(layer));
    // Of what trains most is in layers that are like the first of their kind.
    let adapters = plan.adapted_linears();
    let adapters = adapters.filter(|(adapted, _)| is_there(&adapted.linear.name));
    let whole = plan.whole_parameters().filter(|(name, _)| is_there(name));
    let trainables = Trainables {
        plan,
        parameters: &parameters,
        adapters: adapters.map(|both| (both.0.linear.name.as_str(), both)).collect(),
        whole: whole.collect(),
        replaced: &replaced,
    };
    Decoder::of_layers(base, &trainables, dtype, firsts(layers))
}
