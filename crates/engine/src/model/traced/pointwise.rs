//! Ops that pass over memory and multiply no matrices: their cost is their bytes.

use candle_core::{DType, Result};

use super::expert_offsets::Offsets;
use super::kernel::{Argument, Measured, Outcome};
use super::passed::{Apart, Passed, RunOnPaper, moving, over, over_both};
use super::products_on_paper::product_on_paper;
use super::{NormParts, Parameter, Tensor, bytes, pass};
use crate::span::{Work, op};
use crate::tensor::PaperTensor;
use peft_tune_core::plan::Memory;
use peft_tune_core::plan::passes::{gain_sums, gated_norm_room, norm_sums};
use peft_tune_core::predict::{MemoryCategory, Pass};
use peft_tune_kernels::ops::convolution::Convolution;

/// A module for each of [`peft_tune_kernels::ops`], with the types that its ops take, and with the ops: arguments and result,
/// name of the span, work; and which argument's paper it runs on, with what it makes there. Of those the work is [`Passed`] or [`Apart`].
macro_rules! in_spans {
    ($($module:ident [$($type:ident),*] {
        $($op:ident($($argument:ident: $of:ty),*) -> $result:ty, $span:literal, $work:expr
            $(, $paper:ident of $on:expr => $made:expr)?;)*
    })*) => {$(
        pub(in crate::model) mod $module {
            use super::*;
            use peft_tune_kernels::ops::$module;
            #[allow(unused_imports, reason = "a module whose ops take tensors only has no types")]
            pub(in crate::model) use peft_tune_kernels::ops::$module::{$($type),*};

            $(
                #[doc = concat!("See [`peft_tune_kernels::ops::", stringify!($module), "`].")]
                pub(in crate::model) fn $op($($argument: $of),*) -> Result<$result> {
                    let _span = op($span, || Work::from($work));
                    $(if let Some($paper) = $on.paper() {
                        RunOnPaper::run_on($work, $paper);
                        return Ok($made);
                    })?
                    let kernel = $module::$op($(Argument::kernel($argument)?),*)?;
                    Ok(Outcome::of(kernel))
                }
            )*
        }
    )*};
}

