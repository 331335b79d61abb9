//! How the CPU's products are cut into tasks, and what its threads keep: the engine's blocking.
//!
//! What a thread keeps from one task to the next is told to its [`ThreadScratch`]; what a call frees again is a spike.

use serde::{Deserialize, Serialize};

use super::scratch::{Buffer, ThreadScratch};
use super::storage::BLOCK as BLOCK_OF_CODES;

/// Vector instructions that products run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vectors {
    /// AVX-512 with products of BF16 pairs, and AMX tiles of them.
    Amx,
    /// AVX-512 with products of BF16 pairs.
    Avx512Bf16,
    Avx512,
    Avx2,
    /// The `gemm` crate alone.
    Other,
    /// Absence of a CPU: a GPU computes.
    None,
}

impl Vectors {
    /// Whether products of BF16 run on pairs.
    pub fn multiplies_pairs(self) -> bool {
        matches!(self, Self::Amx | Self::Avx512Bf16)
    }

    /// How products are cut, where they are blocked ones.
    pub fn tiling(self) -> Option<Tiling> {
        match self {
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 => Some(Tiling::AVX512),
            Self::Avx2 => Some(Tiling::AVX2),
            Self::Other | Self::None => None,
        }
    }

    /// F32 values of a vector, and of the two sides of a tile, of the `gemm` crate's small products.
    pub(super) fn small_tile(self) -> Option<[usize; 3]> {
        match self {
            Self::Amx | Self::Avx512Bf16 | Self::Avx512 => Some([16, 64, 6]),
            Self::Avx2 => Some([8, 16, 6]),
            // NEON's.
            Self::Other => Some([4, 16, 4]),
            Self::None => None,
        }
    }
}

/// How the operands of a product lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// x (rows, depth) times the transpose of w (columns, depth).
    Nt,
    /// x (rows, depth) times w (depth, columns).
    Nn,
    /// += the transpose of a (depth, rows) times b (depth, columns), F32.
    Tn,
}

/// Products that one call can sum.
pub const MAX_TERMS: usize = 4;
/// Results of one vector.
pub const LANES: usize = 16;
/// Bytes of a vector.
const LINE_BYTES: usize = 64;
/// Vectors of a full NR micro-panel.
pub const VECTORS: usize = 3;
/// Columns of a full NR micro-panel.
pub const NR: usize = VECTORS * LANES;
/// Units of the summed dimension that are packed at once, a KC block.
pub const KC_UNITS: usize = 768;
/// Groups of NR micro-panels for each thread where there are enough: more of them balance the threads, but the left operand is
/// streamed once for each group (with groups of one NR micro-panel, BF16 products of 1024 rows lost a fifth of their speed).
const GROUPS_PER_THREAD: usize = 4;
/// Tasks for each thread: where there are fewer groups, rows are split too, and every task packs its NR micro-panels again.
const TASKS_PER_THREAD: usize = 8;
/// Tasks for each thread where the right operand is too large for the caches, so that packing it again costs more.
const LARGE_TASKS_PER_THREAD: usize = 3;
/// Bytes of a large right operand.
const LARGE_BYTES: usize = 8 << 20;
/// Fewest rows of a task: packing costs about as much as two to four rows.
const TASK_ROWS: usize = 128;
/// Rows of a task where one thread has them all, and nobody waits for it.
const LONE_TASK_ROWS: usize = 512;
/// Columns that are widened at once where there is no AVX-512.
pub const BLOCK: usize = 256;
/// Depth that the `gemm` crate packs at once.
const GEMM_DEPTH: usize = 512;

/// How blocked products are cut for a set of vector instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Vectors of a full NR micro-panel.
    pub vectors: usize,
    /// Rows of the tallest tile of full micro-panels.
    pub rows: usize,
    /// Rows of the tallest tile of one vector.
    narrow_rows: usize,
    /// Bytes of packed NR micro-panels that a task keeps, within the second-level cache.
    group_bytes: usize,
}

impl Tiling {
    /// 8 x 48 results take 24 of 32 registers; a tile of one vector takes twice the rows, to hide the latency with as many sums.
    pub const AVX512: Self = Self {
        vectors: VECTORS,
        rows: 8,
        narrow_rows: 16,
        group_bytes: 640 * 1024,
    };
    /// 6 x 16 results take 12 of 16 registers of half a vector each.
    pub const AVX2: Self = Self {
        vectors: 1,
        rows: 6,
        narrow_rows: 6,
        group_bytes: 192 * 1024,
    };

