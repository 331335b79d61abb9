//! Failures of a study so far: how many attempts trials lost, and whether the last ones failed alike.

use super::fail_alike::FailAlike;
use super::retry_policy::RetryPolicy;
use peft_tune_core::study::{FailReason, Trial, TrialNumber};

/// Trials that failed or were lost so far.
#[derive(Debug, Default)]
pub(super) struct Failures {
    retries: RetryPolicy,
    /// The last trials, as far as they failed alike.
    alike: FailAlike,
    /// Whether a step of a setting is tried before the first trial, and where trials fail alike.
    rehearses: bool,
}

impl Failures {
    /// Lets each trial lose so many attempts before it is set aside.
    pub(super) fn allow(&mut self, attempts: u64) {
        self.retries.allow(attempts);
    }

    /// Sets whether every failure counts as its setting's, however many fail alike.
    pub(super) fn keep_going(&mut self, keep_going: bool) {
        self.alike.keep_going(keep_going);
    }

    /// Tries a step of a setting before the first trial, and where trials fail alike.
    pub(super) fn rehearse(&mut self, rehearses: bool) {
        self.rehearses = rehearses;
    }

    /// Whether a step of a setting is tried before the first trial.
    pub(super) fn rehearses(&self) -> bool {
        self.rehearses
    }

    /// Whether something else than settings may be at fault.
    pub(super) fn are_suspicious(&self) -> bool {
        self.alike.is_suspicious()
    }

    /// Notes that a trial's process ended it by itself.
    pub(super) fn ended_by_itself(&mut self) {
        self.retries.renew();
    }

    /// Takes in the end of a trial that measured all of it itself.
    pub(super) fn ended(&mut self, trial: &Trial) {
        self.alike.ended(trial);
    }

    /// Whether a trial that has lost so many attempts is repeated.
    pub(super) fn repeats(&self, lost: u64) -> bool {
        self.retries.repeats(lost)
    }

    /// Counts a trial that is set aside; returns how many were in a row, where that cannot be the settings' fault.
    pub(super) fn set_aside(&mut self) -> Option<u64> {
        self.retries.set_aside()
    }

    /// Notes that the settings are at fault after all where trials failed alike.
    pub(super) fn acquit(&mut self) {
        self.alike.acquit();
    }

    /// The trials that failed alike, and how; the next failure begins anew.
    pub(super) fn take_alike(&mut self) -> (Vec<TrialNumber>, Option<FailReason>) {
        self.alike.take()
    }
}
