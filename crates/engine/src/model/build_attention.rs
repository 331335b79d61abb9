//! Builds the blocks that attend.

use candle_core::Tensor;

use super::attention_block::AttentionBlock;
use super::block_end::BlockEnd;
use super::builder::Builder;
use super::head_norms::{HeadNorms, NormOrder, QueryKeyPath};
use super::key_reader::KeyReader;
use super::latent::{Expansion, Latent};
use super::norm::Norm;
use super::parameter::BaseParameter;
use crate::TrainError;
use crate::span::Module;
use peft_tune_core::architecture::{LATENT_NORM_EPSILON, QueryKeyNorm, SINKS};
use peft_tune_core::plan::{GroupPlan, KeySharing, LayerPlan};
use peft_tune_kernels::ops::attention;

impl Builder<'_> {
    /// The attention block of layer `index`, whose name is `layer`.
    pub(super) fn attention(&self, layer: &str, plan: &LayerPlan, index: usize) -> Result<AttentionBlock, TrainError> {
        let architecture = self.architecture();
        let (kind, placement) = (architecture.layers[index], architecture.norm_placement);
        let [before, behind] = architecture.names.attention_norms;
        Ok(AttentionBlock {
            norm: self.norm_where(placement.is_before(), layer, before)?,
            projections: self.group(layer, Module::QueryKeyValue, &plan.qkv)?,
            latent: self.latent(layer, plan)?,
            path: QueryKeyPath {
                norms: match plan.is_reader() {
                    true => None,
                    false => self.head_norms(layer, plan)?,
                },
                rope: kind.rope,
            },
            value_norm: self.value_norm(plan.heads.width)?,
            end: BlockEnd {
                out: self.group(layer, Module::Output, &plan.output)?,
                norm: self.norm_where(placement.is_behind(), layer, behind)?,
                scale: architecture.residual_scale,
            },
            settings: attention::Settings {
                scale: architecture.attention_scale,
                window: kind.window,
                soft_cap: architecture.attention_soft_cap,
            },
            sinks: match architecture.sinks {
                true => Some(self.frozen(&format!("{layer}.{SINKS}"))?),
                false => None,
            },
            head_dim: plan.heads.width,
            shares: matches!(plan.sharing, KeySharing::Source { .. }).then_some(index),
            reader: self.key_reader(layer, plan, index)?,
            has_gates: architecture.head_gates,
            chunk: kind.chunk,
        })
    }

    /// Reader of another layer's keys and values, where layer `index` has one.
    fn key_reader(&self, layer: &str, plan: &LayerPlan, index: usize) -> Result<Option<KeyReader>, TrainError> {
        let architecture = self.architecture();
        let (Some(source), KeySharing::Reader { gradients, .. }) = (architecture.source_of(index), plan.sharing) else {
            return Ok(None);
        };
        let norms = architecture.head_norms(index);
        let norm = norms
            .first()
            .map(|(name, _)| self.norm(&format!("{layer}.{name}.weight")));
        Ok(Some(KeyReader {
            source,
            norm: norm.transpose()?,
            rope: architecture.layers[index].rope,
            passes_gradients: gradients,
        }))
    }

    fn latent(&self, layer: &str, plan: &LayerPlan) -> Result<Option<Latent>, TrainError> {
        let (Some(latent), Some(plan)) = (self.architecture().latent, &plan.latent) else {
            return Ok(None);
        };
        let expansion = |(norm, _): (&str, usize), group: &GroupPlan| -> Result<Expansion, TrainError> {
            let norm = self.norm(&format!("{layer}.{norm}.weight"))?;
            Ok(Expansion {
                norm: Norm {
                    epsilon: LATENT_NORM_EPSILON,
                    ..norm
                },
                projection: self.group(layer, Module::QueryKeyValue, group)?,
            })
        };
        let query = latent.query_norm().map(|norm| expansion(norm, &plan.query));
        Ok(Some(Latent {
            query: query.transpose()?,
            key_value: expansion(latent.key_value_norm(), &plan.key_value)?,
            heads: self.architecture().heads,
            plain: latent.plain_dims,
        }))
    }

    fn head_norms(&self, layer: &str, plan: &LayerPlan) -> Result<Option<HeadNorms>, TrainError> {
        let architecture = self.architecture();
        let order = match plan.head_norm {
            QueryKeyNorm::None => return Ok(None),
            QueryKeyNorm::RotatedUnweighted => return self.unweighted_norms().map(Some),
            QueryKeyNorm::Heads | QueryKeyNorm::AllHeads => NormOrder::BeforeRotation,
            QueryKeyNorm::RotatedHeads => NormOrder::AfterRotation,
        };
        let [query, key] = architecture.names.head_norms;
        let norm = |name: &str| self.norm(&format!("{layer}.self_attn.{name}.weight"));
        Ok(Some(HeadNorms {
            query: norm(query)?,
            key: norm(key)?,
            order,
        }))
    }

    /// Norms that have no weight: all ones.
    fn unweighted_norms(&self) -> Result<HeadNorms, TrainError> {
        let architecture = self.architecture();
        let ones = Tensor::ones(architecture.head_dim, self.dtype, self.base.device())?;
        let norm = Norm {
            weight: BaseParameter::Frozen(ones),
            epsilon: architecture.norm_epsilon,
            offset: 0.0,
            centred: false,
        };
        Ok(HeadNorms {
            query: norm.clone(),
            key: norm,
            order: NormOrder::AfterRotation,
        })
    }

    /// A norm without a weight over heads of `width`.
    fn value_norm(&self, width: usize) -> Result<Option<Norm>, TrainError> {
        let architecture = self.architecture();
        if !architecture.value_norm {
            return Ok(None);
        }
        let ones = Tensor::ones(width, self.dtype, self.base.device())?;
        Ok(Some(Norm {
            weight: BaseParameter::Frozen(ones),
            epsilon: architecture.norm_epsilon,
            offset: 0.0,
            centred: false,
        }))
    }
}