    /// Columns of a full NR micro-panel.
    pub const fn nr(self) -> usize {
        self.vectors * LANES
    }

    /// Vectors of the NR micro-panel that takes the first of so many columns.
    pub fn panel_vectors(self, columns: usize) -> usize {
        columns.div_ceil(LANES).min(self.vectors)
    }

    /// Rows of the next tile, of `left` rows that are left.
    pub const fn tile_height(self, left: usize, vectors: usize) -> usize {
        let most = if vectors == 1 { self.narrow_rows } else { self.rows };
        match left {
            _ if left >= most => most,
            8.. => 8,
            4.. => 4,
            2.. => 2,
            other => other,
        }
    }

    /// (NR micro-panels of a task, rows of a task), from the most units of a KC block and the units of all.
    pub fn task_shape(self, rows: usize, columns: usize, [longest, all]: [usize; 2], threads: usize) -> (usize, usize) {
        let (nr_panels, unit_bytes) = (columns.div_ceil(self.nr()).max(1), self.vectors * LINE_BYTES);
        let cached = (self.group_bytes / (longest.max(1) * unit_bytes)).max(1);
        // Whole tiles of either height.
        let whole = self.rows.max(self.narrow_rows);
        if threads == 1 {
            let group = nr_panels.div_ceil(nr_panels.div_ceil(cached));
            return (group, rows.min(LONE_TASK_ROWS).next_multiple_of(whole));
        }
        // As many groups for one thread as for another.
        let groups = nr_panels.div_ceil(cached).max(GROUPS_PER_THREAD * threads);
        let group = nr_panels.div_ceil(groups.next_multiple_of(threads));
        let tasks = match all * unit_bytes * nr_panels {
            LARGE_BYTES.. => LARGE_TASKS_PER_THREAD,
            _ => TASKS_PER_THREAD,
        };
        let blocks = (tasks * threads).div_ceil(nr_panels.div_ceil(group));
        let height = rows.div_ceil(blocks).max(TASK_ROWS).next_multiple_of(whole);
        (group, height)
    }
}

/// Gradients of adapters in F32, of which one matrix has few columns.
pub mod thin {
    use super::{LANES, VECTORS};

    /// Most columns of the narrow matrix: from the next one on the large products are as fast.
    const MOST: usize = 32;
    /// Fewest tokens, and fewest of a task.
    const FEWEST: usize = 128;
    /// Most tasks, each of which has sums of its own.
    const TASKS: usize = 8;
    /// Columns of the narrow matrix and of the other whose sums make a tile.
    pub const ROWS: usize = 8;
    pub const COLUMNS: usize = VECTORS * LANES;

    /// Whether a product of so many tokens is one of these.
    pub fn takes([tokens, rows, columns]: [usize; 3]) -> bool {
        rows.min(columns) <= MOST && rows.max(columns) > MOST && tokens >= FEWEST
    }

    /// Tasks of so many tokens.
    pub fn tasks(tokens: usize) -> usize {
        (tokens / FEWEST).clamp(1, TASKS)
    }

    /// Sums of a task.
    pub fn sums(few: usize, many: usize) -> usize {
        few.div_ceil(ROWS) * many.div_ceil(COLUMNS) * ROWS * COLUMNS
    }
}

/// Products of bytes.
pub mod int8 {
    /// Lines of a vector for a block of 64 of the summed dimension: sixteen of codes, one of sums and one of factors.
    pub const BLOCK_LINES: usize = 18;
    /// Rows of a tile.
    pub const TILE_ROWS: usize = 4;
    /// Rows of a tile on AMX.
    pub const AMX_ROWS: usize = 16;
    /// Fewest rows of a product on AMX, where a tile is as long for one row as for sixteen.
    pub const FEWEST_AMX_ROWS: usize = 8;
    /// Tasks for each thread on AMX, where packing takes a larger share: rows are split only where there are fewer groups.
    const AMX_TASKS_PER_THREAD: usize = 3;

    /// Rows of a task on AMX, of so many groups of NR micro-panels, where one of other products has `height`.
    pub fn amx_task_rows(rows: usize, height: usize, groups: usize, threads: usize) -> usize {
        if threads == 1 {
            return height;
        }
        let parts = (AMX_TASKS_PER_THREAD * threads).div_ceil(groups.max(1));
        rows.div_ceil(parts).next_multiple_of(AMX_ROWS).max(height)
    }
}

