//! Runs trials in processes of their own, which stay alive between trials with the base model loaded: one worker a slot.
//! A worker has one trial, or several that train together over its base model.
//!
//! A trial that runs out of memory, crashes or hangs takes only its process with it: the death becomes the trial's
//! outcome, or word that it was lost, and the next trial gets a fresh process.

mod seating;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use self::seating::Waiting;
use super::child::{Line, Lines};
use super::hardware_lock::{HardwareLock, LockOrder};
use super::pool_settings::PoolSettings;
use super::protocol::{ControlMessage, Message, PROTOCOL_VERSION, Request};
use super::worker_slot::{WorkerDeath, WorkerSlot};
use super::{Evaluator, EvaluatorError, Launcher, Placement, TrialEvent, TrialRequest};
use peft_tune_core::study::{FailReason, Metrics, NEIGHBOURS, Phase, TrialNumber, TrialState};

/// Time from one look at the clock to the next while the workers are silent.
const TICK: Duration = Duration::from_millis(50);
/// Processes that may end in a row before they greet.
const MOST_FAILED_STARTS: u32 = 3;
/// Time that workers may take to end when they are asked to.
const FAREWELL: Duration = Duration::from_millis(500);

/// An evaluator with a worker process for each of its slots.
pub struct WorkerPool {
    settings: PoolSettings,
    slots: Vec<WorkerSlot>,
    /// Turns to measure, by hardware.
    locks: BTreeMap<String, HardwareLock>,
    lines: Receiver<(u64, Line<Message>)>,
    sender: Lines<Message>,
    /// Number of the last process that was started.
    serial: u64,
    events: VecDeque<TrialEvent>,
    queue: VecDeque<Waiting>,
    looked: Instant,
}

impl WorkerPool {
    /// A pool whose workers are started with their first trials.
    pub fn new(settings: PoolSettings) -> Self {
        let (sender, lines) = channel();
        Self {
            slots: settings.slots.iter().cloned().map(WorkerSlot::new).collect(),
            settings,
            locks: BTreeMap::new(),
            lines,
            sender,
            serial: 0,
            events: VecDeque::new(),
            queue: VecDeque::new(),
            looked: Instant::now(),
        }
    }

    /// One local worker, which computes with so many threads; all where absent.
    pub fn single(program: PathBuf, threads: Option<usize>) -> Self {
        let slots = vec![Placement::whole_machine(threads)];
        Self::new(PoolSettings::new(Launcher::local(program), slots))
    }

    fn lock(&mut self, slot: usize) -> &mut HardwareLock {
        let hardware = self.slots[slot].placement.hardware.clone();
        self.locks.entry(hardware).or_default()
    }

    fn follow(&mut self, orders: Vec<LockOrder>) {
        for order in orders {
            match order {
                LockOrder::Hold { slot, turn } => self.slots[slot].say(&Request::Hold { turn }),
                LockOrder::Resume { slot } => self.slots[slot].say(&Request::Resume),
                LockOrder::Measure { slot } => {
                    if let Some(number) = self.slots[slot].trials.first().map(|one| one.request.number) {
                        self.slots[slot].say(&Request::Measure { number });
                    }
                }
            }
        }
        for slot in 0..self.slots.len() {
            let waits = self.lock(slot).waits(slot);
            for trial in &mut self.slots[slot].trials {
                trial.note_waiting(waits);
            }
        }
    }

    /// Gives trials that wait for a neighbour's measurement to their workers, where it is over.
    fn begin_waiting(&mut self) -> Result<(), EvaluatorError> {
        for slot in 0..self.slots.len() {
            let waits = self.slots[slot].trials.iter().any(|trial| !trial.sent);
            if waits && !self.lock(slot).is_closed() {
                self.begin(slot)?;
            }
        }
        Ok(())
    }

    fn begin(&mut self, slot: usize) -> Result<(), EvaluatorError> {
        self.slots[slot].begin(&self.settings, &self.sender, &mut self.serial)?;
        self.lock(slot).began(slot);
        Ok(())
    }

