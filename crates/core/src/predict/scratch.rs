//! Memory that the engine's products and attention take beside their results.
//!
//! What a thread keeps from one task to the next counts as the framework's; what a call frees again is a spike. The
//! constants are those of the engine's blocking (`train::ops::matmul`, `train::ops::attention`).

use super::op::Form;

/// Vector instructions that products run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vectors {
    /// AVX-512 with products of BF16 pairs, and AMX tiles of them.
    Amx,
    /// AVX-512 with products of BF16 pairs.
    Avx512Bf16,
    Avx512,
    /// The `gemm` crate alone.
    Other,
    /// Not a CPU.
    None,
}

impl Vectors {
    /// Whether products of BF16 run on pairs.
    pub fn multiplies_pairs(self) -> bool {
        matches!(self, Self::Amx | Self::Avx512Bf16)
    }
}

/// Columns of a packed panel.
const PANEL: usize = 48;
/// Results of one vector.
const LANES: usize = 16;
/// Bytes of one unit of a panel.
const PANEL_UNIT_BYTES: usize = 3 * LINE_BYTES;
/// Bytes of a vector.
const LINE_BYTES: usize = 64;
/// Units of the summed dimension that are packed at once.
const PASS_UNITS: usize = 768;
/// Bytes of packed panels that a task keeps.
const GROUP_BYTES: usize = 640 * 1024;
const GROUPS_PER_THREAD: usize = 4;
const TASKS_PER_THREAD: usize = 8;
const LARGE_TASKS_PER_THREAD: usize = 3;
const LARGE_BYTES: usize = 8 << 20;
const TASK_ROWS: usize = 128;
/// Rows of a tile, and of one whose panel is a single vector.
const TILE_ROWS: usize = 8;
const NARROW_TILE_ROWS: usize = 16;
/// Columns that are widened at once where there is no AVX-512.
const BLOCK: usize = 256;
/// Depth that the `gemm` crate packs at once.
const GEMM_DEPTH: usize = 512;

/// Values of a step of BF16 on AMX, values of a pass, the bytes of a step of 32 rows or columns.
const STEP: usize = 32;
pub(super) const PASS: usize = 768;
const STEP_BYTES: usize = 2048;
/// Values of a step of F32, the digits that each is made of, the bytes of the factors of 32 rows or columns.
const DIGIT_STEP: usize = 64;
const DIGITS: usize = 3;
const FACTOR_BYTES: usize = 128;
/// Most values of an adapter's term that is multiplied without digits.
const SHORT: usize = 24;
/// Rows of a strip and columns of a panel of AMX, and the rows that are laid out at once.
const STRIP: usize = 32;
const ROW_BLOCK: usize = 2048;
/// Bytes of the sums of several passes, and of the panels that a task of AMX packs; fewest panels and strips of a task.
const SUMS_BYTES: usize = 16 << 20;
const TILES_GROUP_BYTES: usize = 1 << 20;
const LEAST_PANELS: usize = 2;
/// Smallest product of pairs, of F32 values (each way), and of attention on AMX.
const AMX_ROWS: usize = 16;
const AMX_DIGITS: usize = 64;
const SMALL_AMX_ROWS: usize = 8;
const SMALL_DIGITS: usize = 64;

/// Gradients of adapters in F32: most columns of the narrow matrix, fewest tokens (of a task), most tasks, values of a tile.
const THIN: usize = 32;
const THIN_TOKENS: usize = 128;
const THIN_TASKS: usize = 8;
const THIN_TILE: [usize; 2] = [8, 48];

/// Keys of a block of attention scores, rows of a block of queries, most queries of a task forward and backward.
const KEYS: usize = 128;
const QUERY_ROWS: usize = 192;
const SPAN_FORWARD: usize = 256;
const SPAN_BACKWARD: usize = 512;