in_spans! {
    residual [] {
        add(x: &Tensor, y: &Tensor) -> Tensor, "residual_add", over(x, Pass::Add), paper of x => paper.alike().into();
        add_scaled(x: &Tensor, y: &Tensor, scale: f64) -> Tensor, "residual_add", over(x, Pass::Add),
            paper of x => paper.alike().into();
        scale(x: &Tensor, scale: f64) -> Tensor, "scale", over(x, Pass::Copy), paper of x => paper.alike().into();
    }
    centre [] {
        rows(x: &Tensor) -> Tensor, "centre", over(x, Pass::Copy), paper of x => paper.alike().into();
    }
    xielu [Curve] {
        forward(x: &Tensor, curve: Curve) -> Tensor, "xielu", moving(x, Pass::GluForward, 2),
            paper of x => paper.alike().into();
        backward(x: &Tensor, dy: &Tensor, curve: Curve) -> Tensor, "xielu_backward", moving(x, Pass::GluBackward, 3),
            paper of x => paper.alike().into();
    }
    rounding [] {
        round(values: &Parameter, copy: &Tensor) -> (), "round",
            Passed { bytes: bytes(values) + bytes(copy), ..over(copy, Pass::Copy) }, paper of copy => ();
    }
    bias [] {
        add(y: &Tensor, bias: &Parameter, scale: f64) -> (), "bias_add", over(y, Pass::Bias), paper of y => ();
    }
    gain [] {
        scale(y: &Tensor, gain: &Parameter, shift: f32) -> (), "gain", over(y, Pass::Bias), paper of y => ();
        backward(dz: &Tensor, y: &Tensor, gain: &Parameter, norm: &Parameter, d_magnitude: &Parameter) -> (),
            "gain_backward", over(y, Pass::Add), paper of y => sum_gains(paper)?;
        norm(parts: NormParts<'_>) -> Parameter, "row_norms", parts.work();
        fill(parts: NormParts<'_>, magnitude: &Parameter, norm: &Parameter, gain: &Parameter) -> (), "row_norms",
            Apart(parts.work()), paper of parts.projected => parts.on_paper(paper)?;
    }
    merged_rows [] {
        merge(weight: &Tensor, a: &Parameter, b: &Parameter, scaling: f64) -> Tensor, "merge", Apart(Work {
            flops: 2 * (weight.elem_count() * a.dims().first().copied().unwrap_or(0)) as u64,
            bytes: bytes(weight) + bytes(a) + bytes(b) + 4 * weight.elem_count() as u64,
            ..pass(weight, 1)
        }), paper of weight => merged(paper, a)?;
    }
    own_columns [] {
        keep(x: &Tensor, rows: &Parameter, columns: &Parameter) -> Tensor, "own_columns", over(x, Pass::Copy),
            paper of x => paper.alike().into();
    }
    dropout [MaskKey] {
        apply(x: &Tensor, key: &MaskKey, number: u64, p: f64) -> Tensor, "dropout", over(x, Pass::Dropout),
            paper of x => paper.alike().into();
    }
    rope [HeadNorms, RopeTable] {
        forward(x: &Tensor, table: &RopeTable, positions: &Tensor) -> Tensor, "rope", over(x, Pass::Rope),
            paper of x => paper.alike().into();
        backward(dy: &Tensor, table: &RopeTable, positions: &Tensor) -> Tensor, "rope_backward", over(dy, Pass::Rope),
            paper of dy => paper.alike().into();
        forward_both(both: [Tensor; 2], table: &RopeTable, positions: &Tensor) -> [Tensor; 2],
            "rope", over_both(both.each_ref(), Pass::Rope), paper of both[0] => both.map(turned);
        backward_both(both: [Tensor; 2], table: &RopeTable, positions: &Tensor) -> [Tensor; 2],
            "rope_backward", over_both(both.each_ref(), Pass::Rope), paper of both[0] => both.map(turned);
        forward_normed(both: [Tensor; 2], norms: &HeadNorms<'_>, table: &RopeTable, positions: &Tensor)
            -> [(Tensor, Tensor); 2], "rope_normed", over_both(both.each_ref(), Pass::Rope),
            paper of both[0] => both.each_ref().map(|x| normed(paper, x));
    }
    rms_norm [] {
        forward(x: &Tensor, weight: &Parameter, epsilon: f64, offset: f32) -> (Tensor, Tensor), "rms_norm",
            over(x, Pass::NormForward),
            paper of x => (paper.alike().into(), paper.fresh(x.dims2()?.0, DType::F32).into());
        backward(x: &Tensor, weight: &Parameter, rstd: &Tensor, dy: &Tensor, offset: f32) -> Tensor,
            "rms_norm_backward", over(x, Pass::NormBackward), paper of x => norm_gradient(paper, rstd);
        backward_onto(
            x: &Tensor, weight: &Parameter, rstd: &Tensor, dy: &Tensor, offset: f32, more: Option<&Tensor>
        ) -> Tensor, "rms_norm_backward", moving(x, Pass::NormBackward, 4), paper of x => norm_gradient(paper, rstd);
        weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Tensor, "rms_norm_weight_gradient", Apart(pass(x, 2)),
            paper of x => norm_weight_gradient(paper)?;
    }
    glu [Activation] {
        forward(gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor, "glu", over(gate, Pass::GluForward),
            paper of gate => paper.alike().into();
        backward(gate: Tensor, up: &Tensor, dy: Tensor, activation: Activation) -> (Tensor, Tensor),
            "glu_backward", over(&gate, Pass::GluBackward), paper of gate => glu_gradients(paper, dy);
    }
    rows [] {
        gather(x: &Tensor, index: &Tensor) -> Tensor, "gather_rows", gathered(x, index),
            paper of x => paper.fresh((index.dims1()?, x.dims2()?.1), x.dtype()).into();
        sum(onto: Option<&Tensor>, y: &Tensor, rows: &Tensor) -> Tensor, "sum_rows", moving(y, Pass::Add, 1),
            paper of y => paper.fresh((rows.dims2()?.0, y.dims2()?.1), y.dtype()).into();
        scale(y: &Tensor, weights: &Tensor) -> (), "scale_rows", over(y, Pass::Copy),
            paper of y => list_read(paper, bytes(weights));
        dot(a: &Tensor, b: &Tensor) -> Tensor, "dot_rows", over(a, Pass::Copy),
            paper of a => paper.fresh(a.dims2()?.0, DType::F32).into();
    }
    clamped_glu [] {
        forward(gate: &Tensor, up: &Tensor, limit: f32) -> Tensor, "clamped_glu", over(gate, Pass::GluForward),
            paper of gate => paper.alike().into();
        backward(gate: &Tensor, up: &Tensor, dy: &Tensor, limit: f32) -> (Tensor, Tensor), "clamped_glu_backward",
            over(gate, Pass::GluBackward), paper of gate => (paper.alike().into(), paper.alike().into());
    }
    latent_heads [] {
        forward(expanded: &Tensor, shared: &Tensor, heads: usize, plain: usize) -> (Tensor, Tensor), "latent_heads",
            heads_passed(expanded, shared, heads), paper of expanded => latent_keys(paper, shared, heads, plain)?;
        backward(d_k: &Tensor, d_v: &Tensor, plain: usize) -> (Tensor, Tensor), "latent_heads_backward",
            head_gradients_passed(d_k, d_v),
            paper of d_k => latent_gradients(paper, d_v, plain)?;
    }
    convolution [Convolution] {
        forward(x: &Tensor, of: Convolution<'_>, before: Option<&Parameter>) -> Tensor, "convolution",
            moving(x, Pass::GluForward, 2),
            paper of x => convolved(paper, of)?;
        backward(x: &Tensor, of: Convolution<'_>, dy: &Tensor) -> Tensor, "convolution_backward",
            over(x, Pass::GluForward),
            paper of x => convolution_gradient(paper, of)?;
        gated_forward(all: [&Tensor; 3], of: Convolution<'_>, before: Option<&Parameter>) -> Tensor, "convolution",
            moving(all[0], Pass::GluForward, 4), paper of all[0] => convolved(paper, of)?;
        gated_backward(all: [&Tensor; 3], of: Convolution<'_>, dy: &Tensor) -> [Tensor; 3], "convolution_backward",
            Passed { times: 2, ..moving(all[0], Pass::GluForward, 10) }, paper of all[0] => gated_gradients(paper, of)?;
    }
    gated_norm [] {
        forward(x: &Tensor, z: &Tensor, weight: &Parameter, epsilon: f64) -> Tensor, "gated_norm",
            over(x, Pass::GluForward),
            paper of x => paper.alike().into();
        backward(x: &Tensor, z: &Tensor, weight: &Parameter, epsilon: f64, dy: &Tensor) -> (Tensor, Tensor),
            "gated_norm_backward", over(x, Pass::GluBackward),
            paper of x => (paper.alike().into(), paper.alike().into());
        weight_gradient(x: &Tensor, z: &Tensor, weight: &Parameter, epsilon: f64, dy: &Tensor) -> Tensor,
            "gated_norm_weight_gradient", Apart(pass(x, 3)),
            paper of x => gated_norm_weight_gradient(paper)?;
    }
    head_gate [] {
        split(both: &Tensor, head_dim: usize) -> (Tensor, Tensor), "split_gates", over(both, Pass::Copy),
            paper of both => (of_width(paper, 1, 2).into(), of_width(paper, 1, 2).into());
        join(d_q: &Tensor, d_gate: &Tensor, head_dim: usize) -> Tensor, "join_gates",
            over_both([d_q, d_gate], Pass::Copy),
            paper of d_q => of_width(paper, 2, 1).into();
        forward(o: &Tensor, gate: &Tensor) -> Tensor, "head_gate", over(o, Pass::GluForward),
            paper of o => paper.alike().into();
        backward(o: &Tensor, gate: &Tensor, dy: &Tensor) -> (Tensor, Tensor), "head_gate_backward",
            over(o, Pass::GluBackward),
            paper of o => (paper.alike().into(), paper.alike().into());
    }
    sinks [] {
        apply(o: &Tensor, lse: &Tensor, sinks: &Parameter) -> (), "sinks", over(o, Pass::Copy),
            paper of o => paper.ledger().spike(MemoryCategory::Scratch, 3 * bytes(lse));
    }
    expert_parts [] {
        add_of_experts(y: &Tensor, biases: &Parameter, offsets: &Offsets, weights: Option<&Tensor>) -> (), "bias_add",
            over(y, Pass::Bias), paper of y => biases_added(paper, biases, weights.is_some())?;
        dot_of_experts(dy: &Tensor, biases: &Parameter, offsets: &Offsets) -> Tensor, "dot_rows",
            moving(dy, Pass::Copy, 1),
            paper of dy => bias_products(paper, biases)?;
        split_experts(b: &Tensor, experts: usize) -> Tensor, "split_experts", over(b, Pass::Copy),
            paper of b => split(paper, experts)?;
        join_experts_add(parts: &Tensor, into: &Tensor) -> (), "join_experts", over(parts, Pass::Add),
            paper of parts => ();
    }
    embedding [] {
        forward(table: &Parameter, ids: &Tensor) -> Tensor, "embedding", gathered(table, ids),
            paper of ids => paper.fresh((ids.dims1()?, table.dims2()?.1), table.dtype()).into();
        backward_add(dy: &Tensor, ids: &Tensor, into: &Parameter) -> (), "embedding_backward", over(dy, Pass::Add),
            paper of dy => ();
    }
}

/// Queries or keys behind a rotation, which a GPU turns where they lie.
fn turned(x: Tensor) -> Tensor {
    match x.paper() {
        Some(paper) if !x.is_on_gpu() => paper.alike().into(),
        _ => x,
    }
}

/// Queries or keys behind the norms of their heads and a rotation, with rstd.
fn normed(paper: &PaperTensor, x: &Tensor) -> (Tensor, Tensor) {
    let heads = x.elem_count() / x.dims().last().copied().unwrap_or(1).max(1);
    let y = paper.fresh(x.shape().clone(), x.dtype());
    (y.into(), paper.fresh(heads, DType::F32).into())
}

/// A tensor of as many rows, with `times` / `over` of the columns.
fn of_width(paper: &PaperTensor, times: usize, over: usize) -> PaperTensor {
    let mut dims = paper.shape().dims().to_vec();
    dims.last_mut()
        .into_iter()
        .for_each(|width| *width = *width * times / over);
    paper.fresh(dims, paper.dtype())
}

/// Keys and values of latent attention.
fn latent_keys(paper: &PaperTensor, shared: &Tensor, heads: usize, plain: usize) -> Result<(Tensor, Tensor)> {
    let ((tokens, width), turning) = (paper.shape().dims2()?, shared.dims3()?.2);
    let k = paper.fresh((tokens, heads, plain + turning), paper.dtype());
    let v = paper.fresh((tokens, heads, width / heads - plain), paper.dtype());
    Ok((k.into(), v.into()))
}

/// The gradients of what [`latent_keys`] takes.
fn latent_gradients(d_k: &PaperTensor, d_v: &Tensor, plain: usize) -> Result<(Tensor, Tensor)> {
    let ((tokens, heads, key), (_, _, value)) = (d_k.shape().dims3()?, d_v.dims3()?);
    let d_expanded = d_k.fresh((tokens, heads * (plain + value)), d_k.dtype());
    let d_shared = d_k.fresh((tokens, 1, key - plain), d_k.dtype());
    Ok((d_expanded.into(), d_shared.into()))
}

/// The result of a convolution: the taps in F32, and a row of sums for each thread, are there meanwhile.
fn convolved(x: &PaperTensor, of: Convolution<'_>) -> Result<Tensor> {
    let y = x.alike();
    let (width, _, taps) = of.weight.dims3()?;
    let threads = x.ledger().host().threads;
    x.ledger()
        .spike(MemoryCategory::Scratch, (4 * width * (taps + threads)) as u64);
    Ok(y.into())
}

/// The gradient of a convolution's input: beside it each thread has rows of gradients that are not whole yet.
fn convolution_gradient(x: &PaperTensor, of: Convolution<'_>) -> Result<Tensor> {
    let (width, _, taps) = of.weight.dims3()?;
    let rings = 4 * x.ledger().host().threads * taps * width;
    let dx = convolved(x, of)?;
    x.ledger().spike(MemoryCategory::Scratch, rings as u64);
    Ok(dx)
}

/// The gradients of the three inputs of a gated convolution.
fn gated_gradients(x: &PaperTensor, of: Convolution<'_>) -> Result<[Tensor; 3]> {
    let first = convolved(x, of)?;
    let second = x.alike();
    Ok([first, second.into(), convolved(x, of)?])
}

/// Gradient that a norm's backward pass gives; the CPU reads a copy of rstd.
fn norm_gradient(x: &PaperTensor, rstd: &Tensor) -> Tensor {
    let dx = x.alike();
    x.ledger().spike(MemoryCategory::Scratch, bytes(rstd));
    dx.into()
}

/// Rows of a weight with its adapter's part, F32.
fn merged(weight: &PaperTensor, a: &Parameter) -> Result<Tensor> {
    let ((rows, columns), depth) = (weight.shape().dims2()?, a.dims2()?.0);
    product_on_paper(weight, [rows, columns, depth]);
    over(weight, Pass::Copy).run_on(weight);
    Ok(weight.fresh((rows, columns), DType::F32).into())
}

/// Takes the sums over some rows each that a gain's backward pass adds up.
fn sum_gains(y: &PaperTensor) -> Result<()> {
    let ((rows, width), ledger) = (y.shape().dims2()?, y.ledger());
    let sums = gain_sums(rows, width, ledger.host().memory());
    ledger.spike(MemoryCategory::Scratch, sums);
    Ok(())
}

/// The gradient of a norm's weight, from the sums of parts of the rows.
fn norm_weight_gradient(x: &PaperTensor) -> Result<Tensor> {
    let ((rows, width), ledger) = (x.shape().dims2()?, x.ledger());
    let gradient = x.fresh(width, DType::F32);
    let sums = norm_sums(rows, width, ledger.host().memory());
    ledger.spike(MemoryCategory::Scratch, sums);
    Ok(gradient.into())
}

/// The gradient of a gated norm's weight, which plain ops make.
fn gated_norm_weight_gradient(x: &PaperTensor) -> Result<Tensor> {
    let ((rows, width), element_bytes) = (x.shape().dims2()?, x.dtype().size_in_bytes() as u64);
    let room = gated_norm_room(rows * width, element_bytes);
    x.ledger().spike(MemoryCategory::Scratch, room);
    Ok(x.fresh(width, DType::F32).into())
}

/// A list of numbers that the CPU reads from a copy.
fn list_read(of: &PaperTensor, bytes: u64) {
    if of.ledger().host().memory() == Memory::Host {
        of.ledger().spike(MemoryCategory::Scratch, bytes);
    }
}

/// Bytes of biases as kernels read them, in F32, and of the copy that they are widened from.
fn biases_read(biases: &Parameter) -> [u64; 2] {
    let wide = 4 * biases.elem_count() as u64;
    [wide, if biases.dtype() == DType::F32 { 0 } else { wide }]
}

/// Biases added to the rows of y in place: the CPU has lists of each row's expert and weight beside them.
fn biases_added(y: &PaperTensor, biases: &Parameter, are_weighted: bool) -> Result<()> {
    let ([wide, copy], ledger) = (biases_read(biases), y.ledger());
    if ledger.host().memory() == Memory::Device {
        ledger.spike(MemoryCategory::Scratch, copy);
        return Ok(());
    }
    let list = 4 * y.shape().dims2()?.0 as u64;
    ledger.spike(MemoryCategory::Scratch, wide + copy);
    ledger.spike(MemoryCategory::Scratch, wide + list * (1 + u64::from(are_weighted)));
    Ok(())
}

/// The sum over each row of dy times a bias: the CPU has a list of each row's expert beside them.
fn bias_products(dy: &PaperTensor, biases: &Parameter) -> Result<Tensor> {
    let ([wide, copy], ledger, rows) = (biases_read(biases), dy.ledger(), dy.shape().dims2()?.0);
    let list = 4 * rows as u64;
    list_read(dy, list + wide + copy);
    let sums = dy.fresh(rows, DType::F32);
    let beside = match ledger.host().memory() {
        Memory::Host => list + wide,
        Memory::Device => copy,
    };
    ledger.spike(MemoryCategory::Scratch, beside);
    Ok(sums.into())
}

/// The factors of each expert, (E, N, r) of b (N, r E), whose rows are brought together first.
fn split(b: &PaperTensor, experts: usize) -> Result<Tensor> {
    let (rows, columns) = b.shape().dims2()?;
    let source = b.contiguous();
    Ok(source.fresh((experts, rows, columns / experts), b.dtype()).into())
}

/// The gradients of gate and up: on a GPU in the places of gate and dy.
fn glu_gradients(gate: &PaperTensor, dy: Tensor) -> (Tensor, Tensor) {
    if dy.is_on_gpu() {
        gate.ledger().let_go(gate);
        return (gate.clone().into(), dy);
    }
    (gate.alike().into(), gate.alike().into())
}

/// Passes of latent attention over what it makes keys and values of, each read and written; copies of keys and values
/// are predicted.
fn heads_passed(expanded: &Tensor, shared: &Tensor, heads: usize) -> Passed {
    let turning = shared.dims().last().copied().unwrap_or(0);
    Passed {
        elements: expanded.elem_count() + expanded.dims().first().copied().unwrap_or(0) * heads * turning,
        ..over(expanded, Pass::Copy)
    }
}

/// Gradients of keys and values, of which a span shows the keys'.
fn head_gradients_passed(d_k: &Tensor, d_v: &Tensor) -> Passed {
    Passed {
        bytes: 2 * bytes(d_k),
        ..over_both([d_k, d_v], Pass::Copy)
    }
}

/// A row of the table for each id, read and written.
fn gathered(table: &impl Measured, ids: &Tensor) -> Passed {
    let (rows, width) = (ids.elem_count(), table.sizes().last().copied().unwrap_or(0));
    Passed {
        elements: rows * width,
        bytes: 2 * (rows * width * table.element().size_in_bytes()) as u64,
        ..over(ids, Pass::Gather)
    }
}
