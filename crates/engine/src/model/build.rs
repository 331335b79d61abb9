//! Builds a decoder from a base model and the list of what trains.

use std::collections::HashMap;

use super::attention_block::AttentionBlock;
use super::decoder::Decoder;
use super::dora::{Dora, squared_row_norms};
use super::layer::Layer;
use super::linear::{AdapterInput, LinearGroup};
use super::matrix::Matrix;
use super::mlp_block::MlpBlock;
use super::norm::Norm;
use super::parameter::{BaseParameter, Trained};
use super::projection::{AdapterOutput, Projection};
use super::rounded::Rounded;
use crate::adapter::LinearSlots;
use crate::base::BaseModel;
use crate::base::Weight;
use crate::parameters::flat_view;
use crate::span::Module;
use crate::{Parameters, TrainError};
use peft_tune_core::architecture::{
    Activation, Architecture, EMBEDDING, FINAL_NORM, LM_HEAD, LinearModule, LinearRole, NormPlacement,
};
use peft_tune_kernels::ops::{attention, glu};

/// What trains, by name in the base checkpoint.
#[derive(Debug)]
pub(crate) struct Trainables<'a> {
    pub parameters: &'a Parameters,
    /// Slots and scaling of each adapted module (`model.layers.0.self_attn.q_proj`).
    pub adapters: HashMap<&'a str, (LinearSlots, f64)>,
    /// Slot of each base parameter that trains (`model.norm.weight`).
    pub whole: HashMap<&'a str, usize>,
    /// Weights that stand in for the base model's, by the name of their tensor.
    pub replaced: &'a HashMap<String, Weight>,
}

/// A linear layer of the checkpoint as a part of a group: the rows that one projection takes from it.
struct RowSlice<'a> {
    module: &'a LinearModule,
    start: usize,
    rows: usize,
}

impl Decoder {
    /// A decoder on `base` that trains what `trainables` lists.
    ///
    /// # Errors
    /// Those of candle; a name that the base model does not have.
    pub(crate) fn new(base: &BaseModel, trainables: &Trainables<'_>) -> Result<Self, TrainError> {
        let rounded = Rounded::new(trainables.parameters, base.compute_dtype())?;
        let builder = Builder {
            base,
            trainables,
            rounded: rounded.as_ref(),
        };
        let architecture = base.architecture();
        attention::prepare(architecture.head_dim, base.compute_dtype(), base.device());
        let embedding = builder.parameter(EMBEDDING)?;
        let head = match architecture.tied_embeddings {
            true => embedding.clone(),
            false => builder.parameter(LM_HEAD)?,
        };
        let layers = (0..architecture.layers.len()).map(|index| builder.layer(index));
        Ok(Self {
            embedding,
            embedding_scale: architecture.embedding_scale,
            layers: layers.collect::<Result<_, _>>()?,
            final_norm: builder.norm(FINAL_NORM)?,
            head,
            logit_soft_cap: architecture.logit_soft_cap,
            compute_dtype: base.compute_dtype(),
            rounded,
        })
    }
}

struct Builder<'a> {
    base: &'a BaseModel,
    trainables: &'a Trainables<'a>,
    rounded: Option<&'a Rounded>,
}

