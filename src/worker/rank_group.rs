//! The processes that share one trial, a device each.
//!
//! The trial process starts them on its own machine, hands each request to all, and passes on what rank 0 tells. When one
//! of them fails, ends or hangs, the trial has failed for its reason: the others are told through the memory that they
//! share, and ended. They are ended with the trial process as well, whatever ends that.

use std::os::fd::RawFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::child::{ChildProcess, Line, Lines, Surroundings, describe_end};
use super::interruption::Interruption;
use super::orders::Order;
use super::placement::place_arguments;
use super::protocol::{ControlMessage, Message};
use super::{DeviceAssignment, EvaluatorError, TrialEvent, TrialRequest};
use peft_tune_core::study::{FailReason, Metrics, Phase, TrialState};
use peft_tune_engine::parallel::{CollectiveError, Segment};
use peft_tune_engine::profile::OUT_OF_MEMORY_EXIT;
use peft_tune_kernels::kernels;

/// Time from one look for a request to stop to the next while the ranks are silent.
const TICK: Duration = Duration::from_millis(20);

/// Ranks that wait for a trial.
pub(super) struct RankGroup {
    ranks: Vec<ChildProcess>,
    /// Places of the ranks, if they were told.
    assignments: Vec<DeviceAssignment>,
    segment: Segment,
    news: Receiver<(u64, Line<Message>)>,
}

/// Reason why the ranks of a trial or a training cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    #[error(transparent)]
    Memory(#[from] CollectiveError),
    #[error("cannot start rank {rank} of {ranks}: {source}")]
    Start {
        rank: usize,
        ranks: usize,
        source: EvaluatorError,
    },
    #[error("no thread to watch the ranks with: {source}; end other programs, or raise `ulimit -u`")]
    Watch { source: std::io::Error },
}

impl RankGroup {
    /// Starts `ranks` processes, each in its assignment. Without assignments they share this process's threads out
    /// among them on the CPU, and have the first GPUs where there are any.
    pub(super) fn start(ranks: usize, assignments: &[DeviceAssignment]) -> Result<Self, GroupError> {
        let segment = Segment::create(ranks)?;
        let (sender, news) = channel();
        let start_one = |rank| {
            let assignment = assignments.get(rank).cloned().unwrap_or_default();
            let one = RankStart {
                rank,
                ranks,
                assignment: &assignment,
                segment: segment.descriptor(),
                leader: Leader::Trial,
            };
            one.start(&sender)
                .map_err(|source| GroupError::Start { rank, ranks, source })
        };
        Ok(Self {
            ranks: (0..ranks).map(start_one).collect::<Result<_, _>>()?,
            assignments: assignments.to_vec(),
            segment,
            news,
        })
    }

    /// Number of the ranks.
    pub(super) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Places of the ranks, if they were told.
    pub(super) fn assignments(&self) -> &[DeviceAssignment] {
        &self.assignments
    }

    /// Whether all ranks live.
    pub(super) fn is_whole(&mut self) -> bool {
        self.ranks.iter_mut().all(ChildProcess::is_alive)
    }

    /// Runs one trial and returns how it ended, with the group where it can run another.
    pub(super) fn run(
        mut self,
        request: &TrialRequest,
        stopped: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> (Result<(), Interruption>, Option<Self>) {
        let ended = self.progress(request, stopped, emit, metrics);
        match &ended {
            Ok(()) | Err(Interruption::Stopped { .. }) => (ended, Some(self)),
            Err(_) => (ended, None),
        }
    }

    fn progress(
        &mut self,
        request: &TrialRequest,
        stopped: &dyn Fn() -> bool,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        let mut progress = TrialProgress::new(self.ranks());
        self.tell(&Order::Trial(Box::new(request.clone())));
        let mut told_to_stop = false;
        while progress.left > 0 {
            if !told_to_stop && stopped() {
                self.tell(&Order::Stop(request.number));
                told_to_stop = true;
            }
            let Ok((rank, line)) = self.news.recv_timeout(TICK) else {
                continue;
            };
            let rank = rank as usize;
            let outcome = match line {
                Line::Message(message) => progress.take(rank, message, emit, metrics),
                Line::Garbled(line) => {
                    tracing::warn!(line, rank, "a rank printed a line that is not a message");
                    Ok(())
                }
                Line::TooLong => {
                    tracing::warn!(rank, "a rank printed a line without end");
                    Ok(())
                }
                Line::Closed(tail) => Err(self.ended(rank, &progress, &tail)),
            };
            if let Err(interruption) = outcome {
                // Those that wait for it need not find out for themselves.
                self.segment.tell_gone(rank);
                return Err(interruption);
            }
        }
        match progress.stopped_at {
            Some(at_step) => Err(Interruption::Stopped { at_step }),
            None => Ok(()),
        }
    }

    /// The interruption that the end of a rank's output means.
    fn ended(&mut self, rank: usize, progress: &TrialProgress, tail: &str) -> Interruption {
        let status = self.ranks[rank].wait();
        if let Some(fault) = &progress.fault {
            return Interruption::DeviceLost {
                message: named(rank, self.ranks(), fault),
                is_kernels: true,
            };
        }
        let out_of_memory = status.and_then(|status| status.code()) == Some(OUT_OF_MEMORY_EXIT);
        let reason = match (&progress.out_of_memory, out_of_memory) {
            (Some(reason), _) => reason.clone(),
            (None, true) => out_of_memory_in(progress.phase, [None; 3]),
            (None, false) => FailReason::Crashed {
                phase: progress.phase,
                message: named(rank, self.ranks(), &describe_end(status, tail)),
            },
        };
        Interruption::Failed(reason)
    }

    /// Sends an order to all ranks. A write that fails means that the rank is dying; its output tells of its end.
    fn tell(&mut self, order: &Order) {
        for rank in &mut self.ranks {
            if let Err(error) = rank.send(order) {
                tracing::warn!(%error, "cannot write to a rank");
            }
        }
    }
}

/// Progress of a trial on its ranks.
struct TrialProgress {
    ranks: usize,
    /// Ranks that have not ended the trial.
    left: usize,
    phase: Phase,
    stopped_at: Option<u64>,
    out_of_memory: Option<FailReason>,
    /// Driver's error that a kernel of a rank ended with.
    fault: Option<String>,
}

impl TrialProgress {
    fn new(ranks: usize) -> Self {
        Self {
            ranks,
            left: ranks,
            phase: Phase::Load,
            stopped_at: None,
            out_of_memory: None,
            fault: None,
        }
    }

