//! The ops on an NVIDIA GPU: own kernels, and how each is launched. Formulas and shapes are those of the ops themselves.

pub(in crate::train::ops) mod attention;
pub(in crate::train::ops) mod cached_attention;
pub(in crate::train::ops) mod elementwise;
pub(in crate::train::ops) mod embedding;
pub(in crate::train::ops) mod gain;
pub(in crate::train::ops) mod loss_head;
pub(in crate::train::ops) mod matmul;
pub(in crate::train::ops) mod rms_norm;
pub(in crate::train::ops) mod rope;
#[cfg(test)]
mod tests;
