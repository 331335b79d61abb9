//! Loops over independent tasks on all threads, for ops of some tens of microseconds.
//!
//! A step is thousands of short loops, one after the other. A thread pool that puts its threads to sleep in between pays
//! for waking them about as much as a small op takes. The threads of the pool stay awake for a moment after each loop
//! (`AWAKE`) and watch for the next one; tasks are handed out by a counter, so that a thread that is held up takes
//! fewer of them. The caller is one of the threads and never waits for one that has not started.
//!
//! A loop that is started while the pool works for another thread, or from within a task, runs on the calling thread
//! alone. Results must not depend on who runs a task, as everywhere in [`super`]. Nor must the memory that threads keep: whoever
//! made its scratch larger in a task (`scratch_grew`) leaves the next tasks to those that have not had one.

mod gate;

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use gate::Gate;

/// Atomics that the gate is made of.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

/// How long a thread watches for the next loop before it sleeps: longer than the last task of a loop takes, for which
/// the others wait. With a twentieth of it they slept forty times in a step of the 5M model and, where other programs
/// ran, came back too late for a third of the work.
const AWAKE: Duration = Duration::from_millis(2);
/// How long a thread whose scratch grew waits for the others: as long as a busy machine may take to give them their turn.
const ARRIVAL: Duration = Duration::from_millis(200);
/// Looks at the state between two looks at the clock.
const LOOKS: u32 = 64;

type Body<'a> = dyn Fn(usize) + Sync + 'a;

/// One loop, as the helpers see it.
#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    tasks: usize,
}

struct ThreadPool {
    /// Whether a caller has the pool.
    taken: AtomicBool,
    gate: Gate,
    /// Loop under way, written by the caller while nobody is inside.
    job: UnsafeCell<Job>,
    /// The next task to hand out.
    next: AtomicUsize,
    /// Threads that have begun a task of the loop.
    arrived: AtomicUsize,
    /// Panic that the first task that panicked in a helper left.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    helpers: OnceLock<Vec<Helper>>,
}

struct Helper {
    thread: Thread,
    asleep: &'static AtomicBool,
}

// SAFETY: the job is written only while no helper is inside, and read only by helpers inside.
unsafe impl Sync for ThreadPool {}

static POOL: ThreadPool = ThreadPool {
    taken: AtomicBool::new(false),
    gate: Gate {
        state: AtomicU64::new(0),
    },
    job: UnsafeCell::new(Job {
        body: &|_| (),
        tasks: 0,
    }),
    next: AtomicUsize::new(0),
    arrived: AtomicUsize::new(0),
    panic: Mutex::new(None),
    helpers: OnceLock::new(),
};

/// Threads of the pool, the caller's included: as many as rayon's, which `RAYON_NUM_THREADS` sets.
pub fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| rayon::current_num_threads().clamp(1, gate::MOST))
}

thread_local! {
    /// Whether this thread runs a task of the pool.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
    /// Whether the task under way made this thread's scratch larger.
    static GREW: Cell<bool> = const { Cell::new(false) };
}

/// Says that the task under way made larger what its thread keeps: the thread takes its next one when every other thread
/// has one, so that all keep as much whatever else the machine does. A thread that does not come within a moment is left out.
pub(crate) fn scratch_grew() {
    GREW.set(true);
}

/// Threads that a loop would run on if it were started here: within a task the calling one alone.
pub fn threads_here() -> usize {
    if IN_TASK.get() { 1 } else { threads() }
}

