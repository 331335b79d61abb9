//! What the forward pass of a decoder layer keeps for its backward pass: the whole list, in one place.
//!
//! With T tokens, H hidden, I inner, Hq/Hkv heads of width d, and r_m the rank of the adapter on module m, in elements
//! of the compute dtype (c) or of F32 (f):
//!
//! | field | elements | kept for |
//! |---|---|---|
//! | `attention.x` | T·H c | norm backward; the normed input is made again from it |
//! | `attention.rstd` | T f | norm |
//! | `attention.q`, `k`, `v` | T·(Hq + 2·Hkv)·d c | attention backward (q and k as rotated, or before their norm) |
//! | `attention.query_rstd`, `key_rstd` | T·(Hq + Hkv) f | q/k norm, where there is one |
//! | `attention.o` | T·Hq·d c | attention backward, input of `o_proj` |
//! | `attention.lse` | T·Hq f | attention backward |
//! | `attention.input_xa`, `output_xa` | T·sum of r_m c | gradient of lora_b |
//! | `attention.behind` | T·H c, T f | the norm behind, where there is one |
//! | `mlp.x` | T·H c | norm backward; not kept on the CPU, where the layer keeps all the rest |
//! | `mlp.rstd` | T f | norm |
//! | `mlp.gate`, `mlp.up` | 2·T·I c | activation backward; its output is made again from them |
//! | `mlp.input_xa`, `down_xa` | T·sum of r_m c | gradient of lora_b |
//! | `mlp.behind` | T·H c, T f | as above |
//!
//! `attention.x` is the output of the layer below and `mlp.x` the stream after attention: neither is held twice. Norm
//! outputs and the activation's output are recomputed, since they cost one pass over memory and would be the largest
//! part of the list. On the CPU `mlp.x` is made again as well, by the product of `attention.o` with `o_proj`: a tenth of the
//! list for 2% of the step. The backward pass takes the struct by value and drops each tensor after its last use.

use candle_core::Tensor;

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
    /// (T,) F32
    pub rstd: Tensor,
    /// (T, Hq, d)
    pub q: Tensor,
    /// (T, Hkv, d)
    pub k: Tensor,
    /// (T, Hkv, d)
    pub v: Tensor,
    /// (T·Hq,) F32
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
    /// (T, H), the block's input; `None` where the attention block is to make its output again.
    pub x: Option<Tensor>,
    /// (T,) F32
    pub rstd: Tensor,
    /// (T, I)
    pub gate: Tensor,
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
    /// What a layer holds on to until backward: on the CPU without what lies between its blocks.
    pub(super) fn held(mut self) -> Self {
        self.mlp.x = self.mlp.x.filter(|x| !x.device().is_cpu());
        self
    }

    /// Bytes of all tensors.
    pub(super) fn bytes(&self) -> usize {
        let Self { attention, mlp } = self;
        let fixed = [
            &attention.x,
            &attention.rstd,
            &attention.q,
            &attention.k,
            &attention.v,
            &attention.o,
            &attention.lse,
            &mlp.rstd,
            &mlp.gate,
            &mlp.up,
        ];
        let head_norms = attention.query_rstd.iter().chain(&attention.key_rstd);
        let adapters = attention.input_xa.iter().chain(&attention.output_xa);
        let adapters = adapters.chain(&mlp.input_xa).chain(&mlp.down_xa);
        let between = mlp.x.iter();
        let behind = attention.behind.iter().chain(&mlp.behind);
        let behind = behind.flat_map(|norm| [&norm.x, &norm.rstd]);
        let all = fixed
            .into_iter()
            .chain(between)
            .chain(head_norms)
            .chain(adapters)
            .chain(behind);
        all.map(bytes).sum()
    }
}

/// Bytes of one tensor's elements.
pub(super) fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}
