//! What the forward pass keeps for its backward pass: the whole list, in one place.
//!
//! Norm outputs and the activation's output are not in it: they are made again, since they cost one pass over memory and
//! would be the largest part.

use super::{LayerInputPlan, LayerPlan, ModelPlan};
use crate::architecture::{Architecture, KeyValueSource, Mixer, NormPlacement, QueryKeyNorm};
use crate::recipe::Checkpointing;

/// Where activations lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The host's own.
    Host,
    /// That of a device beside it.
    Device,
}

/// What the forward pass keeps of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKeep {
    /// Nothing: below all that trains.
    Nothing,
    /// Its input; backward runs the layer forward again.
    Input,
    /// The same, in the host's memory.
    HostInput,
    /// What backward reads.
    Saved,
}

/// What is kept of layer `index`, where a gradient reaches it.
pub fn layer_keep(checkpointing: Checkpointing, index: usize) -> LayerKeep {
    match checkpointing {
        Checkpointing::None => LayerKeep::Saved,
        Checkpointing::Every(nth) if !index.is_multiple_of(nth.get() as usize) => LayerKeep::Saved,
        Checkpointing::Every(_) | Checkpointing::Full => LayerKeep::Input,
        Checkpointing::Offload => LayerKeep::HostInput,
    }
}

/// What a decoder layer keeps, by what it is kept for: one tensor or some that live as long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedTensor {
    /// The layer's input, which is the output of the layer below and is not held twice, and what its norm keeps: the normed
    /// input is made again from them.
    Input,
    /// What a mixer in the place of attention reads.
    MixerInput,
    /// As rotated, or before its norm.
    Query,
    Key,
    /// Before its norm, where there is one; not held twice where it is the key.
    Value,
    /// What the norms of queries, keys and values keep.
    HeadNorms,
    /// The gates of the queries.
    HeadGates,
    /// With the log-sum-exp; or what a delta rule gives.
    AttentionOutput,
    /// x A^T of the adapters on query, key and value: the gradient of lora_b reads it.
    QkvXa,
    OutputXa,
    /// Input of the norm behind attention, and what it keeps.
    AttentionBehind,
    /// The stream between attention and MLP.
    Between,
    /// What the norm on it keeps.
    BetweenNorm,
    Gate,
    Up,
    GateUpXa,
    DownXa,
    /// Input of the norm behind the MLP, and what it keeps.
    MlpBehind,
    /// Inputs of the norms behind an MLP and experts that are branches, and what those keep.
    BranchesBehind,
    /// Scores of all experts, and for each chosen one its weight, whose token it has, and where the token's output lies.
    Routing,
    RouterXa,
    /// What scales the shared expert.
    SharedGate,
    SharedGateXa,
    /// Of the chosen experts, sorted by expert.
    ExpertGate,
    ExpertUp,
    ExpertGateUpXa,
    ExpertDownXa,
    /// Compressed queries, keys and values, and what their norms keep.
    Latents,
    /// Of the adapters on their second projections.
    LatentXa,
    /// The stream that the gate of the layer's own input reads.
    InputStream,
    InputGate,
    InputGateXa,
    InputProjectionXa,
    /// Input of the norm behind the layer's own input, and what it keeps.
    InputBehind,
}

/// Widths of what a layer with experts keeps; all 0 without.
#[derive(Clone, Copy, Debug, Default)]
struct ExpertWidths {
    scores: usize,
    chosen: usize,
    inner: usize,
    router_rank: usize,
    shared_gate: usize,
    shared_gate_rank: usize,
    gate_up_rank: usize,
    down_rank: usize,
}

impl ExpertWidths {
    fn of(architecture: &Architecture, layer: &LayerPlan) -> Self {
        let (Some(experts), Some(plan)) = (&architecture.experts, &layer.experts) else {
            return Self::default();
        };
        Self {
            scores: experts.count,
            chosen: experts.chosen,
            inner: experts.intermediate_size,
            router_rank: plan.router.ranks(),
            shared_gate: plan.shared_gate.outputs(),
            shared_gate_rank: plan.shared_gate.ranks(),
            gate_up_rank: plan.gate_up_rank,
            down_rank: plan.down_rank,
        }
    }
}

impl SavedTensor {
    /// All.
    pub const ALL: [Self; 34] = [
        Self::Input,
        Self::MixerInput,
        Self::Query,
        Self::Key,
        Self::Value,
        Self::HeadNorms,
        Self::HeadGates,
        Self::AttentionOutput,
        Self::QkvXa,
        Self::OutputXa,
        Self::AttentionBehind,
        Self::Between,
        Self::BetweenNorm,
        Self::Gate,
        Self::Up,
        Self::GateUpXa,
        Self::DownXa,
        Self::MlpBehind,
        Self::BranchesBehind,
        Self::Routing,
        Self::RouterXa,
        Self::SharedGate,
        Self::SharedGateXa,
        Self::ExpertGate,
        Self::ExpertUp,
        Self::ExpertGateUpXa,
        Self::ExpertDownXa,
        Self::Latents,
        Self::LatentXa,
        Self::InputStream,
        Self::InputGate,
        Self::InputGateXa,
        Self::InputProjectionXa,
        Self::InputBehind,
    ];

