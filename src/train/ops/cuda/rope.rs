//! Rotary position embedding.

use candle_core::{Result, Tensor};

use crate::train::gpu::{Argument, Launch, Source, element_name, pack_size};
use crate::train::ops::rope::RopeTable;

static SOURCE: Source = Source {
    name: "rope",
    text: include_str!("rope.cu"),
    headers: &[],
};

/// Rotates q (T, query heads, d), and k (T, key heads, d) where it is there, in place, by `sign` times the angles of their positions, which are rows of
/// the table. Both are contiguous.
pub fn rotate(q: &Tensor, k: Option<&Tensor>, table: &RopeTable, positions: &Tensor, sign: f32) -> Result<()> {
    let (tokens, query_heads, head_dim) = q.dims3()?;
    let (key_heads, half) = (k.map_or(Ok(0), |k| k.dim(1))?, table.cos.dim(1)?);
    let k = k.unwrap_or(q);
    let pack = match half % 8 {
        0 => pack_size(head_dim, &[q, k]),
        _ => 1,
    };
    let name = format!("rope_{}_{pack}", element_name(q.dtype()).unwrap_or_default());
    let packs = (query_heads + key_heads) * half / pack;
    let launch = Launch {
        source: &SOURCE,
        kernel: &name,
        blocks: [tokens, 1, 1],
        threads: [packs.next_multiple_of(32).clamp(32, 512), 1, 1],
        shared_bytes: 0,
    };
    let arguments = [
        Argument::Tensor(q),
        Argument::Tensor(k),
        Argument::Tensor(&table.cos),
        Argument::Tensor(&table.sin),
        Argument::Tensor(positions),
        Argument::U32(query_heads as u32),
        Argument::U32(key_heads as u32),
        Argument::U32(head_dim as u32),
        Argument::U32(half as u32),
        Argument::F32(sign),
    ];
    launch.run(q.device(), &arguments)
}
