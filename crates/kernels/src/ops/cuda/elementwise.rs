//! Sums, bias, gated linear unit, dropout and rounding.

use candle_core::{DType, Result, Tensor};

use crate::gpu::{Argument, Source, arguments, element_name, empty, pack_size, source};
use crate::ops::dropout::MaskKey;
use crate::ops::glu::Activation;
use crate::ops::xielu::Curve;

static SOURCE: Source = source!("elementwise");

const THREADS: usize = 256;

/// Launches `kernel` with one thread for each pack of the tensors, which all have the same number of elements; the number
/// of packs goes behind `arguments`, then `rest`.
fn run(
    kernel: &str,
    tensors: &[&Tensor],
    arguments: &[Argument<'_>],
    rest: &[Argument<'_>],
    pack: usize,
) -> Result<()> {
    let (elements, dtype) = (tensors[0].elem_count(), tensors[0].dtype());
    let packs = elements / pack;
    let name = format!("{kernel}_{}_{pack}", element_name(dtype).unwrap_or_default());
    let launch = SOURCE.launch(&name, [packs.div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
    let mut all: Vec<Argument<'_>> = tensors.iter().map(|tensor| Argument::Tensor(tensor)).collect();
    all.extend_from_slice(arguments);
    all.push(Argument::U64(packs as u64));
    all.extend_from_slice(rest);
    launch.run(tensors[0].device(), &all)
}

/// x + y.
pub(crate) fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let (x, y) = (x.contiguous()?, y.to_dtype(x.dtype())?.contiguous()?);
    let sum = empty(x.shape(), x.dtype(), x.device())?;
    let pack = pack_size(x.elem_count(), &[&x, &y]);
    run("add", &[&x, &y, &sum], &[], &[], pack)?;
    Ok(sum)
}

/// x + scale y.
pub(crate) fn add_scaled(x: &Tensor, y: &Tensor, scale: f32) -> Result<Tensor> {
    let (x, y) = (x.contiguous()?, y.to_dtype(x.dtype())?.contiguous()?);
    let sum = empty(x.shape(), x.dtype(), x.device())?;
    let pack = pack_size(x.elem_count(), &[&x, &y]);
    run("add_scaled", &[&x, &y, &sum], &[Argument::F32(scale)], &[], pack)?;
    Ok(sum)
}

/// scale x.
pub(crate) fn scale(x: &Tensor, scale: f32) -> Result<Tensor> {
    let x = x.contiguous()?;
    let scaled = empty(x.shape(), x.dtype(), x.device())?;
    let pack = pack_size(x.elem_count(), &[&x]);
    run("multiply", &[&x, &scaled], &[Argument::F32(scale)], &[], pack)?;
    Ok(scaled)
}

/// Rounds `values` (F32) into `copy`; both are contiguous.
pub(crate) fn round(values: &Tensor, copy: &Tensor) -> Result<()> {
    let pack = pack_size(copy.elem_count(), &[copy, values]);
    run("round", &[copy, values], &[], &[], pack)
}

/// y (T, N) += scale times bias (N,), which is F32 or of y's dtype.
pub(crate) fn add_bias(y: &Tensor, bias: &Tensor, scale: f32) -> Result<()> {
    let (_, columns) = y.dims2()?;
    let is_wide = bias.dtype() == DType::F32;
    let bias = match is_wide {
        true => bias.contiguous()?,
        false => bias.to_dtype(y.dtype())?.contiguous()?,
    };
    let pack = pack_size(columns, &[y]);
    let kernel = if is_wide { "bias_wide" } else { "bias" };
    let rest = [Argument::U32((columns / pack) as u32)];
    run(
        kernel,
        &[y],
        &[Argument::Tensor(&bias), Argument::F32(scale)],
        &rest,
        pack,
    )
}

/// act(gate) up.
pub(crate) fn glu_forward(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
    let (gate, up) = (gate.contiguous()?, up.contiguous()?);
    let y = empty(gate.shape(), gate.dtype(), gate.device())?;
    let kernel = match activation {
        Activation::Silu => "silu_glu",
        Activation::GeluTanh => "gelu_glu",
    };
    run(
        kernel,
        &[&gate, &up, &y],
        &[],
        &[],
        pack_size(gate.elem_count(), &[&gate, &up]),
    )?;
    Ok(y)
}

/// Gradients with respect to gate and up, in the places of `gate` and `dy`; all are contiguous.
pub(crate) fn glu_backward(gate: &Tensor, up: &Tensor, dy: &Tensor, activation: Activation) -> Result<()> {
    let kernel = match activation {
        Activation::Silu => "silu_glu_backward",
        Activation::GeluTanh => "gelu_glu_backward",
    };
    let pack = pack_size(gate.elem_count(), &[gate, up, dy]);
    run(kernel, &[gate, up, dy], &[], &[], pack)
}

/// The clamped unit of gate and up.
pub(crate) fn clamped_glu_forward(gate: &Tensor, up: &Tensor, limit: f32) -> Result<Tensor> {
    let (gate, up) = (gate.contiguous()?, up.contiguous()?);
    let y = empty(gate.shape(), gate.dtype(), gate.device())?;
    let pack = pack_size(gate.elem_count(), &[&gate, &up]);
    run("clamped_glu", &[&gate, &up, &y], &[Argument::F32(limit)], &[], pack)?;
    Ok(y)
}

/// Gradients of the clamped unit with respect to gate and up.
pub(crate) fn clamped_glu_backward(gate: &Tensor, up: &Tensor, dy: &Tensor, limit: f32) -> Result<(Tensor, Tensor)> {
    let (gate, up, dy) = (gate.contiguous()?, up.contiguous()?, dy.contiguous()?);
    let like = || empty(gate.shape(), gate.dtype(), gate.device());
    let (d_gate, d_up) = (like()?, like()?);
    let pack = pack_size(gate.elem_count(), &[&gate, &up, &dy]);
    let tensors = [&gate, &up, &dy, &d_gate, &d_up];
    run("clamped_glu_backward", &tensors, &[Argument::F32(limit)], &[], pack)?;
    Ok((d_gate, d_up))
}

/// xIELU of each element.
pub(crate) fn xielu_forward(x: &Tensor, curve: Curve) -> Result<Tensor> {
    xielu(x, None, curve)
}

/// Gradient of xIELU with respect to x.
pub(crate) fn xielu_backward(x: &Tensor, dy: &Tensor, curve: Curve) -> Result<Tensor> {
    xielu(x, Some(dy), curve)
}

fn xielu(x: &Tensor, dy: Option<&Tensor>, curve: Curve) -> Result<Tensor> {
    let (x, dy) = (x.contiguous()?, dy.map(Tensor::contiguous).transpose()?);
    let y = empty(x.shape(), x.dtype(), x.device())?;
    let mut read = vec![&x];
    read.extend(&dy);
    let pack = pack_size(x.elem_count(), &read);
    let numbers = [curve.positive, curve.negative, curve.beta, curve.epsilon].map(Argument::F32);
    let mut arguments = vec![Argument::Maybe(dy.as_ref()), Argument::Tensor(&y)];
    arguments.extend(numbers);
    run("xielu", &[&x], &arguments, &[], pack)?;
    Ok(y)
}

/// Mask `number` of dropout on x under `key`; words below `threshold` are dropped.
pub(crate) fn dropout(x: &Tensor, key: &MaskKey, number: u64, threshold: u32, scale: f32) -> Result<Tensor> {
    let x = x.contiguous()?;
    let y = empty(x.shape(), x.dtype(), x.device())?;
    let key = match &key.on_device {
        Some(words) => words.clone(),
        None => Tensor::new(&key.words(), x.device())?,
    };
    let (count, rows) = (x.elem_count(), x.dims().first().copied().unwrap_or(1));
    // As many as there may be, wherever the first element lies.
    let groups = count.div_ceil(64) + 1;
    let name = format!("dropout_{}", element_name(x.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [(groups * 16).div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
    let arguments = arguments! {
        &x, &y, count as u64, &key, number, (count / rows) as u64, threshold, scale,
    };
    launch.run(x.device(), &arguments)?;
    Ok(y)
}
