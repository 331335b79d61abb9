//! A model as a recipe trains it: what trains in which layer, and where it lies in the flat buffers.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::attention::Heads;
use super::sparse;
use super::{
    AdaptedLinear, AdapterPlan, AdapterSlots, BaseShape, LinearSlots, ParameterKind, ParameterLayout, PlanError,
};
use crate::architecture::{
    Architecture, CORRECTION, EMBEDDING, ExpertPart, KeyValueSource, LAYER_INPUT_NORM, LAYER_INPUT_TABLE, LAYER_SCALAR,
    LM_HEAD, Mixer, Projection, QueryKeyNorm,
};
use crate::recipe::{ActivationQuantization, AdapterBias, AdapterSettings, QuantizationAware, Recipe, WeightSparsity};

/// One projection of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectionPlan {
    /// The linear layer inside the decoder layer that it belongs to.
    pub module: &'static str,
    /// Rows of the linear layer's weight (out, in) that the projection has.
    pub rows: Range<usize>,
    /// Whether the linear layer has a bias.
    pub bias: bool,
    /// Index into [`GroupPlan::adapters`].
    pub adapter: Option<usize>,
    pub weight_trains: bool,
    pub bias_trains: bool,
}

/// An adapter as the projections of one input share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterOnInput {
    /// The linear layer inside the decoder layer that it belongs to.
    pub module: &'static str,
    pub rank: usize,
}

/// Projections of one input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupPlan {
    pub inputs: usize,
    pub adapters: Vec<AdapterOnInput>,
    pub projections: Vec<ProjectionPlan>,
}

/// The experts of a decoder layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertsPlan {
    pub router: GroupPlan,
    /// Linear layer that scales the shared expert; without projections where nothing does.
    pub shared_gate: GroupPlan,
    /// Rank of each expert's adapter on gate and up together, 0 without one.
    pub gate_up_rank: usize,
    /// Rank of each expert's adapter on down, 0 without one.
    pub down_rank: usize,
    /// Whether the experts' own weights train.
    pub weights_train: bool,
}

/// The second projections of latent attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatentPlan {
    /// Projections of queries; none where queries are projected once.
    pub query: GroupPlan,
    pub key_value: GroupPlan,
}

/// Modules for a layer's input beside the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerInputPlan {
    pub gate: GroupPlan,
    pub projection: GroupPlan,
}

/// Part of a layer in keys and values that several layers read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeySharing {
    #[default]
    None,
    /// Keys and values of its own, which other layers read. `gradients` says whether gradients of the readers come
    /// back.
    Source { gradients: bool },
    /// Keys and values of another layer. The reader's gradients are added to the sum of the readers behind it, begin it
    /// where there are none (`last`), or are let go of.
    Reader { gradients: bool, last: bool },
}

/// Modules that a decoder layer consists of, whatever its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPlan {
    pub mixer: Mixer,
    pub window: Option<usize>,
    pub chunk: Option<usize>,
    /// Whether queries and keys are rotated.
    pub rotates: bool,
    pub heads: Heads,
    pub keys: KeyValueSource,
    pub sharing: KeySharing,
    pub head_norm: QueryKeyNorm,
    /// First projections in latent attention; projections to what another mixer reads where a layer does not attend;
    /// else q, k and v.
    pub qkv: GroupPlan,
    pub latent: Option<LatentPlan>,
    pub output: GroupPlan,
    /// The shared expert's where the layer has experts: without projections where it has no shared one.
    pub gate_up: GroupPlan,
    pub down: GroupPlan,
    pub experts: Option<ExpertsPlan>,
    /// Modules for an input beside the stream, where the layer has one.
    pub input: Option<LayerInputPlan>,
    /// Whether the norm before attention trains: its gradient needs that of the projections' input.
    pub input_norm_trains: bool,
    /// Whether anything of it trains.
    pub trains: bool,
}

