//! The model that a training has made, as plain weights: the adapter folded into the base.
//!
//! W' = W + s·B·A, with DoRA m ⊙ W' / |W'| by rows; a trained bias of lora_b goes to the layer's bias. The sum is made
//! in F32 and rounded once, when it is written.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_core::{DType, Tensor};

use super::tensor_file::{EntryDtype, TensorEntry, write_tensors};
use crate::base::{BaseModel, Stacked};
use crate::model::update_norm;
use crate::training::TrainedSet;
use crate::{MergeError, TrainError, Trainer};
use peft_tune_core::architecture::{Architecture, Dtype, ExpertPart, ExpertWeight};
use peft_tune_core::plan::{AdaptedLinear, LinearSlots};
use peft_tune_kernels::ops::{expert_parts, matmul, merged_rows};

/// A trained model whose plain weights are computed one by one, so that they need not be in memory all at once.
pub struct MergedModel<'a> {
    base: &'a BaseModel,
    trained: &'a TrainedSet,
    /// Slot of each base parameter that trains, by its name.
    whole: HashMap<&'a str, usize>,
    /// Adapted layers by the name of their module.
    linears: HashMap<&'a str, (&'a AdaptedLinear, &'a LinearSlots)>,
}

impl<'a> MergedModel<'a> {
    /// The merged form of `trained` on `base`.
    ///
    /// # Errors
    /// A trained bias of lora_b on a layer that has no bias to hold it.
    pub(crate) fn new(base: &'a BaseModel, trained: &'a TrainedSet) -> Result<Self, TrainError> {
        for (linear, slots) in trained.plan.adapted_linears() {
            if slots.lora_bias.is_some() && !linear.linear.bias {
                let module = linear.linear.name.clone();
                return Err(MergeError::NoBias { module }.into());
            }
        }
        Ok(Self {
            base,
            trained,
            whole: trained.plan.whole_slots(),
            linears: trained.plan.adapters(),
        })
    }

    /// The base model's dimensions as the training has left them: an LM head that was tied to the embedding may be one of its own.
    pub(crate) fn architecture(&self) -> &Architecture {
        &self.trained.plan.architecture
    }

    /// The tensor `name` of the base checkpoint as the training has left it, F32 on the training's device.
    ///
    /// # Errors
    /// Memory; a name that the architecture does not have.
    pub fn tensor(&self, name: &str) -> Result<Tensor, TrainError> {
        if let Some(stack) = Stacked::of(self.base.architecture())
            && let Some((layer, parts)) = stack.parts(name)
        {
            return stack.join(parts, |expert, part| {
                let name = format!("{layer}.{}", stack.experts.weight_name(expert, part));
                self.tensor(&name)
            });
        }
        let value = match self.whole.get(name) {
            // A copy: the optimizer would keep changing a view.
            Some(slot) => self.trained.parameters.value(*slot)?.copy()?,
            None => self.trained.frozen(self.base, name)?.to_dtype(DType::F32)?,
        };
        if let Some((layer, weight)) = self.expert_weight(name) {
            return self.merged_expert(layer, weight, value);
        }
        let (module, part) = name.rsplit_once('.').unwrap_or((name, ""));
        match (self.linears.get(module), part) {
            (Some((linear, slots)), "weight") => self.merged_weight(linear, slots, value),
            (Some((linear, slots)), "bias") => self.merged_bias(linear, slots, value),
            _ => Ok(value),
        }
    }

