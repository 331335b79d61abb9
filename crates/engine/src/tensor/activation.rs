//! A tensor of a step: activations, what is kept of them, and their gradients.

use candle_core::shape::{Dim, ShapeWithOneHole};
use candle_core::{DType, Result, Shape};

use super::{Ledger, PaperTensor};
use peft_tune_core::plan::Memory;
use peft_tune_kernels::gpu;

/// A tensor that ops read and make. Its methods are the passes over memory that the model has beside its ops, with the names and the
/// meaning that they have in candle.
#[derive(Clone, Debug)]
pub(crate) enum Tensor {
    Real(candle_core::Tensor),
    Paper(PaperTensor),
}

/// How the right operand of a product lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Straight,
    Transposed,
}

impl Ledger {
    /// Keeps those of the tensors that are on paper for the backward pass.
    pub(crate) fn keep<'a>(&self, tensors: impl IntoIterator<Item = &'a Tensor>) {
        let entries = tensors.into_iter().filter_map(|tensor| tensor.paper()?.entry());
        entries.for_each(|entry| self.keep_entry(entry));
    }
}

impl From<candle_core::Tensor> for Tensor {
    fn from(tensor: candle_core::Tensor) -> Self {
        Self::Real(tensor)
    }
}

impl From<PaperTensor> for Tensor {
    fn from(tensor: PaperTensor) -> Self {
        Self::Paper(tensor)
    }
}

impl Tensor {
    /// The values.
    ///
    /// # Errors
    /// A tensor on paper has none: what asks for them has no form on paper yet.
    pub(crate) fn real(&self) -> Result<&candle_core::Tensor> {
        match self {
            Self::Real(tensor) => Ok(tensor),
            Self::Paper(tensor) => no_values(tensor),
        }
    }

    /// The values, given away: an op may work in place where nobody else holds the tensor.
    ///
    /// # Errors
    /// A tensor on paper has none.
    pub(crate) fn into_real(self) -> Result<candle_core::Tensor> {
        match self {
            Self::Real(tensor) => Ok(tensor),
            Self::Paper(tensor) => no_values(&tensor),
        }
    }

    /// The tensor, where it is on paper.
    pub(crate) fn paper(&self) -> Option<&PaperTensor> {
        match self {
            Self::Real(_) => None,
            Self::Paper(tensor) => Some(tensor),
        }
    }

    pub(crate) fn shape(&self) -> &Shape {
        match self {
            Self::Real(tensor) => tensor.shape(),
            Self::Paper(tensor) => tensor.shape(),
        }
    }

    pub(crate) fn dims(&self) -> &[usize] {
        self.shape().dims()
    }

    pub(crate) fn dim(&self, dim: usize) -> Result<usize> {
        Ok(self.dims()[dim.to_index(self.shape(), "dim")?])
    }

    pub(crate) fn dims1(&self) -> Result<usize> {
        self.shape().dims1()
    }

    pub(crate) fn dims2(&self) -> Result<(usize, usize)> {
        self.shape().dims2()
    }

    pub(crate) fn dims3(&self) -> Result<(usize, usize, usize)> {
        self.shape().dims3()
    }