/// A buffer that a thread keeps from one task to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buffer {
    Panels,
    Strips,
    Sums,
    /// Widened codes, in F32 or as pairs.
    CodedSingle,
    CodedPair,
    /// Panels and strips of attention's own products.
    SmallPanels,
    SmallStrips,
    ForwardKeys,
    ForwardValues,
    /// Blocks of queries, results, scores and their statistics: all grow alike.
    ForwardBlocks,
    BackwardKeys,
    BackwardValues,
    BackwardBlocks,
    /// Panels of a task of AMX.
    AmxRight,
    /// Left operand and sums of AMX, which the calling thread keeps for all.
    AmxLeft,
    AmxSums,
    /// Sums of the tasks of an adapter's gradient.
    ThinSums,
    /// A quantized weight, widened as a whole to 16 bits or to F32: on a GPU.
    Widened,
    WidenedF32,
}

const BUFFERS: usize = 19;
/// Buffers from here on grow to what is asked for and no more.
const FIRST_EXACT: usize = Buffer::AmxRight as usize;
/// Buffers from here on are there once and not for each thread.
const FIRST_SHARED: usize = Buffer::AmxLeft as usize;
/// Growing sizes of one buffer that are told apart.
const SIZES: usize = 6;

/// The sizes in bytes that were asked of a buffer, as far as each is larger than all before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sizes {
    sizes: [u64; SIZES],
    used: usize,
}

impl Sizes {
    fn largest(&self) -> u64 {
        self.used.checked_sub(1).map_or(0, |last| self.sizes[last])
    }

    fn ask(&mut self, bytes: u64) {
        if bytes > self.largest() {
            // What is beyond the places that there are counts as one step.
            let place = self.used.min(SIZES - 1);
            self.sizes[place] = bytes;
            self.used = place + 1;
        }
    }

    /// Bytes of the buffer, which grows to what is asked, or to twice its size where that is more.
    fn capacity(&self) -> u64 {
        let grow = |capacity: u64, size: &u64| match *size > capacity {
            true => (2 * capacity).max(*size),
            false => capacity,
        };
        self.sizes[..self.used].iter().fold(0, grow)
    }
}

/// What one thread keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadScratch([Sizes; BUFFERS]);

impl ThreadScratch {
    fn ask(&mut self, buffer: Buffer, bytes: usize) {
        self.0[buffer as usize].ask(bytes as u64);
    }

    /// Asks for room for a whole widened weight, in elements of `width` bytes.
    pub fn widen(&mut self, elements: usize, width: u64) {
        let buffer = if width == 4 {
            Buffer::WidenedF32
        } else {
            Buffer::Widened
        };
        self.0[buffer as usize].ask(elements as u64 * width);
    }

    /// Asks for what another piece of the step asks for.
    pub fn take(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            if theirs.largest() > mine.largest() {
                theirs.sizes[..theirs.used].iter().for_each(|size| mine.ask(*size));
            }
        }
    }

    /// Bytes of `threads` threads.
    pub fn bytes(&self, threads: u64) -> u64 {
        let (each, shared) = self.0.split_at(FIRST_SHARED);
        let (doubling, exact) = each.split_at(FIRST_EXACT);
        let largest = |sizes: &[Sizes]| sizes.iter().map(Sizes::largest).sum::<u64>();
        threads * (doubling.iter().map(Sizes::capacity).sum::<u64>() + largest(exact)) + largest(shared)
    }
}

/// One call of a product, as far as its scratch depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub form: Form,
    pub rows: usize,
    pub columns: usize,
    /// Summed length of the terms.
    pub depth: usize,
    /// That of the adapters' terms among them.
    pub adapter_depth: usize,
    /// Length of the longest term.
    pub longest_term: usize,
    /// Values between two rows of the left operands, of all terms.
    pub left_width: usize,
    /// Bytes of an element of the left operand.
    pub left_bytes: u64,
    /// Whether the left operand can be BF16 pairs.
    pub pairs: bool,
    /// Whether codes are widened on the way.
    pub coded: bool,
    /// Whether the result is F32.
    pub f32_result: bool,
}

