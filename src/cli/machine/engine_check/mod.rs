//! The built-in engine on a GPU: whether it computes there what the CPU and TRL do. That is found out once for a machine and a
//! version, in processes of their own, and kept in the cache.

mod check_run;
mod engine_gpu;
mod kept_verdict;
mod standing;
mod verdict;

pub(in crate::cli) use engine_gpu::{EngineGpu, may_have_gpu};
pub(in crate::cli) use standing::{Asking, Beside, Standing};
