//! How ranks meet: each counts its arrivals, and goes on once the others have counted as many. The atomics come from the
//! module above, so that `tests/shared_memory_loom.rs` can try every order in which ranks may take their steps.

use super::sync::AtomicU64;
use super::sync::Ordering::{Acquire, Relaxed, Release};

/// Arrives at the next meeting, and returns its number. What was written before it is seen by who finds this arrival.
pub(super) fn arrive(own: &AtomicU64) -> u64 {
    let meeting = own.load(Relaxed) + 1;
    own.store(meeting, Release);
    meeting
}

/// Whether a rank has arrived at a meeting.
pub(super) fn has_arrived(arrivals: &AtomicU64, meeting: u64) -> bool {
    arrivals.load(Acquire) >= meeting
}
