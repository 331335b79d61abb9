//! Requests to stop a study: the trials under way are finished and no further one starts, or everything stops at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

/// Time to wait for an event before looking at the clock and the keyboard again.
pub(super) const POLL: Duration = Duration::from_millis(100);

const ASKED: u8 = 1;
const NOW: u8 = 2;

/// A request to stop; all clones share it.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Asks to stop after the trials under way.
    pub fn request(&self) {
        self.0.fetch_max(ASKED, Relaxed);
    }

    /// Asks to stop at once: the trials under way are handed back.
    pub fn request_now(&self) {
        self.0.fetch_max(NOW, Relaxed);
    }

    /// Whether a stop was requested.
    pub fn is_requested(&self) -> bool {
        self.0.load(Relaxed) >= ASKED
    }

    /// Whether an immediate stop was requested.
    pub fn is_immediate(&self) -> bool {
        self.0.load(Relaxed) >= NOW
    }
}