/// A model as a recipe trains it.
#[derive(Clone, Debug)]
pub struct ModelPlan {
    pub architecture: Architecture,
    /// Plan of the adapter; absent where the whole base model trains, or nothing.
    pub adapter: Option<AdapterPlan>,
    pub layout: Arc<ParameterLayout>,
    pub slots: AdapterSlots,
    /// Layers that differ from each other.
    pub kinds: Vec<LayerPlan>,
    /// Index into [`kinds`](Self::kinds) of each layer.
    pub layers: Vec<usize>,
    pub head_trains: bool,
    pub embedding_trains: bool,
    /// Modules that make the layers' inputs beside the stream; without projections where there are none.
    pub inputs: GroupPlan,
    /// Whether the table of these inputs trains.
    pub input_table_trains: bool,
    /// Whether something of what makes these inputs trains, embedded tokens among it.
    pub inputs_train: bool,
    /// Products of frozen quantized weights that take their activations in 8 bits.
    pub activation_quantization: ActivationQuantization,
    /// Values of frozen linear weights that are left out.
    pub weight_sparsity: WeightSparsity,
    /// Form that the merged weights of linear layers are rounded to in each pass.
    pub quantization_aware: QuantizationAware,
}

impl ProjectionPlan {
    /// Width of its output.
    pub fn outputs(&self) -> usize {
        self.rows.len()
    }
}

impl GroupPlan {
    /// Whether backward needs the group's input: where something of it trains.
    pub fn reads_input(&self) -> bool {
        !self.adapters.is_empty() || self.projections.iter().any(|projection| projection.weight_trains)
    }

    /// Ranks of all adapters together.
    pub fn ranks(&self) -> usize {
        self.adapters.iter().map(|adapter| adapter.rank).sum()
    }

    /// Outputs of all projections together.
    pub fn outputs(&self) -> usize {
        self.projections.iter().map(ProjectionPlan::outputs).sum()
    }
}

impl LayerPlan {
    /// The groups of linear layers, but for those that choose experts.
    pub fn groups(&self) -> impl Iterator<Item = &GroupPlan> {
        let latent = self.latent.iter().flat_map(|latent| [&latent.query, &latent.key_value]);
        let input = self.input.iter().flat_map(|input| [&input.gate, &input.projection]);
        let all = [&self.qkv, &self.output, &self.gate_up, &self.down].into_iter();
        all.chain(latent).chain(input)
    }

    /// Whether its keys and values are another layer's.
    pub fn is_reader(&self) -> bool {
        matches!(self.sharing, KeySharing::Reader { .. })
    }

    /// Width of the layer's MLP, or of the shared expert; 0 where there is none.
    pub fn inner(&self) -> usize {
        self.down.inputs
    }
}

impl ModelPlan {
    /// Plan of what `recipe` trains on a model of this architecture.
    ///
    /// # Errors
    /// Settings that do not fit the model; each message says what does.
    pub fn of_recipe(architecture: &Architecture, recipe: &Recipe) -> Result<Self, PlanError> {
        recipe.check_trained_here()?;
        if recipe.adapter.is_none() && recipe.precision.is_quantized() {
            return Err(PlanError::QuantizedWhole);
        }
        let activations = recipe.activation_quantization;
        if !activations.is_none() && !recipe.precision.is_quantized() {
            return Err(PlanError::ActivationsOfDense {
                activations,
                precision: recipe.precision,
            });
        }
        sparse::check(architecture, recipe)?;
        if let (None, Some((number, _))) = (&recipe.adapter, architecture.layer_numbers().first()) {
            return Err(PlanError::NumbersWhole { name: number });
        }
        if recipe.adapter.is_none() && !architecture.attends_everywhere() {
            return Err(PlanError::MixersWhole {
                family: architecture.family.name(),
            });
        }
        if recipe.adapter.is_none()
            && architecture
                .experts
                .as_ref()
                .is_some_and(|experts| experts.names.stacked)
        {
            return Err(PlanError::StackedWhole {
                family: architecture.family.name(),
            });
        }
        let plan = match &recipe.adapter {
            Some(settings) => Self::adapted(architecture, settings)?,
            None => Self::whole(architecture),
        };
        let plan = Self {
            activation_quantization: activations,
            weight_sparsity: recipe.weight_sparsity,
            quantization_aware: recipe.quantization_aware,
            ..plan
        };
        plan.check_aware(recipe)?;
        Ok(plan)
    }

