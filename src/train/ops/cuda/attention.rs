//! Attention: which form of the kernels, and the bounds of the documents that they read.

use candle_core::{DType, Device, Result, Tensor};

use crate::train::gpu::{Argument, Launch, Source, element_name, empty, pack_size};
use crate::train::ops::attention::{Documents, Saved, Settings};

static SOURCE: Source = Source {
    name: "attention",
    text: include_str!("attention.cu"),
};

/// Largest head that the kernels take.
const MAX_HEAD: usize = 256;

/// How the kernels for heads of up to `head_dim` divide their work, as the instances in the kernel file have it.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    head_dim: usize,
    forward: Tile,
    query: Tile,
    key: Tile,
}

/// A kernel's block.
#[derive(Clone, Copy, Debug)]
struct Tile {
    warps: usize,
    /// Rows of a warp, 16 in each.
    row_tiles: usize,
    /// Rows of the other side that it meets at a time.
    met: usize,
    /// Tiles of them in shared memory.
    stages: usize,
}

const fn tile(warps: usize, row_tiles: usize, met: usize, stages: usize) -> Tile {
    Tile {
        warps,
        row_tiles,
        met,
        stages,
    }
}

const TILES: [Tiles; 4] = [
    Tiles {
        head_dim: 64,
        forward: tile(4, 2, 64, 1),
        query: tile(4, 2, 32, 2),
        key: tile(4, 2, 64, 2),
    },
    Tiles {
        head_dim: 96,
        forward: tile(4, 2, 64, 1),
        query: tile(4, 1, 32, 2),
        key: tile(4, 2, 32, 2),
    },
    Tiles {
        head_dim: 128,
        forward: tile(4, 2, 64, 1),
        query: tile(4, 1, 32, 2),
        key: tile(4, 2, 32, 2),
    },
    Tiles {
        head_dim: 256,
        forward: tile(4, 1, 32, 1),
        query: tile(2, 1, 32, 1),
        key: tile(4, 1, 32, 1),
    },
];

/// The kernels of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Forward,
    QueryGradient,
    KeyGradient,
}

impl Kernel {
    fn name(self) -> &'static str {
        match self {
            Self::Forward => "attention",
            Self::QueryGradient => "attention_query",
            Self::KeyGradient => "attention_key",
        }
    }

    fn tile(self, tiles: &Tiles) -> Tile {
        match self {
            Self::Forward => tiles.forward,
            Self::QueryGradient => tiles.query,
            Self::KeyGradient => tiles.key,
        }
    }

    /// Rows of a block. Two warps share theirs in the gradient of keys.
    fn rows(self, tile: Tile) -> usize {
        let groups = match self {
            Self::Forward | Self::QueryGradient => tile.warps,
            Self::KeyGradient => tile.warps / 2,
        };
        groups * tile.row_tiles * 16
    }

    /// Shared memory of a block: tensors of its own rows and of those that it meets, and for the gradient of keys the weights
    /// twice and three numbers for each row that it meets.
    fn shared_bytes(self, tile: Tile, head_dim: usize) -> usize {
        let (row, met) = (2 * (head_dim + 8), tile.stages * tile.met);
        let rows = self.rows(tile);
        match self {
            Self::Forward => (rows + 2 * met) * row,
            Self::QueryGradient => (2 * rows + 2 * met) * row,
            Self::KeyGradient => (2 * rows + 2 * met) * row + 2 * rows * 2 * (tile.met + 8) + 12 * met,
        }
    }
}

/// Whether the kernels take heads of `head_dim`.
pub fn takes(head_dim: usize) -> bool {
    head_dim <= MAX_HEAD
}

/// One call's sizes.
struct Call<'a> {
    tokens: usize,
    query_heads: usize,
    key_heads: usize,
    head_dim: usize,
    settings: &'a Settings,
    dtype: DType,
    /// Absent where the plain form runs.
    tiles: Option<Tiles>,
}

impl<'a> Call<'a> {
    fn new(q: &Tensor, k: &Tensor, others: &[&Tensor], settings: &'a Settings) -> Result<Self> {
        let (tokens, query_heads, head_dim) = q.dims3()?;
        let mut tensors = vec![q, k];
        tensors.extend(others);
        let is_tiled = q.dtype() != DType::F32 && pack_size(head_dim, &tensors) == 8;
        Ok(Self {
            tokens,
            query_heads,
            key_heads: k.dim(1)?,
            head_dim,
            settings,
            dtype: q.dtype(),
            tiles: TILES.into_iter().find(|tiles| is_tiled && head_dim <= tiles.head_dim),
        })
    }

