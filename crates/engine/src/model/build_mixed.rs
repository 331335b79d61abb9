//! Builds the blocks that stand in the place of attention.

use super::block_end::BlockEnd;
use super::builder::Builder;
use super::mixed_block::{DeltaLayer, MixedBlock, Rule};
use super::norm::Norm;
use super::traced::delta_rule::Heads;
use crate::TrainError;
use crate::span::Module;
use peft_tune_core::architecture::{DeltaRule, GATED_NORM, Mixer};
use peft_tune_core::plan::LayerPlan;

impl Builder<'_> {
    /// The block of a layer whose mixer is not attention.
    pub(super) fn mixed(&self, layer: &str, plan: &LayerPlan, mixer: Mixer) -> Result<MixedBlock, TrainError> {
        let architecture = self.architecture();
        let placement = architecture.norm_placement;
        let [before, behind] = architecture.names.attention_norms;
        Ok(MixedBlock {
            norm: self.norm_where(placement.is_before(), layer, before)?,
            projections: self.group(layer, Module::QueryKeyValue, &plan.qkv)?,
            rule: self.rule(layer, mixer)?,
            end: BlockEnd {
                out: self.group(layer, Module::Output, &plan.output)?,
                norm: self.norm_where(placement.is_behind(), layer, behind)?,
                scale: architecture.residual_scale,
            },
        })
    }

    fn rule(&self, layer: &str, mixer: Mixer) -> Result<Rule, TrainError> {
        match mixer {
            Mixer::Attention => Err(candle_core::Error::Msg(format!("{layer} attends")).into()),
            Mixer::Convolution(_) => Ok(Rule::Convolution {
                weight: self.frozen(&format!("{layer}.conv.conv.weight"))?,
            }),
            Mixer::DeltaRule(rule) => Ok(Rule::Delta(Box::new(self.delta(layer, rule)?))),
        }
    }

    fn delta(&self, layer: &str, rule: DeltaRule) -> Result<DeltaLayer, TrainError> {
        let part = |name: &str| self.frozen(&format!("{layer}.linear_attn.{name}"));
        Ok(DeltaLayer {
            weight: part("conv1d.weight")?,
            rate: part("A_log")?,
            shift: part("dt_bias")?,
            norm: Norm {
                offset: 0.0,
                ..self.norm(&format!("{layer}.{GATED_NORM}"))?
            },
            heads: Heads {
                keys: rule.key_heads,
                values: rule.value_heads,
                key_width: rule.key_width,
                value_width: rule.value_width,
            },
        })
    }
}
