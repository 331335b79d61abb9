//! Memory that the engine's products and attention take beside their results.
//!
//! What a thread keeps from one task to the next counts as the framework's; what a call frees again is a spike. The
//! constants are those of the engine's blocking (`train::ops::matmul`, `train::ops::attention`).

use super::op::Form;

/// Vector instructions that products run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Vectors {
    /// AVX-512 with products of BF16 pairs.
    Avx512Bf16,
    Avx512,
    /// The `gemm` crate alone.
    Other,
    /// Not a CPU.
    None,
}

/// Columns of a packed panel.
const PANEL: usize = 48;
/// Bytes of one unit of a panel.
const PANEL_UNIT_BYTES: usize = 3 * 64;
/// Units of the summed dimension that are packed at once.
const PASS_UNITS: usize = 768;
/// Bytes of packed panels that a task keeps.
const GROUP_BYTES: usize = 640 * 1024;
const TASKS_PER_THREAD: usize = 3;
const TASK_ROWS: usize = 64;
/// Columns that are widened at once where there is no AVX-512.
const BLOCK: usize = 256;
/// Depth that the `gemm` crate packs at once.
const GEMM_DEPTH: usize = 512;

/// Keys of a block of attention scores, rows of a block of queries, most queries of a task forward and backward.
const KEYS: usize = 128;
const QUERY_ROWS: usize = 192;
const SPAN_FORWARD: usize = 256;
const SPAN_BACKWARD: usize = 512;

/// The largest memory that one thread keeps for each purpose, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadScratch {
    panels: u64,
    strips: u64,
    sums: u64,
    coded: u64,
    attention_forward: u64,
    attention_backward: u64,
}

impl ThreadScratch {
    /// Grows to what another piece of the step needs.
    pub fn take(&mut self, other: &Self) {
        self.panels = self.panels.max(other.panels);
        self.strips = self.strips.max(other.strips);
        self.sums = self.sums.max(other.sums);
        self.coded = self.coded.max(other.coded);
        self.attention_forward = self.attention_forward.max(other.attention_forward);
        self.attention_backward = self.attention_backward.max(other.attention_backward);
    }

    /// Bytes of one thread.
    pub fn bytes(&self) -> u64 {
        self.panels + self.strips + self.sums + self.coded + self.attention_forward + self.attention_backward
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
    /// Memory that a thread keeps after the call.
    pub fn kept(&self, vectors: Vectors, threads: usize) -> ThreadScratch {
        let blocked = match vectors {
            Vectors::Avx512Bf16 => self.pairs || self.form != Form::Tn,
            Vectors::Avx512 => self.form != Form::Tn,
            Vectors::Other | Vectors::None => false,
        };
        if !blocked {
            return ThreadScratch::default();
        }
        let pairs = self.pairs && vectors == Vectors::Avx512Bf16;
        let units = self.depth.div_ceil(if pairs { 2 } else { 1 });
        let longest = units.clamp(1, PASS_UNITS);
        let (group, height) = task_shape(self.rows, self.columns, longest, threads);
        let columns = (group * PANEL).min(self.columns.max(1));
        let lines = columns.div_ceil(PANEL) * longest;
        let tile = if columns <= 16 { 16 } else { 8 };
        ThreadScratch {
            panels: (lines * PANEL_UNIT_BYTES) as u64,
            strips: if self.form == Form::Tn {
                (longest * tile * 4) as u64
            } else {
                0
            },
            sums: if units > PASS_UNITS {
                (height.min(self.rows) * columns.next_multiple_of(PANEL) * 4) as u64
            } else {
                0
            },
            coded: if self.coded {
                // PASS_UNITS pairs of BF16 or as many F32 values: the same bytes.
                (columns.min(PANEL) * longest * 4) as u64
            } else {
                0
            },
            ..ThreadScratch::default()
        }
    }

    /// Memory that the call takes and frees.
    pub fn spike(&self, vectors: Vectors) -> u64 {
        let pairs = self.pairs && vectors == Vectors::Avx512Bf16;
        let narrow = self.left_bytes < 4;
        let widened = if narrow && !pairs {
            4 * self.rows * self.depth
        } else {
            0
        };
        let through_gemm = match vectors {
            Vectors::Avx512Bf16 | Vectors::Avx512 => self.form == Form::Tn && !pairs,
            Vectors::Other => true,
            Vectors::None => return 0,
        };
        if !through_gemm {
            return widened as u64;
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

/// (panels of a task, rows of a task).
fn task_shape(rows: usize, columns: usize, units: usize, threads: usize) -> (usize, usize) {
    let wanted = TASKS_PER_THREAD * threads.max(1);
    let panels = columns.div_ceil(PANEL).max(1);
    let cached = GROUP_BYTES / (units * PANEL_UNIT_BYTES);
    let group = (panels / wanted).clamp(1, cached.max(1));
    let blocks = wanted.div_ceil(panels.div_ceil(group));
    (group, rows.div_ceil(blocks).max(TASK_ROWS).next_multiple_of(16))
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

    /// What one thread keeps after the forward and the backward pass over documents of at most `longest` tokens.
    pub fn kept(&self, longest: usize, window: Option<usize>) -> ThreadScratch {
        let keys = |span: usize| longest.min(window.map_or(usize::MAX, |window| window.saturating_add(span)));
        let rows = self.block_rows(longest);
        let (width, block) = (self.width, KEYS);
        let forward = 2 * keys(SPAN_FORWARD) * width + rows * (2 * width + block + 3);
        let backward = 2 * keys(SPAN_BACKWARD) * width + rows * (4 * width + 2 * block + 2);
        ThreadScratch {
            attention_forward: 4 * forward as u64,
            attention_backward: 4 * backward as u64,
            ..ThreadScratch::default()
        }
    }

    /// Bytes that one thread's small products pack and free again.
    pub fn packing(&self, longest: usize) -> u64 {
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
