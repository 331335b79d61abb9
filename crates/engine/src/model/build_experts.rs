//! Builds a decoder layer's mixture of experts.

use candle_core::{DType, Tensor};

use super::branches::Branches;
use super::builder::Builder;
use super::expert_block::ExpertBlock;
use super::experts::{ExpertAdapter, ExpertBiases, Experts};
use super::feed_forward::FeedForward;
use super::matrix::Matrix;
use super::norm::Norm;
use super::parameter::BaseParameter;
use super::routed_experts::RoutedExperts;
use super::shared_expert::SharedExpert;
use super::traced::routing;
use crate::TrainError;
use crate::span::Module;
use peft_tune_core::architecture::{self, BRANCH_NORMS, EXPERT_SCALE, ExpertPart, ROUTER_SCALE, Router, Scores};
use peft_tune_core::plan::{ExpertsPlan, LayerPlan};

impl Builder<'_> {
    /// The second half of layer `index`, whose name is `layer`.
    pub(super) fn feed_forward(&self, layer: &str, plan: &LayerPlan, index: usize) -> Result<FeedForward, TrainError> {
        match (self.architecture().experts_of(index), &plan.experts) {
            (Some(experts), Some(of_layer)) => {
                let block = self.expert_block(layer, plan, experts, of_layer)?;
                Ok(FeedForward::Experts(Box::new(block)))
            }
            _ => Ok(FeedForward::Mlp(Box::new(self.mlp(layer, plan)?))),
        }
    }

    fn expert_block(
        &self,
        layer: &str,
        plan: &LayerPlan,
        experts: &architecture::Experts,
        of_layer: &ExpertsPlan,
    ) -> Result<ExpertBlock, TrainError> {
        let correction = experts.correction_name().map(|name| format!("{layer}.{name}"));
        let correction = correction.map(|name| self.frozen(&name)).transpose()?;
        let shared_gate = &of_layer.shared_gate;
        let gate = match shared_gate.projections.is_empty() {
            true => None,
            false => Some(self.group(layer, Module::GateUp, shared_gate)?),
        };
        let shared = match experts.shared {
            Some(_) => Some(SharedExpert {
                gate,
                projections: self.group(layer, Module::GateUp, &plan.gate_up)?,
                down: self.group(layer, Module::Down, &plan.down)?,
            }),
            None => None,
        };
        let before = match experts.branches {
            true => self.architecture().names.mlp_norms[0],
            false => "post_attention_layernorm",
        };
        Ok(ExpertBlock {
            norm: self.norm(&format!("{layer}.{before}.weight"))?,
            branches: match experts.branches {
                true => Some(self.branches(layer)?),
                false => None,
            },
            routed: RoutedExperts {
                router: self.exact_group(layer, Module::Router, &of_layer.router)?,
                correction,
                settings: routing_settings(&experts.router, experts.chosen),
                experts: self.experts(layer, experts, of_layer)?,
                activation: self.gated_activation().ok_or_else(without_gate)?,
                limit: experts.limit.map(|limit| limit as f32),
                weighs_input: experts.weighs_input,
            },
            shared,
        })
    }

    /// The norms of branches, and what the router has beside its weight.
    fn branches(&self, layer: &str) -> Result<Branches, TrainError> {
        let exact = |name: &str| -> Result<Tensor, TrainError> {
            Ok(self.frozen(&format!("{layer}.{name}"))?.to_dtype(DType::F32)?)
        };
        let norm = |name: &str| self.norm(&format!("{layer}.{name}.weight"));
        let [behind_shared, before_experts, behind_experts] = BRANCH_NORMS;
        let before_experts = norm(before_experts)?;
        let root = (self.architecture().hidden_size as f64).sqrt();
        Ok(Branches {
            router: Norm {
                weight: BaseParameter::Frozen((exact(ROUTER_SCALE)? / root)?),
                offset: 0.0,
                ..before_experts.clone()
            },
            factors: exact(EXPERT_SCALE)?.unsqueeze(1)?,
            before_experts,
            behind: [norm(behind_shared)?, norm(behind_experts)?],
            end: norm(self.architecture().names.mlp_norms[1])?,
        })
    }

    fn experts(&self, layer: &str, experts: &architecture::Experts, plan: &ExpertsPlan) -> Result<Experts, TrainError> {
        let weights = |part: ExpertPart| {
            let names = (0..experts.count).map(|expert| format!("{layer}.{}", experts.weight_name(expert, part)));
            names.map(|name| self.matrix(&name)).collect::<Result<Vec<Matrix>, _>>()
        };
        let adapter = |name: &str, rank: usize| match rank {
            0 => Ok(None),
            _ => self.expert_adapter(&format!("{layer}.{name}")).map(Some),
        };
        Ok(Experts {
            gate: weights(ExpertPart::Gate)?,
            up: weights(ExpertPart::Up)?,
            down: weights(ExpertPart::Down)?,
            biases: self.expert_biases(layer, experts)?,
            interleaved: experts.names.stacked && !experts.names.swapped && !experts.names.upright,
            gate_up_adapter: adapter(experts.names.gate_up, plan.gate_up_rank)?,
            down_adapter: adapter(experts.names.down, plan.down_rank)?,
        })
    }

    fn expert_biases(&self, layer: &str, experts: &architecture::Experts) -> Result<Option<ExpertBiases>, TrainError> {
        let Some(names) = experts.bias_names() else {
            return Ok(None);
        };
        let [gate_up, down] = names.map(|name| self.frozen(&format!("{layer}.{name}")));
        let (gate_up, inner) = (gate_up?, experts.intermediate_size);
        let of = |place: usize| {
            let pairs = gate_up.reshape((experts.count, inner, 2))?;
            pairs.narrow(2, place, 1)?.squeeze(2)?.contiguous()
        };
        Ok(Some(ExpertBiases {
            gate: of(0)?,
            up: of(1)?,
            down: down?,
        }))
    }

    fn expert_adapter(&self, name: &str) -> Result<ExpertAdapter, TrainError> {
        let (linear, slots) = self.adapter_of(name)?;
        Ok(ExpertAdapter {
            a: self.slot(slots.lora_a)?,
            b: self.slot(slots.lora_b)?,
            rank: linear.rank,
            scaling: linear.scaling,
            swapped: self
                .architecture()
                .experts
                .as_ref()
                .is_some_and(|experts| experts.names.swapped),
        })
    }
}

fn without_gate() -> candle_core::Error {
    candle_core::Error::Msg("experts without a gate beside up".into())
}

fn routing_settings(router: &Router, chosen: usize) -> routing::Settings {
    let Router {
        scores,
        normalised,
        scale,
        correction: _,
        groups,
    } = *router;
    routing::Settings {
        scores: match scores {
            Scores::Softmax => routing::Scores::Softmax,
            Scores::Sigmoid => routing::Scores::Sigmoid,
            Scores::SigmoidOfChosen => routing::Scores::SigmoidOfChosen,
        },
        chosen,
        normalised,
        scale: scale as f32,
        groups: groups.map(|groups| (groups.count, groups.chosen)),
    }
}
