//! The first half of a decoder layer that does not attend: norm, projections, a mixer, output projection, residual.

use candle_core::{DType, Result};

use super::block_end::BlockEnd;
use super::block_gradients::BlockGradients;
use super::cache::CacheSlot;
use super::linear::LinearGroup;
use super::norm::Norm;
use super::norm_before::{Before, forward_before};
use super::saved::MixedSaved;
use super::stream::Stream;
use super::traced::Documents;
use super::traced::convolution::{self, Convolution};
use super::traced::delta_rule;
use super::traced::gated_norm;
use crate::span;
use crate::span::{Module, StepPhase};
use crate::tensor::Tensor;

/// x + end(mixer(projections(norm(x))))
#[derive(Debug)]
pub(super) struct MixedBlock {
    /// Norm before the block; absent where it stands behind the block only.
    pub norm: Option<Norm>,
    pub projections: LinearGroup,
    pub rule: Rule,
    pub end: BlockEnd,
}

/// Operations between the projections and the output projection.
#[derive(Debug)]
pub(super) enum Rule {
    /// c conv(b x) of b, c and x.
    Convolution {
        /// (H, 1, K)
        weight: candle_core::Tensor,
    },
    /// Delta rule on mixed, z, b and a: a convolution of mixed, the gated delta rule, a norm with the gate z.
    Delta(Box<DeltaLayer>),
}

/// The parts of a gated delta rule.
#[derive(Debug)]
pub(super) struct DeltaLayer {
    /// (2 Hk dk + Hv dv, 1, K)
    pub weight: candle_core::Tensor,
    /// (Hv,)
    pub rate: candle_core::Tensor,
    /// (Hv,)
    pub shift: candle_core::Tensor,
    /// Norm over dv.
    pub norm: Norm,
    pub heads: delta_rule::Heads,
}

impl MixedBlock {
    /// The stream behind the block, (T, H), and what backward needs.
    pub(super) fn forward(&self, x: &Tensor, stream: &Stream<'_>) -> Result<(Tensor, MixedSaved)> {
        let _span = span::module(Module::Attention);
        let pass = &stream.pass;
        let (normed, rstd) = forward_before(self.norm.as_ref(), x)?;
        let (projected, input_xa) = self.projections.forward(&normed, pass)?;
        drop(normed);
        let documents = stream.documents();
        let ruled = self.rule.ruled(&projected, documents, None)?;
        let mixed = self.rule.mixed(&projected, ruled.as_ref(), documents, None)?;
        let (y, output_xa, behind) = self.end.forward(x, &mixed, pass)?;
        let saved = MixedSaved {
            x: x.clone(),
            rstd,
            projected,
            ruled,
            input_xa,
            output_xa,
            behind,
        };
        Ok((y, saved))
    }

    /// The stream behind the block, (T, H), of tokens that go on from what `slot` keeps, and which it keeps.
    pub(super) fn infer(&self, x: &Tensor, stream: &Stream<'_>, slot: &CacheSlot<'_>) -> Result<Tensor> {
        let _span = span::module(Module::Attention);
        let (normed, _) = forward_before(self.norm.as_ref(), x)?;
        let (projected, _) = self.projections.forward(&normed, &stream.pass)?;
        let documents = stream.documents();
        let ruled = self.rule.ruled(&projected, documents, Some(slot))?;
        let mixed = self.rule.mixed(&projected, ruled.as_ref(), documents, Some(slot))?;
        self.rule.keep(&projected, slot)?;
        Ok(self.end.forward(x, &mixed, &stream.pass)?.0)
    }

    /// The stream behind the block, (T, H), made again from what [`MixedBlock::forward`] kept, to the same bits.
    pub(super) fn recompute_output(&self, saved: &MixedSaved, stream: &Stream<'_>) -> Result<Tensor> {
        let _span = span::phase(StepPhase::Recompute);
        let mixed = || self.mixed_again(saved, stream);
        let (xa, behind) = (&saved.output_xa, saved.behind.as_ref());
        self.end.recompute(&saved.x, mixed, xa, behind, &stream.pass)
    }

