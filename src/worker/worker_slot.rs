//! One slot of the pool: its worker process, and the trials that are under way there: one, or several that train together.

use std::time::{Duration, Instant};

use super::child::{ChildProcess, Lines, Surroundings};
use super::exit_reason::WorkerExit;
use super::limits;
use super::placement::Placement;
use super::protocol::{About, Message, PROTOCOL_VERSION, Request};
use super::trial_group::{may_share, parts};
use super::{EvaluatorError, PoolSettings, Task, TrainTogether, TrialEvent, TrialRequest};
use peft_tune_core::recipe::Precision;
use peft_tune_core::study::{FailReason, Metrics, Phase, TrialNumber, TrialState};

/// Time past its limit that a trial may take to stop by itself before its process is killed.
const GRACE: Duration = Duration::from_secs(5);

/// A slot that one worker runs in.
pub(super) struct WorkerSlot {
    pub(super) placement: Placement,
    worker: Option<Worker>,
    /// Trials in the order in which they came.
    pub(super) trials: Vec<SlotTrial>,
    /// The slot whose trial takes this one's device too.
    lent_to: Option<usize>,
    /// Base model of the last trial, which its process may still hold.
    warm: Option<(String, Precision)>,
    /// Processes in a row that ended before they greeted.
    failed_starts: u32,
    /// Device that the slot's first worker computed on, which its next one is to use too.
    device: Option<String>,
}

/// A worker process.
struct Worker {
    child: ChildProcess,
    /// Number under which the worker's lines come.
    serial: u64,
    about: Option<About>,
    started: Instant,
    /// Time at which the worker last said something.
    heard: Instant,
    /// The kernel's count of killed processes when it started, and when its last trial began.
    oom_kills: Option<u64>,
}

/// A trial under way.
pub(super) struct SlotTrial {
    pub(super) request: TrialRequest,
    pub(super) phase: Phase,
    /// Whether the worker has the trial. It may have to wait until a neighbour has measured.
    pub(super) sent: bool,
    pub(super) started: Instant,
    /// Time at which the trial last told something of itself.
    pub(super) progressed: Instant,
    /// Time since which the trial stands still because a neighbour measures.
    waits: Option<Instant>,
    waited: Duration,
    pub(super) out_of_memory: Option<FailReason>,
    /// Most trials that computed beside the profile phase on the same hardware.
    pub(super) neighbours: usize,
    /// Whether the profile phase is over: what computes from then on is no neighbour.
    pub(super) measured: bool,
    /// Most trials that had the process at once, this one included.
    sharing: u32,
}

impl SlotTrial {
    fn new(request: TrialRequest) -> Self {
        Self {
            request,
            phase: Phase::Load,
            sent: false,
            started: Instant::now(),
            progressed: Instant::now(),
            waits: None,
            waited: Duration::ZERO,
            out_of_memory: None,
            neighbours: 0,
            measured: false,
            sharing: 1,
        }
    }

    /// Time that the trial had for itself.
    fn elapsed(&self) -> Duration {
        let waiting = self.waits.map_or(Duration::ZERO, |since| since.elapsed());
        self.started.elapsed().saturating_sub(self.waited + waiting)
    }

    /// Notes whether the trial stands still because a neighbour measures.
    pub(super) fn note_waiting(&mut self, waits: bool) {
        if waits && self.waits.is_none() {
            self.waits = Some(Instant::now());
        }
        if !waits && let Some(since) = self.waits.take() {
            self.waited += since.elapsed();
            self.progressed = Instant::now();
        }
    }

    /// The event that the trial failed.
    fn ended(&self, reason: FailReason) -> TrialEvent {
        let state = TrialState::Failed {
            reason,
            metrics: Metrics::default(),
        };
        TrialEvent::Ended {
            number: self.request.number,
            state,
            wall_s: self.elapsed().as_secs_f64(),
        }
    }

    /// The event that the trial's process is gone.
    fn lost(&self, reason: FailReason) -> TrialEvent {
        TrialEvent::Lost {
            number: self.request.number,
            reason,
            wall_s: self.elapsed().as_secs_f64(),
        }
    }
}

impl WorkerSlot {
    pub(super) fn new(placement: Placement) -> Self {
        Self {
            placement,
            worker: None,
            trials: Vec::new(),
            lent_to: None,
            warm: None,
            failed_starts: 0,
            device: None,
        }
    }

