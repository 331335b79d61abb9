//! How passes over memory are cut, as far as the parts take memory of their own.

use super::Memory;

/// Rows whose sums one task of a gain's backward pass makes, whatever the number of threads.
pub const GAIN_ROWS: usize = 32;
/// Rows of a block of a gain's backward pass on a GPU.
pub const GAIN_ROWS_GPU: usize = 128;

/// Bytes of the sums over some rows each that the backward pass of a gain on (rows, width) adds up.
pub fn gain_sums(rows: usize, width: usize, memory: Memory) -> u64 {
    let of_part = match memory {
        Memory::Host => GAIN_ROWS,
        Memory::Device => GAIN_ROWS_GPU,
    };
    (4 * rows.div_ceil(of_part) * width) as u64
}
