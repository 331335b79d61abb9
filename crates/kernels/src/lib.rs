//! The ops that training a decoder takes, each with its hand-written backward pass, for CPUs and NVIDIA GPUs.
//!
//! It knows tensors and devices, and no model. Code in a module uses only what lies below it here.
//!
//! | floor | modules |
//! |---|---|
//! | 4 | [`ops`], [`device`] |
//! | 3 | [`quant`] |
//! | 2 | [`gpu`] |
//! | 1 | `kernel_form`, [`thread_pool`], [`flat`], [`compare`] |

pub mod compare;
pub mod device;
pub mod flat;
pub mod gpu;
mod kernel_form;
pub mod ops;
pub mod quant;
pub mod thread_pool;

pub use kernel_form::{
    AttentionKernels, Kernels, attention_kernels, forget_launched, kernels, longer_sums, set_kernels,
};
