//! Prepares the next steps' data on a thread of its own while the model computes.

use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{BatchSource, DataError, MicroBatch, ThreadUse};
use crate::span;
use crate::span::StepPhase;

/// An iterator over the micro-batches of consecutive steps. As many steps as the source's `batch.prefetch_depth` are
/// ready ahead of the one that is taken; at 0 each is prepared when it is asked for. Dropping it ends the thread.
#[derive(Debug)]
pub struct Prefetch {
    source: Arc<BatchSource>,
    steps: Range<u64>,
    /// `None` where nothing is prepared ahead.
    ahead: Option<Ahead>,
    clock: Arc<Mutex<Clock>>,
}

/// Thread that prepares steps ahead, and its end of the channel.
#[derive(Debug)]
struct Ahead {
    receiver: Option<Receiver<Vec<MicroBatch>>>,
    thread: Option<JoinHandle<()>>,
}

/// Times of a [`Prefetch`] so far, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefetchTimes {
    /// Steps that were prepared.
    pub steps: u64,
    /// Seconds in which steps were prepared.
    pub preparing_s: f64,
    /// The training waited for the data of its next step.
    pub compute_waits_s: f64,
    /// The data waited for the training: so many steps were ready as may be, and no more was prepared.
    pub data_waits_s: f64,
    /// What the thread that prepared steps used meanwhile, where the system tells it.
    pub used: Option<ThreadUse>,
}

impl PrefetchTimes {
    /// Times since those of `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            steps: self.steps - earlier.steps,
            preparing_s: self.preparing_s - earlier.preparing_s,
            compute_waits_s: self.compute_waits_s - earlier.compute_waits_s,
            data_waits_s: self.data_waits_s - earlier.data_waits_s,
            used: self.used.map(|used| used.since(&earlier.used.unwrap_or_default())),
        }
    }
}

/// The times so far, of both threads.
#[derive(Debug, Default)]
struct Clock {
    steps: u64,
    preparing: Duration,
    compute_waits: Duration,
    data_waits: Duration,
    used: Option<ThreadUse>,
    /// Moment since which the thread has waited to hand a step over.
    held_up_since: Option<Instant>,
}

impl Clock {
    fn times(&self) -> PrefetchTimes {
        let under_way = self.held_up_since.map_or(Duration::ZERO, |since| since.elapsed());
        PrefetchTimes {
            steps: self.steps,
            preparing_s: self.preparing.as_secs_f64(),
            compute_waits_s: self.compute_waits.as_secs_f64(),
            data_waits_s: (self.data_waits + under_way).as_secs_f64(),
            used: self.used,
        }
    }

    fn prepared(&mut self, took: Duration, used: Option<ThreadUse>) {
        self.steps += 1;
        self.preparing += took;
        if let Some(used) = used {
            self.used = Some(self.used.unwrap_or_default().and(&used));
        }
    }

    fn handed_over(&mut self) {
        if let Some(since) = self.held_up_since.take() {
            self.data_waits += since.elapsed();
        }
    }
}

impl Prefetch {
    /// Starts to prepare `steps` (from 0) of `source`.
    ///
    /// # Errors
    /// Fails where no thread can be started.
    pub fn start(source: Arc<BatchSource>, steps: Range<u64>) -> Result<Self, DataError> {
        let clock = Arc::new(Mutex::new(Clock::default()));
        let ahead = match source.prefetch_depth() {
            0 => None,
            depth => Some(Ahead::start(&source, steps.clone(), depth, &clock)?),
        };
        Ok(Self {
            source,
            steps,
            ahead,
            clock,
        })
    }

    /// Times that preparing and waiting took so far.
    pub fn times(&self) -> PrefetchTimes {
        locked(&self.clock).times()
    }
}

impl Ahead {
    /// One step waits while the next is under way in a channel that holds `depth - 1` more.
    fn start(
        source: &Arc<BatchSource>,
        steps: Range<u64>,
        depth: usize,
        clock: &Arc<Mutex<Clock>>,
    ) -> Result<Self, DataError> {
        let (sender, receiver) = sync_channel(depth - 1);
        let recording = span::handle();
        let (source, clock) = (Arc::clone(source), Arc::clone(clock));
        let work = move || {
            if let Some(recording) = recording {
                recording.join("prefetch");
            }
            prepare(&source, steps, &sender, &clock);
        };
        let thread = std::thread::Builder::new()
            .name("prefetch".to_owned())
            .spawn(work)
            .map_err(|source| DataError::Thread { source })?;
        Ok(Self {
            receiver: Some(receiver),
            thread: Some(thread),
        })
    }

    fn next(&mut self) -> Option<Vec<MicroBatch>> {
        match self.receiver.as_ref()?.recv() {
            Ok(batches) => Some(batches),
            // The thread is gone before its time: it panicked, and that must not look like an early end of the data.
            Err(_) => match self.thread.take()?.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => None,
            },
        }
    }
}

/// Prepares `steps` until nobody wants more.
fn prepare(source: &BatchSource, steps: Range<u64>, sender: &SyncSender<Vec<MicroBatch>>, clock: &Mutex<Clock>) {
    for step in steps {
        let span = span::phase(StepPhase::Prepare);
        let (started, before) = (Instant::now(), ThreadUse::now());
        let batches = source.global_batch(step);
        let (took, used) = (started.elapsed(), used_since(before));
        drop(span);
        {
            let mut clock = locked(clock);
            clock.prepared(took, used);
            clock.held_up_since = Some(Instant::now());
        }
        let is_gone = sender.send(batches).is_err();
        locked(clock).handed_over();
        if is_gone {
            return;
        }
    }
}

impl Iterator for Prefetch {
    type Item = Vec<MicroBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let step = self.steps.next()?;
        let (asked, before) = (Instant::now(), ThreadUse::now());
        let batches = match &mut self.ahead {
            Some(ahead) => ahead.next(),
            None => Some(self.source.global_batch(step)),
        };
        let waited = asked.elapsed();
        let mut clock = locked(&self.clock);
        clock.compute_waits += waited;
        if self.ahead.is_none() {
            clock.prepared(waited, used_since(before));
        }
        batches
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.steps.size_hint()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it has been told already or concerns data that nothing waits for.
            let _ = thread.join();
        }
    }
}

/// What this thread has used since an earlier moment, where the system tells it.
fn used_since(before: Option<ThreadUse>) -> Option<ThreadUse> {
    Some(ThreadUse::now()?.since(&before?))
}

fn locked(clock: &Mutex<Clock>) -> MutexGuard<'_, Clock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}