    /// The layer's name and which of its experts' weights the tensor `name` is.
    fn expert_weight<'n>(&self, name: &'n str) -> Option<(&'n str, ExpertWeight)> {
        let experts = self.base.architecture().experts.as_ref()?;
        let (end, _) = name.match_indices('.').nth(2)?;
        let (layer, inner) = (&name[..end], &name[end + 1..]);
        experts.weight_of(inner).map(|weight| (layer, weight))
    }

    /// W + s B_e A_e; gate and up have their rows of one B.
    fn merged_expert(&self, layer: &str, weight: ExpertWeight, value: Tensor) -> Result<Tensor, TrainError> {
        let Some(experts) = &self.base.architecture().experts else {
            return Ok(value);
        };
        let stacked = experts.names.stacked && !experts.names.swapped && !experts.names.upright;
        let (fused, first) = match weight.part {
            ExpertPart::Gate if stacked => (experts.names.gate_up, 0),
            ExpertPart::Up if stacked => (experts.names.gate_up, 1),
            ExpertPart::Gate => (experts.names.gate_up, 0),
            ExpertPart::Up => (experts.names.gate_up, experts.intermediate_size),
            ExpertPart::Down => (experts.names.down, 0),
        };
        let Some((linear, slots)) = self.linears.get(format!("{layer}.{fused}").as_str()) else {
            return Ok(value);
        };
        let parameters = &self.trained.parameters;
        let a = parameters
            .value(slots.lora_a)?
            .narrow(0, weight.expert * linear.rank, linear.rank)?;
        let (b, outputs) = (parameters.value(slots.lora_b)?, value.dims2()?.0);
        if experts.names.swapped {
            // B reads the inputs, and A has the outputs.
            let b = expert_parts::split_experts(&b, experts.count)?.get(weight.expert)?;
            let a = a.narrow(1, first, outputs)?;
            return Ok((value + (matmul::nn(&b, &a.contiguous()?)?.t()? * linear.scaling)?)?);
        }
        let b = match stacked && weight.part != ExpertPart::Down {
            // Gate and up by turns.
            true => b
                .reshape((outputs, 2, ()))?
                .narrow(1, first, 1)?
                .squeeze(1)?
                .contiguous()?,
            false => b.narrow(0, first, outputs)?,
        };
        let b = expert_parts::split_experts(&b, experts.count)?.get(weight.expert)?;
        Ok((value + (matmul::nn(&b, &a)? * linear.scaling)?)?)
    }

    fn merged_weight(&self, linear: &AdaptedLinear, slots: &LinearSlots, weight: Tensor) -> Result<Tensor, TrainError> {
        let parameters = &self.trained.parameters;
        let (a, b) = (parameters.value(slots.lora_a)?, parameters.value(slots.lora_b)?);
        let merged = merged_rows::merge(&weight, &a, &b, linear.scaling)?;
        let Some(magnitude) = slots.magnitude else {
            return Ok(merged);
        };
        let norm = update_norm(&weight, &a, &b, linear.scaling)?;
        let gain = (parameters.value(magnitude)? / norm)?;
        Ok(merged.broadcast_mul(&gain.unsqueeze(1)?)?)
    }

    fn merged_bias(&self, linear: &AdaptedLinear, slots: &LinearSlots, bias: Tensor) -> Result<Tensor, TrainError> {
        match slots.lora_bias {
            Some(slot) => Ok((bias + (self.trained.parameters.value(slot)? * linear.scaling)?)?),
            None => Ok(bias),
        }
    }
}

impl Trainer {
    /// The trained model as plain weights.
    ///
    /// # Errors
    /// A trained bias of lora_b on a layer that has no bias to hold it.
    pub fn merged(&self) -> Result<MergedModel<'_>, TrainError> {
        MergedModel::new(self.base(), self.trained())
    }

    /// Every tensor of the trained model by its name in the base checkpoint, F32 on the training's device.
    ///
    /// # Errors
    /// Memory; a trained bias of lora_b on a layer that has no bias to hold it.
    pub fn merged_tensors(&self) -> Result<BTreeMap<String, Tensor>, TrainError> {
        let merged = self.merged()?;
        let tensors = merged.architecture().tensors().into_iter();
        tensors
            .map(|tensor| Ok((tensor.name.clone(), merged.tensor(&tensor.name)?)))
            .collect()
    }
}

/// Writes `tensors` as one safetensors file in `dtype`; it appears under `path` only when it is whole.
///
/// # Errors
/// Those of the file system, with the path.
pub fn write_checkpoint(path: &Path, tensors: &BTreeMap<String, Tensor>, dtype: Dtype) -> Result<(), TrainError> {
    let entries: Vec<TensorEntry> = tensors
        .iter()
        .map(|(name, tensor)| TensorEntry {
            name: name.clone(),
            shape: tensor.dims().to_vec(),
            dtype: EntryDtype::Float(dtype),
        })
        .collect();
    write_tensors(path, &entries, &mut |name| Ok(tensors[name].clone()))?;
    Ok(())
}
