//! What the forward pass of a decoder layer keeps for its backward pass: the whole list, in one place.
//!
//! Norm outputs and the activation's output are not in it: they are made again, since they cost one pass over memory and
//! would be the largest part.
//!
//! The backward pass takes the struct by value and drops each tensor after its last use.

use super::traced::routing::Routing;
use crate::tensor::Tensor;
use peft_tune_core::plan::Memory;

/// Everything that one decoder layer keeps.
#[derive(Debug)]
pub(super) struct LayerSaved {
    pub mixer: MixerSaved,
    pub mlp: FeedForwardSaved,
    pub input: Option<InputSaved>,
}

/// Tensors that the first half of a layer keeps.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each layer, beside tensors of megabytes"
)]
pub(super) enum MixerSaved {
    Attention(AttentionSaved),
    Mixed(MixedSaved),
}

/// Tensors that the second half of a layer keeps.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each layer, beside tensors of megabytes"
)]
pub(super) enum FeedForwardSaved {
    Mlp(MlpSaved),
    Experts(ExpertsSaved),
}

/// Tensors that the attention block keeps.
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

/// Tensors that attention keeps, and those that lead to it from the projections.
#[derive(Debug)]
pub(super) struct HeadsSaved {
    /// (T, Hq, d)
    pub q: Tensor,
    /// (T, Hkv, d); `None` where it is another layer's.
    pub k: Option<Tensor>,
    /// (T, Hkv, dv), before its norm where there is one; `None` where that is k before its own, or another layer's.
    pub v: Option<Tensor>,
    /// Reciprocal standard deviations in the norms of queries, keys and values: (T·Hq,) or (T·Hkv,) F32, or (T,) for a
    /// norm over all heads.
    pub rstd: [Option<Tensor>; 3],
    /// (T, Hq, dv)
    pub o: Tensor,
    /// (T, Hq) F32
    pub lse: Tensor,
    pub latent: Option<LatentSaved>,
}

/// Tensors that a layer keeps of its own input beside the stream.
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

/// Tensors that the second projections of latent attention keep.
#[derive(Debug)]
pub(super) struct LatentSaved {
    /// Tensors of the queries' second projection; absent where queries are projected once.
    pub query: Option<ExpansionSaved>,
    pub key_value: ExpansionSaved,
}

/// Tensors that a norm and the projection behind it keep.
#[derive(Debug)]
pub(super) struct ExpansionSaved {
    /// (T, R), the norm's input.
    pub x: Tensor,
    /// (T,) F32
    pub rstd: Tensor,
    /// (T, r) of the adapter on the projection.
    pub xa: Vec<Tensor>,
}

/// Tensors that a block with another mixer keeps.
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

/// Tensors that the MLP block keeps.
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

/// Tensors that a mixture of experts keeps.
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

/// Tensors that the norms behind branches keep.
#[derive(Debug)]
pub(super) struct BranchesSaved {
    /// Tensors of the norms behind the shared expert and behind the others.
    pub behind: [NormSaved; 2],
    /// Tensors of the norm behind the sum of both branches.
    pub end: NormSaved,
}

/// Tensors that the shared expert keeps.
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

/// Tensors that a norm behind a block keeps.
#[derive(Debug)]
pub(super) struct NormSaved {
    /// (T, H), the norm's input.
    pub x: Tensor,
    /// (T,) F32
    pub rstd: Tensor,
}

impl LayerSaved {
    /// Tensors that a layer holds on to until backward. The stream between the blocks is a tenth of the list, and the
    /// product of attention's output that makes it again 2% of a step: it is not held in the host's memory.
    pub(super) fn held(mut self) -> Self {
        let between = self.mlp.input();
        *between = between.take().filter(|x| x.memory() == Memory::Device);
        self
    }

    /// All tensors.
    pub(super) fn tensors(&self) -> Vec<&Tensor> {
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
        self.tensors().into_iter().map(bytes).sum()
    }
}

impl InputSaved {
    fn tensors(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.gate];
        all.extend(&self.x);
        all.extend(&self.gate_xa);
        all.extend(&self.projection_xa);
        all.extend(of_norm(&self.behind));
        all
    }
}

impl LatentSaved {
    fn tensors(&self) -> Vec<&Tensor> {
        let mut all = Vec::new();
        for expansion in self.query.iter().chain([&self.key_value]) {
            all.extend([&expansion.x, &expansion.rstd]);
            all.extend(&expansion.xa);
        }
        all
    }
}

/// Tensors that a norm behind a block keeps, where there is one.
fn of_norm(norm: &Option<NormSaved>) -> impl Iterator<Item = &Tensor> {
    norm.iter().flat_map(|norm| [&norm.x, &norm.rstd])
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
    fn tensors(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.x, &self.heads.q, &self.heads.o, &self.heads.lse];
        let HeadsSaved { k, v, rstd, latent, .. } = &self.heads;
        all.extend(k);
        all.extend(v);
        all.extend(rstd.iter().flatten());
        all.extend(&self.gate);
        all.extend(&self.rstd);
        all.extend(&self.input_xa);
        all.extend(&self.output_xa);
        all.extend(of_norm(&self.behind));
        all.extend(latent.iter().flat_map(LatentSaved::tensors));
        all
    }
}

impl MixedSaved {
    fn tensors(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.x];
        all.extend(&self.rstd);
        all.extend(&self.projected);
        all.extend(&self.ruled);
        all.extend(&self.input_xa);
        all.extend(&self.output_xa);
        all.extend(of_norm(&self.behind));
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
    fn tensors(&self) -> Vec<&Tensor> {
        let mut all = vec![&self.up];
        all.extend(&self.rstd);
        all.extend(&self.gate);
        all.extend(&self.x);
        all.extend(&self.input_xa);
        all.extend(&self.down_xa);
        all.extend(of_norm(&self.behind));
        all
    }
}

impl ExpertsSaved {
    fn tensors(&self) -> Vec<&Tensor> {
        let routing = &self.routing;
        let mut all = vec![
            &self.rstd,
            &routing.scores,
            &routing.weights,
            &routing.tokens,
            &routing.rows,
            &self.gate,
            &self.up,
        ];
        all.extend(routing.offsets.table());
        all.extend(&self.x);
        all.extend(&self.router_xa);
        all.extend(&self.gate_up_xa);
        all.extend(&self.down_xa);
        if let Some(BranchesSaved { behind, end }) = &self.branches {
            all.extend(behind.iter().flat_map(|norm| [&norm.x, &norm.rstd]));
            all.extend([&end.x, &end.rstd]);
        }
        let Some(shared) = &self.shared else { return all };
        all.extend([&shared.gate, &shared.up]);
        all.extend(&shared.input_xa);
        all.extend(&shared.scale);
        all.extend(&shared.scale_xa);
        all.extend(&shared.down_xa);
        all
    }
}

/// Bytes of one tensor's elements.
pub(super) fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
