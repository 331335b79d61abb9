//! The facts about a device that memory depends on.

use serde::{Deserialize, Serialize};

use crate::plan::{Memory, Vectors};

/// Host that computes, as far as memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Threads that products run on.
    pub threads: usize,
    pub vectors: Vectors,
    /// Bytes of a GPU's memory; 0 where they are not known, and of the CPU.
    #[serde(default)]
    pub device_bytes: u64,
}

impl Host {
    /// A GPU of which nothing is known: it has no packing buffers.
    pub const GPU: Self = Self::gpu(0);

    /// A GPU with so much memory.
    pub const fn gpu(device_bytes: u64) -> Self {
        Self {
            threads: 1,
            vectors: Vectors::None,
            device_bytes,
        }
    }

    /// Memory where activations lie.
    pub fn memory(self) -> Memory {
        match self.vectors {
            Vectors::None => Memory::Device,
            _ => Memory::Host,
        }
    }
}
