//! Rotary position embedding.

use candle_core::{DType, Result, Tensor};

use crate::gpu::{Argument, Source, arguments, element_name, empty, pack_size, source};
use crate::ops::rope::{HeadNorms, PairOrder, RopeTable};

static SOURCE: Source = source!("rope");

/// Rotates q (T, query heads, d), and k (T, key heads, d) where it is there, in place, by `sign` times the angles of their positions, which are rows of
/// the table. Both are contiguous.
pub(crate) fn rotate(q: &Tensor, k: Option<&Tensor>, table: &RopeTable, positions: &Tensor, sign: f32) -> Result<()> {
    let (tokens, query_heads, head_dim) = q.dims3()?;
    let (key_heads, half) = (k.map_or(Ok(0), |k| k.dim(1))?, table.cos.dim(1)?);
    let k = k.unwrap_or(q);
    let pack = match (half % 8, table.order) {
        (0, PairOrder::Halves) => pack_size(head_dim, &[q, k]),
        _ => 1,
    };
    let element = element_name(q.dtype()).unwrap_or_default();
    let name = match table.order {
        PairOrder::Halves => format!("rope_{element}_{pack}"),
        PairOrder::Neighbours => format!("rope_neighbours_{element}"),
    };
    let packs = (query_heads + key_heads) * half / pack;
    let launch = SOURCE.launch(&name, [tokens, 1, 1], [packs.next_multiple_of(32).clamp(32, 512), 1, 1]);
    let arguments = arguments! {
        q, k, &table.cos, &table.sin, positions, query_heads as u32, key_heads as u32, head_dim as u32,
        half as u32, sign,
    };
    launch.run(q.device(), &arguments)
}

/// Heads of a block, a warp each.
const WARPS: usize = 8;

/// The rotated norms of q (T, query heads, d) and k (T, key heads, d), and rstd of each head.
pub(crate) fn rotate_normed(
    [q, k]: [&Tensor; 2],
    norms: &HeadNorms<'_>,
    table: &RopeTable,
    positions: &Tensor,
) -> Result<[(Tensor, Tensor); 2]> {
    let (tokens, query_heads, head_dim) = q.dims3()?;
    let (key_heads, half) = (k.dim(1)?, table.cos.dim(1)?);
    let (q, k) = (q.contiguous()?, k.contiguous()?);
    let weight = |weight: &Tensor| weight.to_dtype(q.dtype())?.contiguous();
    let [of_query, of_key] = [weight(norms.weights[0])?, weight(norms.weights[1])?];
    let room = |heads: usize| -> Result<(Tensor, Tensor)> {
        let rotated = empty((tokens, heads, head_dim), q.dtype(), q.device())?;
        Ok((rotated, empty(tokens * heads, DType::F32, q.device())?))
    };
    let results = [room(query_heads)?, room(key_heads)?];
    let pack = match half % 8 {
        0 => pack_size(head_dim, &[&q, &k, &of_query, &of_key]),
        _ => 1,
    };
    let name = format!("rope_normed_{}_{pack}", element_name(q.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(
        &name,
        [(tokens * (query_heads + key_heads)).div_ceil(WARPS), 1, 1],
        [32, WARPS, 1],
    );
    let [(rotated_q, query_rstd), (rotated_k, key_rstd)] = &results;
    let tensors = [
        &q, &k, &of_query, &of_key, rotated_q, rotated_k, query_rstd, key_rstd, &table.cos, &table.sin, positions,
    ];
    let mut arguments = tensors.map(Argument::Tensor).to_vec();
    arguments.extend([tokens, query_heads, key_heads, head_dim, half].map(|size| Argument::U32(size as u32)));
    arguments.extend([Argument::F32(norms.epsilon as f32), Argument::F32(norms.offset)]);
    launch.run(q.device(), &arguments)?;
    Ok(results)
}
