//! How a person stops a study: the trial under way is finished, and no further one starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A request to stop; clones are one.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Asks to stop.
    pub fn request(&self) {
        self.0.store(true, Relaxed);
    }

    /// Whether somebody asked to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Relaxed)
    }
}
