//! Trials that fail alike, one after the other: then the study is at fault and not their settings. The search stops
//! before its budget is spent on it, and the trials wait to be run again.

use crate::store::{Store, StudyId};
use peft_tune_core::study::{FailReason, Trial, TrialNumber, TrialState};

/// Failures in a row that are no chance.
const IN_A_ROW: usize = 3;

/// The last trials that ended, as far as they failed alike.
#[derive(Debug, Default)]
pub(super) struct FailAlike {
    /// Whether every failure counts as its setting's.
    keep_going: bool,
    trials: Vec<TrialNumber>,
    reason: Option<FailReason>,
    /// A cause that was found to be the settings'.
    acquitted: Option<String>,
}

impl FailAlike {
    /// Takes in the end of a trial.
    pub(super) fn ended(&mut self, trial: &Trial) {
        let TrialState::Failed { reason, .. } = &trial.state else {
            if !matches!(trial.state, TrialState::Skipped { .. }) {
                (self.trials, self.reason) = (Vec::new(), None);
            }
            return;
        };
        let cause = cause_of(reason);
        if cause.is_none() || cause != self.reason.as_ref().and_then(cause_of) {
            self.trials.clear();
        }
        if cause.is_some() {
            self.trials.push(trial.number);
        }
        self.reason = Some(reason.clone());
    }

    /// Whether something else than settings may be at fault.
    pub(super) fn is_suspicious(&self) -> bool {
        let cause = self.reason.as_ref().and_then(cause_of);
        !self.keep_going && self.trials.len() >= IN_A_ROW && cause != self.acquitted
    }

    /// Sets whether every failure counts as its setting's, however many fail alike.
    pub(super) fn keep_going(&mut self, keep_going: bool) {
        self.keep_going = keep_going;
    }

    /// The trials that failed alike, and how; the next failure begins anew.
    pub(super) fn take(&mut self) -> (Vec<TrialNumber>, Option<FailReason>) {
        (std::mem::take(&mut self.trials), self.reason.take())
    }

    /// Notes that the settings are at fault after all.
    pub(super) fn acquit(&mut self) {
        self.acquitted = self.reason.as_ref().and_then(cause_of);
    }
}

/// Lets the trials of a study wait again that all failed alike, and tells how they failed: a search that keeps going may
/// have spent its whole budget so.
///
/// # Errors
/// The database cannot be read or written.
pub async fn reopen_failed_study(
    store: &Store,
    id: StudyId,
) -> Result<Option<(usize, String)>, crate::store::StoreError> {
    if store.history().has_success(id).await? {
        return Ok(None);
    }
    let history = store.history().trials(id).await?;
    let mut alike = FailAlike::default();
    // What was passed over says nothing of whether the others work.
    let has_run = |trial: &&Trial| trial.state.is_finished() && !matches!(trial.state, TrialState::Skipped { .. });
    let finished: Vec<&Trial> = history.iter().filter(has_run).collect();
    finished.iter().for_each(|trial| alike.ended(trial));
    let (Some(reason), true) = (
        &alike.reason,
        alike.trials.len() == finished.len() && alike.is_suspicious(),
    ) else {
        return Ok(None);
    };
    store.trials().reopen_failed(id, &alike.trials).await?;
    Ok(Some((alike.trials.len(), reason.message().to_owned())))
}

/// The text that failures have in common that are alike: their message but for numbers. `None` where a setting decides:
/// too little memory or time, a loss that explodes.
pub(super) fn cause_of(reason: &FailReason) -> Option<String> {
    let (FailReason::Crashed { message, .. } | FailReason::Invalid { message }) = reason else {
        return None;
    };
    let mut cause = String::with_capacity(message.len());
    for character in message.chars() {
        match character.is_ascii_digit() {
            true if cause.ends_with('#') => {}
            true => cause.push('#'),
            false => cause.push(character),
        }
    }
    Some(cause)
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::{Metrics, Params, Phase};

    fn trial(number: u64, state: TrialState) -> Trial {
        let params = Params::new();
        let number = TrialNumber(number);
        Trial { number, params, state }
    }

    fn failed(number: u64, reason: FailReason) -> Trial {
        let metrics = Metrics::default();
        trial(number, TrialState::Failed { reason, metrics })
    }

    fn invalid(number: u64, message: &str) -> Trial {
        let message = message.to_owned();
        failed(number, FailReason::Invalid { message })
    }

    #[test]
    fn three_failures_in_a_row_that_differ_in_numbers_alone_are_suspicious() {
        let mut alike = FailAlike::default();
        for number in 0..3 {
            assert!(!alike.is_suspicious());
            alike.ended(&invalid(number, &format!("tensor {number} of 12 is missing")));
        }
        assert!(alike.is_suspicious());
        alike.acquit();
        assert!(!alike.is_suspicious());
        alike.ended(&invalid(3, "another"));
        alike.ended(&invalid(4, "another"));
        assert!(!alike.is_suspicious());
        alike.ended(&invalid(5, "another"));
        assert!(alike.is_suspicious());
    }

    #[test]
    fn a_success_between_them_or_another_cause_is_not() {
        let mut alike = FailAlike::default();
        let metrics = Metrics::default();
        alike.ended(&invalid(0, "a"));
        alike.ended(&invalid(1, "a"));
        alike.ended(&trial(2, TrialState::Complete { metrics }));
        alike.ended(&invalid(3, "a"));
        alike.ended(&invalid(4, "b"));
        alike.ended(&invalid(5, "a"));
        assert!(!alike.is_suspicious());
    }

    #[test]
    fn what_settings_decide_is_never_suspicious() {
        let mut alike = FailAlike::default();
        for number in 0..9 {
            let after_s = 1.0;
            let phase = Phase::Train;
            alike.ended(&failed(number, FailReason::TimedOut { phase, after_s }));
        }
        assert!(!alike.is_suspicious());
    }
}
