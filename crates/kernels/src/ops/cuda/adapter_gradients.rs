//! Gradients of a layer's adapter from that of the layer's output: dB and d_xa, with that gradient read once.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | dy | (T, N) | gradient of the layer's output |
//! | B | (N, r) | output side of the adapter |
//! | xa | (T, r) | what B was multiplied with |
//!
//! d_xa = s·dy B and dB += s·dy^T xa. As two products each reads dy, which is 2 / r times as much as they compute with. Blocks of a
//! band of columns and a split of the tokens leave parts of both sums in the workspace of products; a second launch adds them up, always
//! in one order.

use candle_core::{DType, Result, Tensor};

use crate::gpu::{
    Argument, Matrix, OPERANDS, Source, WORKSPACE_BYTES, arguments, element_name, pack_size, source, workspace,
};

static SOURCE: Source = source!("adapter_gradients", OPERANDS);

const THREADS: usize = 256;
/// Ranks that there are kernels for; others are padded to the next.
const RANKS: [usize; 2] = [16, 32];
/// Tokens and columns of a tile of dy (adapter_gradients.cu).
const TOKENS: usize = 64;
const COLUMNS: usize = 128;
/// Blocks that fill the largest GPUs, two for each multiprocessor.
const BLOCKS: usize = 264;

/// Columns of a block for a rank of at most `padded`.
const fn band(padded: usize) -> usize {
    16_384 / padded
}

/// How one launch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    padded: usize,
    /// Tokens of a launch.
    at_once: usize,
    bands: usize,
    splits: usize,
    /// Tiles of tokens of a block.
    rows_of_tiles: usize,
}

impl Cut {
    /// `None` where the rank is too large.
    fn of([tokens, columns, rank]: [usize; 3]) -> Option<Self> {
        let padded = RANKS.into_iter().find(|padded| rank <= *padded)?;
        let bands = columns.div_ceil(band(padded));
        // Wide layers of high ranks have more sums than the workspace holds: fewer blocks, or fewer tokens at once.
        let at_once = (0..usize::BITS).map(|halved| tokens.div_ceil(1 << halved).next_multiple_of(TOKENS));
        let cuts = at_once.flat_map(|at_once| [(at_once, BLOCKS), (at_once, BLOCKS / 2)]);
        let cut = |(at_once, blocks): (usize, usize)| {
            let tiles = at_once / TOKENS;
            let rows_of_tiles = tiles.div_ceil(blocks.div_ceil(bands)).max(1);
            let splits = tiles.div_ceil(rows_of_tiles);
            Self {
                padded,
                at_once,
                bands,
                splits,
                rows_of_tiles,
            }
        };
        let fits = |cut: &Self| {
            let [of_xa, of_b] = cut.parts([cut.at_once, columns, rank]);
            4 * (of_xa + of_b) <= WORKSPACE_BYTES
        };
        cuts.map(cut).find(fits)
    }

    /// F32 values of the parts of d_xa, and of dB.
    fn parts(&self, [tokens, columns, rank]: [usize; 3]) -> [usize; 2] {
        [self.bands * tokens * rank, self.splits * columns * rank]
    }

    /// Shared memory of a block, in bytes.
    fn shared_bytes(&self) -> usize {
        let elements = 2 * TOKENS * (COLUMNS + 8) + (2 * TOKENS + band(self.padded)) * (self.padded + 8);
        2 * elements + 4 * TOKENS * self.padded
    }
}

/// Whether the kernel takes these: 16 bits, ranks up to 32, rows that begin at multiples of 16 bytes.
pub(crate) fn are_taken([dy, xa, b, d_b]: [&Tensor; 4]) -> Result<bool> {
    let ((tokens, columns), rank) = (dy.dims2()?, b.dims2()?.1);
    let (Ok(of_dy), Ok(of_xa)) = (Matrix::new(dy), Matrix::new(xa)) else {
        return Ok(false);
    };
    let is_alike = [xa, b].iter().all(|tensor| tensor.dtype() == dy.dtype());
    let widths = [columns, rank, of_dy.stride, of_xa.stride];
    let is_aligned = widths.iter().all(|width| pack_size(*width, &[dy, xa, b]) == 8) && pack_size(4, &[d_b]) == 4;
    let is_whole = b.is_contiguous() && d_b.is_contiguous() && d_b.dtype() == DType::F32;
    let fits = tokens > 0 && columns > 0 && Cut::of([tokens, columns, rank]).is_some();
    Ok(dy.dtype() != DType::F32 && is_alike && is_whole && fits && is_aligned)
}

/// dy, B, xa, what d_xa goes to, and what dB is added to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gradients<'a> {
    /// (T, N), (T, r) and (T, r); their rows are contiguous.
    pub dy: &'a Tensor,
    pub xa: &'a Tensor,
    pub d_xa: &'a Tensor,
    /// (N, r), contiguous.
    pub b: &'a Tensor,
    /// (N, r) F32, contiguous (`+=`).
    pub d_b: &'a Tensor,
    pub scale: f64,
}

