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

/// Rows of a tile and of the tiles it meets, for heads of up to `head_dim`: as the instances in the kernel file have them.
#[derive(Clone, Copy, Debug)]
struct Tiles {
    head_dim: usize,
    forward: (usize, usize),
    backward: (usize, usize),
}

const TILES: [Tiles; 4] = [
    Tiles {
        head_dim: 64,
        forward: (64, 64),
        backward: (64, 64),
    },
    Tiles {
        head_dim: 96,
        forward: (64, 64),
        backward: (64, 32),
    },
    Tiles {
        head_dim: 128,
        forward: (64, 64),
        backward: (64, 32),
    },
    Tiles {
        head_dim: 256,
        forward: (64, 32),
        backward: (32, 32),
    },
];

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

    /// Runs `kernel` for `heads` heads; `tiles` picks the sizes, `tensors` those that lie in shared memory: (of the block's
    /// own rows, of the rows it meets).
    #[expect(
        clippy::too_many_arguments,
        reason = "what differs between the four kernels, which nothing else groups"
    )]
    fn run(
        &self,
        kernel: &str,
        heads: usize,
        tiles: fn(&Tiles) -> (usize, usize),
        tensors: (usize, usize),
        arguments: &mut Vec<Argument<'_>>,
        device: &Device,
    ) -> Result<()> {
        let element = element_name(self.dtype).unwrap_or_default();
        let (name, rows, threads, shared_bytes) = match &self.tiles {
            Some(sizes) => {
                let (own, met) = tiles(sizes);
                let elements = (own * tensors.0 + met * tensors.1) * (sizes.head_dim + 8);
                // Statistics of the rows that are met: three values each.
                let bytes = elements * 2 + met * 12;
                (format!("{kernel}_{element}_{}", sizes.head_dim), own, own * 2, bytes)
            }
            None => (format!("{kernel}_plain_{element}"), 4, 128, 0),
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
    call.run(
        "attention",
        call.query_heads,
        |tiles| tiles.forward,
        (1, 2),
        &mut arguments,
        device,
    )?;
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
    let backward = |tiles: &Tiles| tiles.backward;
    let mut arguments: Vec<Argument<'_>> = [q, k, v, d_o, lse, &dot, &dq, &bounds].map(Argument::Tensor).to_vec();
    call.run(
        "attention_query",
        call.query_heads,
        backward,
        (2, 2),
        &mut arguments,
        device,
    )?;
    let mut arguments: Vec<Argument<'_>> = [q, k, v, d_o, lse, &dot, &dk, &dv, &bounds]
        .map(Argument::Tensor)
        .to_vec();
    call.run(
        "attention_key",
        call.key_heads,
        backward,
        (2, 2),
        &mut arguments,
        device,
    )?;
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