    /// Runs `kernel` for `heads` heads.
    fn run(&self, kernel: Kernel, heads: usize, arguments: &mut Vec<Argument<'_>>, device: &Device) -> Result<()> {
        let element = element_name(self.dtype).unwrap_or_default();
        let (name, rows, threads, shared_bytes) = match &self.tiles {
            Some(tiles) => {
                let (tile, head_dim) = (kernel.tile(tiles), tiles.head_dim);
                (
                    format!("{}_{element}_{head_dim}", kernel.name()),
                    kernel.rows(tile),
                    32 * tile.warps,
                    kernel.shared_bytes(tile, head_dim),
                )
            }
            None => (format!("{}_plain_{element}", kernel.name()), 4, 128, 0),
        };
        let launch = Launch {
            source: &SOURCE,
            kernel: &name,
            blocks: [self.tokens.div_ceil(rows), heads, 1],
            threads: [threads, 1, 1],
            shared_bytes,
        };
        arguments.extend([
            Argument::U32(self.tokens as u32),
            Argument::U32(self.query_heads as u32),
            Argument::U32(self.key_heads as u32),
            Argument::U32(self.head_dim as u32),
            Argument::U32(
                self.settings
                    .window
                    .map_or(0, |window| window.min(u32::MAX as usize) as u32),
            ),
            Argument::F32(self.settings.scale as f32),
            Argument::F32(self.settings.soft_cap.unwrap_or(0.0) as f32),
        ]);
        launch.run(device, arguments)
    }
}

/// (o, lse); the tensors are contiguous and not empty.
pub fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    let call = Call::new(q, k, &[v], settings)?;
    let device = q.device();
    let bounds = bounds(documents, device)?;
    let o = empty(q.shape(), q.dtype(), device)?;
    let lse = empty((call.tokens, call.query_heads), DType::F32, device)?;
    let mut arguments: Vec<Argument<'_>> = [q, k, v, &o, &lse, &bounds].map(Argument::Tensor).to_vec();
    call.run(Kernel::Forward, call.query_heads, &mut arguments, device)?;
    Ok((o, lse))
}

/// Gradients with respect to (q, k, v); all tensors are contiguous and not empty.
pub fn backward(
    saved: Saved<'_>,
    d_o: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let Saved { q, k, v, o, lse } = saved;
    let call = Call::new(q, k, &[v, d_o], settings)?;
    let device = q.device();
    let bounds = bounds(documents, device)?;
    let dot = dot(&call, o, d_o)?;
    let like = |tensor: &Tensor| empty(tensor.shape(), tensor.dtype(), device);
    let (dq, dk, dv) = (like(q)?, like(k)?, like(v)?);
    let mut arguments: Vec<Argument<'_>> = [q, k, v, d_o, lse, &dot, &dq, &bounds].map(Argument::Tensor).to_vec();
    call.run(Kernel::QueryGradient, call.query_heads, &mut arguments, device)?;
    let mut arguments: Vec<Argument<'_>> = [q, k, v, d_o, lse, &dot, &dk, &dv, &bounds]
        .map(Argument::Tensor)
        .to_vec();
    call.run(Kernel::KeyGradient, call.key_heads, &mut arguments, device)?;
    Ok((dq, dk, dv))
}

/// The sum of o d_o over each head, (T, Hq) F32.
fn dot(call: &Call<'_>, o: &Tensor, d_o: &Tensor) -> Result<Tensor> {
    let rows = call.tokens * call.query_heads;
    let dot = empty((call.tokens, call.query_heads), DType::F32, o.device())?;
    let name = format!("attention_dot_{}", element_name(call.dtype).unwrap_or_default());
    let launch = Launch {
        source: &SOURCE,
        kernel: &name,
        blocks: [rows.div_ceil(8), 1, 1],
        threads: [256, 1, 1],
        shared_bytes: 0,
    };
    let arguments = [
        Argument::Tensor(d_o),
        Argument::Tensor(o),
        Argument::Tensor(&dot),
        Argument::U32(rows as u32),
        Argument::U32(call.head_dim as u32),
    ];
    launch.run(o.device(), &arguments)?;
    Ok(dot)
}

/// For each token the first token of its document, then for each the one behind its last: (2, T) U32.
fn bounds(documents: Documents<'_>, device: &Device) -> Result<Tensor> {
    if let Some(bounds) = documents.bounds {
        return Ok(bounds.clone());
    }
    let values: Vec<u32> = Documents::token_bounds(documents.offsets).collect();
    let tokens = values.len() / 2;
    Tensor::from_vec(values, (2, tokens), device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_fits_the_shared_memory_of_the_smallest_gpu() {
        for tiles in TILES {
            for kernel in [Kernel::Forward, Kernel::QueryGradient, Kernel::KeyGradient] {
                let bytes = kernel.shared_bytes(kernel.tile(&tiles), tiles.head_dim);
                // Compute capability 8.6 and 8.9: 99 KiB a block (CUDA programming guide, technical specifications).
                assert!(bytes <= 99 << 10, "{kernel:?} {}: {bytes}", tiles.head_dim);
            }
        }
    }
}
