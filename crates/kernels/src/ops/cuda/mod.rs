//! The ops on an NVIDIA GPU: own kernels, and how each is launched. Formulas and shapes are those of the ops themselves.

pub(in crate::ops) mod adapted_product;
pub(in crate::ops) mod adapter_gradients;
pub(in crate::ops) mod attention;
pub(in crate::ops) mod byte_products;
pub(in crate::ops) mod cached_attention;
#[cfg(test)]
mod codes;
pub(in crate::ops) mod elementwise;
pub(in crate::ops) mod embedding;
pub(in crate::ops) mod gain;
pub(in crate::ops) mod grouped;
pub(in crate::ops) mod loss_head;
pub(in crate::ops) mod matmul;
#[cfg(test)]
mod mixture_tests;
pub(in crate::ops) mod rms_norm;
pub(in crate::ops) mod rope;
pub(in crate::ops) mod routing;
pub(in crate::ops) mod rows;
#[cfg(test)]
mod tests;