    /// An adapter on frozen weights.
    ///
    /// # Errors
    /// Errors of [`ModelPlan::of_recipe`].
    pub fn adapted(architecture: &Architecture, settings: &AdapterSettings) -> Result<Self, PlanError> {
        if settings.bias == AdapterBias::All && architecture.experts.as_ref().is_some_and(|experts| experts.biases) {
            return Err(PlanError::ExpertBiases);
        }
        let adapter = AdapterPlan::new(settings, &BaseShape::new(architecture))?;
        Ok(Self::of_adapter(architecture, adapter))
    }

    pub(super) fn of_adapter(architecture: &Architecture, adapter: AdapterPlan) -> Self {
        let mut layout = ParameterLayout::default();
        let slots = adapter.push_slots(&mut layout);
        Self::new(architecture, Some(adapter), layout, slots)
    }

    /// Every parameter of the base model, in the checkpoint's order.
    pub fn whole(architecture: &Architecture) -> Self {
        let mut layout = ParameterLayout::default();
        // What corrects scores is balanced by another rule than gradients, and stays; so do the factors of layers.
        let stays = [CORRECTION, LAYER_SCALAR];
        let tensors = architecture.tensors().into_iter();
        let tensors = tensors.filter(|tensor| !stays.iter().any(|end| tensor.name.ends_with(end)));
        let slots = tensors.map(|tensor| layout.push(tensor.name, &tensor.shape, ParameterKind::Base));
        let slots = AdapterSlots {
            linears: Vec::new(),
            whole: slots.collect(),
        };
        Self::new(architecture, None, layout, slots)
    }

    /// Trains nothing: the base model as it is.
    pub fn frozen(architecture: &Architecture) -> Self {
        Self::new(architecture, None, ParameterLayout::default(), AdapterSlots::default())
    }

    fn new(
        architecture: &Architecture,
        adapter: Option<AdapterPlan>,
        layout: ParameterLayout,
        slots: AdapterSlots,
    ) -> Self {
        let mut plan = Self {
            architecture: architecture.clone(),
            adapter,
            layout: Arc::new(layout),
            slots,
            kinds: Vec::new(),
            layers: Vec::new(),
            head_trains: false,
            embedding_trains: false,
            inputs: GroupPlan::default(),
            input_table_trains: false,
            inputs_train: false,
            activation_quantization: ActivationQuantization::None,
            weight_sparsity: WeightSparsity::None,
            quantization_aware: QuantizationAware::None,
        };
        let (adapters, whole) = (plan.adapters(), plan.whole_slots());
        let head = match architecture.tied_embeddings {
            true => EMBEDDING,
            false => LM_HEAD,
        };
        let (head_trains, embedding_trains) = (whole.contains_key(head), whole.contains_key(EMBEDDING));
        let names = Names {
            ranks: adapters
                .into_iter()
                .map(|(name, (linear, _))| (name, linear.rank))
                .collect(),
            whole,
        };
        let inputs = names.inputs(architecture);
        let input_table_trains = names.whole.contains_key(LAYER_INPUT_TABLE);
        let inputs_train = architecture.layer_inputs.is_some()
            && (embedding_trains
                || input_table_trains
                || names.whole.contains_key(LAYER_INPUT_NORM)
                || inputs.reads_input());
        let mut all: Vec<LayerPlan> = (0..architecture.layers.len())
            .map(|index| names.layer(architecture, index))
            .collect();
        let first = match embedding_trains || inputs_train {
            true => 0,
            false => all.iter().position(|layer| layer.trains).unwrap_or(all.len()),
        };
        for (index, layer) in all.iter_mut().enumerate() {
            layer.sharing = sharing(architecture, index, first);
        }
        let (mut kinds, mut layers) = (Vec::new(), Vec::with_capacity(all.len()));
        for layer in all {
            let known = kinds.iter().position(|known| *known == layer);
            layers.push(known.unwrap_or(kinds.len()));
            if known.is_none() {
                kinds.push(layer);
            }
        }
        (plan.kinds, plan.layers) = (kinds, layers);
        (plan.head_trains, plan.embedding_trains) = (head_trains, embedding_trains);
        (plan.inputs, plan.input_table_trains, plan.inputs_train) = (inputs, input_table_trains, inputs_train);
        plan
    }