    /// The gradient with respect to the block's input, where `wants_dx`; adds all gradients of the block.
    pub(super) fn backward(
        &self,
        saved: MixedSaved,
        BlockGradients { branch, past }: BlockGradients,
        stream: &Stream<'_>,
        wants_dx: bool,
    ) -> Result<Option<Tensor>> {
        let _span = span::module(Module::Attention);
        let (pass, documents) = (&stream.pass, stream.documents());
        let MixedSaved {
            x,
            rstd,
            projected,
            ruled,
            input_xa,
            output_xa,
            behind,
        } = saved;
        let d_output = self.end.backward(behind, &branch)?;
        drop(branch);
        let mixed = || self.rule.mixed(&projected, ruled.as_ref(), documents, None);
        let out = &self.end.out;
        let d_mixed = out.backward(mixed, &output_xa, vec![d_output], pass, true)?;
        drop(output_xa);
        let Some(d_mixed) = d_mixed else { return Ok(None) };
        let d_projected = self.rule.backward(projected, ruled, d_mixed, documents)?;
        let normed = || Ok(forward_before(self.norm.as_ref(), &x)?.0);
        let wants_d_normed = wants_dx || self.norm.as_ref().is_some_and(|norm| norm.weight.is_trained());
        let d_normed = self
            .projections
            .backward(normed, &input_xa, d_projected, pass, wants_d_normed)?;
        let Some(d_normed) = d_normed else { return Ok(None) };
        let before = Before {
            norm: self.norm.as_ref(),
            x: &x,
            rstd: rstd.as_ref(),
        };
        before.backward(&past, &d_normed, wants_dx)
    }

    fn mixed_again(&self, saved: &MixedSaved, stream: &Stream<'_>) -> Result<Tensor> {
        let documents = stream.documents();
        self.rule.mixed(&saved.projected, saved.ruled.as_ref(), documents, None)
    }
}

impl Rule {
    /// Tensor kept beside the projections' outputs: the result of a delta rule, (T, Hv dv).
    fn ruled(
        &self,
        projected: &[Tensor],
        documents: Documents<'_>,
        slot: Option<&CacheSlot<'_>>,
    ) -> Result<Option<Tensor>> {
        match (self, projected) {
            (Self::Convolution { .. }, _) => Ok(None),
            (Self::Delta(delta), [mixed, _, b, a]) => {
                let before = slot.map(CacheSlot::before).transpose()?;
                let convolved = convolution::forward(mixed, delta.convolution(documents), before)?;
                let states = slot.map(CacheSlot::states).transpose()?;
                delta_rule::forward(&delta.inputs([&convolved, a, b], documents), states).map(Some)
            }
            (Self::Delta(_), other) => unfit(other),
        }
    }

    /// Input of the output projection.
    fn mixed(
        &self,
        projected: &[Tensor],
        ruled: Option<&Tensor>,
        documents: Documents<'_>,
        slot: Option<&CacheSlot<'_>>,
    ) -> Result<Tensor> {
        match (self, projected, ruled) {
            (Self::Convolution { weight }, [b, c, x], _) => {
                let before = slot.map(CacheSlot::before).transpose()?;
                convolution::gated_forward([b, c, x], convolution_of(weight, documents), before)
            }
            (Self::Delta(delta), [_, z, ..], Some(o)) => {
                let (rows, weight) = (((), delta.heads.value_width), delta.norm.weight.to_dtype(o.dtype())?);
                let y = gated_norm::forward(&o.reshape(rows)?, &z.reshape(rows)?, &weight, delta.norm.epsilon)?;
                y.reshape(o.shape())
            }
            (_, other, _) => unfit(other),
        }
    }