    pub(crate) fn elem_count(&self) -> usize {
        self.shape().elem_count()
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Self::Real(tensor) => tensor.dtype(),
            Self::Paper(tensor) => tensor.dtype(),
        }
    }

    /// The memory that the tensor lies in.
    pub(crate) fn memory(&self) -> Memory {
        match self {
            Self::Real(tensor) if tensor.device().is_cpu() => Memory::Host,
            Self::Real(_) => Memory::Device,
            Self::Paper(tensor) => tensor.ledger().host().memory(),
        }
    }

    /// Whether a GPU's kernels take it.
    pub(crate) fn is_on_gpu(&self) -> bool {
        match self {
            Self::Real(tensor) => gpu::takes(tensor),
            Self::Paper(_) => self.memory() == Memory::Device,
        }
    }

    /// `values` as an operand where this tensor is: on paper without bytes, which are counted with the parameters.
    pub(crate) fn operand(&self, values: &candle_core::Tensor) -> Self {
        match self {
            Self::Real(_) => values.clone().into(),
            Self::Paper(tensor) => tensor.ledger().uncounted(values.shape().clone(), values.dtype()).into(),
        }
    }

    pub(crate) fn reshape(&self, shape: impl ShapeWithOneHole) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.reshape(shape)?.into(),
            Self::Paper(tensor) => tensor.reshaped(shape.into_shape(self.elem_count())?).into(),
        })
    }

    pub(crate) fn flatten_from(&self, dim: usize) -> Result<Self> {
        let (outer, inner) = self.dims().split_at(dim);
        let mut dims = outer.to_vec();
        dims.push(inner.iter().product());
        self.reshape(dims)
    }

    pub(crate) fn flatten_all(&self) -> Result<Self> {
        self.reshape(self.elem_count())
    }

    /// The parameter as operand of an op whose other operands lie where this tensor lies: on paper without its values, in `dtype`, and with
    /// bytes that are counted elsewhere.
    pub(crate) fn beside(&self, parameter: &candle_core::Tensor, dtype: DType) -> Self {
        match self {
            Self::Real(_) => parameter.clone().into(),
            Self::Paper(tensor) => tensor.ledger().uncounted(parameter.shape().clone(), dtype).into(),
        }
    }

    /// Zeros where this tensor lies.
    pub(crate) fn zeros(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => candle_core::Tensor::zeros(shape, dtype, tensor.device())?.into(),
            Self::Paper(tensor) => tensor.fresh(shape, dtype).into(),
        })
    }

    pub(crate) fn unsqueeze(&self, dim: usize) -> Result<Self> {
        let mut dims = self.dims().to_vec();
        dims.insert(dim.min(dims.len()), 1);
        self.reshape(dims)
    }

    pub(crate) fn squeeze(&self, dim: usize) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.squeeze(dim)?.into(),
            Self::Paper(tensor) => tensor.squeeze(dim)?.into(),
        })
    }

    /// (.., columns, rows) of (.., rows, columns), contiguous.
    pub(crate) fn transposed(&self) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.t()?.contiguous()?.into(),
            Self::Paper(tensor) => tensor.transposed()?.into(),
        })
    }

    /// A part of a dimension, without a copy.
    pub(crate) fn narrow(&self, dim: usize, start: usize, length: usize) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.narrow(dim, start, length)?.into(),
            Self::Paper(tensor) => tensor.narrow(dim, start, length)?.into(),
        })
    }

    pub(crate) fn contiguous(&self) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.contiguous()?.into(),
            Self::Paper(tensor) => tensor.contiguous().into(),
        })
    }

    /// The tensor in `dtype`; a copy only where it has another one.
    pub(crate) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.to_dtype(dtype)?.into(),
            Self::Paper(tensor) if tensor.dtype() == dtype => self.clone(),
            Self::Paper(tensor) => tensor.passed(self.shape().clone(), dtype).into(),
        })
    }

    pub(crate) fn zeros_like(&self) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.zeros_like()?.into(),
            Self::Paper(tensor) => tensor.alike().into(),
        })
    }

    pub(crate) fn copy(&self) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.copy()?.into(),
            Self::Paper(tensor) => tensor.passed(self.shape().clone(), self.dtype()).into(),
        })
    }

    pub(crate) fn affine(&self, factor: f64, offset: f64) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.affine(factor, offset)?.into(),
            Self::Paper(tensor) => tensor.passed(self.shape().clone(), self.dtype()).into(),
        })
    }

    /// The sum of two tensors of one shape and dtype.
    pub(crate) fn plus(&self, other: &Self) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => (tensor + other.real()?)?.into(),
            Self::Paper(tensor) => tensor.alike().into(),
        })
    }

    /// Applies `op` to the values, each by itself.
    pub(crate) fn map(&self, op: impl FnOnce(&candle_core::Tensor) -> Result<candle_core::Tensor>) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => op(tensor)?.into(),
            Self::Paper(tensor) => tensor.alike().into(),
        })
    }

    /// Applies `op` to each value and that of `other` in its place, or the only one of it.
    pub(crate) fn zip(
        &self,
        other: &Self,
        op: impl FnOnce(&candle_core::Tensor, &candle_core::Tensor) -> Result<candle_core::Tensor>,
    ) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => op(tensor, other.real()?)?.into(),
            Self::Paper(tensor) => tensor.alike().into(),
        })
    }

    /// The product with `other`, or with its transpose.
    pub(crate) fn matmul(&self, other: &Self, order: Order) -> Result<Self> {
        let (rows, (first, second)) = (self.dims2()?.0, other.dims2()?);
        Ok(match (self, order) {
            (Self::Real(tensor), Order::Straight) => tensor.matmul(other.real()?)?.into(),
            (Self::Real(tensor), Order::Transposed) => tensor.matmul(&other.real()?.t()?)?.into(),
            (Self::Paper(tensor), Order::Straight) => tensor.fresh((rows, second), tensor.dtype()).into(),
            (Self::Paper(tensor), Order::Transposed) => tensor.fresh((rows, first), tensor.dtype()).into(),
        })
    }

    /// The sum of all values.
    pub(crate) fn sum_all(&self) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.sum_all()?.into(),
            Self::Paper(tensor) => tensor.fresh((), tensor.dtype()).into(),
        })
    }

    /// The sum over the rows.
    pub(crate) fn sum_rows(&self) -> Result<Self> {
        Ok(match self {
            Self::Real(tensor) => tensor.sum(0)?.into(),
            Self::Paper(tensor) => tensor.passed(&self.dims()[1..], self.dtype()).into(),
        })
    }

    /// The rows that `index` names.
    pub(crate) fn index_rows(&self, index: &candle_core::Tensor) -> Result<Self> {
        Ok(self.real()?.index_select(index, 0)?.into())
    }

    /// Writes `values` over the part of dimension `dim` that begins at `start`, in place.
    pub(crate) fn slice_set(&self, values: &Self, dim: usize, start: usize) -> Result<()> {
        match (self, values) {
            (Self::Paper(_), Self::Paper(values)) => {
                values.run_copy();
                Ok(())
            }
            _ => self.real()?.slice_set(values.real()?, dim, start),
        }
    }
}

fn no_values<T>(tensor: &PaperTensor) -> Result<T> {
    candle_core::bail!("a tensor {:?} on paper has no values", tensor.shape())
}