    /// Values for each token: in the compute dtype, and in F32.
    pub fn widths(self, model: &ModelPlan, layer: &LayerPlan) -> [usize; 2] {
        let architecture = &model.architecture;
        let experts = ExpertWidths::of(architecture, layer);
        let [hidden, heads] = [architecture.hidden_size, layer.heads.query];
        match self {
            // Where no norm stands before the block, nothing of one is kept.
            Self::Input => [hidden, usize::from(architecture.norm_placement.is_before())],
            Self::MixerInput => match layer.mixer {
                Mixer::Attention => [0, 0],
                Mixer::Convolution(_) | Mixer::DeltaRule(_) => [layer.qkv.outputs(), 0],
            },
            Self::AttentionOutput if let Mixer::DeltaRule(rule) = layer.mixer => [rule.output_width(), 0],
            Self::Query | Self::Key | Self::Value | Self::HeadNorms | Self::HeadGates | Self::AttentionOutput
                if layer.mixer != Mixer::Attention =>
            {
                [0, 0]
            }
            Self::Query => [layer.heads.query_size(), 0],
            Self::Value if layer.keys == KeyValueSource::OneProjection => [0, 0],
            // Another layer's.
            Self::Key | Self::Value if layer.is_reader() => [0, 0],
            Self::HeadNorms if layer.is_reader() => [0, usize::from(layer.head_norm.is_there()) * heads],
            Self::Key => [layer.heads.key_size(), 0],
            Self::Value => [layer.heads.value_size(), 0],
            Self::HeadNorms => {
                let of_values = if architecture.value_norm { layer.heads.key } else { 0 };
                match layer.head_norm {
                    QueryKeyNorm::None => [0, of_values],
                    QueryKeyNorm::Heads | QueryKeyNorm::RotatedHeads | QueryKeyNorm::RotatedUnweighted => {
                        [0, heads + layer.heads.key + of_values]
                    }
                    QueryKeyNorm::AllHeads => [0, 2 + of_values],
                }
            }
            Self::HeadGates if !architecture.head_gates => [0, 0],
            Self::HeadGates => [layer.heads.query_size(), 0],
            Self::AttentionOutput => [layer.heads.attended_size(), heads],
            // Side by side both blocks read the layer's input.
            Self::Between if architecture.norm_placement == NormPlacement::Shared => [0, 0],
            Self::Between => [hidden, 0],
            Self::BetweenNorm => [0, usize::from(architecture.norm_placement.is_before())],
            Self::Gate if !architecture.activation.is_gated() => [0, 0],
            Self::Gate | Self::Up => [layer.inner(), 0],
            Self::QkvXa => [layer.qkv.ranks(), 0],
            Self::OutputXa => [layer.output.ranks(), 0],
            Self::GateUpXa => [layer.gate_up.ranks(), 0],
            Self::DownXa => [layer.down.ranks(), 0],
            Self::AttentionBehind | Self::MlpBehind if architecture.norm_placement.is_behind() => [hidden, 1],
            Self::AttentionBehind | Self::MlpBehind => [0, 0],
            Self::BranchesBehind if architecture.has_branches() => [2 * hidden, 2],
            Self::BranchesBehind => [0, 0],
            Self::Routing => [0, experts.scores + 3 * experts.chosen],
            Self::RouterXa => [0, experts.router_rank],
            Self::SharedGate => [0, experts.shared_gate],
            Self::SharedGateXa => [experts.shared_gate_rank, 0],
            Self::ExpertGate | Self::ExpertUp => [experts.chosen * experts.inner, 0],
            Self::ExpertGateUpXa => [experts.chosen * experts.gate_up_rank, 0],
            Self::ExpertDownXa => [experts.chosen * experts.down_rank, 0],
            Self::InputStream | Self::InputGate | Self::InputGateXa | Self::InputProjectionXa | Self::InputBehind => {
                self.input_widths(hidden, layer.input.as_ref())
            }
            Self::Latents => architecture.latent.map_or([0, 0], |latent| match latent.query_rank {
                Some(rank) => [rank + latent.key_value_rank, 2],
                None => [latent.key_value_rank, 1],
            }),
            Self::LatentXa => {
                let ranks = layer.latent.as_ref();
                [
                    ranks.map_or(0, |latent| latent.query.ranks() + latent.key_value.ranks()),
                    0,
                ]
            }
        }
    }

    /// The widths of what is kept around a layer's own input.
    fn input_widths(self, hidden: usize, input: Option<&LayerInputPlan>) -> [usize; 2] {
        let Some(input) = input else { return [0, 0] };
        match self {
            Self::InputStream if input.gate.reads_input() => [hidden, 0],
            Self::InputGate => [input.gate.outputs(), 0],
            Self::InputGateXa => [input.gate.ranks(), 0],
            Self::InputProjectionXa => [input.projection.ranks(), 0],
            Self::InputBehind => [hidden, 1],
            _ => [0, 0],
        }
    }

    /// Whether it is held until the backward pass. The stream between the blocks is a tenth of the list, and the product of
    /// attention's output that makes it again 2% of a step: it is not held in the host's memory.
    pub fn is_held(self, memory: Memory) -> bool {
        self != Self::Between || memory == Memory::Device
    }
}
