//! Parameters and weights of a decoder that is built, by their names.

use candle_core::{DType, Tensor};

use super::matrix::Matrix;
use super::norm::Norm;
use super::parameter::{BaseParameter, Trained};
use super::rounded::Rounded;
use super::trainables::Trainables;
use crate::TrainError;
use crate::base::BaseModel;
use crate::parameters::flat_view;
use peft_tune_core::architecture::Architecture;

/// Parts that the blocks of a decoder are built from: views of the base model and of what trains.
pub(super) struct Builder<'a> {
    pub base: &'a BaseModel,
    /// Dtype of the activations.
    pub dtype: DType,
    pub trainables: &'a Trainables<'a>,
    pub rounded: Option<&'a Rounded>,
}

impl Builder<'_> {
    pub(super) fn slot(&self, index: usize) -> candle_core::Result<Trained> {
        let slot = &self.trainables.parameters.layout.slots()[index];
        self.trained(slot.offset, &slot.shape)
    }

    /// Parameter that trains, from `offset` in the flat buffers on.
    pub(super) fn trained(&self, offset: usize, shape: &[usize]) -> candle_core::Result<Trained> {
        let parameters = self.trainables.parameters;
        let value = flat_view(&parameters.values, offset, shape)?;
        let rounded = self.rounded.map(|rounded| rounded.view(offset, shape)).transpose()?;
        Ok(Trained {
            factor: rounded.flatten().unwrap_or_else(|| value.clone()),
            value,
            gradient: flat_view(&parameters.gradients, offset, shape)?,
        })
    }

    pub(super) fn architecture(&self) -> &Architecture {
        self.base.architecture()
    }

    pub(super) fn parameter(&self, name: &str) -> Result<BaseParameter, TrainError> {
        Ok(match self.trainables.whole.get(name) {
            Some(slot) => BaseParameter::Trained(self.slot(*slot)?),
            None => BaseParameter::Frozen(self.base.weight(name)?.dense()?),
        })
    }

    pub(super) fn norm(&self, name: &str) -> Result<Norm, TrainError> {
        Ok(Norm {
            weight: self.parameter(name)?,
            epsilon: self.architecture().norm_epsilon,
            offset: self.architecture().norm_offset,
            centred: self.architecture().centred_norms,
        })
    }

    /// The norm `name` of a layer where the family has one there.
    pub(super) fn norm_where(&self, is_there: bool, layer: &str, name: &str) -> Result<Option<Norm>, TrainError> {
        is_there
            .then(|| self.norm(&format!("{layer}.{name}.weight")))
            .transpose()
    }

    /// The only value of a tensor that never trains.
    pub(super) fn number(&self, name: &str) -> Result<f32, TrainError> {
        let value = self.base.weight(name)?.dense()?;
        Ok(value.to_dtype(DType::F32)?.flatten_all()?.get(0)?.to_scalar()?)
    }

    /// A tensor that never trains.
    pub(super) fn frozen(&self, name: &str) -> Result<Tensor, TrainError> {
        Ok(self.base.weight(name)?.dense()?)
    }

    /// The weight `name` of a product, in whatever storage it has.
    pub(super) fn matrix(&self, name: &str) -> Result<Matrix, TrainError> {
        Ok(match self.trainables.whole.get(name) {
            Some(slot) => Matrix::Trained(self.slot(*slot)?),
            None => {
                let weight = match self.trainables.replaced.get(name) {
                    Some(weight) => weight.clone(),
                    None => self.base.weight(name)?.clone(),
                };
                Matrix::Frozen(weight.with_activations(self.trainables.plan.activation_quantization))
            }
        })
    }
}