/// Products of bytes on a GPU: the weight as codes with one scale for each column of the result, rows of the left operand as codes, and
/// their sums as whole numbers, which a pass of its own scales and rounds.
pub mod device_int8 {
    use super::super::scratch::{Buffer, ThreadScratch};

    /// Bytes of which the rows of operands and results are multiples: what the library's fastest forms want.
    const ALIGNMENT: usize = 16;
    /// Rows of a tile of the library's.
    const TILE: usize = 128;
    /// Bytes of the sums that exist at a time: more of them would be read from memory by the pass that scales them, fewer leave
    /// multiprocessors idle.
    const SUMS_BYTES: usize = 64 << 20;
    /// Bands of a weight's rows, whose largest values are found side by side where its columns become rows of codes.
    pub const BANDS: usize = 32;
    /// Longest sum that 32 bits hold whatever the codes.
    pub const LONGEST: usize = i32::MAX as usize / (127 * 127);

    /// Sizes of the operands of one product (rows, columns, depth).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Operands {
        /// Rows of the left operand that are multiplied at once.
        pub rows: usize,
        /// Columns of the result, with those that are padding.
        pub columns: usize,
        /// Codes of a row, with those that are padding.
        pub depth: usize,
    }

    impl Operands {
        pub fn new([rows, columns, depth]: [usize; 3]) -> Self {
            let columns = columns.next_multiple_of(ALIGNMENT);
            let most = (SUMS_BYTES / (4 * columns.max(1)) / TILE).max(1) * TILE;
            Self {
                rows: rows.min(most),
                columns,
                depth: depth.next_multiple_of(ALIGNMENT),
            }
        }

        /// Bytes of the codes of both operands.
        pub fn codes(&self) -> usize {
            (self.rows + self.columns) * self.depth
        }

        /// Sums of 4 bytes.
        pub fn sums(&self) -> usize {
            self.rows * self.columns
        }

        /// Scales of 4 bytes: of columns, of rows and, behind them, room for the largest values of bands.
        pub fn scales(&self) -> usize {
            self.columns * (1 + BANDS) + self.rows
        }

        /// Asks for what the process keeps.
        pub fn keep(&self, kept: &mut ThreadScratch) {
            kept.ask(Buffer::DeviceCodes, self.codes());
            kept.ask(Buffer::DeviceSums, 4 * self.sums());
            kept.ask(Buffer::DequantizedF32, 4 * self.scales());
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn sums_stay_within_their_room_and_rows_are_whole_tiles() {
            let of = |sizes| Operands::new(sizes);
            assert_eq!(
                of([8192, 14336, 4096]),
                Operands {
                    rows: 1152,
                    columns: 14336,
                    depth: 4096
                }
            );
            assert_eq!(
                of([7, 33, 20]),
                Operands {
                    rows: 7,
                    columns: 48,
                    depth: 32
                }
            );
            for columns in [1, 4096, 14336, 128_256, 1 << 20] {
                let operands = of([1 << 20, columns, 64]);
                assert_eq!(operands.rows % TILE, 0);
                assert!(4 * operands.sums() <= SUMS_BYTES.max(4 * TILE * operands.columns));
            }
        }
    }
}

/// Products on AMX, in MR micro-panels of 32 rows and NR micro-panels of 32 columns.
pub mod amx {
    use super::LINE_BYTES;

    /// Fewest rows of a product of BF16.
    pub const FEWEST_ROWS: usize = 16;
    /// Smallest product of F32, each way: the time of a smaller one is less than that of laying out both operands.
    pub const FEWEST_DIGITS: usize = 64;
    /// Fewest rows of attention's own products.
    pub const FEWEST_SMALL_ROWS: usize = 8;
    /// Values of a step of BF16.
    pub const PAIRS_STEP: usize = 32;
    /// Values of a step of F32.
    pub const DIGITS_STEP: usize = 64;
    /// Digits of a value of F32.
    pub const DIGITS: usize = 3;
    /// Values of the summed dimension in a KC block.
    pub const KC: usize = 768;
    /// Rows of an MR micro-panel, columns of an NR micro-panel.
    pub const MR: usize = 32;
    pub const NR: usize = 32;
    /// Rows that the left operand is laid out for at once.
    pub const ROW_BLOCK: usize = 2048;
    /// Most values of an adapter's term, which is multiplied without digits: 16 take half the time of a step of digits.
    pub const SHORT: usize = 24;
    /// Bytes of the sums of several KC blocks.
    const SUMS_BYTES: usize = 16 << 20;
    /// Bytes of a tile's sums.
    pub(super) const TILE_BYTES: usize = 4 * MR * NR;
    /// Bytes of the NR micro-panels of a task, within the second-level cache.
    const GROUP_BYTES: usize = 1 << 20;
    /// Fewest NR micro-panels of a task where threads could have some each, and fewest MR micro-panels.
    const LEAST_PANELS: usize = 2;
    const TASK_STRIPS: usize = 4;

