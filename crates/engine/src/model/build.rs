//! Builds a decoder from a base model and the list of what trains.

use std::collections::HashMap;

use candle_core::Tensor;

use super::activation::Activation;
use super::adapted_group::AdaptedGroup;
use super::adapter_pass::ColumnOwners;
use super::attention_block::AttentionBlock;
use super::block_end::BlockEnd;
use super::decoder::Decoder;
use super::dora::{Dora, squared_row_norms};
use super::group_input::AdapterInput;
use super::head_norms::{HeadNorms, NormOrder, QueryKeyPath};
use super::key_reader::KeyReader;
use super::latent::{Expansion, Latent};
use super::layer::{BlockOrder, Layer};
use super::layer_gather::LayerWeights;
use super::layer_input::{LayerInput, LayerInputs};
use super::linear::LinearGroup;
use super::matrix::Matrix;
use super::merged_weight::MergedWeight;
use super::mixer::MixerBlock;
use super::mlp_block::MlpBlock;
use super::norm::Norm;
use super::parameter::{BaseParameter, Trained};
use super::projection::{AdapterOutput, Projection};
use super::rounded::Rounded;
use crate::base::BaseModel;
use crate::base::Weight;
use crate::parameters::flat_view;
use crate::span::Module;
use crate::tensor;
use crate::{Parameters, TrainError};
use candle_core::DType;
use peft_tune_core::architecture::{
    Architecture, EMBEDDING, LATENT_NORM_EPSILON, LAYER_INPUT_END, LAYER_INPUT_NORM, LAYER_INPUT_TABLE, LAYER_SCALAR,
    LM_HEAD, Mixer, NormPlacement, QueryKeyNorm, SINKS,
};
use peft_tune_core::plan::{AdaptedLinear, GroupPlan, KeySharing, LayerPlan, LinearSlots, ModelPlan, ProjectionPlan};
use peft_tune_core::predict::Right;
use peft_tune_kernels::device;
use peft_tune_kernels::ops::{attention, glu, xielu};

/// Parameters that train, by name in the base checkpoint.
#[derive(Debug)]
pub(crate) struct Trainables<'a> {
    pub plan: &'a ModelPlan,
    pub parameters: &'a Parameters,
    /// Each adapted module (`model.layers.0.self_attn.q_proj`) with its slots.
    pub adapters: HashMap<&'a str, (&'a AdaptedLinear, &'a LinearSlots)>,
    /// Slot of each base parameter that trains (`model.norm.weight`).
    pub whole: HashMap<&'a str, usize>,
    /// Weights that stand in for the base model's, by the name of their tensor.
    pub replaced: &'a HashMap<String, Weight>,
}

impl Decoder {
    /// A decoder on `base` that trains what `trainables` lists.
    ///
    /// # Errors
    /// Those of candle; a name that the base model does not have.
    pub(crate) fn new(base: &BaseModel, trainables: &Trainables<'_>) -> Result<Self, TrainError> {
        Self::in_dtype(base, trainables, base.compute_dtype())
    }

    /// Builds the decoder of [`Decoder::new`] with activations in `dtype`. Frozen weights stay as the base model holds
    /// them: products widen what they pack.
    ///
    /// # Errors
    /// Errors of [`Decoder::new`].
    pub(crate) fn in_dtype(base: &BaseModel, trainables: &Trainables<'_>, dtype: DType) -> Result<Self, TrainError> {
        Self::of_layers(base, trainables, dtype, 0..base.architecture().layers.len())
    }

