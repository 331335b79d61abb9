//! RMS normalisation.

use candle_core::{DType, Result, Tensor};

use crate::gpu::{Argument, Source, arguments, element_name, empty, pack_size, source};
use peft_tune_core::plan::passes::norm_parts_on_gpu;

static SOURCE: Source = source!("rms_norm");

/// Rows up to this many packs have a warp; longer ones a block.
const WARP_PACKS: usize = 128;

/// Threads of a row, and rows of a block.
fn threads(packs: usize) -> [usize; 3] {
    match packs {
        0..=WARP_PACKS => [32, 8, 1],
        // One or two packs a thread.
        _ => [packs.next_power_of_two().clamp(128, 512), 1, 1],
    }
}

/// (y, rstd).
pub(crate) fn forward(x: &Tensor, weight: &Tensor, eps: f64, offset: f32) -> Result<(Tensor, Tensor)> {
    let (rows, width) = x.dims2()?;
    let (x, weight) = (x.contiguous()?, weight.to_dtype(x.dtype())?.contiguous()?);
    let (y, rstd) = (
        empty((rows, width), x.dtype(), x.device())?,
        empty(rows, DType::F32, x.device())?,
    );
    let arguments = arguments! { &x, &weight, &y, &rstd, rows as u32, width as u32, eps as f32, offset };
    run("rms_norm", &x, &[&x, &weight], &arguments)?;
    Ok((y, rstd))
}

/// dx, plus `residual` of its shape where there is one.
pub(crate) fn backward(
    x: &Tensor,
    weight: &Tensor,
    rstd: &Tensor,
    dy: &Tensor,
    offset: f32,
    residual: Option<&Tensor>,
) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let (x, dy, rstd) = (x.contiguous()?, dy.contiguous()?, rstd.contiguous()?);
    let weight = weight.to_dtype(x.dtype())?.contiguous()?;
    let residual = residual.map(Tensor::contiguous).transpose()?;
    let dx = empty((rows, width), x.dtype(), x.device())?;
    let arguments = arguments! {
        &x, &weight, &rstd, &dy, residual.as_ref(), &dx, rows as u32, width as u32, offset,
    };
    let mut read = vec![&x, &weight, &dy];
    read.extend(&residual);
    run("rms_norm_backward", &x, &read, &arguments)?;
    Ok(dx)
}

/// x - mean(x) by row.
pub(crate) fn centre(x: &Tensor) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let x = x.contiguous()?;
    let y = empty((rows, width), x.dtype(), x.device())?;
    run("centre", &x, &[&x], &arguments! { &x, &y, rows as u32, width as u32 })?;
    Ok(y)
}

fn run(kernel: &str, x: &Tensor, read: &[&Tensor], arguments: &[Argument<'_>]) -> Result<()> {
    let (rows, width) = x.dims2()?;
    let pack = pack_size(width, read);
    let threads = threads(width / pack);
    let name = format!("{kernel}_{}_{pack}", element_name(x.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [rows.div_ceil(threads[1]), 1, 1], threads);
    launch.run(x.device(), arguments)
}

/// Gradient of the weight, (H,) F32.
pub(crate) fn weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    let (x, dy, rstd) = (x.contiguous()?, dy.contiguous()?, rstd.contiguous()?);
    let parts = norm_parts_on_gpu(rows);
    let partial = empty((parts, width), DType::F32, x.device())?;
    let name = format!("rms_norm_weight_{}", element_name(x.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [width.div_ceil(128), parts, 1], [128, 1, 1]);
    let arguments = arguments! {
        &x, &rstd, &dy, &partial, rows as u32, width as u32, rows.div_ceil(parts) as u32,
    };
    launch.run(x.device(), &arguments)?;
    partial.sum(0)
}