    /// Bytes of `steps` steps of an MR micro-panel or of a full NR micro-panel, of `terms` terms.
    pub(super) const fn packed_bytes(pairs: bool, steps: usize, terms: usize) -> usize {
        match pairs {
            true => steps * MR * LINE_BYTES,
            false => steps * DIGITS * MR * LINE_BYTES + terms * 2 * LINE_BYTES,
        }
    }

    /// Panels whose sums of several KC blocks exist at a time.
    pub fn panels_with_sums(mr_panels: usize) -> usize {
        SUMS_BYTES / (mr_panels * TILE_BYTES).max(1)
    }

    /// (NR micro-panels of a task, MR micro-panels of a task), from the bytes of an NR micro-panel: as many groups of NR micro-panels for each thread; where there
    /// are fewer NR micro-panels, as many parts of the MR micro-panels.
    pub fn task_shape(mr_panels: usize, nr_panels: usize, bytes: usize, threads: usize) -> (usize, usize) {
        let cached = (GROUP_BYTES / bytes.max(1)).max(1);
        let groups = nr_panels
            .div_ceil(cached)
            .max(threads.min(nr_panels.div_ceil(LEAST_PANELS)));
        let group = nr_panels.div_ceil(groups.next_multiple_of(threads));
        let heights = threads.div_ceil(nr_panels.div_ceil(group));
        (group, mr_panels.div_ceil(heights).max(TASK_STRIPS))
    }
}

/// Sums that take an adapter's product along on a GPU: [x | xa] [W | s B]^T, and [dy | d_xa] with A below W. A quantized weight is
/// dequantized for each product anyway, and the scratch has room beside or below it; the left operand is copied into rows with room.
pub mod adapted_product {
    /// Elements of 16 bits in a line of memory, of which the rows of operands are multiples.
    const LINE: usize = 64;
    /// Elements that a thread writes at once.
    pub const PACK: usize = 8;
    /// Columns of the results for each column that is copied, at least: with fewer the copy costs what it spares.
    const LEAST: usize = 3;
    /// Most ranks: two lines. Each line is a step more of every sum.
    const MOST_RANKS: usize = 2 * LINE;
    /// Fewest rows: generation has one at a time.
    const FEWEST_ROWS: usize = 16;

    /// Whether left operands of (rows, depth) are copied for sums of `columns` results in all, with `ranks` of adapters in all.
    pub fn takes([rows, columns, depth]: [usize; 3], ranks: usize) -> bool {
        let is_even = depth.is_multiple_of(PACK) && columns.is_multiple_of(PACK);
        rows >= FEWEST_ROWS && columns >= LEAST * depth && (1..=MOST_RANKS).contains(&ranks) && is_even
    }

    /// Values of a sum.
    pub fn depth(depth: usize, ranks: usize) -> usize {
        depth + ranks.next_multiple_of(PACK)
    }

    /// Elements from one row of an operand to the next.
    pub fn row(depth: usize, ranks: usize) -> usize {
        self::depth(depth, ranks).next_multiple_of(LINE)
    }
}

/// Rows of a tile of an expert's products on a GPU.
pub const GROUP_ROWS: usize = 128;

/// Tiles of so many experts' rows that there are at most.
pub fn most_tiles(experts: usize, rows: usize) -> usize {
    rows / GROUP_ROWS + experts.min(rows)
}

/// Choices of experts that a GPU sorts at once.
pub const SORTED_AT_ONCE: usize = 256;

/// Elements of quantized matrices that a GPU widens at once for the products of experts.
const WIDENED_AT_ONCE: usize = 32 << 20;

/// Experts whose quantized matrices, of so many elements together for each expert, a GPU widens at once: some at least.
pub fn quantized_at_once(experts: usize, elements: usize) -> usize {
    (WIDENED_AT_ONCE / elements.max(1)).clamp(1, experts.max(1))
}

