//! Commands that no person types: the processes that other commands start.

pub(super) mod rank;
pub(super) mod try_kernels;
pub(super) mod worker;
