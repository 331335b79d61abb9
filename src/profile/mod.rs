//! Measuring a trial: steady state, throughput, memory.

mod device_memory;
mod memory;
mod resident;
mod steady;

pub use device_memory::DeviceMemory;
pub use memory::{CountingAllocator, HostMemory, OUT_OF_MEMORY_EXIT};
pub use resident::{peak_resident_bytes, reset_peak_resident, resident_bytes};
pub use steady::{Throughput, WarmupDetector, median};
