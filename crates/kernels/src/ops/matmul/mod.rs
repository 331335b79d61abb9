//! Matrix products of the linear layers, with F32 accumulation whatever the dtype.
//!
//! | op | operands | result | use |
//! |---|---|---|---|
//! | [`nt`] | x (T, K), w (N, K) | x w^T, (T, N) | forward of a linear layer |
//! | [`nn`] | x (T, N), w (N, K) | x w, (T, K) | its backward with respect to the input |
//! | [`tn_add`] | a (T, M), b (T, N) | into += alpha a^T b, (M, N) F32 | its backward with respect to a weight |
//! | [`nt_sum`], [`nn_sum`] | several [`Term`]s | the sum of the scaled products | a layer with its adapter |
//! | [`nt_onto`] | the same, and y (T, N) | y + the sum | a layer onto the residual stream |
//! | [`nt_by_rows`], [`nn_by_rows`] | shared terms, and others for ranges of rows | as above | layers of several trainings on one base |
//! | [`nn_beside`] | several sums | the results side by side | the adapters of a group |
//! | [`nt_adapted`], [`nn_adapted`] | a quantized weight and its adapter | one product for both, where a GPU is faster so | layers of NF4 and int8 |
//! | [`grouped`] | groups of rows, a matrix each | as above | the experts of a mixture |
//!
//! `x`, `a`, `b` and the result are in the compute dtype. `w` may be of any float dtype: it is converted to the compute
//! dtype while it is packed, never as a whole. The codes of a quantized weight ([`QuantizedMatrix`]) are widened there too.
//!
//! Weights stay as they lie in the checkpoint, (N, K) row-major. Packing a weight once and keeping the packed copy would
//! double its memory or serve one of the two directions only, and saves little: packing runs at memory speed and is
//! about 1% of the product at 1024 tokens.
//!
//! | compute dtype | processor | engine |
//! |---|---|---|
//! | BF16 | AMX, from 16 rows on | tiles of pairs |
//! | F32; F16 widened | AMX, large products | tiles of digits, three for each value: as exact as F32 |
//! | any, where a quantized weight says so | AVX-512 VNNI; others | rows in 8 bits: products of bytes |
//! | BF16 | AVX-512 BF16 | blocked, pairs through `_mm512_dpbf16_ps` |
//! | F32; BF16 and F16 widened | AVX-512, AVX2 | blocked, F32 |
//! | F32; BF16 and F16 widened | others | the `gemm` crate on widened blocks |

mod adapted_product;
mod adapter_gradients;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod blocked;
mod by_rows;
pub(in crate::ops) mod engine;
mod factor;
#[cfg(target_arch = "x86_64")]
mod finish;
pub mod grouped;
#[cfg(target_arch = "x86_64")]
mod instructions;
mod int8;
mod linear;
pub(in crate::ops) mod operand;
pub(in crate::ops) mod order;
#[cfg(target_arch = "x86_64")]
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod quantized;
mod quantized_matrix;
mod quantized_source;
pub mod reference;
mod segments;
pub(in crate::ops) mod serial;
mod term;
pub(in crate::ops) mod terms;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod thin;
#[cfg(target_arch = "x86_64")]
mod thin_tile;
#[cfg(target_arch = "x86_64")]
mod tile;
#[cfg(target_arch = "x86_64")]
mod unit_operand;
pub(in crate::ops) mod view;
mod widened;

use crate::ops::simd;
pub use adapted_product::{Adapted, nn_adapted, nt_adapted, takes_adapter, takes_adapters};
pub use adapter_gradients::{AdapterGradients, adapter_gradients, reads_once};
pub use by_rows::{RowTerms, nn_by_rows, nt_by_rows};
pub use factor::Factor;
pub(in crate::ops) use linear::{Guard, rows_of};
pub use linear::{nn, nn_beside, nn_sum, nt, nt_onto, nt_sum, tn_add};
use peft_tune_core::plan::Vectors;
pub use peft_tune_core::plan::products::MAX_TERMS;
pub use quantized_matrix::QuantizedMatrix;
pub use term::Term;

/// Whether large products run on AMX here.
pub fn multiplies_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    return amx::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// The vector instructions that products run on here.
pub fn vectors() -> Vectors {
    match simd::level() {
        simd::Level::Avx512 if multiplies_tiles() => Vectors::Amx,
        simd::Level::Avx512 if terms::multiplies_pairs() => Vectors::Avx512Bf16,
        simd::Level::Avx512 => Vectors::Avx512,
        simd::Level::Avx2 => Vectors::Avx2,
        simd::Level::Portable => Vectors::Other,
    }
}

/// Releases what this thread keeps from one product to the next.
pub(in crate::ops) fn forget() {
    int8::forget();
    #[cfg(target_arch = "x86_64")]
    {
        amx::forget();
        blocked::forget();
        quantized::forget();
        pairs::forget();
        thin::forget();
    }
}