impl Call {
    /// Adds what a thread keeps after the call.
    pub fn keep(&self, kept: &mut ThreadScratch, vectors: Vectors, threads: usize) {
        let pairs = self.pairs && vectors.multiplies_pairs();
        if matches!(vectors, Vectors::Other | Vectors::None) {
            return;
        }
        if self.is_thin() {
            let tasks = (self.depth / THIN_TOKENS).clamp(1, THIN_TASKS);
            let (few, many) = (self.rows.min(self.columns), self.rows.max(self.columns));
            let tiles = few.div_ceil(THIN_TILE[0]) * many.div_ceil(THIN_TILE[1]);
            return kept.ask(Buffer::ThinSums, 4 * tasks * tiles * THIN_TILE[0] * THIN_TILE[1]);
        }
        if vectors == Vectors::Amx && self.runs_on_tiles(pairs) {
            return self.keep_tiles(kept, pairs, threads);
        }
        let in_units = |depth: usize| depth.div_ceil(if pairs { 2 } else { 1 });
        let units = in_units(self.depth);
        let longest = units.clamp(1, PASS_UNITS);
        let (group, height) = task_shape(self.rows, self.columns, [longest, units], threads);
        let columns = (group * PANEL).min(self.columns.max(1));
        kept.ask(Buffer::Panels, columns.div_ceil(PANEL) * longest * PANEL_UNIT_BYTES);
        kept.ask(Buffer::Strips, 4 * longest * tile_rows(self.rows.min(height), columns));
        if units > PASS_UNITS {
            kept.ask(
                Buffer::Sums,
                4 * height.min(self.rows) * columns.next_multiple_of(PANEL),
            );
        }
        if self.coded {
            // Pairs of BF16, or as many F32 values: the same bytes.
            let buffer = if pairs { Buffer::CodedPair } else { Buffer::CodedSingle };
            kept.ask(
                buffer,
                columns.min(PANEL) * in_units(self.longest_term).min(PASS_UNITS) * 4,
            );
        }
    }

    /// Whether it is the gradient of an adapter in F32.
    fn is_thin(&self) -> bool {
        let few = self.rows.min(self.columns);
        self.form == Form::Tn
            && self.left_bytes == 4
            && few <= THIN
            && self.rows.max(self.columns) > THIN
            && self.depth >= THIN_TOKENS
    }

    fn runs_on_tiles(&self, pairs: bool) -> bool {
        match pairs {
            true => self.rows >= AMX_ROWS,
            false => self.rows.min(self.columns).min(self.depth) >= AMX_DIGITS,
        }
    }

    /// What a call on AMX keeps.
    fn keep_tiles(&self, kept: &mut ThreadScratch, pairs: bool, threads: usize) {
        let (step, digits, factors) = match pairs {
            true => (STEP, 1, 0),
            false => (DIGIT_STEP, DIGITS, FACTOR_BYTES),
        };
        let most = PASS / step;
        let base = (self.depth - self.adapter_depth).div_ceil(step);
        // An adapter's few values are multiplied without digits, from a panel of F32 values.
        let is_short = !pairs && base > 0 && self.adapter_depth <= SHORT;
        let (adapter, short) = match is_short {
            true => (0, self.adapter_depth * LINE_BYTES * STRIP / LANES),
            false => (self.adapter_depth.div_ceil(step), 0),
        };
        let term = self.longest_term.div_ceil(step).max(1);
        // Terms that fit into a pass are not split.
        let whole = if term > most { most } else { most / term * term };
        let longest = (base.min(whole) + adapter).clamp(1, most);
        let terms = 1 + usize::from(adapter > 0 && base < most);
        let bytes = |steps: usize, terms: usize| steps * digits * STEP_BYTES + terms * factors;
        let blocks = [
            self.rows.min(ROW_BLOCK),
            self.rows.saturating_sub(ROW_BLOCK) % ROW_BLOCK,
        ];
        let laid_out = blocks.map(|rows| {
            // Whole steps of whole strips of BF16 rows stay where they are.
            let stays = |depth: usize| {
                pairs && self.form != Form::Tn && rows.is_multiple_of(STRIP) && depth.is_multiple_of(STEP)
            };
            let strip = match (stays(self.depth - self.adapter_depth), stays(self.adapter_depth)) {
                (true, true) => 0,
                (true, false) => bytes(adapter.min(most), 1),
                (false, _) => bytes(longest, terms),
            };
            rows.div_ceil(STRIP) * strip
        });
        kept.ask(Buffer::AmxLeft, laid_out[0].max(laid_out[1]));
        let panel = bytes(longest, terms) + short;
        let tile = 4 * STRIP * STRIP;
        let (strips, mut panels) = (blocks[0].div_ceil(STRIP).max(1), self.columns.div_ceil(STRIP));
        if base + adapter > most {
            panels = panels.min(SUMS_BYTES / (strips * tile));
            kept.ask(Buffer::AmxSums, strips * panels * tile);
        }
        kept.ask(Buffer::AmxRight, tiles_group(panels, panel, threads) * panel);
        if self.coded {
            let values = self.columns.min(STRIP) * self.longest_term.min(PASS);
            match pairs {
                true => kept.ask(Buffer::CodedPair, 2 * values),
                false => kept.ask(Buffer::CodedSingle, 4 * values),
            }
        }
    }

