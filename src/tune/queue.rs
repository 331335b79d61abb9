//! Trials and settings that wait to run: trials that were begun and not finished, proposals that were deferred, and the
//! setting that a study begins with.

use std::collections::VecDeque;

use super::claim::Claim;
use super::propose::Proposed;
use super::running_trials::RunningTrials;
use peft_tune_core::study::{Params, TrialNumber};

/// A proposal that waits until a trial under way knows what both need. It is not a trial yet: a search that ends
/// meanwhile leaves no trace of it.
#[derive(Debug)]
struct Deferred {
    proposed: Proposed,
    claims: Vec<Claim>,
}

/// Trials and settings that wait to run.
#[derive(Debug)]
pub(super) struct Queue {
    /// Trials that were started and not finished, by an earlier process or one that was lost.
    unfinished: VecDeque<TrialNumber>,
    /// Proposals that wait for a measurement of a trial under way.
    deferred: VecDeque<Deferred>,
    /// The setting of the first trial, which the recommended one is compared with.
    baseline: Option<Params>,
}

impl Queue {
    /// A queue of trials that earlier searches left unfinished.
    pub(super) fn new(unfinished: VecDeque<TrialNumber>) -> Self {
        Self {
            unfinished,
            deferred: VecDeque::new(),
            baseline: None,
        }
    }

    /// Sets the setting that a study without trials begins with.
    pub(super) fn begin_with(&mut self, baseline: Option<Params>) {
        self.baseline = baseline;
    }

    /// The setting that a study without trials begins with.
    pub(super) fn baseline(&self) -> Option<&Params> {
        self.baseline.as_ref()
    }

    /// Number of trials that wait and are counted as begun: unfinished ones and deferred proposals.
    pub(super) fn len(&self) -> usize {
        self.unfinished.len() + self.deferred.len()
    }

    /// Lets a trial be repeated, behind all others that are.
    pub(super) fn repeat(&mut self, number: TrialNumber) {
        self.unfinished.push_back(number);
    }

    /// Trials to be repeated, in their order.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = TrialNumber> {
        self.unfinished.iter().copied()
    }

    /// Takes a trial out that was to be repeated and begins.
    pub(super) fn take_unfinished(&mut self, number: TrialNumber) {
        self.unfinished.retain(|other| *other != number);
    }

    /// Puts a proposal off that needs what others are measuring.
    pub(super) fn defer(&mut self, proposed: Proposed, claims: Vec<Claim>) {
        self.deferred.push_back(Deferred { proposed, claims });
    }

    /// Proposals that were deferred, in their order.
    pub(super) fn deferred(&self) -> impl ExactSizeIterator<Item = &Proposed> {
        self.deferred.iter().map(|one| &one.proposed)
    }

    /// The first proposal that was deferred and has to wait for none of the trials under way.
    pub(super) fn next_deferred(&mut self, running: &RunningTrials) -> Option<Proposed> {
        let at = self.deferred.iter().position(|one| !running.measure_any(&one.claims))?;
        self.deferred.remove(at).map(|one| one.proposed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::running_trial::{RunningTrial, TrialOutlook};
    use peft_tune_core::study::ParamValue;
    use peft_tune_kernels::Kernels;

    fn proposed(rank: i64) -> Proposed {
        Proposed {
            params: [("rank".to_owned(), ParamValue::Int(rank))].into(),
            score: None,
        }
    }

    fn claim(metric: &str) -> Claim {
        Claim::Metric(metric.to_owned(), [0; 16])
    }

    #[test]
    fn a_deferred_proposal_begins_once_nobody_measures_what_it_needs() {
        let mut queue = Queue::new(VecDeque::new());
        queue.defer(proposed(4), vec![claim("loss")]);
        queue.defer(proposed(8), vec![claim("speed")]);
        let mut running = RunningTrials::default();
        let mut other = RunningTrial::new(1, Kernels::default(), TrialOutlook::default(), None);
        other.claim(vec![claim("loss")]);
        running.insert(TrialNumber(0), other);
        assert_eq!(queue.next_deferred(&running), Some(proposed(8)));
        assert_eq!(queue.next_deferred(&running), None);
        assert!(queue.deferred().eq([&proposed(4)]));
        running.remove(TrialNumber(0));
        assert_eq!(queue.next_deferred(&running), Some(proposed(4)));
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn a_trial_that_was_lost_again_is_repeated_behind_the_others() {
        let mut queue = Queue::new([0, 1].map(TrialNumber).into());
        queue.take_unfinished(TrialNumber(0));
        queue.repeat(TrialNumber(0));
        assert!(queue.unfinished().eq([1, 0].map(TrialNumber)));
    }
}
