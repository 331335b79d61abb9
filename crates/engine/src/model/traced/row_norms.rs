//! Row norms of DoRA, and the terms that they are made from, as the model has them.

use candle_core::{DType, Result};

use super::kernel::Argument;
use super::products_on_paper::product_on_paper;
use super::{Parameter, Tensor, bytes, matmul, pass};
use crate::span::Work;
use crate::tensor;
use crate::tensor::PaperTensor;
use peft_tune_core::plan::Memory;
use peft_tune_kernels::ops::gain;

/// See [`gain::NormParts`].
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct NormParts<'a> {
    /// (N,) F32
    pub squared: &'a Parameter,
    /// (r, N)
    pub projected: &'a Tensor,
    /// (r, r) F32
    pub gram: &'a Tensor,
    /// (N, r) F32
    pub b: &'a Parameter,
    pub scaling: f64,
}

impl<'a> Argument for NormParts<'a> {
    type Kernel = gain::NormParts<'a>;

    fn kernel(self) -> Result<Self::Kernel> {
        Ok(gain::NormParts {
            squared: self.squared,
            projected: self.projected.real()?,
            gram: self.gram.real()?,
            b: self.b,
            scaling: self.scaling,
        })
    }
}

impl NormParts<'_> {
    /// A product of B with the gram matrix, and passes over what is as large as B.
    pub(super) fn work(&self) -> Work {
        let rank = self.gram.dims().first().copied().unwrap_or(0);
        Work {
            flops: 2 * (self.b.elem_count() * rank) as u64,
            bytes: bytes(self.projected) + bytes(self.b) + 4 * bytes(self.squared),
            ..pass(self.b, 1)
        }
    }

    /// Takes what the norms take at most on the CPU: a sum over the ranks, beside the product of B with the gram matrix and that times B.
    /// A GPU makes them in a kernel.
    pub(super) fn on_paper(&self, projected: &PaperTensor) -> Result<()> {
        let ledger = projected.ledger();
        let (outputs, rank) = self.b.dims2()?;
        if ledger.host().memory() == Memory::Device {
            product_on_paper(projected, [outputs, rank, rank]);
            return Ok(());
        }
        let _along = projected.fresh(outputs, DType::F32);
        let b = Tensor::from(ledger.uncounted((outputs, rank), DType::F32));
        let own = matmul::nn(&b, &tensor::on_paper((rank, rank), DType::F32)?)?;
        own.zeros_like().map(drop)
    }
}
