//! Builds the MLPs of layers, and their activations.

use super::activation::Activation;
use super::block_end::BlockEnd;
use super::builder::Builder;
use super::mlp_block::MlpBlock;
use crate::TrainError;
use crate::span::Module;
use peft_tune_core::architecture::NormPlacement;
use peft_tune_core::plan::LayerPlan;
use peft_tune_kernels::ops::{glu, xielu};

impl Builder<'_> {
    /// The MLP of a layer.
    pub(super) fn mlp(&self, layer: &str, plan: &LayerPlan) -> Result<MlpBlock, TrainError> {
        let architecture = self.architecture();
        let placement = architecture.norm_placement;
        let ([first, _], [before, behind]) = (architecture.names.attention_norms, architecture.names.mlp_norms);
        let before = match placement {
            NormPlacement::Shared => first,
            NormPlacement::Before | NormPlacement::BeforeAndBehind | NormPlacement::Behind => before,
        };
        Ok(MlpBlock {
            norm: self.norm_where(placement.is_before(), layer, before)?,
            projections: self.group(layer, Module::GateUp, &plan.gate_up)?,
            activation: self.activation(layer)?,
            end: BlockEnd {
                out: self.group(layer, Module::Down, &plan.down)?,
                norm: self.norm_where(placement.is_behind(), layer, behind)?,
                scale: architecture.residual_scale,
            },
        })
    }

    fn activation(&self, layer: &str) -> Result<Activation, TrainError> {
        Ok(match self.gated_activation() {
            Some(gated) => Activation::Gated(gated),
            None => Activation::Xielu(self.curve(layer)?),
        })
    }

    /// The activation of a gate beside up; `None` where there is none.
    pub(super) fn gated_activation(&self) -> Option<glu::Activation> {
        use peft_tune_core::architecture::Activation::{GeluTanh, Silu, Xielu};
        match self.architecture().activation {
            Silu => Some(glu::Activation::Silu),
            GeluTanh => Some(glu::Activation::GeluTanh),
            Xielu => None,
        }
    }

    /// The numbers of a layer's xIELU. Those that training made are softplus of what the checkpoint holds.
    fn curve(&self, layer: &str) -> Result<xielu::Curve, TrainError> {
        let number = |name: &str| self.number(&format!("{layer}.mlp.act_fn.{name}"));
        let softplus = |x: f32| x.max(0.0) + (-x.abs()).exp().ln_1p();
        let beta = number("beta")?;
        Ok(xielu::Curve {
            positive: softplus(number("alpha_p")?),
            negative: beta + softplus(number("alpha_n")?),
            beta,
            epsilon: number("eps")?,
        })
    }
}