    /// Layer `index`.
    pub fn layer(&self, index: usize) -> &LayerPlan {
        &self.kinds[self.layers[index]]
    }

    /// Each adapted linear layer with its slots.
    pub fn adapted_linears(&self) -> impl Iterator<Item = (&AdaptedLinear, &LinearSlots)> {
        let linears = self.adapter.iter().flat_map(|adapter| &adapter.linears);
        linears.zip(&self.slots.linears)
    }

    /// Adapted linear layers with their slots, by the name of their module.
    pub fn adapters(&self) -> HashMap<&str, (&AdaptedLinear, &LinearSlots)> {
        let linears = self.adapted_linears();
        linears.map(|both| (both.0.linear.name.as_str(), both)).collect()
    }

    /// Slot of each base parameter that trains, by its name in the base checkpoint.
    pub fn whole_slots(&self) -> HashMap<&str, usize> {
        self.whole_parameters().collect()
    }

    /// Base parameters that train, by their names in the base checkpoint, each with its slot.
    pub fn whole_parameters(&self) -> impl Iterator<Item = (&str, usize)> {
        let slots = self.slots.whole.iter().copied();
        let beside_adapter = self.adapter.iter().flat_map(|adapter| &adapter.whole);
        let beside_adapter = beside_adapter.map(|whole| whole.base_name.as_str()).zip(slots.clone());
        let of_whole_model = slots.filter(|_| self.adapter.is_none());
        let of_whole_model = of_whole_model.map(|slot| (self.layout.slots()[slot].name.as_str(), slot));
        beside_adapter.chain(of_whole_model)
    }

    /// The lowest layer that a gradient must reach; as many as there are layers where none does.
    pub fn first_on_tape(&self) -> usize {
        if self.embedding_trains || self.inputs_train {
            return 0;
        }
        let first = self.layers.iter().position(|kind| self.kinds[*kind].trains);
        first.unwrap_or(self.layers.len())
    }

    fn has(&self, setting: impl Fn(&AdapterSettings) -> bool) -> bool {
        self.adapter.as_ref().is_some_and(|adapter| setting(&adapter.settings))
    }

    /// Whether adapters have magnitudes.
    pub fn dora(&self) -> bool {
        self.has(|settings| settings.dora)
    }

    /// Whether adapters' outputs have biases.
    pub fn lora_bias(&self) -> bool {
        self.has(|settings| settings.lora_bias)
    }

    /// Whether adapters' inputs are dropped.
    pub fn dropout(&self) -> bool {
        self.has(|settings| settings.dropout > 0.0)
    }
}

/// Numbers of the layers, from 0, that those have in common which are alike in every one of `plans`, which are of one
/// architecture.
pub fn alike_layers(plans: &[&ModelPlan]) -> Vec<usize> {
    let kinds = |layer: usize| plans.iter().map(move |plan| plan.layers[layer]);
    let mut firsts: Vec<usize> = Vec::new();
    let layers = 0..plans.first().map_or(0, |plan| plan.layers.len());
    let number = |layer: usize| {
        let known = firsts.iter().position(|first| kinds(*first).eq(kinds(layer)));
        known.unwrap_or_else(|| {
            firsts.push(layer);
            firsts.len() - 1
        })
    };
    layers.map(number).collect()
}

/// The first layer with the number of `layer` in [`alike_layers`].
pub fn first_like(numbers: &[usize], layer: usize) -> usize {
    let number = numbers.get(layer);
    let found = numbers.iter().position(|other| Some(other) == number);
    found.unwrap_or(layer)
}

