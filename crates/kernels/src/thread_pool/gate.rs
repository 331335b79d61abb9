//! The gate between the caller of a loop and the helpers: who may be inside, and who is asleep. The atomics come from the
//! module above, so that `tests/thread_pool_loom.rs` can try every order in which threads may take their steps.

use super::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use super::sync::{AtomicBool, AtomicU64, fence};

/// Bit of the state word: a loop is open for helpers. The bits below count the helpers inside, those above the loops.
const OPEN: u64 = 1 << 16;
const INSIDE: u64 = OPEN - 1;
const LOOP: u64 = OPEN << 1;

/// Most helpers that may be inside.
pub(super) const MOST: usize = INSIDE as usize;

/// Number of the loop, whether it is open, helpers inside.
pub(super) struct Gate {
    pub(super) state: AtomicU64,
}

impl Gate {
    /// Opens the next loop. What the caller wrote before it is seen by those who [`Gate::enter`].
    pub(super) fn open(&self) {
        let number = self.state.load(Relaxed) / LOOP + 1;
        self.state.store((number * LOOP) | OPEN, Release);
        // Either this thread sees below who is about to sleep, or that one sees the loop: each writes, then reads what the other
        // wrote. A fence between the two, as loom knows no sequentially consistent load.
        fence(SeqCst);
    }

    /// Lets no more helpers in.
    pub(super) fn shut(&self) {
        self.state.fetch_and(!OPEN, AcqRel);
    }

    /// Whether nobody is inside; what they did is then seen.
    pub(super) fn is_empty(&self) -> bool {
        self.state.load(Acquire) & INSIDE == 0
    }

    /// Enters a loop other than `done`, where one is open: its number.
    pub(super) fn enter(&self, done: u64) -> Option<u64> {
        let mut state = self.state.load(Acquire);
        while is_open(state, done) {
            match self.state.compare_exchange(state, state + 1, AcqRel, Acquire) {
                Ok(_) => return Some(state / LOOP),
                Err(now) => state = now,
            }
        }
        None
    }

    /// Leaves the loop that was entered.
    pub(super) fn leave(&self) {
        self.state.fetch_sub(1, Release);
    }

    /// Whether a loop other than `done` is open, for who only watches.
    pub(super) fn looks_open(&self, done: u64) -> bool {
        is_open(self.state.load(Relaxed), done)
    }

    /// Says that a helper goes to sleep, unless a loop other than `done` is open: whether it is to park as long as the flag is set.
    pub(super) fn fall_asleep(&self, done: u64, asleep: &AtomicBool) -> bool {
        asleep.store(true, Release);
        fence(SeqCst);
        if is_open(self.state.load(Relaxed), done) {
            asleep.store(false, Release);
            return false;
        }
        true
    }

    /// Whether, behind [`Gate::open`], a helper sleeps and is to be unparked.
    pub(super) fn wakes(&self, asleep: &AtomicBool) -> bool {
        let sleeps = asleep.load(Acquire);
        if sleeps {
            asleep.store(false, Release);
        }
        sleeps
    }
}

fn is_open(state: u64, done: u64) -> bool {
    state & OPEN > 0 && state / LOOP != done
}
