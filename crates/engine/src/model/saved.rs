//! What the forward pass of a decoder layer keeps for its backward pass: the tensors of [`SavedTensor`].
//!
//! The backward pass takes the struct by value and drops each tensor after its last use.

use super::traced::routing::Routing;
use crate::tensor::Tensor;
use peft_tune_core::plan::SavedTensor;

/// Everything that one decoder layer keeps.
#[derive(Debug)]
pub(super) struct LayerSaved {
    pub mixer: MixerSaved,
    pub mlp: FeedForwardSaved,
    pub input: Option<InputSaved>,
}

/// What the first half of a layer keeps.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each layer, beside tensors of megabytes"
)]
pub(super) enum MixerSaved {
    Attention(AttentionSaved),
    Mixed(MixedSaved),
}

/// What the second half of a layer keeps.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each layer, beside tensors of megabytes"
)]
pub(super) enum FeedForwardSaved {
    Mlp(MlpSaved),
    Experts(ExpertsSaved),
}

/// What the attention block keeps.
#[derive(Debug)]
pub(super) struct AttentionSaved {
    /// (T, H), the block's input.
    pub x: Tensor,
    /// (T,) F32 of the norm before the block.
    pub rstd: Option<Tensor>,
    pub heads: HeadsSaved,
    /// (T, Hq d), where queries come with gates.
    pub gate: Option<Tensor>,
    /// (T, r) for each adapter on q, k and v.
    pub input_xa: Vec<Tensor>,
    /// (T, r) of the adapter on the output projection.
    pub output_xa: Vec<Tensor>,
    pub behind: Option<NormSaved>,
}

/// What attention keeps, and what leads to it from the projections.
#[derive(Debug)]
pub(super) struct HeadsSaved {
    /// (T, Hq, d)
    pub q: Tensor,
    /// (T, Hkv, d); `None` where it is another layer's.
    pub k: Option<Tensor>,
    /// (T, Hkv, dv), before its norm where there is one; `None` where that is k before its own, or another layer's.
    pub v: Option<Tensor>,
    /// Of the norms of queries, keys and values, (T·Hq,) or (T·Hkv,) F32, or (T,) of a norm over all heads.
    pub rstd: [Option<Tensor>; 3],
    /// (T, Hq, dv)
    pub o: Tensor,
    /// (T, Hq) F32
    pub lse: Tensor,
    pub latent: Option<LatentSaved>,
}

/// What a layer keeps of its own input beside the stream.
#[derive(Debug)]
pub(super) struct InputSaved {
    /// (T, H), the stream that the gate reads; `None` where its backward pass does not need it.
    pub x: Option<Tensor>,
    /// (T, P)
    pub gate: Tensor,
    /// (T, r) of the adapter on the gate.
    pub gate_xa: Vec<Tensor>,
    /// (T, r) of the adapter on the projection behind it.
    pub projection_xa: Vec<Tensor>,
    pub behind: Option<NormSaved>,
}

/// What the second projections of latent attention keep.
#[derive(Debug)]
pub(super) struct LatentSaved {
    /// Absent where queries are projected once.
    pub query: Option<ExpansionSaved>,
    pub key_value: ExpansionSaved,
}

/// What a norm and the projection behind it keep.
#[derive(Debug)]
pub(super) struct ExpansionSaved {
    /// (T, R), the norm's input.
    pub x: Tensor,
    /// (T,) F32
    pub rstd: Tensor,
    /// (T, r) of the adapter on the projection.
    pub xa: Vec<Tensor>,
}

/// What a block with another mixer keeps.
#[derive(Debug)]
pub(super) struct MixedSaved {
    /// (T, H), the block's input.
    pub x: Tensor,
    /// (T,) F32 of the norm before the block.
    pub rstd: Option<Tensor>,
    /// (T, out) of each projection that the mixer reads.
    pub projected: Vec<Tensor>,
    /// (T, Hv dv), what a delta rule gives.
    pub ruled: Option<Tensor>,
    /// (T, r) for each adapter on the projections.
    pub input_xa: Vec<Tensor>,
    /// (T, r) of the adapter on the output projection.
    pub output_xa: Vec<Tensor>,
    pub behind: Option<NormSaved>,
}

/// What the MLP block keeps.
#[derive(Debug)]
pub(super) struct MlpSaved {
    /// (T, H), the block's input; `None` where the attention block is to make its output again, or has the same input.
    pub x: Option<Tensor>,
    /// (T,) F32 of the norm before the block.
    pub rstd: Option<Tensor>,
    /// (T, I)
    pub gate: Option<Tensor>,
    /// (T, I)
    pub up: Tensor,
    /// (T, r) for each adapter on gate and up.
    pub input_xa: Vec<Tensor>,
    /// (T, r) of the adapter on down.
    pub down_xa: Vec<Tensor>,
    pub behind: Option<NormSaved>,
}

