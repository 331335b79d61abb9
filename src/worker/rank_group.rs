//! The processes that share one trial, a device each.
//!
//! The trial process starts them on its own machine, hands each request to all, and passes on what rank 0 tells. When one
//! of them fails, ends or hangs, the trial has failed for its reason: the others are told through the memory that they
//! share, and ended. They are ended with the trial process as well, whatever ends that.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::RawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use super::child::describe_end;
use super::placement::place_arguments;
use super::protocol::{ControlMessage, Message};
use super::rank::{Order, write_line};
use super::trial::Interruption;
use super::{DeviceAssignment, TrialEvent, TrialRequest};
use peft_tune_core::study::{FailReason, Metrics, Phase, TrialState};
use peft_tune_engine::parallel::{CollectiveError, Segment};
use peft_tune_engine::profile::OUT_OF_MEMORY_EXIT;
use peft_tune_kernels::kernels;

/// How often a request to stop is looked for while the ranks are silent.
const TICK: Duration = Duration::from_millis(20);
/// Bytes of standard error that are kept of each rank.
const TAIL_BYTES: usize = 4096;

/// Ranks that wait for a trial.
pub(super) struct RankGroup {
    ranks: Vec<Rank>,
    /// Where they are, if that was told.
    assignments: Vec<DeviceAssignment>,
    segment: Segment,
    news: Receiver<(usize, News)>,
}

/// One process. It is killed when dropped.
struct Rank {
    child: Child,
    input: ChildStdin,
}

/// What a rank's output says.
enum News {
    Message(Box<Message>),
    /// The output is closed; the tail of standard error.
    Closed(String),
}

/// Why the ranks of a trial cannot be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum GroupError {
    #[error(transparent)]
    Memory(#[from] CollectiveError),
    #[error("cannot start rank {rank} of {ranks}: {source}")]
    Start {
        rank: usize,
        ranks: usize,
        source: std::io::Error,
    },
}

impl RankGroup {
    /// Starts as many processes, each in its assignment. Without assignments they share this process's threads out among them on the CPU, and
    /// have the first GPUs where there are any.
    pub(super) fn start(ranks: usize, assignments: &[DeviceAssignment]) -> Result<Self, GroupError> {
        let segment = Segment::create(ranks)?;
        let (sender, news) = channel();
        let start =
            |rank| {
                let assignment = assignments.get(rank).cloned().unwrap_or_default();
                Rank::start((rank, ranks), &assignment, segment.descriptor(), &sender)
                    .map_err(|source| GroupError::Start { rank, ranks, source })
            };
        Ok(Self {
            ranks: (0..ranks).map(start).collect::<Result<_, _>>()?,
            assignments: assignments.to_vec(),
            segment,
            news,
        })
    }

    /// How many there are.
    pub(super) fn ranks(&self) -> usize {
        self.ranks.len()
    }

    /// Where they are, if that was told.
    pub(super) fn assignments(&self) -> &[DeviceAssignment] {
        &self.assignments
    }