/// One call of a product, as far as its scratch depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub form: Form,
    pub rows: usize,
    pub columns: usize,
    /// Summed length of the terms but for the adapters'.
    pub depth: usize,
    /// Summed length of the adapters' terms.
    pub adapter_depth: usize,
    /// Length of the longest term.
    pub longest_term: usize,
    /// Columns between those of the adapter's operand and the next row of it: it is a part of a wider tensor.
    pub beside: usize,
    /// Bytes of an element of the left operand.
    pub left_bytes: u64,
    /// Whether two bytes of it are BF16.
    pub bf16: bool,
    /// Whether the right operand is dequantized on the way.
    pub quantized: bool,
    /// Whether it is a product of bytes: the left operand is quantized on the way as well.
    pub in_bytes: bool,
    /// Whether the result is F32.
    pub f32_result: bool,
    /// Elements of the largest dense right operand whose elements are of another size than the left one's: a GPU converts it as a whole.
    pub converted: usize,
}

impl Call {
    /// A product of dense operands (rows, columns, depth). Its result is F32 where the left operand has four bytes an element, or
    /// where it is a gradient.
    pub fn dense(form: Form, [rows, columns, depth]: [usize; 3], left_bytes: u64, bf16: bool) -> Self {
        Self {
            form,
            rows,
            columns,
            depth,
            adapter_depth: 0,
            longest_term: depth,
            beside: 0,
            left_bytes,
            bf16,
            quantized: false,
            in_bytes: false,
            f32_result: left_bytes == 4 || form == Form::Tn,
            converted: 0,
        }
    }

    /// Adds what a thread keeps after the call.
    pub fn keep(&self, kept: &mut ThreadScratch, vectors: Vectors, threads: usize) {
        let pairs = self.runs_on_pairs(vectors);
        let Some(tiling) = vectors.tiling() else {
            return;
        };
        if self.in_bytes {
            if vectors != Vectors::Avx2 {
                return self.keep_bytes(kept, vectors, threads);
            }
            // Plain loops, and a product of its own for an adapter.
            self.keep_codes(kept, Buffer::ByteCodes, vectors);
            if self.adapter_depth > 0 {
                self.without_bytes().keep(kept, vectors, threads);
            }
            return;
        }
        if self.form == Form::Tn && self.left_bytes == 4 && thin::takes([self.depth, self.rows, self.columns]) {
            let (few, many) = (self.rows.min(self.columns), self.rows.max(self.columns));
            return kept.ask(Buffer::ThinSums, 4 * thin::tasks(self.depth) * thin::sums(few, many));
        }
        if vectors == Vectors::Amx && self.runs_on_tiles(pairs) {
            return self.keep_tiles(kept, pairs, threads);
        }
        let in_units = |depth: usize| depth.div_ceil(if pairs { 2 } else { 1 });
        let units = in_units(self.depth + self.adapter_depth);
        let longest = units.clamp(1, KC_UNITS);
        let (nr, shape) = (tiling.nr(), [longest, units]);
        let (group, height) = tiling.task_shape(self.rows, self.columns, shape, threads);
        let columns = (group * nr).min(self.columns.max(1));
        kept.ask(
            Buffer::NrPanels,
            columns.div_ceil(nr) * longest * tiling.vectors * LINE_BYTES,
        );
        let vectors = tiling.panel_vectors(columns);
        kept.ask(
            Buffer::MrPanels,
            4 * longest * tiling.tile_height(self.rows.min(height), vectors),
        );
        if units > KC_UNITS {
            let columns = columns.next_multiple_of(nr);
            kept.ask(Buffer::Sums, 4 * height.min(self.rows) * columns);
        }
        if self.quantized {
            // Pairs of BF16, or as many F32 values: the same bytes.
            let units = in_units(self.longest_term).min(KC_UNITS);
            self.keep_quantized(kept, pairs, 4 * columns.min(nr) * units);
        }
    }

    /// Adds what a GPU keeps after the call: of a quantized weight, which it dequantizes as a whole for each product, or multiplies as
    /// bytes.
    pub fn keep_on_gpu(&self, kept: &mut ThreadScratch) {
        match (self.quantized, self.in_bytes) {
            (false, _) => {}
            (true, true) => device_int8::Operands::new([self.rows, self.columns, self.longest_term]).keep(kept),
            (true, false) => kept.dequantize(self.columns * self.longest_term, self.left_bytes),
        }
    }

