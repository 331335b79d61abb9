//! A factor for each column.

use candle_core::{DType, Result, Tensor};

use crate::gpu::{Argument, Launch, Source, arguments, element_name, empty, pack_size, source};
use crate::ops::gain::NormParts;
use peft_tune_core::plan::passes::GAIN_ROWS_GPU as ROWS;

static SOURCE: Source = source!("gain");

/// Threads beside each other, each of which has a pack of columns.
const LANES: usize = 32;
/// Threads that take rows in turns.
const TURNS: usize = 8;

fn launch<'a>(kernel: &'a str, blocks: [usize; 2], threads: [usize; 2]) -> Launch<'a> {
    SOURCE.launch(kernel, [blocks[0], blocks[1], 1], [threads[0], threads[1], 1])
}

fn name(kernel: &str, tensor: &Tensor, pack: usize) -> String {
    format!("{kernel}_{}_{pack}", element_name(tensor.dtype()).unwrap_or_default())
}

/// y (T, N) *= gain (N,) + shift.
pub(crate) fn scale(y: &Tensor, gain: &Tensor, shift: f32) -> Result<()> {
    let (_, columns) = y.dims2()?;
    let gain = gain.contiguous()?;
    let pack = pack_size(columns, &[y]);
    let packs = y.elem_count() / pack;
    let arguments = arguments! { y, &gain, shift, packs as u64, (columns / pack) as u32 };
    launch(&name("gain_scale", y, pack), [packs.div_ceil(256), 1], [256, 1]).run(y.device(), &arguments)
}

/// d_magnitude += the sum over the rows of dz ⊙ y / norm; y becomes dz ⊙ gain.
pub(crate) fn backward(dz: &Tensor, y: &Tensor, gain: &Tensor, norm: &Tensor, d_magnitude: &Tensor) -> Result<()> {
    let ((rows, columns), device) = (y.dims2()?, y.device());
    let (gain, norm, bands) = (gain.contiguous()?, norm.contiguous()?, rows.div_ceil(ROWS));
    let partial = empty((bands, columns), DType::F32, device)?;
    let pack = pack_size(columns, &[y, dz]);
    let arguments = arguments! { dz, y, &gain, &partial, rows as u32, columns as u32 };
    let blocks = [(columns / pack).div_ceil(LANES), bands];
    launch(&name("gain_backward", y, pack), blocks, [LANES, TURNS]).run(device, &arguments)?;
    let arguments = arguments! { &partial, &norm, d_magnitude, bands as u32, columns as u32 };
    launch("gain_gradient", [columns.div_ceil(128), 1], [128, 1]).run(device, &arguments)
}

/// Row norms into `norm`, magnitudes over them into `gain`.
pub(crate) fn fill(parts: &NormParts<'_>, magnitude: &Tensor, norm: &Tensor, gain: &Tensor) -> Result<()> {
    let (columns, rank) = parts.b.dims2()?;
    let tensors = [parts.squared, parts.projected, parts.gram, parts.b, magnitude];
    let tensors = tensors
        .map(Tensor::contiguous)
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let mut arguments: Vec<Argument<'_>> = tensors.iter().map(Argument::Tensor).collect();
    arguments.extend([
        Argument::Tensor(norm),
        Argument::Tensor(gain),
        Argument::F32(parts.scaling as f32),
        Argument::U32(columns as u32),
        Argument::U32(rank as u32),
    ]);
    let kernel = format!(
        "gain_fill_{}",
        element_name(parts.projected.dtype()).unwrap_or_default()
    );
    launch(&kernel, [columns.div_ceil(128), 1], [128, 1]).run(parts.b.device(), &arguments)
}