    /// Memory that the call takes and frees.
    pub fn spike(&self, vectors: Vectors) -> u64 {
        let pairs = self.pairs && vectors.multiplies_pairs();
        let narrow = self.left_bytes < 4;
        let lines = if self.form == Form::Tn { self.depth } else { self.rows };
        let widened = if narrow && !pairs {
            4 * lines * self.left_width
        } else {
            0
        };
        match vectors {
            Vectors::Amx | Vectors::Avx512Bf16 | Vectors::Avx512 => return widened as u64,
            Vectors::Other => {}
            Vectors::None => return 0,
        }
        let packed = 4 * self.depth.min(GEMM_DEPTH) * self.rows.min(2048).next_multiple_of(8);
        let block = self.columns.min(BLOCK);
        let sums = if self.f32_result { 0 } else { 4 * self.rows * block };
        let right = if narrow || self.coded {
            4 * self.depth * block
        } else {
            0
        };
        (widened + packed + sums + right) as u64
    }
}

/// Rows of the highest tile of a task of `rows` rows and `columns` columns.
fn tile_rows(rows: usize, columns: usize) -> usize {
    let most = if columns <= LANES { NARROW_TILE_ROWS } else { TILE_ROWS };
    // Powers of two.
    1 << rows.clamp(1, most).ilog2()
}

/// (panels of a task, rows of a task) from the most units of a pass and the units of all passes.
fn task_shape(rows: usize, columns: usize, [longest, all]: [usize; 2], threads: usize) -> (usize, usize) {
    let (panels, threads) = (columns.div_ceil(PANEL).max(1), threads.max(1));
    let cached = GROUP_BYTES / (longest * PANEL_UNIT_BYTES);
    let groups = panels.div_ceil(cached.max(1)).max(GROUPS_PER_THREAD * threads);
    let group = panels.div_ceil(groups.next_multiple_of(threads));
    let tasks = match all * PANEL_UNIT_BYTES * panels {
        LARGE_BYTES.. => LARGE_TASKS_PER_THREAD,
        _ => TASKS_PER_THREAD,
    };
    let blocks = (tasks * threads).div_ceil(panels.div_ceil(group));
    let height = rows.div_ceil(blocks).max(TASK_ROWS).next_multiple_of(2 * TILE_ROWS);
    (group, height)
}

/// Panels that a task of AMX packs, from the bytes of one.
fn tiles_group(panels: usize, bytes: usize, threads: usize) -> usize {
    let cached = (TILES_GROUP_BYTES / bytes.max(1)).max(1);
    let groups = panels.div_ceil(cached).max(threads.min(panels.div_ceil(LEAST_PANELS)));
    panels.div_ceil(groups.next_multiple_of(threads.max(1)).max(1))
}

/// A pass of attention, as far as its scratch depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttentionCall {
    /// Tokens of the longest document.
    pub longest: usize,
    pub window: Option<usize>,
    pub backward: bool,
    /// Whether its products run on pairs of BF16.
    pub pairs: bool,
    pub vectors: Vectors,
}

/// Heads of an attention layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub query: usize,
    pub key: usize,
    pub width: usize,
}

impl Heads {
    /// Rows of a block of queries, the heads of the group counted, in a document of `tokens`.
    fn block_rows(&self, tokens: usize) -> usize {
        let group = self.query / self.key;
        (QUERY_ROWS / group).clamp(8, 64).min(tokens) * group
    }

