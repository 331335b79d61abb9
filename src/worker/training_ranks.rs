//! The processes of a training on several devices beside its first: this process is rank 0, starts the others, and ends them.
//!
//! What rank 0 does next it tells them through the memory that all share. When one of them fails, ends or hangs, that memory
//! says so too, and rank 0 stops waiting: the training ends, and what it wrote stays.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::DeviceAssignment;
use super::child::{ChildProcess, Line, describe_end_of};
use super::orders::{Order, TrainingOrder};
use super::protocol::Message;
use super::rank::{RankError, linked};
use super::rank_group::{GroupError, Leader, RankStart};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::parallel::{Collective, Segment, SharedMemory};

/// The other ranks of a training, which end when this is dropped.
pub struct TrainingRanks {
    segment: Arc<Segment>,
    ranks: Arc<Mutex<Vec<ChildProcess>>>,
    /// End of the first rank that ended before its time, in words.
    end: Arc<OnceLock<String>>,
}

impl TrainingRanks {
    /// Starts a process on each of `devices` but the first, which is this process's, and tells it what is trained. Each has as many
    /// threads as this one.
    ///
    /// The processes end with the thread that calls this.
    ///
    /// # Errors
    /// Too many ranks; no shared memory; a process that cannot be started.
    pub fn start(devices: &[String], recipe: &Recipe, output: &Path) -> Result<Self, GroupError> {
        let ranks = devices.len();
        let segment = Arc::new(Segment::create(ranks)?);
        let (sender, news) = channel();
        let mut children = Vec::new();
        for (rank, device) in devices.iter().enumerate().skip(1) {
            let assignment = DeviceAssignment {
                device: Some(device.clone()),
                threads: Some(rayon::current_num_threads()),
                cpus: Vec::new(),
            };
            let one = RankStart {
                rank,
                ranks,
                assignment: &assignment,
                segment: segment.descriptor(),
                leader: Leader::Training,
            };
            let failed = |source| GroupError::Start { rank, ranks, source };
            let mut child = one.start(&sender).map_err(failed)?;
            let order = TrainingOrder {
                recipe: recipe.clone(),
                output: output.to_owned(),
            };
            // Where that fails the process is ending, which is noticed.
            let _ = child.send(&Order::Train(Box::new(order)));
            children.push(child);
        }
        let all = Self {
            segment,
            ranks: Arc::new(Mutex::new(children)),
            end: Arc::default(),
        };
        all.watch(news).map_err(|source| GroupError::Watch { source })?;
        Ok(all)
    }

    /// The link of this process's device `device` with those of the others.
    ///
    /// # Errors
    /// A device that cannot be opened or linked; a rank that has ended.
    pub fn link(&self, device: &str, patience: Duration) -> Result<Arc<dyn Collective>, RankError> {
        let shared = SharedMemory::new(Arc::clone(&self.segment), 0, patience)?;
        linked(shared, device)
    }

    /// The rank that ended before its time, and how, in words.
    pub fn end(&self) -> Option<&str> {
        self.end.get().map(String::as_str)
    }

    /// Notices the end of a rank in a thread of its own, since this one may be waiting for it.
    fn watch(&self, news: Receiver<(u64, Line<Message>)>) -> std::io::Result<()> {
        let (segment, ranks, end) = (
            Arc::clone(&self.segment),
            Arc::clone(&self.ranks),
            Arc::clone(&self.end),
        );
        let watch = move || {
            for (rank, line) in news {
                let Line::Closed(tail) = line else { continue };
                let rank = rank as usize;
                let mut children = ranks.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(child) = children.get_mut(rank - 1) else {
                    continue;
                };
                let process = format!("rank {rank} of {}: its process", segment.ranks());
                let _ = end.set(describe_end_of(&process, child.wait(), &tail));
                segment.tell_gone(rank);
            }
        };
        std::thread::Builder::new().name("ranks".to_owned()).spawn(watch)?;
        Ok(())
    }
}

impl Drop for TrainingRanks {
    fn drop(&mut self) {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
