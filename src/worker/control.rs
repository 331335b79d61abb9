//! State that the worker's threads share: the one that reads requests, the one that runs trials, the heartbeat.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::protocol::{ControlMessage, Message};
use peft_tune_core::study::TrialNumber;

/// Output for messages to the coordinator, whole lines at a time.
#[derive(Clone)]
pub(super) struct Outbox(Arc<Mutex<Box<dyn Write + Send>>>);

impl Outbox {
    pub(super) fn new(output: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Box::new(output))))
    }

    /// Writes one message.
    ///
    /// # Errors
    /// Where nobody reads any more.
    pub(super) fn say(&self, message: &Message) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        // A poisoned lock only means that another thread panicked between two whole lines.
        let mut output = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        output.write_all(&line)?;
        output.flush()
    }
}

/// Requests of the coordinator, as the thread that runs trials sees them. All clones share one state.
#[derive(Clone)]
pub(super) struct Control {
    shared: Arc<Shared>,
    outbox: Outbox,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Requests so far.
#[derive(Default)]
struct State {
    cancelled: BTreeSet<TrialNumber>,
    /// Whether nothing is left to report to.
    coordinator_gone: bool,
    /// Turn of a hold that was not taken back.
    held: Option<u64>,
    take_turns: bool,
    train_together: bool,
    /// Trial whose profile phase may begin.
    granted: Option<TrialNumber>,
    under_way: Option<TrialNumber>,
}

impl Control {
    pub(super) fn new(outbox: Outbox) -> Self {
        let shared = Arc::default();
        Self { shared, outbox }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.changed.notify_all();
    }

    pub(super) fn take_turns(&self, take_turns: bool) {
        self.change(|state| state.take_turns = take_turns);
    }

    pub(super) fn train_together(&self, together: bool) {
        self.change(|state| state.train_together = together);
    }

    /// Whether trials that come while another trains may train beside it.
    pub(super) fn trains_together(&self) -> bool {
        self.state().train_together
    }

    /// Forgets requests that were not meant for this trial. A trial that was cancelled may be run again under its
    /// number.
    pub(super) fn begin(&self, number: TrialNumber) {
        self.change(|state| {
            state.cancelled.remove(&number);
            state.held = None;
            state.granted = None;
        });
    }

    pub(super) fn cancel(&self, number: TrialNumber) {
        self.change(|state| {
            state.cancelled.insert(number);
        });
    }

    pub(super) fn hold(&self, turn: u64) {
        self.change(|state| state.held = Some(turn));
    }

    pub(super) fn resume(&self) {
        self.change(|state| state.held = None);
    }

    /// Lets the profile phase of `number` begin. It is no time to be held.
    pub(super) fn grant(&self, number: TrialNumber) {
        self.change(|state| {
            state.granted = Some(number);
            state.held = None;
        });
    }

    pub(super) fn coordinator_gone(&self) {
        self.change(|state| state.coordinator_gone = true);
    }

    /// Notes which trial is under way.
    pub(super) fn under_way(&self, number: Option<TrialNumber>) {
        self.change(|state| state.under_way = number);
    }

    /// The trial under way.
    pub(super) fn trial(&self) -> Option<TrialNumber> {
        self.state().under_way
    }

    /// Whether nothing is left to report to.
    pub(super) fn is_alone(&self) -> bool {
        self.state().coordinator_gone
    }

    /// Whether trial `number` should end after the step it is in.
    pub(super) fn is_stopped(&self, number: TrialNumber) -> bool {
        let state = self.state();
        state.coordinator_gone || state.cancelled.contains(&number)
    }

    /// Waits while the coordinator holds this worker; returns how long that was. Each hold is answered: the next may come
    /// before this thread woke from the last, and its coordinator waits for the answer.
    pub(super) fn wait_while_held(&self, number: TrialNumber) -> Duration {
        let (mut waited, mut answered) = (Duration::ZERO, None);
        let unanswered = |answered: Option<u64>| self.state().held.filter(|turn| answered != Some(*turn));
        while let Some(turn) = unanswered(answered) {
            answered = Some(turn);
            waited += self.wait(number, ControlMessage::Held { turn }, |state| state.held != Some(turn));
        }
        waited
    }

    /// Waits until the profile phase of `number` may begin; returns how long that was.
    pub(super) fn wait_for_turn(&self, number: TrialNumber) -> Duration {
        if !self.state().take_turns {
            return Duration::ZERO;
        }
        let message = ControlMessage::ReadyToMeasure { number };
        self.wait(number, message, |state| {
            state.granted.take_if(|granted| *granted == number).is_some()
        })
    }

    fn wait(&self, number: TrialNumber, message: ControlMessage, is_over: impl Fn(&mut State) -> bool) -> Duration {
        let began = Instant::now();
        if self.outbox.say(&Message::Control(message)).is_err() {
            self.coordinator_gone();
        }
        let waits = |state: &mut State| {
            let stopped = state.coordinator_gone || state.cancelled.contains(&number);
            !is_over(state) && !stopped
        };
        drop(
            self.shared
                .changed
                .wait_while(self.state(), waits)
                .unwrap_or_else(PoisonError::into_inner),
        );
        began.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control() -> Control {
        Control::new(Outbox::new(std::io::sink()))
    }

    #[test]
    fn a_hold_lasts_until_it_is_taken_back() {
        let control = control();
        let number = TrialNumber(1);
        assert_eq!(control.wait_while_held(number), Duration::ZERO);
        control.hold(7);
        let other = control.clone();
        let waiting = std::thread::spawn(move || other.wait_while_held(number));
        std::thread::sleep(Duration::from_millis(30));
        control.resume();
        assert!(waiting.join().unwrap() >= Duration::from_millis(20));
    }

    #[test]
    fn a_hold_that_follows_on_another_is_answered_too() {
        let (reader, writer) = std::io::pipe().unwrap();
        let control = Control::new(Outbox::new(writer));
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(reader));
        let mut next = || lines.next().unwrap().unwrap();
        control.hold(1);
        let other = control.clone();
        let waiting = std::thread::spawn(move || other.wait_while_held(TrialNumber(1)));
        assert!(next().contains("\"turn\":1"));
        // What a resume and a hold look like to a thread that did not wake between them.
        control.hold(2);
        assert!(next().contains("\"turn\":2"));
        control.resume();
        waiting.join().unwrap();
    }

    #[test]
    fn a_profile_phase_waits_for_its_own_turn_and_no_longer_than_its_trial() {
        let control = control();
        assert_eq!(control.wait_for_turn(TrialNumber(1)), Duration::ZERO);
        control.take_turns(true);
        control.grant(TrialNumber(1));
        control.wait_for_turn(TrialNumber(1));
        let other = control.clone();
        let waiting = std::thread::spawn(move || other.wait_for_turn(TrialNumber(2)));
        control.grant(TrialNumber(1));
        control.cancel(TrialNumber(2));
        waiting.join().unwrap();
        assert!(control.is_stopped(TrialNumber(2)) && !control.is_stopped(TrialNumber(1)));
    }
}
