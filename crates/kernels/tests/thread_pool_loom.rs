//! The thread pool's gate under every order in which threads may take their steps (loom, Norris and Demsky 2013): no helper reads a
//! job while the caller writes it, and none sleeps through a loop.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use sync::{AtomicBool, AtomicU64, Ordering};

#[path = "../src/thread_pool/gate.rs"]
mod gate;

/// Atomics that the gate is made of here.
mod sync {
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

struct Pool {
    gate: gate::Gate,
    job: UnsafeCell<u64>,
    asleep: AtomicBool,
    over: AtomicBool,
}

// SAFETY: as the pool promises; loom fails where it is broken.
unsafe impl Sync for Pool {}

fn pool() -> Arc<Pool> {
    const { assert!(gate::MOST > 1) };
    Arc::new(Pool {
        gate: gate::Gate {
            state: AtomicU64::new(0),
        },
        job: UnsafeCell::new(0),
        asleep: AtomicBool::new(false),
        over: AtomicBool::new(false),
    })
}

/// A loop of the caller's: write the job, let helpers in, wait until they left.
fn run_loop(pool: &Pool, job: u64) {
    // SAFETY: nobody is inside.
    pool.job.with_mut(|value| unsafe { *value = job });
    pool.gate.open();
    pool.gate.shut();
    while !pool.gate.is_empty() {
        thread::yield_now();
    }
}

#[test]
fn no_helper_reads_a_job_that_is_written() {
    let mut model = loom::model::Builder::new();
    // All orders with at most two switches that no thread asked for.
    model.preemption_bound = Some(2);
    model.check(|| {
        let pool = pool();
        let helpers: Vec<_> = (0..2)
            .map(|_| {
                let pool = pool.clone();
                thread::spawn(move || {
                    if let Some(number) = pool.gate.enter(0) {
                        // SAFETY: inside.
                        let job = pool.job.with(|value| unsafe { *value });
                        assert_eq!(job, 10 * number);
                        pool.gate.leave();
                    }
                })
            })
            .collect();
        run_loop(&pool, 10);
        run_loop(&pool, 20);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
    });
}

#[test]
fn no_helper_sleeps_through_a_loop() {
    loom::model(|| {
        let pool = pool();
        let helper = {
            let pool = pool.clone();
            thread::spawn(move || {
                if pool.gate.fall_asleep(0, &pool.asleep) {
                    // Loom fails where all threads wait for ever.
                    while pool.asleep.load(Ordering::SeqCst) {
                        thread::park();
                    }
                }
                assert!(pool.gate.looks_open(0) || pool.over.load(Ordering::SeqCst));
            })
        };
        pool.gate.open();
        if pool.gate.wakes(&pool.asleep) {
            helper.thread().unpark();
        }
        pool.over.store(true, Ordering::SeqCst);
        helper.join().unwrap();
    });
}
