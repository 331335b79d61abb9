//! Ops that pass over memory and multiply no matrices: their cost is their bytes.

use candle_core::{Result, Tensor};

use super::{bytes, pass};
use crate::span::{Work, op};
use peft_tune_kernels::ops::offsets::Offsets;

/// A module for each of [`peft_tune_kernels::ops`], with the types that its ops take, and with the ops: arguments and result,
/// name of the span, work.
macro_rules! in_spans {
    ($($module:ident [$($type:ident),*] {
        $($op:ident($($argument:ident: $of:ty),*) -> $result:ty, $span:literal, $work:expr;)*
    })*) => {$(
        pub(in crate::model) mod $module {
            use super::*;
            use peft_tune_kernels::ops::$module;
            #[allow(unused_imports, reason = "a module whose ops take tensors only has no types")]
            pub(in crate::model) use peft_tune_kernels::ops::$module::{$($type),*};

            $(
                #[doc = concat!("See [`peft_tune_kernels::ops::", stringify!($module), "`].")]
                pub(in crate::model) fn $op($($argument: $of),*) -> Result<$result> {
                    let _span = op($span, || $work);
                    $module::$op($($argument),*)
                }
            )*
        }
    )*};
}

in_spans! {
    residual [] {
        add(x: &Tensor, y: &Tensor) -> Tensor, "residual_add", pass(x, 3);
        add_scaled(x: &Tensor, y: &Tensor, scale: f64) -> Tensor, "residual_add", pass(x, 3);
        scale(x: &Tensor, scale: f64) -> Tensor, "scale", pass(x, 2);
    }
    centre [] {
        rows(x: &Tensor) -> Tensor, "centre", pass(x, 2);
    }
    xielu [Curve] {
        forward(x: &Tensor, curve: Curve) -> Tensor, "xielu", pass(x, 2);
        backward(x: &Tensor, dy: &Tensor, curve: Curve) -> Tensor, "xielu_backward", pass(x, 3);
    }
    rounding [] {
        round(values: &Tensor, copy: &Tensor) -> (), "round",
            Work { bytes: bytes(values) + bytes(copy), ..pass(copy, 1) };
    }
    bias [] {
        add(y: &Tensor, bias: &Tensor, scale: f64) -> (), "bias_add", pass(y, 2);
    }
    gain [NormParts] {
        scale(y: &Tensor, gain: &Tensor, shift: f32) -> (), "gain", pass(y, 2);
        backward(dz: &Tensor, y: &Tensor, gain: &Tensor, norm: &Tensor, d_magnitude: &Tensor) -> (),
            "gain_backward", pass(y, 3);
    }
    merged_rows [] {
        merge(weight: &Tensor, a: &Tensor, b: &Tensor, scaling: f64) -> Tensor, "merge", Work {
            flops: 2 * (weight.elem_count() * a.dims().first().copied().unwrap_or(0)) as u64,
            bytes: bytes(weight) + bytes(a) + bytes(b) + 4 * weight.elem_count() as u64,
            ..pass(weight, 1)
        };
    }
    own_columns [] {
        keep(x: &Tensor, rows: &Tensor, columns: &Tensor) -> Tensor, "own_columns", pass(x, 2);
    }
    dropout [MaskKey] {
        apply(x: &Tensor, key: &MaskKey, number: u64, p: f64) -> Tensor, "dropout", pass(x, 2);
    }
    rope [HeadNorms, RopeTable] {
        forward(x: &Tensor, table: &RopeTable, positions: &Tensor) -> Tensor, "rope", pass(x, 2);
        backward(dy: &Tensor, table: &RopeTable, positions: &Tensor) -> Tensor, "rope_backward", pass(dy, 2);
        forward_both(both: [Tensor; 2], table: &RopeTable, positions: &Tensor) -> [Tensor; 2],
            "rope", both_passed(&both);
        backward_both(both: [Tensor; 2], table: &RopeTable, positions: &Tensor) -> [Tensor; 2],
            "rope_backward", both_passed(&both);
        forward_normed(both: [Tensor; 2], norms: &HeadNorms<'_>, table: &RopeTable, positions: &Tensor)
            -> [(Tensor, Tensor); 2], "rope_normed", both_passed(&both);
    }
    rms_norm [] {
        forward(x: &Tensor, weight: &Tensor, epsilon: f64, offset: f32) -> (Tensor, Tensor), "rms_norm", pass(x, 2);
        backward(x: &Tensor, weight: &Tensor, rstd: &Tensor, dy: &Tensor, offset: f32) -> Tensor,
            "rms_norm_backward", pass(x, 3);
        backward_onto(x: &Tensor, weight: &Tensor, rstd: &Tensor, dy: &Tensor, offset: f32, more: Option<&Tensor>)
            -> Tensor, "rms_norm_backward", pass(x, 4);
        weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Tensor, "rms_norm_weight_gradient", pass(x, 2);
    }
    glu [Activation] {
        forward(gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor, "glu", pass(gate, 3);
        backward(gate: Tensor, up: &Tensor, dy: Tensor, activation: Activation) -> (Tensor, Tensor),
            "glu_backward", pass(&gate, 5);
    }
    routing [Routing, Scores, Settings] {
        forward(logits: &Tensor, correction: Option<&Tensor>, settings: &Settings) -> Routing, "route", pass(logits, 2);
        backward(routing: &Routing, d_weights: &Tensor, settings: &Settings) -> Tensor, "route_backward",
            pass(&routing.scores, 2);
    }
    rows [] {
        gather(x: &Tensor, index: &Tensor) -> Tensor, "gather_rows", rows_passed(x, index);
        sum(onto: Option<&Tensor>, y: &Tensor, rows: &Tensor) -> Tensor, "sum_rows", pass(y, 1);
        scale(y: &Tensor, weights: &Tensor) -> (), "scale_rows", pass(y, 2);
        dot(a: &Tensor, b: &Tensor) -> Tensor, "dot_rows", pass(a, 2);
    }
    clamped_glu [] {
        forward(gate: &Tensor, up: &Tensor, limit: f32) -> Tensor, "clamped_glu", pass(gate, 3);
        backward(gate: &Tensor, up: &Tensor, dy: &Tensor, limit: f32) -> (Tensor, Tensor), "clamped_glu_backward",
            pass(gate, 5);
    }
    latent_heads [] {
        forward(expanded: &Tensor, shared: &Tensor, heads: usize, plain: usize) -> (Tensor, Tensor), "latent_heads",
            pass(expanded, 2);
        backward(d_k: &Tensor, d_v: &Tensor, plain: usize) -> (Tensor, Tensor), "latent_heads_backward", pass(d_k, 2);
    }
    convolution [Convolution] {
        forward(x: &Tensor, of: Convolution<'_>, before: Option<&Tensor>) -> Tensor, "convolution", pass(x, 2);
        backward(x: &Tensor, of: Convolution<'_>, dy: &Tensor) -> Tensor, "convolution_backward", pass(x, 3);
        gated_forward(all: [&Tensor; 3], of: Convolution<'_>, before: Option<&Tensor>) -> Tensor, "convolution",
            pass(all[0], 4);
        gated_backward(all: [&Tensor; 3], of: Convolution<'_>, dy: &Tensor) -> [Tensor; 3], "convolution_backward",
            pass(all[0], 10);
    }
    gated_norm [] {
        forward(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64) -> Tensor, "gated_norm", pass(x, 3);
        backward(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64, dy: &Tensor) -> (Tensor, Tensor),
            "gated_norm_backward", pass(x, 5);
        weight_gradient(x: &Tensor, z: &Tensor, weight: &Tensor, epsilon: f64, dy: &Tensor) -> Tensor,
            "gated_norm_weight_gradient", pass(x, 3);
    }
    head_gate [] {
        split(both: &Tensor, head_dim: usize) -> (Tensor, Tensor), "split_gates", pass(both, 2);
        join(d_q: &Tensor, d_gate: &Tensor, head_dim: usize) -> Tensor, "join_gates", pass(d_q, 4);
        forward(o: &Tensor, gate: &Tensor) -> Tensor, "head_gate", pass(o, 3);
        backward(o: &Tensor, gate: &Tensor, dy: &Tensor) -> (Tensor, Tensor), "head_gate_backward", pass(o, 5);
    }
    sinks [] {
        apply(o: &Tensor, lse: &Tensor, sinks: &Tensor) -> (), "sinks", pass(o, 2);
    }
    expert_parts [] {
        add_of_experts(y: &Tensor, biases: &Tensor, offsets: &Offsets, weights: Option<&Tensor>) -> (), "bias_add",
            pass(y, 2);
        dot_of_experts(dy: &Tensor, biases: &Tensor, offsets: &Offsets) -> Tensor, "dot_rows", pass(dy, 1);
        split_experts(b: &Tensor, experts: usize) -> Tensor, "split_experts", pass(b, 2);
        join_experts_add(parts: &Tensor, into: &Tensor) -> (), "join_experts", pass(parts, 3);
    }
    embedding [] {
        forward(table: &Tensor, ids: &Tensor) -> Tensor, "embedding", rows_passed(table, ids);
        backward_add(dy: &Tensor, ids: &Tensor, into: &Tensor) -> (), "embedding_backward", pass(dy, 3);
    }
}

/// Queries and keys, read and written.
fn both_passed([q, k]: &[Tensor; 2]) -> Work {
    Work {
        bytes: 2 * (bytes(q) + bytes(k)),
        ..pass(q, 2)
    }
}

/// A row of the table for each id, read and written.
fn rows_passed(table: &Tensor, ids: &Tensor) -> Work {
    let row = table
        .dims2()
        .map_or(0, |(_, width)| width * table.dtype().size_in_bytes());
    Work {
        bytes: 2 * (ids.elem_count() * row) as u64,
        ..pass(ids, 1)
    }
}
