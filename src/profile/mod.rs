//! Measuring a trial: clock, memory, steady state.

mod memory;

pub use memory::{CountingAllocator, HostMemory};