impl Gradients<'_> {
    fn sizes(&self) -> Result<[usize; 3]> {
        let ((tokens, columns), rank) = (self.dy.dims2()?, self.b.dims2()?.1);
        Ok([tokens, columns, rank])
    }

    /// Puts both at the end of the device's queue. They [`are_taken`], and the rows of d_xa begin at
    /// multiples of 8 bytes.
    ///
    /// # Errors
    /// Those of the launches.
    pub(crate) fn run(&self) -> Result<()> {
        let sizes @ [tokens, columns, rank] = self.sizes()?;
        let Some(cut) = Cut::of(sizes) else {
            candle_core::bail!("adapter_gradients: no kernel for {tokens} tokens, {columns} columns and rank {rank}");
        };
        for first in (0..tokens).step_by(cut.at_once) {
            let count = cut.at_once.min(tokens - first);
            let part = |tensor: &Tensor| tensor.narrow(0, first, count);
            let (dy, xa, d_xa) = (part(self.dy)?, part(self.xa)?, part(self.d_xa)?);
            let some = Gradients {
                dy: &dy,
                xa: &xa,
                d_xa: &d_xa,
                ..*self
            };
            some.launch(&cut)?;
        }
        Ok(())
    }

    fn launch(&self, cut: &Cut) -> Result<()> {
        let sizes @ [tokens, columns, rank] = self.sizes()?;
        let (device, element) = (self.dy.device(), element_name(self.dy.dtype()).unwrap_or_default());
        let splits = tokens.div_ceil(TOKENS * cut.rows_of_tiles);
        let parts_of_xa = workspace(device)?;
        let parts_of_b = parts_of_xa + 4 * cut.parts(sizes)[0] as u64;
        let (dy, xa, d_xa) = (first_row(self.dy)?, first_row(self.xa)?, first_row(self.d_xa)?);
        let stride = |tensor: &Tensor| Ok::<_, candle_core::Error>(Matrix::new(tensor)?.stride as u32);
        let sizes = sizes.map(|size| Argument::U32(size as u32));
        let parts = [Argument::Address(parts_of_xa), Argument::Address(parts_of_b)];
        let mut arguments = arguments! { &dy, &xa, self.b }.to_vec();
        arguments.extend(parts.iter().chain(&sizes));
        arguments.extend(arguments! { stride(self.dy)?, stride(self.xa)?, cut.rows_of_tiles as u32 });
        let name = format!("adapter_gradients_{element}_{}", cut.padded);
        let mut launch = SOURCE.launch(&name, [cut.bands, splits, 1], [THREADS, 1, 1]);
        launch.shared_bytes = cut.shared_bytes();
        launch.run(device, &arguments)?;
        let mut arguments = parts.to_vec();
        arguments.extend(arguments! { &d_xa, self.d_b, self.scale as f32 });
        arguments.extend(sizes);
        arguments.extend(arguments! { stride(self.d_xa)?, cut.bands as u32, splits as u32 });
        let (packs, name) = ((tokens + columns) * rank / 4, format!("adapter_sums_{element}"));
        let launch = SOURCE.launch(&name, [packs.div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
        launch.run(device, &arguments)
    }
}

/// First row of a tensor, which has the address of all.
fn first_row(tensor: &Tensor) -> Result<Tensor> {
    tensor.narrow(0, 0, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_fit_the_workspace_and_the_blocks_a_multiprocessor() {
        // Llama-3-8B's projections at 8,192 tokens: keys, outputs, gate and up. And rows of 128 Ki tokens.
        let sizes = [
            (8192, 1024, 16),
            (8192, 4096, 16),
            (8192, 14_336, 8),
            (8192, 14_336, 16),
            (8192, 14_336, 32),
        ];
        for (tokens, columns, rank) in sizes.into_iter().chain([(1 << 17, 14_336, 16)]) {
            let cut = Cut::of([tokens, columns, rank]).unwrap();
            let blocks = cut.bands * cut.splits;
            assert!((100..=BLOCKS + cut.bands).contains(&blocks), "{cut:?}");
            let tiles = cut.at_once / TOKENS;
            assert!((cut.splits - 1) * cut.rows_of_tiles < tiles && cut.splits * cut.rows_of_tiles >= tiles);
            // Two of them on Hopper, and one on Ada.
            assert!(cut.shared_bytes() <= 99 << 10, "{cut:?}");
            let parts: usize = cut.parts([cut.at_once, columns, rank]).iter().sum();
            assert!(4 * parts <= WORKSPACE_BYTES, "{cut:?}");
        }
        assert_eq!(Cut::of([8192, 14_336, 16]).unwrap().at_once, 8192);
        assert_eq!(Cut::of([8192, 14_336, 32]).unwrap().at_once, 4096);
        assert_eq!(Cut::of([8192, 4096, 64]), None);
    }
}