/// Calls `run` once with each of the numbers below `tasks`, in any order, on all threads.
///
/// A panic of a task reaches the caller.
pub fn for_each(tasks: usize, run: impl Fn(usize) + Sync) {
    if tasks <= 1 || threads() == 1 || POOL.taken.compare_exchange(false, true, Acquire, Relaxed).is_err() {
        return (0..tasks).for_each(run);
    }
    let turn = Turn;
    POOL.open(&run, tasks);
    POOL.work(&run, tasks);
    drop(turn);
    let panic = POOL.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    POOL.taken.store(false, Release);
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Calls `run` with each chunk of `chunk` elements of `values` and its number; the last one may be shorter.
pub fn for_chunks<T: Send>(values: &mut [T], chunk: usize, run: impl Fn(usize, &mut [T]) + Sync) {
    let (chunks, len) = (Chunks(values.as_mut_ptr()), values.len());
    let chunk = chunk.max(1);
    for_each(len.div_ceil(chunk), |index| {
        // SAFETY: chunks do not overlap, each index comes once, and the slice is borrowed until the loop ends.
        run(index, unsafe {
            chunks.get(index * chunk, chunk.min(len - index * chunk))
        });
    });
}

/// Calls `run` on every thread, the caller's included. A thread that does not come within a moment is left out.
pub fn on_every_thread(run: impl Fn() + Sync) {
    for_each(threads(), |_| {
        run();
        scratch_grew();
    });
}

/// Runs as [`for_chunks`] does, with the chunks of the same number of two slices.
pub fn for_chunks2<T: Send, U: Send>(
    (values, chunk): (&mut [T], usize),
    (others, other): (&mut [U], usize),
    run: impl Fn(usize, &mut [T], &mut [U]) + Sync,
) {
    let (ours, len) = (Chunks(values.as_mut_ptr()), values.len());
    let (theirs, other_len) = (Chunks(others.as_mut_ptr()), others.len());
    let (chunk, other) = (chunk.max(1), other.max(1));
    assert_eq!(len.div_ceil(chunk), other_len.div_ceil(other), "as many chunks of both");
    for_each(len.div_ceil(chunk), |index| {
        // SAFETY: as in `for_chunks`, for both.
        let (ours, theirs) = unsafe {
            (
                ours.get(index * chunk, chunk.min(len - index * chunk)),
                theirs.get(index * other, other.min(other_len - index * other)),
            )
        };
        run(index, ours, theirs);
    });
}

/// The start of a slice whose disjoint parts go to different threads.
struct Chunks<T>(*mut T);

// SAFETY: every part is reached from one thread.
unsafe impl<T: Send> Sync for Chunks<T> {}

impl<T> Chunks<T> {
    /// # Safety
    /// The part lies within the slice, and nothing else reaches it while it is borrowed.
    #[expect(clippy::mut_from_ref, reason = "the caller promises that the parts are disjoint")]
    unsafe fn get(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: the caller's promise is the same.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Turn of the caller, as long as it lives: helpers may be inside a loop whose body is the caller's; a panic of the
/// caller closes the loop too.
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        POOL.close();
        if thread::panicking() {
            POOL.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
            POOL.taken.store(false, Release);
        }
    }
}

/// Mark that this thread runs tasks, as long as it lives.
struct WithinTask;

impl WithinTask {
    fn begin() -> Self {
        IN_TASK.set(true);
        Self
    }
}

impl Drop for WithinTask {
    fn drop(&mut self) {
        IN_TASK.set(false);
    }
}

impl ThreadPool {
    fn open(&'static self, body: &Body<'_>, tasks: usize) {
        let helpers = self
            .helpers
            .get_or_init(|| (1..threads()).map(|_| Helper::start()).collect());
        // SAFETY: the last loop was closed when its caller gave the pool back, and nobody is inside. The body outlives
        // the turn, and helpers leave before it ends.
        unsafe {
            let body = std::mem::transmute::<*const Body<'_>, *const Body<'static>>(body);
            *self.job.get() = Job { body, tasks };
        }
        self.next.store(0, Relaxed);
        self.arrived.store(0, Relaxed);
        self.gate.open();
        for helper in helpers {
            if self.gate.wakes(helper.asleep) {
                helper.thread.unpark();
            }
        }
    }

    /// Runs tasks until there are none left.
    fn work(&self, body: &Body<'_>, tasks: usize) {
        let _within = WithinTask::begin();
        GREW.set(false);
        let mut is_first = true;
        loop {
            let task = self.next.fetch_add(1, Relaxed);
            if task >= tasks {
                return;
            }
            if std::mem::take(&mut is_first) {
                self.arrived.fetch_add(1, Relaxed);
            }
            body(task);
            if GREW.take() {
                self.wait_for_others(tasks);
            }
        }
    }

    /// Returns when every thread has begun a task, when none are left, or after a moment.
    #[cold]
    fn wait_for_others(&self, tasks: usize) {
        let deadline = Instant::now() + ARRIVAL;
        while self.arrived.load(Relaxed) < threads() && self.next.load(Relaxed) < tasks && Instant::now() < deadline {
            thread::yield_now();
        }
    }

    /// Lets no more helpers in, and waits for those inside.
    fn close(&self) {
        // A caller that panics leaves tasks behind; helpers need not begin them.
        self.next.fetch_add(usize::MAX / 2, Relaxed);
        self.gate.shut();
        let mut looks = 0;
        while !self.gate.is_empty() {
            looks += 1;
            if looks < 16 * LOOKS {
                std::hint::spin_loop();
            } else {
                // Whoever is inside may wait for this very processor.
                thread::yield_now();
            }
        }
    }

    /// Takes part in loop after loop.
    fn help(&self, asleep: &AtomicBool) {
        let mut done = 0;
        loop {
            let Some(number) = self.gate.enter(done) else {
                self.watch(done, asleep);
                continue;
            };
            // SAFETY: inside, the job stays as it is and its body is alive.
            let job = unsafe { *self.job.get() };
            // SAFETY: as above.
            let body = unsafe { &*job.body };
            let outcome = catch_unwind(AssertUnwindSafe(|| self.work(body, job.tasks)));
            if let Err(panic) = outcome {
                self.panic
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert(panic);
            }
            done = number;
            self.gate.leave();
        }
    }

    /// Returns when a loop other than `done` is open: watches for it, then sleeps.
    fn watch(&self, done: u64, asleep: &AtomicBool) {
        let start = Instant::now();
        while start.elapsed() < AWAKE {
            for _ in 0..LOOKS {
                if self.gate.looks_open(done) {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        if self.gate.fall_asleep(done, asleep) {
            while asleep.load(Acquire) {
                thread::park();
            }
        }
    }
}

impl Helper {
    fn start() -> Self {
        let asleep: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let builder = thread::Builder::new().name("thread-pool".to_owned());
        // Without the thread the caller does its tasks: slower, but right.
        let thread = match builder.spawn(move || POOL.help(asleep)) {
            Ok(handle) => handle.thread().clone(),
            Err(_) => thread::current(),
        };
        Self { thread, asleep }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_task_runs_once() {
        for tasks in [0, 1, 2, 3, 100, 10_000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            for_each(tasks, |task| {
                counts[task].fetch_add(1, Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Relaxed) == 1));
        }
    }

    #[test]
    fn many_short_loops_from_many_threads_all_end() {
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..2_000 {
                        let sum = AtomicUsize::new(0);
                        for_each(round % 7, |task| {
                            sum.fetch_add(task + 1, Relaxed);
                        });
                        let tasks = round % 7;
                        assert_eq!(sum.into_inner(), tasks * (tasks + 1) / 2);
                    }
                });
            }
        });
    }

    #[test]
    fn a_loop_within_a_task_runs_there() {
        let total = AtomicUsize::new(0);
        for_each(8, |_| {
            for_each(8, |_| {
                total.fetch_add(1, Relaxed);
            });
        });
        assert_eq!(total.into_inner(), 64);
    }

    #[test]
    fn a_task_has_one_thread() {
        // While another test has the pool, tasks run outside of it.
        let is_alone = || {
            let alone = AtomicBool::new(false);
            for_each(2, |_| alone.store(threads_here() == 1, Relaxed));
            alone.into_inner()
        };
        let begun = Instant::now();
        while !is_alone() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "no task was alone within a minute"
            );
            thread::yield_now();
        }
        assert_eq!(threads_here(), threads(), "the last task has ended");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        for _ in 0..20 {
            let outcome = catch_unwind(|| for_each(64, |task| assert!(task % 8 != 5, "task {task}")));
            assert!(outcome.is_err());
        }
        for_each(64, |_| ());
    }

    #[test]
    fn sleeping_threads_wake_up() {
        let seen = Mutex::new(HashSet::new());
        for _ in 0..5 {
            thread::sleep(2 * AWAKE);
            for_each(16, |_| {
                thread::sleep(Duration::from_millis(1));
                seen.lock().unwrap().insert(thread::current().id());
            });
        }
        assert!(!seen.into_inner().unwrap().is_empty());
    }

    #[test]
    fn every_thread_is_called() {
        let seen = Mutex::new(HashSet::new());
        // Where another test has the pool, the caller is alone.
        for _ in 0..20 {
            on_every_thread(|| {
                seen.lock().unwrap().insert(thread::current().id());
            });
            if seen.lock().unwrap().len() == threads() {
                return;
            }
        }
        assert!(seen.into_inner().unwrap().contains(&thread::current().id()));
    }

    #[test]
    fn every_thread_has_a_task_where_scratch_grows() {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            let (round, seen, in_pool) = (Instant::now(), Mutex::new(HashSet::new()), AtomicBool::new(false));
            for_each(8 * threads(), |_| {
                in_pool.store(threads_here() == 1, Relaxed);
                if seen.lock().unwrap().insert(thread::current().id()) {
                    scratch_grew();
                }
            });
            // While another test has the pool, the caller is alone; where a thread is held up, the others go on without it.
            if in_pool.into_inner() && round.elapsed() < ARRIVAL {
                assert_eq!(seen.into_inner().unwrap().len(), threads());
                return;
            }
        }
        panic!("no loop had the pool and all threads in time within a minute");
    }

    #[test]
    fn chunks_cover_a_slice() {
        let mut values = vec![0; 1003];
        let mut rows = vec![0; 11];
        for_chunks2((&mut values, 100), (&mut rows, 1), |index, values, row| {
            values.fill(index + 1);
            row[0] = values.len();
        });
        for_chunks(&mut values, 7, |_, values| {
            values.iter_mut().for_each(|value| *value += 1)
        });
        let expected: Vec<usize> = (0..1003).map(|index| index / 100 + 2).collect();
        assert_eq!(values, expected);
        assert_eq!(rows, [100, 100, 100, 100, 100, 100, 100, 100, 100, 100, 3]);
    }
}
