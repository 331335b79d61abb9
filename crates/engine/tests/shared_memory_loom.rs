//! A sum over ranks in shared memory, under every order in which two ranks may take their steps (loom): no rank reads what another
//! writes, and both end with the same sums, piece after piece.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

#[path = "../src/parallel/meeting.rs"]
mod meeting;

/// Atomics that meetings are made of here.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
}

const RANKS: usize = 2;

struct Memory {
    arrivals: [sync::AtomicU64; RANKS],
    /// An element a rank, in a slot a rank.
    slots: [[UnsafeCell<u64>; RANKS]; RANKS],
}

// SAFETY: as the ranks promise; loom fails where it is broken.
unsafe impl Sync for Memory {}

impl Memory {
    fn get(&self, slot: usize, element: usize) -> u64 {
        // SAFETY: loom checks it.
        self.slots[slot][element].with(|value| unsafe { *value })
    }

    fn set(&self, slot: usize, element: usize, to: u64) {
        // SAFETY: loom checks it.
        self.slots[slot][element].with_mut(|value| unsafe { *value = to });
    }

    fn barrier(&self, rank: usize) {
        let meeting = meeting::arrive(&self.arrivals[rank]);
        for arrivals in &self.arrivals {
            while !meeting::has_arrived(arrivals, meeting) {
                thread::yield_now();
            }
        }
    }

    /// The steps of `SharedMemory::sum`, for one piece.
    fn sum(&self, rank: usize, piece: [u64; RANKS]) -> [u64; RANKS] {
        (0..RANKS).for_each(|element| self.set(rank, element, piece[element]));
        self.barrier(rank);
        let sum = (0..RANKS).map(|slot| self.get(slot, rank)).sum();
        self.set(0, rank, sum);
        self.barrier(rank);
        let sums = std::array::from_fn(|element| self.get(0, element));
        self.barrier(rank);
        sums
    }
}

#[test]
fn two_ranks_sum_two_pieces_in_any_order_of_their_steps() {
    let mut model = loom::model::Builder::new();
    // All orders with at most three switches that no rank asked for; more take hours and, by experience, find no more.
    model.preemption_bound = Some(3);
    model.check(|| {
        let memory = Arc::new(Memory {
            arrivals: std::array::from_fn(|_| sync::AtomicU64::new(0)),
            slots: std::array::from_fn(|_| std::array::from_fn(|_| UnsafeCell::new(0))),
        });
        let run = |memory: &Memory, rank: usize| {
            let own = [1 + rank as u64, 10 + rank as u64];
            assert_eq!(memory.sum(rank, own), [3, 21]);
            assert_eq!(memory.sum(rank, [100, 200]), [200, 400]);
        };
        let other = {
            let memory = memory.clone();
            thread::spawn(move || run(&memory, 1))
        };
        run(&memory, 0);
        other.join().unwrap();
    });
}
