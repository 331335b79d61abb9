//! A factor for each column.

use candle_core::{DType, Result, Tensor};

use crate::gpu::{Argument, Launch, Source, element_name, empty, pack_size};
use crate::ops::gain::NormParts;

static SOURCE: Source = Source {
    name: "gain",
    text: include_str!("gain.cu"),
    headers: &[],
};

/// Threads beside each other, each of which has a pack of columns.
const LANES: usize = 32;
/// Threads that take rows in turns.
const TURNS: usize = 8;
/// Rows of a block of the backward pass.
const ROWS: usize = 128;

fn launch<'a>(kernel: &'a str, blocks: [usize; 2], threads: [usize; 2]) -> Launch<'a> {
    Launch {
        source: &SOURCE,
        kernel,
        blocks: [blocks[0], blocks[1], 1],
        threads: [threads[0], threads[1], 1],
        shared_bytes: 0,
    }
}

fn name(kernel: &str, tensor: &Tensor, pack: usize) -> String {
    format!("{kernel}_{}_{pack}", element_name(tensor.dtype()).unwrap_or_default())
}

/// y (T, N) *= gain (N,) + shift.
pub fn scale(y: &Tensor, gain: &Tensor, shift: f32) -> Result<()> {
    let (_, columns) = y.dims2()?;
    let gain = gain.contiguous()?;
    let pack = pack_size(columns, &[y]);
    let packs = y.elem_count() / pack;
    let arguments = [
        Argument::Tensor(y),
        Argument::Tensor(&gain),
        Argument::F32(shift),
        Argument::U64(packs as u64),
        Argument::U32((columns / pack) as u32),
    ];
    launch(&name("gain_scale", y, pack), [packs.div_ceil(256), 1], [256, 1]).run(y.device(), &arguments)
}

/// d_magnitude += the sum over the rows of dz ⊙ y / norm; y becomes dz ⊙ gain.
pub fn backward(dz: &Tensor, y: &Tensor, gain: &Tensor, norm: &Tensor, d_magnitude: &Tensor) -> Result<()> {
    let ((rows, columns), device) = (y.dims2()?, y.device());
    let (gain, norm, bands) = (gain.contiguous()?, norm.contiguous()?, rows.div_ceil(ROWS));
    let partial = empty((bands, columns), DType::F32, device)?;
    let pack = pack_size(columns, &[y, dz]);
    let arguments = [
        Argument::Tensor(dz),
        Argument::Tensor(y),
        Argument::Tensor(&gain),
        Argument::Tensor(&partial),
        Argument::U32(rows as u32),
        Argument::U32(columns as u32),
    ];
    let blocks = [(columns / pack).div_ceil(LANES), bands];
    launch(&name("gain_backward", y, pack), blocks, [LANES, TURNS]).run(device, &arguments)?;
    let arguments = [
        Argument::Tensor(&partial),
        Argument::Tensor(&norm),
        Argument::Tensor(d_magnitude),
        Argument::U32(bands as u32),
        Argument::U32(columns as u32),
    ];
    launch("gain_gradient", [columns.div_ceil(128), 1], [128, 1]).run(device, &arguments)
}

/// Row norms into `norm`, magnitudes over them into `gain`.
pub fn fill(parts: &NormParts<'_>, magnitude: &Tensor, norm: &Tensor, gain: &Tensor) -> Result<()> {
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