/// Names of parameters that train.
struct Names<'a> {
    ranks: HashMap<&'a str, usize>,
    whole: HashMap<&'a str, usize>,
}

/// Part of layer `index` in shared keys and values, where gradients reach down to layer `first`.
fn sharing(architecture: &Architecture, index: usize, first: usize) -> KeySharing {
    match architecture.source_of(index) {
        Some(source) => KeySharing::Reader {
            gradients: source >= first,
            last: architecture.readers_of(source).next_back() == Some(index),
        },
        None if architecture.readers_of(index).next().is_some() => KeySharing::Source {
            gradients: index >= first,
        },
        None => KeySharing::None,
    }
}

impl Names<'_> {
    /// Modules that make the layers' inputs.
    fn inputs(&self, architecture: &Architecture) -> GroupPlan {
        let Some(module) = architecture.outer_module() else {
            return GroupPlan::default();
        };
        let rows = 0..module.out_features;
        self.group("", &[Projection { module, rows }])
    }

    fn layer(&self, architecture: &Architecture, index: usize) -> LayerPlan {
        let name = Architecture::layer_name(index);
        let groups = architecture.projections(index);
        let [
            qkv,
            output,
            gate_up,
            down,
            router,
            shared_gate,
            query,
            key_value,
            input_gate,
            input_projection,
        ] = groups.map(|group| self.group(&name, &group));
        let experts = architecture.experts_of(index).map(|experts| {
            let rank = |module: &str| {
                self.ranks
                    .get(format!("{name}.{module}").as_str())
                    .copied()
                    .unwrap_or(0)
            };
            let weight = format!("{name}.{}", experts.weight_name(0, ExpertPart::Gate));
            ExpertsPlan {
                router,
                shared_gate,
                gate_up_rank: rank(experts.names.gate_up),
                down_rank: rank(experts.names.down),
                weights_train: self.whole.contains_key(weight.as_str()),
            }
        });
        let prefix = format!("{name}.");
        let mut names = self.ranks.keys().chain(self.whole.keys());
        LayerPlan {
            mixer: architecture.mixer(index),
            window: architecture.layers[index].window,
            chunk: architecture.layers[index].chunk,
            rotates: architecture.layers[index].rope.is_some(),
            heads: Heads::of(architecture, index),
            keys: architecture.layers[index].keys,
            head_norm: architecture.head_norm_of(index),
            qkv,
            latent: architecture.latent.map(|_| LatentPlan { query, key_value }),
            output,
            gate_up,
            down,
            experts,
            input: architecture.layer_inputs.map(|_| LayerInputPlan {
                gate: input_gate,
                projection: input_projection,
            }),
            sharing: KeySharing::None,
            input_norm_trains: self
                .whole
                .contains_key(format!("{prefix}{}.weight", architecture.names.attention_norms[0]).as_str()),
            trains: names.any(|name| name.starts_with(&prefix)),
        }
    }

    fn group(&self, layer: &str, projections: &[Projection]) -> GroupPlan {
        let mut adapters: Vec<AdapterOnInput> = Vec::new();
        let plan = |Projection { module, rows }: &Projection| {
            let name = match layer {
                "" => module.name.to_owned(),
                layer => format!("{layer}.{}", module.name),
            };
            let trains = |part: &str| self.whole.contains_key(format!("{name}.{part}").as_str());
            if let Some(rank) = self.ranks.get(name.as_str())
                && adapters.last().is_none_or(|last| last.module != module.name)
            {
                adapters.push(AdapterOnInput {
                    module: module.name,
                    rank: *rank,
                });
            }
            ProjectionPlan {
                module: module.name,
                rows: rows.clone(),
                bias: module.bias,
                adapter: adapters.iter().position(|adapter| adapter.module == module.name),
                weight_trains: trains("weight"),
                bias_trains: module.bias && trains("bias"),
            }
        };
        GroupPlan {
            inputs: projections.first().map_or(0, |first| first.module.in_features),
            projections: projections.iter().map(plan).collect(),
            adapters,
        }
    }
}
