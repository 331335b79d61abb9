//! The weight of a linear layer, in whatever storage it has.

use candle_core::{Result, Tensor};

use super::parameter::Trained;
use crate::base::Weight;
use peft_tune_core::recipe::ActivationQuantization;
use peft_tune_kernels::ops::matmul::Factor;

/// W (out, in) of a linear layer.
#[derive(Clone, Debug)]
pub(super) enum Matrix {
    Frozen(Weight),
    Trained(Trained),
}

impl Matrix {
    /// The weight as the right operand of a product.
    pub(super) fn factor(&self) -> Factor<'_> {
        match self {
            Self::Frozen(weight) => weight.factor(),
            Self::Trained(trained) => Factor::Dense(&trained.value),
        }
    }

    /// Returns the weight for products whose other operand is no activation, and taken as it is.
    pub(super) fn unrounded(&self) -> Self {
        match self {
            Self::Frozen(weight) => Self::Frozen(weight.clone().with_activations(ActivationQuantization::None)),
            Self::Trained(trained) => Self::Trained(trained.clone()),
        }
    }

    /// The weight as one dense tensor; a copy only where it is quantized.
    pub(super) fn dense(&self) -> Result<Tensor> {
        match self {
            Self::Frozen(weight) => weight.dense(),
            Self::Trained(trained) => Ok(trained.value.clone()),
        }
    }

    pub(super) fn trained(&self) -> Option<&Trained> {
        match self {
            Self::Frozen(_) => None,
            Self::Trained(trained) => Some(trained),
        }
    }

    pub(super) fn is_trained(&self) -> bool {
        self.trained().is_some()
    }

    /// Rows `start..start + rows`.
    pub(super) fn rows(&self, start: usize, rows: usize) -> Result<Self> {
        Ok(match self {
            Self::Frozen(weight) => Self::Frozen(weight.rows(start, rows)?),
            Self::Trained(trained) => Self::Trained(trained.rows(start, rows)?),
        })
    }
}