/// What a mixture of experts keeps.
#[derive(Debug)]
pub(super) struct ExpertsSaved {
    /// (T, H), the block's input; `None` where the attention block is to make its output again.
    pub x: Option<Tensor>,
    /// (T,) F32
    pub rstd: Tensor,
    pub routing: Routing,
    /// (T, r) F32 of the adapter on the router.
    pub router_xa: Vec<Tensor>,
    /// (R, I)
    pub gate: Tensor,
    /// (R, I)
    pub up: Tensor,
    /// (R, r) of the adapters on gate and up.
    pub gate_up_xa: Option<Tensor>,
    /// (R, r) of the adapters on down.
    pub down_xa: Option<Tensor>,
    pub shared: Option<SharedSaved>,
    pub branches: Option<BranchesSaved>,
}

/// What the norms behind branches keep.
#[derive(Debug)]
pub(super) struct BranchesSaved {
    /// Of the shared expert, and of the others.
    pub behind: [NormSaved; 2],
    /// Of both together.
    pub end: NormSaved,
}

/// What the shared expert keeps.
#[derive(Debug)]
pub(super) struct SharedSaved {
    /// (T, I)
    pub gate: Tensor,
    /// (T, I)
    pub up: Tensor,
    /// (T, r) for each adapter on gate and up.
    pub input_xa: Vec<Tensor>,
    /// (T,) F32, the factor on what down reads.
    pub scale: Option<Tensor>,
    /// (T, r) of the adapter on what makes that factor.
    pub scale_xa: Vec<Tensor>,
    /// (T, r) of the adapter on down.
    pub down_xa: Vec<Tensor>,
}

/// What a norm behind a block keeps.
#[derive(Debug)]
pub(super) struct NormSaved {
    /// (T, H), the norm's input.
    pub x: Tensor,
    /// (T,) F32
    pub rstd: Tensor,
}

impl LayerSaved {
    /// What a layer holds on to until backward.
    pub(super) fn held(mut self) -> Self {
        let between = self.mlp.input();
        *between = between.take().filter(|x| SavedTensor::Between.is_held(x.memory()));
        self
    }

    /// All tensors by what they are.
    pub(super) fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let mut all = match &self.mixer {
            MixerSaved::Attention(attention) => attention.tensors(),
            MixerSaved::Mixed(mixed) => mixed.tensors(),
        };
        match &self.mlp {
            FeedForwardSaved::Mlp(mlp) => all.extend(mlp.tensors()),
            FeedForwardSaved::Experts(experts) => all.extend(experts.tensors()),
        }
        all.extend(self.input.iter().flat_map(InputSaved::tensors));
        all
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> usize {
        self.tensors().into_iter().map(|(_, tensor)| bytes(tensor)).sum()
    }
}

impl InputSaved {
    fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let mut all = vec![(SavedTensor::InputGate, &self.gate)];
        all.extend(self.x.iter().map(|x| (SavedTensor::InputStream, x)));
        all.extend(self.gate_xa.iter().map(|xa| (SavedTensor::InputGateXa, xa)));
        all.extend(self.projection_xa.iter().map(|xa| (SavedTensor::InputProjectionXa, xa)));
        all.extend(of_norm(SavedTensor::InputBehind, &self.behind));
        all
    }
}

impl LatentSaved {
    fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let mut all = Vec::new();
        for expansion in self.query.iter().chain([&self.key_value]) {
            all.extend([&expansion.x, &expansion.rstd].map(|tensor| (SavedTensor::Latents, tensor)));
            all.extend(expansion.xa.iter().map(|xa| (SavedTensor::LatentXa, xa)));
        }
        all
    }
}

/// What a norm behind a block keeps, where there is one.
fn of_norm(saved: SavedTensor, norm: &Option<NormSaved>) -> impl Iterator<Item = (SavedTensor, &Tensor)> {
    norm.iter()
        .flat_map(move |norm| [(saved, &norm.x), (saved, &norm.rstd)])
}

impl MixerSaved {
    /// The block's input.
    pub(super) fn x(&self) -> &Tensor {
        match self {
            Self::Attention(attention) => &attention.x,
            Self::Mixed(mixed) => &mixed.x,
        }
    }
}

