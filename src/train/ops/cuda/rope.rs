//! Rotary position embedding.

use candle_core::{Result, Tensor};

use crate::train::gpu::{Argument, Launch, Source, element_name, empty, pack_size};
use crate::train::ops::rope::RopeTable;

static SOURCE: Source = Source {
    name: "rope",
    text: include_str!("rope.cu"),
    headers: &[],
};

/// Rotates x (T, heads, d) by `sign` times the angles of its positions, which are rows of the table.
pub fn rotate(x: &Tensor, table: &RopeTable, positions: &Tensor, sign: f32) -> Result<Tensor> {
    let (tokens, heads, head_dim) = x.dims3()?;
    let half = table.cos.dim(1)?;
    let x = x.contiguous()?;
    let y = empty(x.shape(), x.dtype(), x.device())?;
    let pack = match half % 8 {
        0 => pack_size(head_dim, &[&x]),
        _ => 1,
    };
    let name = format!("rope_{}_{pack}", element_name(x.dtype()).unwrap_or_default());
    let launch = Launch {
        source: &SOURCE,
        kernel: &name,
        blocks: [tokens, 1, 1],
        threads: [(heads * half / pack).next_multiple_of(32).clamp(32, 256), 1, 1],
        shared_bytes: 0,
    };
    let arguments = [
        Argument::Tensor(&x),
        Argument::Tensor(&y),
        Argument::Tensor(&table.cos),
        Argument::Tensor(&table.sin),
        Argument::Tensor(positions),
        Argument::U32(heads as u32),
        Argument::U32(head_dim as u32),
        Argument::U32(half as u32),
        Argument::F32(sign),
    ];
    launch.run(x.device(), &arguments)?;
    Ok(y)
}
