//! Codes of a merged weight, which a training multiplies that takes its later quantization into account.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | W, A, B | (out, in), (r, in), (out, r) | a frozen weight and its adapter |
//! | W' | (out, in) | W + s·B·A, rounded to int8 or nf4: what `merge --quantize` writes |
//!
//! y = x W'^T. The rounding is taken for the identity in the backward pass (the straight-through estimator, arXiv:1308.3432): dA and
//! dB are those of s·B·A, from the same xa and d_xa as without it, and dx = dy W' is exact. The codes depend on parameters alone and
//! are made once, before each pass, some rows at a time; a layer that is run forward again multiplies the same ones.

use candle_core::{DType, Result, Tensor};

use super::matrix::Matrix;
use super::traced::{merged_rows, quantize};
use crate::base::{BaseModel, Weight};
use crate::tensor;
use peft_tune_core::plan::MERGED_ROWS;
use peft_tune_core::recipe::QuantizationAware;
use peft_tune_kernels::ops::matmul::Factor;

/// The codes of one projection's weight with its adapter.
#[derive(Clone, Debug)]
pub(super) struct MergedWeight {
    codes: Weight,
    form: QuantizationAware,
}

/// An adapter's part of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Update<'a> {
    /// (r, in) F32
    pub a: &'a Tensor,
    /// (out, r) F32
    pub b: &'a Tensor,
    pub scaling: f64,
}

impl MergedWeight {
    /// Codes in `form` for products in `dtype`, where `base` lies, which hold nothing before [`MergedWeight::refresh`]; `None` where there
    /// is no form.
    ///
    /// # Errors
    /// Memory.
    pub(super) fn new(
        shape: (usize, usize),
        form: QuantizationAware,
        dtype: DType,
        base: &BaseModel,
    ) -> Result<Option<Self>> {
        let codes = match base.paper() {
            Some(_) => Weight::merged_on_paper(shape, form, dtype)?,
            None => Weight::zeros(shape, form, dtype, base.device())?,
        };
        Ok(codes.map(|codes| Self { codes, form }))
    }

    /// Makes the codes of `weight` with `update`, from its rows as `operand` makes them of what is stored.
    ///
    /// # Errors
    /// Memory; an update of another shape.
    pub(super) fn refresh(
        &self,
        weight: &Matrix,
        update: Option<Update<'_>>,
        operand: impl Fn(&Tensor) -> tensor::Tensor,
    ) -> Result<()> {
        let (outputs, _) = self.codes.factor().dims2()?;
        for start in (0..outputs).step_by(MERGED_ROWS) {
            let rows = MERGED_ROWS.min(outputs - start);
            let some = operand(&weight.rows(start, rows)?.dense()?);
            let sum = match update {
                Some(update) => {
                    let b = update.b.narrow(0, start, rows)?;
                    merged_rows::merge(&some, update.a, &b, update.scaling)?
                }
                None => some.to_dtype(DType::F32)?,
            };
            quantize(&sum, &self.codes, self.form, start)?;
        }
        Ok(())
    }

    /// The weight as the right operand of a product.
    pub(super) fn factor(&self) -> Factor<'_> {
        self.codes.factor()
    }

    /// The codes as a weight that never changes.
    pub(super) fn into_frozen(self) -> Matrix {
        Matrix::Frozen(self.codes)
    }
}
