//! The ops that a decoder is built from, each with its hand-written backward.
//!
//! Activations are contiguous (tokens, features) or (tokens, heads, head_dim) tensors in the compute dtype (F32, BF16 or
//! F16); statistics and sums are kept in F32. Every op has a `reference` form in plain candle ops, which runs on any
//! device and in F64 (it is the oracle of the tests), and a fused form for the CPU; [`set_kernels`](crate::set_kernels) selects.

pub mod attention;
pub mod bias;
pub mod cached_attention;
pub mod centre;
pub mod clamped_glu;
pub mod convolution;
mod cuda;
pub mod delta_rule;
pub mod dropout;
mod element;
pub mod embedding;
pub mod expert_parts;
mod exponential;
pub mod gain;
pub mod gated_norm;
pub mod glu;
pub mod head_gate;
pub mod latent_heads;
pub mod loss_head;
pub mod matmul;
pub mod merged_rows;
pub mod offsets;
#[cfg(test)]
mod oracle;
pub mod own_columns;
pub mod residual;
pub mod rms_norm;
pub mod rope;
pub mod rounding;
pub mod routing;
pub mod rows;
mod scratch;
mod shape;
mod simd;
pub mod sinks;
mod storage;
pub mod xielu;

pub use matmul::{multiplies_tiles, vectors};

/// Releases the memory that all threads keep from one op to the next.
pub fn forget_scratch() {
    crate::thread_pool::on_every_thread(|| {
        matmul::forget();
        attention::forget();
    });
}
