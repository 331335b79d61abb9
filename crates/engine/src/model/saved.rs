//! What the forward pass of a decoder layer keeps for its backward pass: the tensors of [`SavedTensor`].
//!
//! The backward pass takes the struct by value and drops each tensor after its last use.

use candle_core::Tensor;

use peft_tune_core::plan::{Memory, SavedTensor};

/// Everything that one decoder layer keeps.
#[derive(Debug)]
pub(super) struct LayerSaved {
    pub attention: AttentionSaved,
    pub mlp: MlpSaved,
}

/// What the attention block keeps.
#[derive(Debug)]
pub(super) struct AttentionSaved {
    /// (T, H), the block's input.
    pub x: Tensor,
    /// (T,) F32 of the norm before the block.
    pub rstd: Option<Tensor>,
    /// (T, Hq, d)
    pub q: Tensor,
    /// (T, Hkv, d)
    pub k: Tensor,
    /// (T, Hkv, d)
    pub v: Tensor,
    /// (T·Hq,) F32, or (T,) of a norm over all heads.
    pub query_rstd: Option<Tensor>,
    /// (T·Hkv,) F32
    pub key_rstd: Option<Tensor>,
    /// (T, Hq, d)
    pub o: Tensor,
    /// (T, Hq) F32
    pub lse: Tensor,
    /// (T, r) for each adapter on q, k and v.
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
        let memory = |x: &Tensor| {
            if x.device().is_cpu() {
                Memory::Host
            } else {
                Memory::Device
            }
        };
        self.mlp.x = self.mlp.x.filter(|x| SavedTensor::Between.is_held(memory(x)));
        self
    }

    /// All tensors by what they are.
    pub(super) fn tensors(&self) -> Vec<(SavedTensor, &Tensor)> {
        let (attention, mlp) = (&self.attention, &self.mlp);
        let mut all = vec![
            (SavedTensor::Input, &attention.x),
            (SavedTensor::Query, &attention.q),
            (SavedTensor::Key, &attention.k),
            (SavedTensor::Value, &attention.v),
            (SavedTensor::AttentionOutput, &attention.o),
            (SavedTensor::AttentionOutput, &attention.lse),
            (SavedTensor::Up, &mlp.up),
        ];
        let head_norms = attention.query_rstd.iter().chain(&attention.key_rstd);
        all.extend(head_norms.map(|rstd| (SavedTensor::HeadNorms, rstd)));
        all.extend(attention.rstd.iter().map(|rstd| (SavedTensor::Input, rstd)));
        all.extend(mlp.rstd.iter().map(|rstd| (SavedTensor::BetweenNorm, rstd)));
        all.extend(mlp.gate.iter().map(|gate| (SavedTensor::Gate, gate)));
        all.extend(mlp.x.iter().map(|x| (SavedTensor::Between, x)));
        for (saved, tensors) in [
            (SavedTensor::QkvXa, &attention.input_xa),
            (SavedTensor::OutputXa, &attention.output_xa),
            (SavedTensor::GateUpXa, &mlp.input_xa),
            (SavedTensor::DownXa, &mlp.down_xa),
        ] {
            all.extend(tensors.iter().map(|tensor| (saved, tensor)));
        }
        let behind = [
            (SavedTensor::AttentionBehind, &attention.behind),
            (SavedTensor::MlpBehind, &mlp.behind),
        ];
        for (saved, norm) in behind {
            all.extend(norm.iter().flat_map(|norm| [(saved, &norm.x), (saved, &norm.rstd)]));
        }
        all
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> usize {
        self.tensors().into_iter().map(|(_, tensor)| bytes(tensor)).sum()
    }
}

/// Bytes of one tensor's elements.
pub(super) fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