    /// Builds the decoder of [`Decoder::in_dtype`] from some of the layers.
    ///
    /// # Errors
    /// Errors of [`Decoder::new`].
    pub(super) fn of_layers(
        base: &BaseModel,
        trainables: &Trainables<'_>,
        dtype: DType,
        layers: impl IntoIterator<Item = usize>,
    ) -> Result<Self, TrainError> {
        let rounded = Rounded::new(trainables.parameters, dtype, base.paper())?;
        let builder = Builder {
            base,
            dtype,
            trainables,
            rounded: rounded.as_ref(),
        };
        let architecture = base.architecture();
        for head_dim in architecture.head_dims() {
            attention::prepare(head_dim, dtype, base.device());
        }
        let embedding = builder.parameter(EMBEDDING)?;
        // An adapter may leave the ends of tied embeddings apart.
        let head = match trainables.plan.architecture.tied_embeddings {
            true => embedding.clone(),
            false => builder.parameter(LM_HEAD)?,
        };
        let layers = layers.into_iter().map(|index| builder.layer(index));
        Ok(Self {
            embedding,
            embedding_scale: architecture.embedding_scale,
            layers: layers.collect::<Result<_, _>>()?,
            inputs: builder.layer_inputs()?,
            final_norm: builder.norm(architecture.names.last_norm)?,
            head,
            logit_scale: architecture.logit_scale,
            logit_soft_cap: architecture.logit_soft_cap,
            compute_dtype: dtype,
            device_bytes: base
                .device()
                .is_cuda()
                .then(|| device::facts(base.device()).map_or(0, |facts| facts.memory_bytes)),
            rounded: rounded.into_iter().collect(),
            first_on_tape: trainables.plan.first_on_tape(),
            weights: match base.share() {
                Some(_) => LayerWeights::Unlinked,
                None => LayerWeights::Whole,
            },
        })
    }
}

/// The name of `module` in `layer`, or of one beside all layers where that is empty.
fn inside(layer: &str, module: &str) -> String {
    match layer {
        "" => module.to_owned(),
        layer => format!("{layer}.{module}"),
    }
}

pub(super) struct Builder<'a> {
    base: &'a BaseModel,
    /// Dtype of the activations.
    dtype: DType,
    trainables: &'a Trainables<'a>,
    rounded: Option<&'a Rounded>,
}