    /// Takes in one line; the events of trials that it tells are put in line.
    fn take_line(&mut self, slot: usize, line: Line<Message>) -> Result<(), EvaluatorError> {
        self.slots[slot].hear();
        match line {
            Line::Message(Message::Trial(event)) if event.is_countable() => self.take_event(slot, event),
            Line::Message(Message::Trial(event)) => {
                tracing::warn!(
                    worker = slot,
                    trial = event.number().0,
                    "a worker told of a step beyond counting"
                );
            }
            Line::Message(Message::Control(message)) => return self.take_control(slot, message),
            Line::Garbled(text) => {
                tracing::warn!(
                    worker = slot,
                    line = text,
                    "a worker printed a line that is not a message"
                );
            }
            Line::TooLong => tracing::warn!(worker = slot, "a worker printed a line without end"),
            Line::Closed(tail) => return self.worker_died(slot, &tail),
        }
        Ok(())
    }

    fn take_control(&mut self, slot: usize, message: ControlMessage) -> Result<(), EvaluatorError> {
        let orders = match message {
            ControlMessage::Hello {
                protocol: PROTOCOL_VERSION,
                about,
                ..
            } => {
                let stays = self.settings.launcher.is_local();
                self.slots[slot].greet(*about, stays);
                return Ok(());
            }
            ControlMessage::Hello { protocol, version, .. } => {
                return Err(EvaluatorError::Protocol {
                    expected: PROTOCOL_VERSION,
                    found: protocol,
                    version,
                });
            }
            ControlMessage::Held { turn } => self.lock(slot).is_held(slot, turn),
            ControlMessage::ReadyToMeasure { number } if self.slots[slot].runs(number) => {
                self.lock(slot).is_ready(slot)
            }
            ControlMessage::OutOfMemory {
                in_use_bytes,
                requested_bytes,
                limit_bytes,
            } => {
                // Of several, the first says it for all.
                if let Some(trial) = self.slots[slot].trials.first_mut() {
                    trial.out_of_memory = Some(FailReason::OutOfMemory {
                        phase: trial.phase,
                        in_use_bytes: Some(in_use_bytes),
                        requested_bytes: Some(requested_bytes),
                        limit_bytes: Some(limit_bytes),
                    });
                }
                return Ok(());
            }
            ControlMessage::ReadyToMeasure { .. } | ControlMessage::Heartbeat { .. } | ControlMessage::Bye => {
                return Ok(());
            }
        };
        self.follow(orders);
        Ok(())
    }

    fn take_event(&mut self, slot: usize, mut event: TrialEvent) {
        let number = event.number();
        let Some(trial) = self.slots[slot].trial_mut(number) else {
            return;
        };
        trial.progressed = Instant::now();
        match &mut event {
            TrialEvent::Phase { phase, .. } => {
                trial.phase = *phase;
                self.count_neighbours();
            }
            TrialEvent::Measured { metrics, .. } => {
                trial.measured = true;
                self.mark(slot, number, metrics);
                let orders = self.lock(slot).has_measured(slot);
                self.follow(orders);
            }
            TrialEvent::Ended { state, .. } => {
                if let Some(metrics) = state.metrics_mut() {
                    self.mark(slot, number, metrics);
                }
                self.slots[slot].let_go(number);
                self.free(slot);
            }
            TrialEvent::Lost { .. } => {
                self.slots[slot].let_go(number);
                self.free(slot);
            }
            _ => {}
        }
        self.events.push_back(event);
    }

    /// Frees a slot whose trial is over.
    fn free(&mut self, slot: usize) {
        if self.slots[slot].trials.is_empty() {
            if self.settings.process_per_trial {
                self.slots[slot].close();
            }
            self.slots.iter_mut().for_each(|other| other.take_back_from(slot));
            let orders = self.lock(slot).ended(slot);
            self.follow(orders);
        }
        self.seat_waiting();
    }

    fn worker_died(&mut self, slot: usize, tail: &str) -> Result<(), EvaluatorError> {
        match self.slots[slot].died(tail) {
            Some(WorkerDeath::Trials(events)) => {
                self.free(slot);
                self.events.extend(events);
                Ok(())
            }
            Some(WorkerDeath::BeforeStart { times, message }) if times >= MOST_FAILED_STARTS => {
                let worker = self.slots[slot].placement.number;
                Err(EvaluatorError::DiesAtStart { worker, times, message })
            }
            Some(WorkerDeath::BeforeStart { times, message }) => {
                tracing::warn!(worker = slot, times, message, "a worker ended before it was ready");
                self.begin(slot)
            }
            None => Ok(()),
        }
    }