    /// Whether all of them live.
    pub(super) fn is_whole(&mut self) -> bool {
        let mut ranks = self.ranks.iter_mut();
        ranks.all(|rank| matches!(rank.child.try_wait(), Ok(None)))
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
            let Ok((rank, news)) = self.news.recv_timeout(TICK) else {
                continue;
            };
            let outcome = match news {
                News::Message(message) => progress.take(rank, *message, emit, metrics),
                News::Closed(tail) => Err(self.ended(rank, &progress, &tail)),
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

    /// What it means that a rank's output has ended.
    fn ended(&mut self, rank: usize, progress: &TrialProgress, tail: &str) -> Interruption {
        let status = self.ranks[rank].child.wait().ok();
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

    /// A write that fails means that the rank is dying; its output tells of its end.
    fn tell(&mut self, order: &Order) {
        for rank in &mut self.ranks {
            if let Err(error) = write_line(&mut rank.input, order) {
                tracing::warn!(%error, "cannot write to a rank");
            }
        }
    }
}

/// How far a trial is.
struct TrialProgress {
    ranks: usize,
    /// Ranks that have not ended it.
    left: usize,
    phase: Phase,
    stopped_at: Option<u64>,
    out_of_memory: Option<FailReason>,
}

impl TrialProgress {
    fn new(ranks: usize) -> Self {
        Self {
            ranks,
            left: ranks,
            phase: Phase::Load,
            stopped_at: None,
            out_of_memory: None,
        }
    }

    /// Takes what a rank says; an error is the trial's end.
    fn take(
        &mut self,
        rank: usize,
        message: Message,
        emit: &mut dyn FnMut(TrialEvent),
        metrics: &mut Metrics,
    ) -> Result<(), Interruption> {
        match message {
            Message::Trial(TrialEvent::Ended { state, .. }) => return self.end(rank, state, metrics),
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

/// A crash says where it was; the other reasons are the trial's.
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

impl Rank {
    fn start(
        (rank, ranks): (usize, usize),
        assignment: &DeviceAssignment,
        segment: RawFd,
        news: &Sender<(usize, News)>,
    ) -> std::io::Result<Self> {
        let share = (rayon::current_num_threads() / ranks).max(1);
        let threads = assignment.threads.unwrap_or(share);
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("rank")
            .args(["--rank", &rank.to_string(), "--ranks", &ranks.to_string()])
            .args(["--segment", &segment.to_string()])
            .args(["--kernels", kernels().name()])
            .args(place_arguments(assignment.device.as_deref(), &assignment.cpus))
            .env("RAYON_NUM_THREADS", threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        keep_open(&mut command, segment);
        let mut child = command.spawn()?;
        let missing = || std::io::Error::other("standard streams are missing");
        let input = child.stdin.take().ok_or_else(missing)?;
        let (output, errors) = (
            child.stdout.take().ok_or_else(missing)?,
            child.stderr.take().ok_or_else(missing)?,
        );
        let tail = std::thread::spawn(move || tail_of(errors));
        let news = news.clone();
        std::thread::spawn(move || {
            read(output, rank, &news);
            let _ = news.send((rank, News::Closed(tail.join().unwrap_or_default())));
        });
        Ok(Self { child, input })
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Leaves the shared memory open in the program that is started, and ends that program with this process.
fn keep_open(command: &mut Command, segment: RawFd) {
    let parent = std::process::id();
    let prepare = move || {
        // SAFETY: plain numbers, and calls that may be made between fork and exec.
        let kept = unsafe { libc::fcntl(segment, libc::F_SETFD, 0) };
        if kept < 0 {
            return Err(std::io::Error::last_os_error());
        }
        #[cfg(target_os = "linux")]
        {
            // SAFETY: as above.
            let (asked, now) = unsafe { (libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL), libc::getppid()) };
            // The parent may have ended before the child asked.
            if asked != 0 || u32::try_from(now) != Ok(parent) {
                return Err(std::io::ErrorKind::BrokenPipe.into());
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = parent;
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock, as is asked of what runs after a fork.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, prepare) };
}

fn read(output: impl Read, rank: usize, news: &Sender<(usize, News)>) {
    for line in BufReader::new(output).lines() {
        let Ok(line) = line else { return };
        match serde_json::from_str(&line) {
            Ok(message) => {
                if news.send((rank, News::Message(Box::new(message)))).is_err() {
                    return;
                }
            }
            Err(_) => tracing::warn!(line, rank, "a rank printed a line that is not a message"),
        }
    }
}

/// Reads to the end and keeps the last [`TAIL_BYTES`].
fn tail_of(mut input: impl Read) -> String {
    let (mut tail, mut buffer) = (Vec::new(), [0u8; 1024]);
    while let Ok(count @ 1..) = input.read(&mut buffer) {
        tail.extend_from_slice(&buffer[..count]);
        let too_many = tail.len().saturating_sub(TAIL_BYTES);
        tail.drain(..too_many);
    }
    String::from_utf8_lossy(&tail).into_owned()
}
