//! Prepares the next steps' data on a thread of its own while the model computes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::JoinHandle;

use super::{BatchSource, DataError, MicroBatch};
use crate::span;
use crate::span::StepPhase;

/// An iterator over the micro-batches of consecutive steps, which are prepared ahead. The time that `next` takes is the
/// time that the training waits for data. Dropping it ends the thread.
#[derive(Debug)]
pub struct Prefetch {
    receiver: Option<Receiver<Vec<MicroBatch>>>,
    thread: Option<JoinHandle<()>>,
    left: u64,
}

/// Steps that wait, ready, besides the one that is being prepared.
const AHEAD: usize = 1;

impl Prefetch {
    /// Starts to prepare `steps` (from 0) of `source`.
    ///
    /// # Errors
    /// Fails where no thread can be started.
    pub fn start(source: Arc<BatchSource>, steps: Range<u64>) -> Result<Self, DataError> {
        let (sender, receiver) = sync_channel(AHEAD);
        let left = steps.end.saturating_sub(steps.start);
        let recording = span::handle();
        let work = move || {
            if let Some(recording) = recording {
                recording.join("prefetch");
            }
            for step in steps {
                // The other end is gone: nobody wants more.
                let span = span::phase(StepPhase::Prepare);
                let batches = source.global_batch(step);
                drop(span);
                if sender.send(batches).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("prefetch".to_owned())
            .spawn(work)
            .map_err(|source| DataError::Thread { source })?;
        Ok(Self {
            receiver: Some(receiver),
            thread: Some(thread),
            left,
        })
    }
}

impl Iterator for Prefetch {
    type Item = Vec<MicroBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        match self.receiver.as_ref()?.recv() {
            Ok(batches) => {
                self.left -= 1;
                Some(batches)
            }
            // The thread is gone before its time: it panicked, and that must not look like an early end of the data.
            Err(_) => match self.thread.take()?.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => None,
            },
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.left as usize;
        (left, Some(left))
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.receiver = None;
        if let Some(thread) = self.thread.take() {
            // A panic in it has been told already or concerns data that nothing waits for.
            let _ = thread.join();
        }
    }
}
