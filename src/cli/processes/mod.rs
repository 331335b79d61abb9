//! Commands that no person types: the processes that other commands start, and the Python that some of them become.

pub(super) mod interpreter;
pub(super) mod printed;
pub(super) mod rank;
pub(super) mod try_kernels;
pub(super) mod worker;
