//! The facts about a device that memory depends on.

use serde::{Deserialize, Serialize};

use crate::plan::{Memory, Vectors};

/// What computes, as far as memory depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Threads that products run on.
    pub threads: usize,
    pub vectors: Vectors,
}

impl Host {
    /// A GPU: it has no packing buffers.
    pub const GPU: Self = Self {
        threads: 1,
        vectors: Vectors::None,
    };

    /// Where activations lie.
    pub fn memory(self) -> Memory {
        match self.vectors {
            Vectors::None => Memory::Device,
            _ => Memory::Host,
        }
    }
}