impl AttentionSaved {
    fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let mut all = vec![
            (SavedTensor::Input, &self.x),
            (SavedTensor::Query, &self.heads.q),
            (SavedTensor::AttentionOutput, &self.heads.o),
            (SavedTensor::AttentionOutput, &self.heads.lse),
        ];
        let HeadsSaved { k, v, rstd, latent, .. } = &self.heads;
        all.extend(k.iter().map(|k| (SavedTensor::Key, k)));
        all.extend(v.iter().map(|v| (SavedTensor::Value, v)));
        all.extend(rstd.iter().flatten().map(|rstd| (SavedTensor::HeadNorms, rstd)));
        all.extend(self.gate.iter().map(|gate| (SavedTensor::HeadGates, gate)));
        all.extend(self.rstd.iter().map(|rstd| (SavedTensor::Input, rstd)));
        all.extend(self.input_xa.iter().map(|xa| (SavedTensor::QkvXa, xa)));
        all.extend(self.output_xa.iter().map(|xa| (SavedTensor::OutputXa, xa)));
        all.extend(of_norm(SavedTensor::AttentionBehind, &self.behind));
        all.extend(latent.iter().flat_map(LatentSaved::tensors));
        all
    }
}

impl MixedSaved {
    fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let mut all = vec![(SavedTensor::Input, &self.x)];
        all.extend(self.rstd.iter().map(|rstd| (SavedTensor::Input, rstd)));
        all.extend(self.projected.iter().map(|tensor| (SavedTensor::MixerInput, tensor)));
        all.extend(self.ruled.iter().map(|o| (SavedTensor::AttentionOutput, o)));
        all.extend(self.input_xa.iter().map(|xa| (SavedTensor::QkvXa, xa)));
        all.extend(self.output_xa.iter().map(|xa| (SavedTensor::OutputXa, xa)));
        all.extend(of_norm(SavedTensor::AttentionBehind, &self.behind));
        all
    }
}

impl FeedForwardSaved {
    /// The block's input, where it is kept.
    pub(super) fn input(&mut self) -> &mut Option<Tensor> {
        match self {
            Self::Mlp(mlp) => &mut mlp.x,
            Self::Experts(experts) => &mut experts.x,
        }
    }
}

impl MlpSaved {
    fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let mut all = vec![(SavedTensor::Up, &self.up)];
        all.extend(self.rstd.iter().map(|rstd| (SavedTensor::BetweenNorm, rstd)));
        all.extend(self.gate.iter().map(|gate| (SavedTensor::Gate, gate)));
        all.extend(self.x.iter().map(|x| (SavedTensor::Between, x)));
        all.extend(self.input_xa.iter().map(|xa| (SavedTensor::GateUpXa, xa)));
        all.extend(self.down_xa.iter().map(|xa| (SavedTensor::DownXa, xa)));
        all.extend(of_norm(SavedTensor::MlpBehind, &self.behind));
        all
    }
}

impl ExpertsSaved {
    fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let routing = &self.routing;
        let mut all = vec![
            (SavedTensor::BetweenNorm, &self.rstd),
            (SavedTensor::Routing, &routing.scores),
            (SavedTensor::Routing, &routing.weights),
            (SavedTensor::Routing, &routing.tokens),
            (SavedTensor::Routing, &routing.rows),
            (SavedTensor::ExpertGate, &self.gate),
            (SavedTensor::ExpertUp, &self.up),
        ];
        all.extend(routing.offsets.table().map(|table| (SavedTensor::Routing, table)));
        all.extend(self.x.iter().map(|x| (SavedTensor::Between, x)));
        all.extend(self.router_xa.iter().map(|xa| (SavedTensor::RouterXa, xa)));
        all.extend(self.gate_up_xa.iter().map(|xa| (SavedTensor::ExpertGateUpXa, xa)));
        all.extend(self.down_xa.iter().map(|xa| (SavedTensor::ExpertDownXa, xa)));
        if let Some(BranchesSaved { behind, end }) = &self.branches {
            all.extend(
                behind
                    .iter()
                    .flat_map(|norm| [&norm.x, &norm.rstd].map(|x| (SavedTensor::BranchesBehind, x))),
            );
            all.extend([&end.x, &end.rstd].map(|x| (SavedTensor::MlpBehind, x)));
        }
        let Some(shared) = &self.shared else { return all };
        all.extend([(SavedTensor::Gate, &shared.gate), (SavedTensor::Up, &shared.up)]);
        all.extend(shared.input_xa.iter().map(|xa| (SavedTensor::GateUpXa, xa)));
        all.extend(shared.scale.iter().map(|scale| (SavedTensor::SharedGate, scale)));
        all.extend(shared.scale_xa.iter().map(|xa| (SavedTensor::SharedGateXa, xa)));
        all.extend(shared.down_xa.iter().map(|xa| (SavedTensor::DownXa, xa)));
        all
    }
}

/// Bytes of one tensor's elements.
pub(super) fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
