//! Products of a sum as the model has them, and as kernels take them.

use std::ops::Range;

use candle_core::Result;

use super::{Parameter, Tensor};
use peft_tune_core::predict::Right;
use peft_tune_kernels::ops::matmul;
use peft_tune_kernels::ops::matmul::Factor;

/// One product of a sum: `scale` times x times w; see [`matmul::Term`].
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Term<'a> {
    pub x: &'a Tensor,
    pub w: Factor<'a>,
    /// Storage of w as prediction tells storages apart.
    pub right: Right,
    pub scale: f64,
}

/// See [`matmul::AdapterGradients`].
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct AdapterGradients<'a> {
    pub dy: &'a Tensor,
    pub xa: &'a Tensor,
    pub b: &'a Parameter,
    pub d_b: &'a Parameter,
    pub scale: f64,
}

/// Products that some rows of a sum have beside the shared ones; see [`matmul::RowTerms`].
#[derive(Clone, Debug)]
pub(in crate::model) struct RowTerms<'a> {
    pub rows: Range<usize>,
    pub terms: Vec<Term<'a>>,
}

impl<'a> Term<'a> {
    /// `scale` times x times w, a weight of the base model in the storage of linear weights.
    pub(in crate::model) fn new(x: &'a Tensor, w: impl Into<Factor<'a>>, scale: f64) -> Self {
        Self {
            x,
            w: w.into(),
            right: Right::Weight,
            scale,
        }
    }

    /// `scale` times x times w, a factor of an adapter.
    pub(in crate::model) fn of_adapter(x: &'a Tensor, w: &'a Parameter, scale: f64) -> Self {
        Self {
            right: Right::Adapter,
            ..Self::new(x, w, scale)
        }
    }

    /// The product of a weight that is stored so.
    pub(in crate::model) fn stored(self, right: Right) -> Self {
        Self { right, ..self }
    }

    pub(super) fn kernel(&self) -> Result<matmul::Term<'a>> {
        Ok(matmul::Term {
            x: self.x.real()?,
            w: self.w,
            scale: self.scale,
        })
    }
}

impl<'a> AdapterGradients<'a> {
    pub(super) fn kernel(&self) -> Result<matmul::AdapterGradients<'a>> {
        Ok(matmul::AdapterGradients {
            dy: self.dy.real()?,
            xa: self.xa.real()?,
            b: self.b,
            d_b: self.d_b,
            scale: self.scale,
        })
    }
}

pub(super) fn kernels<'a>(terms: &[Term<'a>]) -> Result<Vec<matmul::Term<'a>>> {
    terms.iter().map(Term::kernel).collect()
}

pub(super) fn own_kernels<'a>(own: &[RowTerms<'a>]) -> Result<Vec<matmul::RowTerms<'a>>> {
    let own = own.iter().map(|part| {
        Ok(matmul::RowTerms {
            rows: part.rows.clone(),
            terms: kernels(&part.terms)?,
        })
    });
    own.collect()
}
