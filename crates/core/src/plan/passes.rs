//! How passes over memory are cut, as far as the parts take memory of their own.

use super::Memory;

/// Elements of a task: enough work to be worth one, few enough to keep all threads busy.
const TASK_ELEMENTS: usize = 16 * 1024;
/// Rows whose sums one task of a gain's backward pass makes, whatever the number of threads.
pub const GAIN_ROWS: usize = 32;
/// Rows of a block of a gain's backward pass on a GPU.
pub const GAIN_ROWS_GPU: usize = 128;

/// Rows of a part of the gradient of a norm's weight on a GPU, and most parts.
const NORM_ROWS_GPU: usize = 64;
const NORM_PARTS_GPU: usize = 128;

/// Rows of `width` elements that one task of a parallel loop takes. It does not depend on the number of threads, so that sums over blocks
/// do not either.
pub fn rows_per_task(width: usize) -> usize {
    (TASK_ELEMENTS / width.max(1)).max(1)
}

/// Parts of the rows whose sums make up the gradient of a norm's weight on a GPU.
pub fn norm_parts_on_gpu(rows: usize) -> usize {
    rows.div_ceil(NORM_ROWS_GPU).clamp(1, NORM_PARTS_GPU)
}

/// Bytes that the gradient of a norm's weight takes besides its result, from (rows, width): the sums of each part, and on the CPU a copy
/// of rstd.
pub fn norm_sums(rows: usize, width: usize, memory: Memory) -> u64 {
    let elements = match memory {
        Memory::Host => rows + rows.div_ceil(rows_per_task(width)) * width,
        Memory::Device => norm_parts_on_gpu(rows) * width,
    };
    4 * elements as u64
}

/// Values of F32 for each element of a gated norm's input that the gradient of its weight takes: plain ops, whose operands are widened.
const GATED_NORM_VALUES: u64 = 7;
const GATED_NORM_OPERANDS: u64 = 3;

/// Bytes that the gradient of a gated norm's weight takes besides its result.
pub fn gated_norm_room(elements: usize, element_bytes: u64) -> u64 {
    let widened = if element_bytes < 4 { GATED_NORM_OPERANDS } else { 0 };
    4 * elements as u64 * (GATED_NORM_VALUES + widened)
}

/// Bytes of the sums over some rows each that the backward pass of a gain on (rows, width) adds up.
pub fn gain_sums(rows: usize, width: usize, memory: Memory) -> u64 {
    let of_part = match memory {
        Memory::Host => GAIN_ROWS,
        Memory::Device => GAIN_ROWS_GPU,
    };
    (4 * rows.div_ceil(of_part) * width) as u64
}