    /// Takes a message of a rank; an error is the trial's end.
    fn take(
        &mut self,
        rank: usize,
        message: Message,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        match message {
            Message::Trial(TrialEvent::Ended { state, .. }) => return self.end(rank, state, metrics),
            Message::Trial(event @ TrialEvent::Kernels { fault: Some(_), .. }) if self.fault.is_none() => {
                if let TrialEvent::Kernels { fault, .. } = &event {
                    self.fault.clone_from(fault);
                }
                emit(event);
            }
            Message::Trial(event) if rank == 0 => {
                match &event {
                    // The trial process has told of it already.
                    TrialEvent::Phase { phase: Phase::Load, .. } => return Ok(()),
                    TrialEvent::Phase { phase, .. } => self.phase = *phase,
                    TrialEvent::Measured { metrics: measured, .. } => metrics.clone_from(measured),
                    _ => {}
                }
                emit(event);
            }
            Message::Control(ControlMessage::OutOfMemory {
                in_use_bytes,
                requested_bytes,
                limit_bytes,
            }) => {
                let bytes = [in_use_bytes, requested_bytes, limit_bytes].map(Some);
                self.out_of_memory = Some(out_of_memory_in(self.phase, bytes));
            }
            Message::Trial(_) | Message::Control(_) => {}
        }
        Ok(())
    }

    fn end(&mut self, rank: usize, state: TrialState, metrics: &mut Metrics) -> Result<(), Interruption> {
        self.left -= 1;
        match state {
            TrialState::Complete { metrics: all } if rank == 0 => metrics.clone_from(&all),
            TrialState::Pruned {
                at_step, metrics: all, ..
            } => {
                self.stopped_at = Some(at_step);
                if rank == 0 {
                    metrics.clone_from(&all);
                }
            }
            TrialState::Failed { reason, metrics: all } => {
                if rank == 0 {
                    metrics.clone_from(&all);
                }
                return Err(Interruption::Failed(of_rank(reason, rank, self.ranks)));
            }
            _ => {}
        }
        Ok(())
    }
}

fn out_of_memory_in(phase: Phase, [in_use_bytes, requested_bytes, limit_bytes]: [Option<u64>; 3]) -> FailReason {
    FailReason::OutOfMemory {
        phase,
        in_use_bytes,
        requested_bytes,
        limit_bytes,
    }
}

/// The reason of a rank as the trial's: a crash tells where it was.
fn of_rank(reason: FailReason, rank: usize, ranks: usize) -> FailReason {
    match reason {
        FailReason::Crashed { phase, message } => FailReason::Crashed {
            phase,
            message: named(rank, ranks, &message),
        },
        reason => reason,
    }
}

fn named(rank: usize, ranks: usize, message: &str) -> String {
    format!("rank {rank} of {ranks}: {message}")
}

/// A rank's process, as it is started.
pub(super) struct RankStart<'a> {
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) assignment: &'a DeviceAssignment,
    pub(super) segment: RawFd,
    pub(super) leader: Leader,
}

/// Process that starts a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leader {
    /// A trial process, which computes nothing itself.
    Trial,
    /// A training, which is rank 0.
    Training,
}

/// Time that ranks wait for rank 0 of a training, with which they end, in seconds: it may be writing a checkpoint. It
/// is rank 0 that finds out which one hangs.
const FOR_RANK_0_S: f64 = 1e9;

impl RankStart<'_> {
    /// Starts the process, which ends with this one.
    pub(super) fn start(&self, lines: &Lines<Message>) -> Result<ChildProcess, EvaluatorError> {
        let program = std::env::current_exe().unwrap_or_default();
        let share = (rayon::current_num_threads() / self.ranks).max(1);
        let threads = self.assignment.threads.unwrap_or(share);
        let is_training = self.leader == Leader::Training;
        let mut arguments = vec!["rank".to_owned()];
        let values = [
            ("--rank", Some(self.rank.to_string())),
            ("--ranks", Some(self.ranks.to_string())),
            ("--segment", Some(self.segment.to_string())),
            ("--kernels", Some(kernels().name().to_owned())),
            ("--patience-s", is_training.then(|| FOR_RANK_0_S.to_string())),
        ];
        let given = values
            .into_iter()
            .filter_map(|(name, value)| Some([name.to_owned(), value?]));
        arguments.extend(given.flatten());
        let DeviceAssignment { device, cpus, .. } = self.assignment;
        arguments.extend(place_arguments(device.as_deref(), cpus));
        let surroundings = Surroundings {
            env: [("RAYON_NUM_THREADS".to_owned(), threads.to_string())].into(),
            shared: Some(self.segment),
            ignores_signals: is_training,
            ..Surroundings::default()
        };
        ChildProcess::start(&program, &arguments, &surroundings, self.rank as u64, lines.clone())
    }
}