    /// Adds what a thread keeps after the forward or the backward pass over documents of at most `longest` tokens.
    pub fn keep(&self, kept: &mut ThreadScratch, attention: AttentionCall) {
        if attention.vectors == Vectors::None {
            return;
        }
        let AttentionCall {
            longest, window, pairs, ..
        } = attention;
        let (rows, width) = (self.block_rows(longest), self.width);
        let (span, buffers, block) = match attention.backward {
            false => (
                SPAN_FORWARD,
                [Buffer::ForwardKeys, Buffer::ForwardValues, Buffer::ForwardBlocks],
                rows * (2 * width + KEYS + 3),
            ),
            true => (
                SPAN_BACKWARD,
                [Buffer::BackwardKeys, Buffer::BackwardValues, Buffer::BackwardBlocks],
                rows * (4 * width + 2 * KEYS + 2),
            ),
        };
        let seen = |first: usize| {
            let end = (first + span).min(longest);
            end - (first + 1).saturating_sub(window.unwrap_or(usize::MAX))
        };
        let last = longest.saturating_sub(1) / span * span;
        let before = last.checked_sub(span).map_or(0, seen);
        // Whether a thread's buffer doubles from the span before or is made for the longest at once is a matter of chance.
        let keys = match seen(last) {
            keys if keys > before => keys.midpoint((2 * before).max(keys)),
            _ => before,
        };
        kept.ask(buffers[0], 4 * keys * width);
        kept.ask(buffers[1], 4 * keys * width);
        kept.ask(buffers[2], 4 * block);
        let tiles = attention.vectors == Vectors::Amx && rows >= SMALL_AMX_ROWS;
        if pairs || tiles {
            self.keep_small(kept, longest.min(KEYS), rows, attention.backward, (pairs, tiles));
        }
    }

    /// What the products of one block keep where they run on pairs or on digits: (depth, columns of the result) of each.
    fn keep_small(
        &self,
        kept: &mut ThreadScratch,
        keys: usize,
        rows: usize,
        backward: bool,
        (pairs, tiles): (bool, bool),
    ) {
        let scores = [(self.width, keys), (keys, self.width)];
        let gradients = [(rows, self.width); 1];
        for (depth, columns) in scores.iter().chain(gradients.iter().filter(|_| backward)) {
            if !pairs {
                if *depth.min(columns) >= SMALL_DIGITS {
                    let bytes = FACTOR_BYTES + depth.div_ceil(DIGIT_STEP) * DIGITS * STEP_BYTES;
                    kept.ask(Buffer::SmallPanels, columns.div_ceil(STRIP) * bytes);
                    kept.ask(Buffer::SmallStrips, bytes);
                }
                continue;
            }
            if tiles {
                let steps = depth.div_ceil(STEP);
                kept.ask(Buffer::SmallPanels, columns.div_ceil(STRIP) * steps * STEP_BYTES);
                kept.ask(Buffer::SmallStrips, steps * STEP_BYTES);
                continue;
            }
            let units = depth.div_ceil(2);
            kept.ask(Buffer::SmallPanels, columns.div_ceil(LANES) * units * LINE_BYTES);
            let tile = tile_rows(usize::MAX, *columns);
            kept.ask(Buffer::SmallStrips, 4 * (units.next_multiple_of(LANES) * tile + LANES));
        }
    }

    /// Bytes that one thread's small products pack and free again, where they run through the `gemm` crate.
    pub fn packing(&self, longest: usize, pairs: bool, vectors: Vectors) -> u64 {
        let digits = vectors == Vectors::Amx && self.width.min(longest) >= SMALL_DIGITS;
        if pairs || digits {
            return 0;
        }
        4 * (self.block_rows(longest) * (KEYS + 16 + self.width.max(KEYS))) as u64
    }

    /// Bytes of all shares of dk and dv of one document: each span of queries has its own over the keys that it sees.
    pub fn shares(&self, tokens: usize, window: Option<usize>) -> u64 {
        let seen = |first: usize| {
            let end = (first + SPAN_BACKWARD).min(tokens);
            let start = (first + 1).saturating_sub(window.unwrap_or(usize::MAX));
            end - start
        };
        let keys: usize = (0..tokens).step_by(SPAN_BACKWARD).map(seen).sum();
        (2 * 4 * keys * self.width * self.key) as u64
    }
}