    /// Keeps what the tokens that follow read of these.
    fn keep(&self, projected: &[Tensor], slot: &CacheSlot<'_>) -> Result<()> {
        match (self, projected) {
            (Self::Convolution { .. }, [b, _, x]) => slot.keep_rows(&(b.real()? * x.real()?)?.into()),
            (Self::Delta(_), [mixed, ..]) => slot.keep_rows(mixed),
            (_, other) => unfit(other),
        }
    }

    /// The gradients of the projections' outputs.
    fn backward(
        &self,
        projected: Vec<Tensor>,
        ruled: Option<Tensor>,
        d_mixed: Tensor,
        documents: Documents<'_>,
    ) -> Result<Vec<Tensor>> {
        match (self, projected.as_slice(), ruled) {
            (Self::Convolution { weight }, [b, c, x], _) => {
                let of = convolution_of(weight, documents);
                Ok(convolution::gated_backward([b, c, x], of, &d_mixed)?.into())
            }
            (Self::Delta(delta), [_, _, _, _], Some(o)) => delta.backward(projected, o, d_mixed, documents),
            (_, other, _) => unfit(other),
        }
    }
}

impl DeltaLayer {
    fn convolution<'a>(&'a self, documents: Documents<'a>) -> Convolution<'a> {
        convolution_of(&self.weight, documents)
    }

    fn inputs<'a>(&'a self, [mixed, a, b]: [&'a Tensor; 3], documents: Documents<'a>) -> delta_rule::Inputs<'a> {
        delta_rule::Inputs {
            mixed,
            a,
            b,
            rate: &self.rate,
            shift: &self.shift,
            heads: self.heads,
            documents,
        }
    }

    /// The gradients of mixed, z, b and a.
    fn backward(
        &self,
        projected: Vec<Tensor>,
        o: Tensor,
        d_gated: Tensor,
        documents: Documents<'_>,
    ) -> Result<Vec<Tensor>> {
        let [mixed, z, b, a] = <[Tensor; 4]>::try_from(projected).or_else(|other| unfit(&other))?;
        let (d_o, d_z) = self.norm_backward(&o, &z, &d_gated)?;
        drop((o, z, d_gated));
        let of = self.convolution(documents);
        let convolved = convolution::forward(&mixed, of, None)?;
        let gradients = delta_rule::backward(&self.inputs([&convolved, &a, &b], documents), &d_o)?;
        drop((convolved, d_o, a, b));
        let d_mixed = convolution::backward(&mixed, of, &gradients.mixed)?;
        Ok(vec![d_mixed, d_z, gradients.b, gradients.a])
    }

    fn norm_backward(&self, o: &Tensor, z: &Tensor, dy: &Tensor) -> Result<(Tensor, Tensor)> {
        let shape = o.shape();
        let rows = |tensor: &Tensor| tensor.reshape(((), self.heads.value_width));
        let (o, z, dy) = (rows(o)?, rows(z)?, rows(dy)?);
        let (weight, epsilon) = (self.norm.weight.to_dtype(o.dtype())?, self.norm.epsilon);
        if let Some(trained) = self.norm.weight.trained() {
            let gradient = gated_norm::weight_gradient(&o, &z, &weight, epsilon, &dy)?;
            trained.add_gradient(&gradient.to_dtype(DType::F32)?)?;
        }
        let (d_o, d_z) = gated_norm::backward(&o, &z, &weight, epsilon, &dy)?;
        Ok((d_o.reshape(shape)?, d_z.reshape(shape)?))
    }
}

fn convolution_of<'a>(weight: &'a candle_core::Tensor, documents: Documents<'a>) -> Convolution<'a> {
    Convolution {
        weight,
        offsets: documents.offsets(),
    }
}

fn unfit<T>(projected: &[Tensor]) -> Result<T> {
    candle_core::bail!("a mixer does not fit its {} projections", projected.len())
}