    /// Notes for every profile phase how many others compute on its hardware.
    fn count_neighbours(&mut self) {
        for slot in 0..self.slots.len() {
            let beside = self.computing_beside(slot);
            let trials = self.slots[slot].trials.iter_mut();
            for trial in trials.filter(|trial| trial.phase == Phase::Profile && !trial.measured) {
                trial.neighbours = trial.neighbours.max(beside);
            }
        }
    }

    fn computing_beside(&self, slot: usize) -> usize {
        let hardware = &self.slots[slot].placement.hardware;
        let others = (0..self.slots.len()).filter(|other| *other != slot);
        others
            .filter(|other| self.slots[*other].placement.hardware == *hardware)
            .filter(|other| self.locks.get(hardware).is_some_and(|lock| lock.computes(*other)))
            .count()
    }

    /// Marks metrics of a profile phase with its neighbours, where it could have had any.
    fn mark(&self, slot: usize, number: TrialNumber, metrics: &mut Metrics) {
        let hardware = &self.slots[slot].placement.hardware;
        let sharing = self.slots.iter().filter(|other| other.placement.hardware == *hardware);
        let measured = metrics.value(peft_tune_core::objective::THROUGHPUT).is_some();
        let mut trials = self.slots[slot].trials.iter();
        let trial = trials.find(|trial| trial.request.number == number);
        if let Some(trial) = trial.filter(|_| measured && sharing.count() > 1) {
            metrics.insert(NEIGHBOURS, trial.neighbours as f64);
        }
    }

    fn end_overdue(&mut self) {
        // Where this process was stopped or busy, the workers' words wait to be heard: they are not to blame.
        if self.looked.elapsed() >= self.settings.silent_after / 2 {
            self.slots.iter_mut().for_each(WorkerSlot::forgive_silence);
        }
        self.looked = Instant::now();
        for slot in 0..self.slots.len() {
            let events = self.slots[slot].end_overdue(&self.settings);
            if !events.is_empty() {
                self.free(slot);
                self.events.extend(events);
            }
        }
    }
}

impl Evaluator for WorkerPool {
    fn capacity(&self) -> usize {
        self.slots.len() * self.settings.together.most
    }

    fn workers(&self) -> usize {
        self.slots.len()
    }

    fn submit(&mut self, request: TrialRequest) -> Result<(), EvaluatorError> {
        let under_way: usize = self.slots.iter().map(|slot| slot.trials.len()).sum();
        let capacity = self.capacity();
        if under_way + self.queue.len() >= capacity {
            return Err(EvaluatorError::Full { capacity });
        }
        self.queue.push_back(Waiting { request, passed: 0 });
        self.seat_waiting();
        self.begin_waiting()
    }

    fn next_event(&mut self, timeout: Duration) -> Result<Option<TrialEvent>, EvaluatorError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            if self.slots.iter().all(|slot| slot.trials.is_empty()) {
                return Ok(None);
            }
            if self.looked.elapsed() >= TICK {
                self.end_overdue();
                self.begin_waiting()?;
                continue;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left.min(TICK)) {
                Ok((serial, line)) => {
                    if let Some(slot) = self.slots.iter().position(|slot| slot.is(serial)) {
                        self.take_line(slot, line)?;
                        self.begin_waiting()?;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    if left.is_zero() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    fn cancel(&mut self, number: TrialNumber) -> Result<(), EvaluatorError> {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.runs(number)) {
            slot.say(&Request::Cancel { number });
        }
        if let Some(at) = self.queue.iter().position(|waiting| waiting.request.number == number) {
            self.queue.remove(at);
            let state = TrialState::Pruned {
                at_step: 0,
                rule: "stopped".to_owned(),
                metrics: Metrics::default(),
            };
            let wall_s = 0.0;
            self.events.push_back(TrialEvent::Ended { number, state, wall_s });
            self.seat_waiting();
        }
        Ok(())
    }
}

impl Drop for WorkerPool {
    /// Lets idle workers end by themselves; those with a trial are killed.
    fn drop(&mut self) {
        let mut idle: Vec<&mut WorkerSlot> = self.slots.iter_mut().filter(|slot| slot.trials.is_empty()).collect();
        idle.iter_mut().for_each(|slot| slot.ask_to_end());
        let asked = Instant::now();
        let farewell = self.settings.launcher.farewell().unwrap_or(FAREWELL);
        while asked.elapsed() < farewell && idle.iter_mut().any(|slot| slot.is_alive()) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
