//! The arguments and results of kernels: tensors of the model, and what kernels take of them.

use candle_core::{DType, Result};

use super::expert_offsets::Offsets;
use crate::tensor::{PaperTensor, Tensor};
use peft_tune_kernels::ops::convolution::Convolution;
use peft_tune_kernels::ops::dropout::MaskKey;
use peft_tune_kernels::ops::glu::Activation;
use peft_tune_kernels::ops::offsets;
use peft_tune_kernels::ops::rope::{HeadNorms, RopeTable};
use peft_tune_kernels::ops::xielu::Curve;

/// Value that has a shape and a dtype.
pub(super) trait Measured {
    fn sizes(&self) -> &[usize];

    fn element(&self) -> DType;
}

impl Measured for Tensor {
    fn sizes(&self) -> &[usize] {
        self.dims()
    }

    fn element(&self) -> DType {
        self.dtype()
    }
}

impl Measured for PaperTensor {
    fn sizes(&self) -> &[usize] {
        self.shape().dims()
    }

    fn element(&self) -> DType {
        self.dtype()
    }
}

impl Measured for candle_core::Tensor {
    fn sizes(&self) -> &[usize] {
        self.dims()
    }

    fn element(&self) -> DType {
        self.dtype()
    }
}

/// An argument of an op.
pub(super) trait Argument {
    /// Type that kernels take of it.
    type Kernel;

    /// Errs of a tensor on paper.
    fn kernel(self) -> Result<Self::Kernel>;
}

impl<'a> Argument for &'a Tensor {
    type Kernel = &'a candle_core::Tensor;

    fn kernel(self) -> Result<Self::Kernel> {
        self.real()
    }
}

impl Argument for Tensor {
    type Kernel = candle_core::Tensor;

    fn kernel(self) -> Result<Self::Kernel> {
        self.into_real()
    }
}

impl<'a> Argument for &'a Offsets {
    type Kernel = &'a offsets::Offsets;

    fn kernel(self) -> Result<Self::Kernel> {
        self.real()
    }
}

impl<'a> Argument for Option<&'a Tensor> {
    type Kernel = Option<&'a candle_core::Tensor>;

    fn kernel(self) -> Result<Self::Kernel> {
        self.map(Tensor::real).transpose()
    }
}

impl<'a> Argument for [&'a Tensor; 3] {
    type Kernel = [&'a candle_core::Tensor; 3];

    fn kernel(self) -> Result<Self::Kernel> {
        let [a, b, c] = self;
        Ok([a.real()?, b.real()?, c.real()?])
    }
}

impl Argument for [Tensor; 2] {
    type Kernel = [candle_core::Tensor; 2];

    fn kernel(self) -> Result<Self::Kernel> {
        let [a, b] = self;
        Ok([a.into_real()?, b.into_real()?])
    }
}

/// Arguments that kernels take as they are: numbers, weights and what is made of them.
macro_rules! as_they_are {
    ($($of:ty),* $(,)?) => {$(
        impl Argument for $of {
            type Kernel = Self;

            fn kernel(self) -> Result<Self> {
                Ok(self)
            }
        }
    )*};
}

as_they_are!(
    f64,
    f32,
    u64,
    usize,
    Activation,
    Curve,
    Convolution<'_>,
    &candle_core::Tensor,
    Option<&candle_core::Tensor>,
    &HeadNorms<'_>,
    &MaskKey,
    &RopeTable,
);

/// Value that an op gives, made from what its kernel gives.
pub(super) trait Outcome<K> {
    fn of(kernel: K) -> Self;
}

impl<K> Outcome<K> for K {
    fn of(kernel: K) -> Self {
        kernel
    }
}

impl Outcome<candle_core::Tensor> for Tensor {
    fn of(kernel: candle_core::Tensor) -> Self {
        kernel.into()
    }
}

impl Outcome<(candle_core::Tensor, candle_core::Tensor)> for (Tensor, Tensor) {
    fn of((first, second): (candle_core::Tensor, candle_core::Tensor)) -> Self {
        (first.into(), second.into())
    }
}

impl<const N: usize> Outcome<[candle_core::Tensor; N]> for [Tensor; N] {
    fn of(kernel: [candle_core::Tensor; N]) -> Self {
        kernel.map(Tensor::from)
    }
}

impl<const N: usize> Outcome<[(candle_core::Tensor, candle_core::Tensor); N]> for [(Tensor, Tensor); N] {
    fn of(kernel: [(candle_core::Tensor, candle_core::Tensor); N]) -> Self {
        kernel.map(|(first, second)| (first.into(), second.into()))
    }
}