impl Builder<'_> {
    pub(super) fn slot(&self, index: usize) -> candle_core::Result<Trained> {
        let slot = &self.trainables.parameters.layout.slots()[index];
        self.trained(slot.offset, &slot.shape)
    }

    /// Parameter that trains, from `offset` in the flat buffers on.
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

    pub(super) fn architecture(&self) -> &Architecture {
        self.base.architecture()
    }

    fn parameter(&self, name: &str) -> Result<BaseParameter, TrainError> {
        Ok(match self.trainables.whole.get(name) {
            Some(slot) => BaseParameter::Trained(self.slot(*slot)?),
            None => BaseParameter::Frozen(self.base.weight(name)?.dense()?),
        })
    }

    pub(super) fn norm(&self, name: &str) -> Result<Norm, TrainError> {
        Ok(Norm {
            weight: self.parameter(name)?,
            epsilon: self.architecture().norm_epsilon,
            offset: self.architecture().norm_offset,
            centred: self.architecture().centred_norms,
        })
    }

    /// The norm `name` of a layer where the family has one there.
    pub(super) fn norm_where(&self, is_there: bool, layer: &str, name: &str) -> Result<Option<Norm>, TrainError> {
        is_there
            .then(|| self.norm(&format!("{layer}.{name}.weight")))
            .transpose()
    }

    fn layer(&self, index: usize) -> Result<Layer, TrainError> {
        let (name, plan) = (Architecture::layer_name(index), self.trainables.plan.layer(index));
        Ok(Layer {
            mixer: match self.architecture().mixer(index) {
                Mixer::Attention => MixerBlock::Attention(Box::new(self.attention(&name, plan, index)?)),
                mixer => MixerBlock::Mixed(Box::new(self.mixed(&name, plan, mixer)?)),
            },
            mlp: self.feed_forward(&name, plan, index)?,
            input: self.layer_input(&name, plan, index)?,
            order: match self.architecture().norm_placement {
                NormPlacement::Shared => BlockOrder::SideBySide,
                NormPlacement::Before | NormPlacement::BeforeAndBehind | NormPlacement::Behind => BlockOrder::InTurn,
            },
            scale: match self.architecture().layer_scalar {
                true => Some(f64::from(self.number(&format!("{name}.{LAYER_SCALAR}"))?)),
                false => None,
            },
        })
    }

    fn attention(&self, layer: &str, plan: &LayerPlan, index: usize) -> Result<AttentionBlock, TrainError> {
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

    /// Work of layer `index` on an input of its own, where it has one.
    fn layer_input(&self, layer: &str, plan: &LayerPlan, index: usize) -> Result<Option<LayerInput>, TrainError> {
        let (Some(inputs), Some(plan)) = (self.architecture().layer_inputs, &plan.input) else {
            return Ok(None);
        };
        let without_gate = || candle_core::Error::Msg("an input of a layer with an activation that has no gate".into());
        Ok(Some(LayerInput {
            gate: self.group(layer, Module::GateUp, &plan.gate)?,
            activation: self.gated_activation().ok_or_else(without_gate)?,
            end: BlockEnd {
                out: self.group(layer, Module::Down, &plan.projection)?,
                norm: self.norm_where(true, layer, LAYER_INPUT_END)?,
                scale: None,
            },
            first: index * inputs.width,
            width: inputs.width,
        }))
    }

    /// Modules that make the inputs of all layers.
    fn layer_inputs(&self) -> Result<Option<LayerInputs>, TrainError> {
        let architecture = self.architecture();
        let Some(inputs) = architecture.layer_inputs else {
            return Ok(None);
        };
        let plan = self.trainables.plan;
        Ok(Some(LayerInputs {
            table: self.parameter(LAYER_INPUT_TABLE)?,
            projection: self.group("", Module::GateUp, &plan.inputs)?,
            norm: self.norm(LAYER_INPUT_NORM)?,
            hidden: architecture.hidden_size,
            width: inputs.width,
            trains: plan.inputs_train,
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

    /// The only value of a tensor that never trains.
    fn number(&self, name: &str) -> Result<f32, TrainError> {
        let value = self.base.weight(name)?.dense()?;
        Ok(value.to_dtype(DType::F32)?.flatten_all()?.get(0)?.to_scalar()?)
    }

    /// A tensor that never trains.
    pub(super) fn frozen(&self, name: &str) -> Result<Tensor, TrainError> {
        Ok(self.base.weight(name)?.dense()?)
    }

    /// The weight `name` of a product, in whatever storage it has.
    pub(super) fn matrix(&self, name: &str) -> Result<Matrix, TrainError> {
        Ok(match self.trainables.whole.get(name) {
            Some(slot) => Matrix::Trained(self.slot(*slot)?),
            None => {
                let weight = match self.trainables.replaced.get(name) {
                    Some(weight) => weight.clone(),
                    None => self.base.weight(name)?.clone(),
                };
                Matrix::Frozen(weight.with_activations(self.trainables.plan.activation_quantization))
            }
        })
    }

    /// Projections of one input, whether they have a tensor each or share one.
    pub(super) fn group(&self, layer: &str, module: Module, plan: &GroupPlan) -> Result<LinearGroup, TrainError> {
        self.group_of(layer, module, plan, Right::Weight)
    }

    /// The group of [`Builder::group`], whose weights are stored as `right` says.
    fn group_of(&self, layer: &str, module: Module, plan: &GroupPlan, right: Right) -> Result<LinearGroup, TrainError> {
        let (mut slots, mut parts) = (Vec::with_capacity(plan.adapters.len()), Vec::new());
        for adapter in &plan.adapters {
            let (linear, of_linear) = self.adapter_of(&inside(layer, adapter.module))?;
            slots.push(of_linear.lora_a);
            parts.push(linear.parts.as_slice());
        }
        let input = |slot: &usize| {
            Ok(AdapterInput {
                a: self.slot(*slot)?,
                number: *slot as u64,
            })
        };
        let projections = plan.projections.iter();
        let adapted = AdaptedGroup {
            projections: projections
                .map(|projection| self.projection(&inside(layer, projection.module), projection, right))
                .collect::<Result<_, _>>()?,
            adapters: slots.iter().map(input).collect::<candle_core::Result<_>>()?,
            stacked: self.stacked(&slots)?,
            owners: ColumnOwners::of_ranks(parts.into_iter(), self.base.device())?,
        };
        Ok(LinearGroup {
            module,
            adapted,
            members: Vec::new(),
        })
    }

    /// Builds the group of [`Builder::group`] from layers that multiply F32 whatever the rest does: nothing is rounded.
    pub(super) fn exact_group(&self, layer: &str, module: Module, plan: &GroupPlan) -> Result<LinearGroup, TrainError> {
        let exact = Builder { rounded: None, ..*self };
        exact.group_of(layer, module, plan, Right::Adapter)
    }

    /// The adapter that the plan has on `module`.
    pub(super) fn adapter_of(&self, module: &str) -> candle_core::Result<(&AdaptedLinear, &LinearSlots)> {
        let found = self.trainables.adapters.get(module).copied();
        found.ok_or_else(|| candle_core::Error::Msg(format!("no adapter on {module}")))
    }

    fn projection(&self, module: &str, plan: &ProjectionPlan, right: Right) -> Result<Projection, TrainError> {
        let (name, rows) = (format!("{module}.weight"), &plan.rows);
        let weight = self.matrix(&name)?.rows(rows.start, rows.len())?;
        let bias = match plan.bias {
            true => Some(
                self.parameter(&format!("{module}.bias"))?
                    .rows(rows.start, rows.len())?,
            ),
            false => None,
        };
        let adapter = match plan.adapter {
            Some(input) => Some(self.adapter(&weight, module, plan, input)?),
            None => None,
        };
        let (weight, merged) = self.merged(weight, adapter.is_some())?;
        Ok(Projection {
            module: plan.module,
            weight,
            right,
            bias,
            adapter,
            merged,
        })
    }

    /// The weight and the codes of it with its adapter, where the training rounds what is merged; without an adapter the weight is the
    /// codes, once for all.
    fn merged(&self, weight: Matrix, has_adapter: bool) -> Result<(Matrix, Option<MergedWeight>), TrainError> {
        let form = self.trainables.plan.quantization_aware;
        let shape = weight.factor().dims2()?;
        let Some(merged) = MergedWeight::new(shape, form, self.dtype, self.base)? else {
            return Ok((weight, None));
        };
        if has_adapter {
            return Ok((weight, Some(merged)));
        }
        if self.base.paper().is_none() {
            merged.refresh(&weight, None, |rows| rows.clone().into())?;
        }
        Ok((merged.into_frozen(), None))
    }

    fn adapter(
        &self,
        weight: &Matrix,
        module: &str,
        plan: &ProjectionPlan,
        input: usize,
    ) -> Result<AdapterOutput, TrainError> {
        let (linear, slots) = self.adapter_of(module)?;
        let rows = |slot: usize| self.slot(slot)?.rows(plan.rows.start, plan.rows.len());
        let dora = match slots.magnitude {
            Some(slot) => Some(Dora::new(rows(slot)?, self.squared_row_norms(weight)?)?),
            None => None,
        };
        Ok(AdapterOutput {
            input,
            b: rows(slots.lora_b)?,
            bias: slots.lora_bias.map(rows).transpose()?,
            dora,
            scaling: linear.scaling,
        })
    }

    /// |W_j|^2 of each row of a weight; nothing is read on paper.
    fn squared_row_norms(&self, weight: &Matrix) -> candle_core::Result<Tensor> {
        match self.base.paper() {
            Some(_) => tensor::on_paper(weight.factor().dims2()?.0, DType::F32),
            None => squared_row_norms(&weight.dense()?),
        }
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
