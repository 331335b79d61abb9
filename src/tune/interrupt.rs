//! How a person stops a study: once to finish the trial under way, twice to stop now.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Counts requests to stop; clones count together.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicU32>);

impl Interrupt {
    /// One more request to stop.
    pub fn request(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Whether no further trial should start.
    pub fn is_requested(&self) -> bool {
        self.0.load(Relaxed) >= 1
    }

    /// Whether the trials under way should be given up too.
    pub fn is_urgent(&self) -> bool {
        self.0.load(Relaxed) >= 2
    }
}
