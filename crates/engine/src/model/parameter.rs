//! Parameters as the blocks hold them: tensors that look into the base model or into the flat buffers.

use candle_core::{DType, Result, Tensor};

use crate::tensor;

/// A trained parameter: views into the flat values and gradients.
#[derive(Clone, Debug)]
pub(super) struct Trained {
    /// F32; the optimizer updates it in place.
    pub value: Tensor,
    /// Tensor that products read: the value, or a rounded copy of it ([`super::rounded`]).
    pub factor: Tensor,
    /// F32; backward adds to it.
    pub gradient: Tensor,
}

impl Trained {
    /// Rows `start..start + rows` of each.
    pub(super) fn rows(&self, start: usize, rows: usize) -> Result<Self> {
        Ok(Self {
            value: self.value.narrow(0, start, rows)?,
            factor: self.factor.narrow(0, start, rows)?,
            gradient: self.gradient.narrow(0, start, rows)?,
        })
    }

    /// The factor as operand of ops on `x`. On paper a GPU has it in the dtype of `x`, and its bytes are counted with the adapters.
    pub(super) fn factor_beside(&self, x: &tensor::Tensor) -> tensor::Tensor {
        let dtype = if x.is_on_gpu() { x.dtype() } else { self.factor.dtype() };
        x.beside(&self.factor, dtype)
    }

    /// The gradient, likewise.
    pub(super) fn gradient_beside(&self, x: &tensor::Tensor) -> tensor::Tensor {
        x.beside(&self.gradient, self.gradient.dtype())
    }

    /// Adds `gradient` (F32, same shape).
    pub(super) fn add_gradient(&self, gradient: &tensor::Tensor) -> Result<()> {
        match gradient.paper() {
            Some(paper) => {
                drop(paper.alike());
                Ok(())
            }
            None => self.gradient.slice_set(&(&self.gradient + gradient.real()?)?, 0, 0),
        }
    }
}

/// A parameter of the base model, frozen or trained.
#[derive(Clone, Debug)]
pub(super) enum BaseParameter {
    /// Value in the compute dtype.
    Frozen(Tensor),
    Trained(Trained),
}

impl BaseParameter {
    pub(super) fn value(&self) -> &Tensor {
        match self {
            Self::Frozen(value) => value,
            Self::Trained(trained) => &trained.value,
        }
    }

    /// The value in `dtype`; a copy only where it is trained in another dtype.
    pub(super) fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        self.value().to_dtype(dtype)
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

    pub(super) fn rows(&self, start: usize, rows: usize) -> Result<Self> {
        Ok(match self {
            Self::Frozen(value) => Self::Frozen(value.narrow(0, start, rows)?),
            Self::Trained(trained) => Self::Trained(trained.rows(start, rows)?),
        })
    }
}

/// Sum over the tokens of (T, features), F32.
pub(super) fn column_sum(dy: &tensor::Tensor) -> Result<tensor::Tensor> {
    let _span = super::traced::column_sum(dy);
    dy.to_dtype(DType::F32)?.sum_rows()
}