    /// Keeps what a product of bytes needs: the codes of the left operand, and NR micro-panels over the whole depth.
    fn keep_bytes(&self, kept: &mut ThreadScratch, vectors: Vectors, threads: usize) {
        self.keep_codes(kept, Buffer::ByteCodes, vectors);
        let codes = self.depth.next_multiple_of(BLOCK_OF_CODES);
        let pairs = self.bf16 && vectors.multiplies_pairs() && self.adapter_depth.is_multiple_of(2);
        let units = match pairs {
            // Whole tiles of sixteen pairs.
            true if vectors == Vectors::Amx && self.rows >= int8::FEWEST_AMX_ROWS => {
                self.adapter_depth.div_ceil(2).next_multiple_of(int8::AMX_ROWS)
            }
            true => self.adapter_depth.div_ceil(2),
            false => self.adapter_depth,
        };
        let lines = codes / BLOCK_OF_CODES * int8::BLOCK_LINES + units;
        let (group, _) = Tiling::AVX512.task_shape(self.rows, self.columns, [lines; 2], threads);
        let columns = (group * NR).min(self.columns.max(1));
        kept.ask(
            Buffer::ByteNrPanels,
            columns.div_ceil(NR) * VECTORS * lines * LINE_BYTES,
        );
    }

    /// Keeps the codes of the left operand of a product of bytes, in whole tiles on AMX; nothing of other products.
    pub fn keep_codes(&self, kept: &mut ThreadScratch, buffer: Buffer, vectors: Vectors) {
        if !self.in_bytes || matches!(vectors, Vectors::Other | Vectors::None) {
            return;
        }
        let terms = self.depth.div_ceil(self.longest_term.max(1));
        let codes = self.depth.next_multiple_of(BLOCK_OF_CODES);
        let rows = match vectors == Vectors::Amx && self.rows >= int8::FEWEST_AMX_ROWS {
            true => self.rows.next_multiple_of(int8::AMX_ROWS),
            false => self.rows,
        };
        kept.ask(buffer, rows * (codes + 4 * terms));
    }

    fn keep_quantized(&self, kept: &mut ThreadScratch, pairs: bool, bytes: usize) {
        let buffer = if pairs {
            Buffer::QuantizedPair
        } else {
            Buffer::QuantizedSingle
        };
        kept.ask(buffer, bytes);
    }

    fn runs_on_pairs(&self, vectors: Vectors) -> bool {
        let is_even = self.depth.is_multiple_of(2) && self.adapter_depth.is_multiple_of(2);
        let fits = self.bf16 && self.left_bytes == 2 && (self.form == Form::Tn || is_even);
        fits && vectors.multiplies_pairs()
    }

    fn runs_on_tiles(&self, pairs: bool) -> bool {
        match pairs {
            true => self.rows >= amx::FEWEST_ROWS,
            false => self.rows.min(self.columns).min(self.depth + self.adapter_depth) >= amx::FEWEST_DIGITS,
        }
    }