    /// Whether the slot can take a trial.
    pub(super) fn is_free(&self) -> bool {
        self.trials.is_empty() && self.lent_to.is_none()
    }

    /// Whether a trial can train beside those of the slot, as `together` allows.
    pub(super) fn takes_beside(&self, request: &TrialRequest, together: &TrainTogether) -> bool {
        if self.trials.is_empty() || self.trials.len() >= together.most {
            return false;
        }
        let Some((recipe, _)) = parts(request).filter(|_| may_share(request)) else {
            return false;
        };
        let mut recipes = vec![recipe];
        for other in &self.trials {
            match parts(&other.request).filter(|_| may_share(&other.request)) {
                Some((other, _)) if recipe.check_shares_base(other).is_ok() => recipes.push(other),
                _ => return false,
            }
        }
        together.fits(&recipes)
    }

    /// Leaves the slot's device to the trial of another slot. Its own process ends, since what that holds would be
    /// missing there.
    pub(super) fn lend_to(&mut self, slot: usize) {
        self.close();
        (self.warm, self.lent_to) = (None, Some(slot));
    }

    /// Takes the slot's device back, if that other slot has it.
    pub(super) fn take_back_from(&mut self, slot: usize) {
        self.lent_to.take_if(|other| *other == slot);
    }

    /// Whether lines under this number are the worker's.
    pub(super) fn is(&self, serial: u64) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.serial == serial)
    }

    pub(super) fn runs(&self, number: TrialNumber) -> bool {
        self.trials.iter().any(|trial| trial.request.number == number)
    }

    /// The trial of this number.
    pub(super) fn trial_mut(&mut self, number: TrialNumber) -> Option<&mut SlotTrial> {
        self.trials.iter_mut().find(|trial| trial.request.number == number)
    }

    /// Lets a trial go that is over.
    pub(super) fn let_go(&mut self, number: TrialNumber) {
        self.trials.retain(|trial| trial.request.number != number);
    }

    /// Rank of the slot for a trial: 2 with a process that holds the trial's base model, 1 with any process, 0 with
    /// none.
    pub(super) fn suits(&self, request: &TrialRequest) -> u8 {
        match (&self.worker, &self.warm) {
            (Some(_), Some(warm)) if Some(warm) == base_of(request).as_ref() => 2,
            (Some(_), _) => 1,
            (None, _) => 0,
        }
    }

    /// Takes a trial, without giving it to the worker yet.
    pub(super) fn take(&mut self, request: TrialRequest) {
        self.warm = base_of(&request);
        self.trials.push(SlotTrial::new(request));
        let count = self.trials.len() as u32;
        for trial in &mut self.trials {
            trial.sharing = trial.sharing.max(count);
        }
    }

    /// Gives the slot's trials to the worker, which is started where there is none.
    pub(super) fn begin(
        &mut self,
        settings: &PoolSettings,
        lines: &Lines<Message>,
        next_serial: &mut u64,
    ) -> Result<(), EvaluatorError> {
        // A worker that died between two trials is replaced without a word.
        if !self.worker.as_mut().is_some_and(|worker| worker.child.is_alive()) {
            self.close();
            *next_serial += 1;
            self.start_worker(settings, lines, *next_serial)?;
        }
        let is_idle = self.trials.iter().all(|trial| !trial.sent);
        if let Some(worker) = self.worker.as_mut().filter(|_| is_idle) {
            worker.oom_kills = kernel_kills();
        }
        let now = Instant::now();
        let mut requests = Vec::new();
        for trial in self.trials.iter_mut().filter(|trial| !trial.sent) {
            (trial.sent, trial.started, trial.progressed) = (true, now, now);
            requests.push(Request::Trial(Box::new(trial.request.clone())));
        }
        requests.iter().for_each(|request| self.say(request));
        Ok(())
    }

    fn start_worker(
        &mut self,
        settings: &PoolSettings,
        lines: &Lines<Message>,
        serial: u64,
    ) -> Result<(), EvaluatorError> {
        let heartbeat_s = settings.heartbeat.as_secs_f64();
        let mut placement = self.placement.clone();
        placement.device = placement.device.or_else(|| self.device.clone());
        let (program, arguments) = settings.launcher.command_line(&placement);
        let surroundings = Surroundings {
            env: settings.launcher.env.clone(),
            farewell: settings.launcher.farewell(),
            ..Surroundings::default()
        };
        let child = ChildProcess::start(&program, &arguments, &surroundings, serial, lines.clone())?;
        tracing::info!(worker = self.placement.number, process = child.id(), "started a worker");
        self.worker = Some(Worker {
            child,
            serial,
            about: None,
            started: Instant::now(),
            heard: Instant::now(),
            oom_kills: kernel_kills(),
        });
        self.say(&Request::Hello {
            protocol: PROTOCOL_VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_s,
            take_turns: settings.takes_turns(&self.placement),
            together: settings.together.most > 1,
        });
        Ok(())
    }

    /// Writes a request to the worker. A write that fails means that the worker is dying; its reader tells of its end.
    pub(super) fn say(&mut self, request: &Request) {
        let Some(worker) = &mut self.worker else { return };
        if let Err(error) = worker.child.send(request) {
            tracing::debug!(worker = self.placement.number, %error, "cannot write to the worker");
        }
    }

    /// Notes that the worker said something.
    pub(super) fn hear(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.heard = Instant::now();
        }
    }

    /// Takes in the worker's greeting. A worker that takes its place later `stays` on its device, where it is on the
    /// same machine: a search whose GPU is gone shall not go on with the processor.
    pub(super) fn greet(&mut self, about: About, stays: bool) {
        tracing::info!(
            worker = self.placement.number,
            process = about.process,
            host = about.host,
            device = about.device,
            threads = about.threads,
            kernels = about.kernels.name(),
            memory_limiter = ?about.memory_limiter,
            "a worker is ready"
        );
        self.failed_starts = 0;
        if stays {
            self.device.get_or_insert_with(|| about.device.clone());
        }
        if let Some(worker) = &mut self.worker {
            worker.about = Some(about);
        }
        // Its trials begin now: how long a process takes to be there says nothing about them.
        let now = Instant::now();
        for trial in self.trials.iter_mut().filter(|trial| trial.sent) {
            (trial.started, trial.progressed) = (now, now);
        }
    }

    /// Takes in that the worker's output ended; returns what that means for its trials, `None` where it had none.
    pub(super) fn died(&mut self, tail: &str) -> Option<WorkerDeath> {
        let mut worker = self.worker.take()?;
        let status = worker.child.wait();
        let in_own_group =
            limits::remove_group_of(worker.about.as_ref().map_or(worker.child.id(), |about| about.process));
        // A group of its own counts its kills alone; a larger one's may be another's, of which only those of this trial's time matter.
        let kernel_killed = in_own_group.unwrap_or_else(|| kernel_kills() > worker.oom_kills);
        let phase = self.trials.iter().find(|trial| trial.sent)?.phase;
        let exit = WorkerExit {
            status,
            tail,
            phase,
            out_of_memory: self.trials.iter_mut().find_map(|trial| trial.out_of_memory.take()),
            kernel_killed,
        };
        let (reason, may_be_repeated) = exit.reason();
        if worker.about.is_none() && may_be_repeated {
            self.failed_starts += 1;
            self.trials.iter_mut().for_each(|trial| trial.sent = false);
            return Some(WorkerDeath::BeforeStart {
                times: self.failed_starts,
                message: reason_text(&reason),
            });
        }
        let sent = self.take_sent();
        // Of several, nobody knows which took the others along: each is run again, alone.
        let of_several = sent.len() > 1;
        let events = sent.iter().map(|trial| match may_be_repeated || of_several {
            true => trial.lost(reason.clone()),
            false => trial.ended(reason.clone()),
        });
        Some(WorkerDeath::Trials(events.collect()))
    }

    /// Ends the worker where a trial is past its time or makes no progress, or where nothing was heard for too long;
    /// returns what becomes of its trials.
    pub(super) fn end_overdue(&mut self, settings: &PoolSettings) -> Vec<TrialEvent> {
        let Some(overdue) = self.overdue(settings) else {
            return Vec::new();
        };
        tracing::warn!(worker = self.placement.number, ?overdue, "ended a worker");
        self.close();
        let sent = self.take_sent();
        let beside = |trial: &SlotTrial| {
            trial.lost(FailReason::Crashed {
                phase: trial.phase,
                message: "its process was ended for a trial that trained beside it".to_owned(),
            })
        };
        let number = overdue.number();
        let others = sent.iter().filter(|trial| trial.request.number != number).map(beside);
        others.chain([overdue.clone()]).collect()
    }

    /// Takes out the trials that the worker had.
    fn take_sent(&mut self) -> Vec<SlotTrial> {
        self.trials.extract_if(.., |trial| trial.sent).collect()
    }

    /// The end of the first trial for which the worker has to end.
    fn overdue(&self, settings: &PoolSettings) -> Option<TrialEvent> {
        let worker = self.worker.as_ref()?;
        let mut sent = self.trials.iter().filter(|trial| trial.sent);
        sent.find_map(|trial| {
            let limit = trial.request.time_limit_s;
            // The worker itself counts what each of several has of its time.
            let limit = limit.and_then(|limit| Duration::try_from_secs_f64(limit * f64::from(trial.sharing)).ok());
            let phase = trial.phase;
            let crashed = |message: String| FailReason::Crashed { phase, message };
            if worker.about.is_some() && limit.is_some_and(|limit| trial.elapsed() >= limit + GRACE) {
                let after_s = trial.elapsed().as_secs_f64();
                Some(trial.ended(FailReason::TimedOut { phase, after_s }))
            } else if worker.about.is_none() && worker.started.elapsed() >= settings.start_within {
                Some(trial.lost(crashed(format!(
                    "the worker did not greet within {:?}",
                    settings.start_within
                ))))
            } else if worker.about.is_some() && worker.heard.elapsed() >= settings.silent_after {
                Some(trial.lost(crashed(format!(
                    "nothing was heard of the worker for {:?}",
                    settings.silent_after
                ))))
            } else if worker.about.is_some()
                && trial.waits.is_none()
                && trial.progressed.elapsed() >= settings.stuck_after
                && self.progressed() >= settings.stuck_after
            {
                Some(trial.lost(crashed(format!(
                    "the trial made no progress for {:?}",
                    settings.stuck_after
                ))))
            } else {
                None
            }
        })
    }

    /// Time since any of the slot's trials went on: they wait for one another.
    fn progressed(&self) -> Duration {
        let since = self.trials.iter().map(|trial| trial.progressed.elapsed());
        since.min().unwrap_or_default()
    }

    /// Forgives a silence in which nothing could be heard, as this process itself stood still.
    pub(super) fn forgive_silence(&mut self) {
        if let Some(worker) = &mut self.worker {
            worker.heard = Instant::now();
        }
        for trial in &mut self.trials {
            trial.progressed = Instant::now();
        }
    }

    /// Ends the process, if there is one.
    pub(super) fn close(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            worker.child.kill();
            limits::remove_group_of(worker.about.as_ref().map_or(worker.child.id(), |about| about.process));
        }
    }

    /// Asks the process to end.
    pub(super) fn ask_to_end(&mut self) {
        self.say(&Request::Stop);
        if let Some(worker) = &mut self.worker {
            worker.child.close_input();
        }
    }

    /// Whether a process is there.
    pub(super) fn is_alive(&mut self) -> bool {
        self.worker.as_mut().is_some_and(|worker| worker.child.is_alive())
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        self.close();
    }
}

/// Loss by a worker's death.
pub(super) enum WorkerDeath {
    /// The worker's trials.
    Trials(Vec<TrialEvent>),
    /// No trial: the worker ended before it was ready, so many times in a row by now.
    BeforeStart { times: u32, message: String },
}

/// Processes that the kernel has ended for lack of memory, as far as it says.
fn kernel_kills() -> Option<u64> {
    limits::oom_kills().map(|kills| kills.count)
}

fn reason_text(reason: &FailReason) -> String {
    match reason {
        FailReason::Crashed { message, .. } => message.clone(),
        other => other.name().to_owned(),
    }
}

/// The base model that a trial loads first.
fn base_of(request: &TrialRequest) -> Option<(String, Precision)> {
    match &request.task {
        Task::Recipe { recipe, .. } => Some((recipe.model.clone(), recipe.precision)),
        Task::Params { .. } => None,
    }
}
