//! Room that a thread keeps from one op to the next.
//!
//! A buffer gets as much as is asked of it and no more: a vector that grows by itself would take up to twice the memory, and the
//! old beside the new for a moment.

use crate::thread_pool::scratch_grew;

/// Makes `buffer` at least `len` values long, whatever they are.
#[cfg(target_arch = "x86_64")]
pub(super) fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        *buffer = Vec::new();
        *buffer = vec![value; len];
        scratch_grew();
    }
}

/// Makes `buffer` exactly `len` values long, whatever they are.
pub(super) fn resize<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.capacity() < len {
        *buffer = Vec::new();
        buffer.reserve_exact(len);
        scratch_grew();
    }
    buffer.resize(len, value);
}