    /// Keeps what a call on AMX needs.
    fn keep_tiles(&self, kept: &mut ThreadScratch, pairs: bool, threads: usize) {
        let step = if pairs { amx::PAIRS_STEP } else { amx::DIGITS_STEP };
        let most = amx::KC / step;
        let base = self.depth.div_ceil(step);
        // An adapter's few values are multiplied without digits, from an NR micro-panel of F32 values.
        let is_short = !pairs && base > 0 && self.adapter_depth <= amx::SHORT;
        let (adapter, short) = match is_short {
            true => (0, self.adapter_depth * LINE_BYTES * amx::MR / LANES),
            false => (self.adapter_depth.div_ceil(step), 0),
        };
        let term = self.longest_term.div_ceil(step).max(1);
        // Terms that fit into a KC block are not split.
        let whole = if term > most { most } else { most / term * term };
        let longest = (base.min(whole) + adapter).clamp(1, most);
        let terms = 1 + usize::from(adapter > 0 && base < most);
        let blocks = [
            self.rows.min(amx::ROW_BLOCK),
            self.rows.saturating_sub(amx::ROW_BLOCK) % amx::ROW_BLOCK,
        ];
        let laid_out = blocks.map(|rows| {
            // Whole steps of whole MR micro-panels of BF16 rows stay where they are.
            let stays = |depth: usize| {
                pairs && self.form != Form::Tn && rows.is_multiple_of(amx::MR) && depth.is_multiple_of(step)
            };
            let mr_panel = match (stays(self.depth), stays(self.adapter_depth)) {
                (true, true) => 0,
                (true, false) => amx::packed_bytes(pairs, adapter.min(most), 1),
                (false, _) => amx::packed_bytes(pairs, longest, terms),
            };
            rows.div_ceil(amx::MR) * mr_panel
        });
        kept.ask(Buffer::AmxLeft, laid_out[0].max(laid_out[1]));
        let nr_panel = amx::packed_bytes(pairs, longest, terms) + short;
        let mr_panels = blocks[0].div_ceil(amx::MR).max(1);
        let mut nr_panels = self.columns.div_ceil(amx::MR).max(1);
        if base + adapter > most {
            nr_panels = nr_panels.min(amx::panels_with_sums(mr_panels));
            kept.ask(Buffer::AmxSums, mr_panels * nr_panels * amx::TILE_BYTES);
        }
        kept.ask(
            Buffer::AmxRight,
            amx::task_shape(mr_panels, nr_panels, nr_panel, threads).0 * nr_panel,
        );
        if self.quantized {
            let values = self.columns.min(amx::MR) * self.longest_term.min(amx::KC);
            self.keep_quantized(kept, pairs, values * if pairs { 2 } else { 4 });
        }
    }

    /// The adapters' part of a product of bytes, which is one of its own kind.
    fn without_bytes(&self) -> Self {
        Self {
            depth: self.adapter_depth,
            adapter_depth: 0,
            longest_term: self.adapter_depth,
            quantized: false,
            in_bytes: false,
            ..*self
        }
    }

    /// Memory that the call takes and frees.
    pub fn spike(&self, vectors: Vectors) -> u64 {
        if self.in_bytes {
            return match self.adapter_depth {
                0 => 0,
                _ => self.without_bytes().spike(vectors),
            };
        }
        let (narrow, depth) = (self.left_bytes < 4, self.depth + self.adapter_depth);
        let left = match self.form {
            Form::Tn => self.depth * self.rows,
            Form::Nt | Form::Nn => self.rows * (depth + self.beside),
        };
        let is_widened = narrow && !self.runs_on_pairs(vectors);
        let widened = if is_widened { 4 * left } else { 0 };
        match vectors {
            Vectors::Amx | Vectors::Avx512Bf16 | Vectors::Avx512 => return widened as u64,
            // Widened as rows of a tile.
            Vectors::Avx2 => return 0,
            Vectors::Other => {}
            Vectors::None => return self.converted as u64 * self.left_bytes,
        }
        let packed = 4 * depth.min(GEMM_DEPTH) * self.rows.min(2048).next_multiple_of(8);
        let block = self.columns.min(BLOCK);
        let sums = if self.f32_result { 0 } else { 4 * self.rows * block };
        let right = if narrow || self.quantized { 4 * depth * block } else { 0 };
        (widened + packed + sums + right) as u64
    }
}

/// Keeps what a product of one block of attention needs, (rows, depth) times (depth, columns), where it runs on pairs
/// or on digits.
pub(super) fn keep_small(kept: &mut ThreadScratch, [rows, depth, columns]: [usize; 3], pairs: bool, vectors: Vectors) {
    let tiles = vectors == Vectors::Amx && rows >= amx::FEWEST_SMALL_ROWS;
    if tiles && (pairs || depth.min(columns) >= amx::FEWEST_DIGITS) {
        let step = if pairs { amx::PAIRS_STEP } else { amx::DIGITS_STEP };
        let mr_panel = amx::packed_bytes(pairs, depth.div_ceil(step), 1);
        kept.ask(Buffer::SmallNrPanels, columns.div_ceil(amx::MR) * mr_panel);
        kept.ask(Buffer::SmallMrPanels, mr_panel);
    } else if pairs {
        let units = depth.div_ceil(2);
        kept.ask(Buffer::SmallNrPanels, columns.div_ceil(LANES) * units * LINE_BYTES);
        let tiling = Tiling::AVX512;
        let tile = tiling.tile_height(usize::MAX, tiling.panel_vectors(columns));
        kept.ask(
            Buffer::SmallMrPanels,
            4 * (units.next_multiple_of(LANES) * tile + LANES),
        );
    }
}
