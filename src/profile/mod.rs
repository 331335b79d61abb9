//! Measuring a training: steady state, throughput, memory; and event files of it for TensorBoard.

pub mod ceilings;
mod device_memory;
mod memory;
mod resident;
mod steady;
mod tensorboard;

pub use device_memory::DeviceMemory;
pub use memory::{CountingAllocator, HostMemory, OUT_OF_MEMORY_EXIT};
pub use resident::{peak_resident_bytes, reset_peak_resident, resident_bytes};
pub use steady::{Throughput, WarmupDetector, median};
pub use tensorboard::TensorBoard;