impl Builder<'_> {
    fn slot(&self, index: usize) -> candle_core::Result<Trained> {
        let slot = &self.trainables.parameters.layout.slots()[index];
        self.trained(slot.offset, &slot.shape)
    }

    /// What trains from `offset` in the flat buffers on.
    fn trained(&self, offset: usize, shape: &[usize]) -> candle_core::Result<Trained> {
        let parameters = self.trainables.parameters;
        let value = flat_view(&parameters.values, offset, shape)?;
        let rounded = self.rounded.map(|rounded| rounded.view(offset, shape)).transpose()?;
        Ok(Trained {
            factor: rounded.flatten().unwrap_or_else(|| value.clone()),
            value,
            gradient: flat_view(&parameters.gradients, offset, shape)?,
        })
    }

    fn architecture(&self) -> &Architecture {
        self.base.architecture()
    }

    fn parameter(&self, name: &str) -> Result<BaseParameter, TrainError> {
        Ok(match self.trainables.whole.get(name) {
            Some(slot) => BaseParameter::Trained(self.slot(*slot)?),
            None => BaseParameter::Frozen(self.base.weight(name)?.dense()?),
        })
    }

    fn norm(&self, name: &str) -> Result<Norm, TrainError> {
        Ok(Norm {
            weight: self.parameter(name)?,
            epsilon: self.architecture().norm_epsilon,
            offset: self.architecture().norm_offset,
        })
    }

    fn layer(&self, index: usize) -> Result<Layer, TrainError> {
        let name = Architecture::layer_name(index);
        let prefix = format!("{name}.");
        let mut trained = self.trainables.adapters.keys().chain(self.trainables.whole.keys());
        Ok(Layer {
            attention: self.attention(&name, index)?,
            mlp: self.mlp(&name)?,
            trains: trained.any(|name| name.starts_with(&prefix)),
        })
    }

    fn attention(&self, layer: &str, index: usize) -> Result<AttentionBlock, TrainError> {
        let architecture = self.architecture();
        let kind = architecture.layers[index];
        let head_norm = |name: &str| match architecture.query_key_norm {
            true => self.norm(&format!("{layer}.self_attn.{name}.weight")).map(Some),
            false => Ok(None),
        };
        Ok(AttentionBlock {
            norm: self.norm(&format!("{layer}.input_layernorm.weight"))?,
            projections: self.group(layer, &[LinearRole::Query, LinearRole::Key, LinearRole::Value])?,
            query_norm: head_norm("q_norm")?,
            key_norm: head_norm("k_norm")?,
            output: self.group(layer, &[LinearRole::Output])?,
            norm_behind: match architecture.norm_placement {
                NormPlacement::Before => None,
                NormPlacement::BeforeAndBehind => Some(self.norm(&format!("{layer}.post_attention_layernorm.weight"))?),
            },
            settings: attention::Settings {
                scale: architecture.attention_scale,
                window: kind.window,
                soft_cap: architecture.attention_soft_cap,
            },
            rope: kind.rope,
            head_dim: architecture.head_dim,
        })
    }

    fn mlp(&self, layer: &str) -> Result<MlpBlock, TrainError> {
        let (before, behind) = match self.architecture().norm_placement {
            NormPlacement::Before => ("post_attention_layernorm", None),
            NormPlacement::BeforeAndBehind => ("pre_feedforward_layernorm", Some("post_feedforward_layernorm")),
        };
        let behind = behind.map(|name| self.norm(&format!("{layer}.{name}.weight")));
        Ok(MlpBlock {
            norm: self.norm(&format!("{layer}.{before}.weight"))?,
            projections: self.group(layer, &[LinearRole::Gate, LinearRole::Up])?,
            activation: match self.architecture().activation {
                Activation::Silu => glu::Activation::Silu,
                Activation::GeluTanh => glu::Activation::GeluTanh,
            },
            down: self.group(layer, &[LinearRole::Down])?,
            norm_behind: behind.transpose()?,
        })
    }

    /// The group of the projections `roles`, whether they have a tensor each or share one.
    fn group(&self, layer: &str, roles: &[LinearRole]) -> Result<LinearGroup, TrainError> {
        let modules = self.architecture().linear_modules();
        let mut group = LinearGroup {
            module: match roles {
                [LinearRole::Query, ..] => Module::QueryKeyValue,
                [LinearRole::Output, ..] => Module::Output,
                [LinearRole::Gate, ..] => Module::GateUp,
                _ => Module::Down,
            },
            projections: Vec::with_capacity(roles.len()),
            adapters: Vec::new(),
            stacked: None,
        };
        let mut inputs: HashMap<String, usize> = HashMap::new();
        let mut slots = Vec::new();
        for role in roles {
            let part = self.part(&modules, *role)?;
            let module = format!("{layer}.{}", part.module.name);
            let adapted = self.trainables.adapters.get(module.as_str());
            let input = match (adapted, inputs.get(&module)) {
                (None, _) => None,
                (Some(_), Some(input)) => Some(*input),
                (Some((adapter, _)), None) => {
                    inputs.insert(module.clone(), group.adapters.len());
                    slots.push(adapter.lora_a);
                    group.adapters.push(AdapterInput {
                        a: self.slot(adapter.lora_a)?,
                        number: adapter.lora_a as u64,
                    });
                    Some(group.adapters.len() - 1)
                }
            };
            group.projections.push(self.projection(&module, &part, input)?);
        }
        group.stacked = self.stacked(&slots)?;
        Ok(group)
    }

    /// Where the projection `role` stands: in a module of its own, or in rows of a fused one.
    fn part<'a>(&self, modules: &'a [LinearModule], role: LinearRole) -> Result<RowSlice<'a>, TrainError> {
        let architecture = self.architecture();
        let (query, kv, inner) = (
            architecture.query_size(),
            architecture.kv_size(),
            architecture.intermediate_size,
        );
        let (fused, start, rows) = match role {
            LinearRole::Query => (LinearRole::QueryKeyValue, 0, query),
            LinearRole::Key => (LinearRole::QueryKeyValue, query, kv),
            LinearRole::Value => (LinearRole::QueryKeyValue, query + kv, kv),
            LinearRole::Gate => (LinearRole::GateUp, 0, inner),
            LinearRole::Up => (LinearRole::GateUp, inner, inner),
            other => (other, 0, 0),
        };
        if let Some(module) = modules.iter().find(|module| module.role == role) {
            let rows = module.out_features;
            return Ok(RowSlice { module, start: 0, rows });
        }
        match modules.iter().find(|module| module.role == fused) {
            Some(module) => Ok(RowSlice { module, start, rows }),
            None => Err(candle_core::Error::Msg(format!("no linear layer for {role:?}")).into()),
        }
    }

    fn projection(&self, module: &str, part: &RowSlice<'_>, input: Option<usize>) -> Result<Projection, TrainError> {
        let name = format!("{module}.weight");
        let matrix = match self.trainables.whole.get(name.as_str()) {
            Some(slot) => Matrix::Trained(self.slot(*slot)?),
            None => Matrix::Frozen(match self.trainables.replaced.get(&name) {
                Some(weight) => weight.clone(),
                None => self.base.weight(&name)?.clone(),
            }),
        };
        let weight = matrix.rows(part.start, part.rows)?;
        let bias = match part.module.bias {
            true => Some(self.parameter(&format!("{module}.bias"))?.rows(part.start, part.rows)?),
            false => None,
        };
        let adapter = match (self.trainables.adapters.get(module), input) {
            (Some((slots, scaling)), Some(input)) => Some(self.adapter(&weight, part, input, slots, *scaling)?),
            _ => None,
        };
        Ok(Projection { weight, bias, adapter })
    }

    fn adapter(
        &self,
        weight: &Matrix,
        part: &RowSlice<'_>,
        input: usize,
        slots: &LinearSlots,
        scaling: f64,
    ) -> Result<AdapterOutput, TrainError> {
        let rows = |slot: usize| self.slot(slot)?.rows(part.start, part.rows);
        let dora = match slots.magnitude {
            Some(slot) => Some(Dora::new(rows(slot)?, squared_row_norms(&weight.dense()?)?)?),
            None => None,
        };
        Ok(AdapterOutput {
            input,
            b: rows(slots.lora_b)?,
            bias: slots.lora_bias.map(rows).transpose()?,
            dora,
            scaling,
        })
    }

    /// One view over several lora_a, where each follows the one before in the flat buffer.
    fn stacked(&self, slots: &[usize]) -> Result<Option<Trained>, TrainError> {
        let parameters = self.trainables.parameters;
        let layout = parameters.layout.slots();
        let (Some(first), true) = (slots.first(), slots.len() > 1) else {
            return Ok(None);
        };
        let neighbours = slots
            .windows(2)
            .all(|pair| layout[pair[0]].offset + layout[pair[0]].elements() == layout[pair[1]].offset);
        if !neighbours {
            return Ok(None);
        }
        let rows = slots.iter().map(|slot| layout[*slot].shape[0]).sum();
        let shape = [rows, layout[*first].shape[1]];
        Ok(Some(self.trained(layout[*first].offset, &shape)?))
    }
}
