//! Choice of the trial that begins next: one to be repeated, a proposal that was deferred, a setting that people asked
//! for, one whose cost predictions do not tell, what the sampler proposes, or, once nothing is left to train, what costs
//! little to know.
//!
//! A trial that needs what another is about to know is deferred, and ones that do not are handed out meanwhile.

use super::claim::Claim;
use super::propose::{Proposed, propose, relatives};
use super::{Ending, Tuner};
use crate::space::Backend;
use peft_tune_core::study::{Params, Trial, TrialNumber};

impl Tuner<'_> {
    /// The trial to start next, with what is expected of it; sets the ending where there is none.
    pub(super) fn next_trial(&mut self, ending: &mut Option<Ending>) -> Option<(Trial, Option<Proposed>)> {
        if self.parts.interrupt.is_requested() {
            *ending = Some(Ending::Interrupted);
            return None;
        }
        if !self.schedule().is_out_of_time()
            && let Some(trial) = self.next_unfinished()
        {
            return Some((trial, None));
        }
        *ending = self.schedule().budget_ending();
        let is_over = ending.is_some();
        let proposed = match self.next_proposed(ending) {
            Some(proposed) => proposed,
            None => {
                // Once the budget's trials are begun, only what takes its loss over is none of them. Before, it was asked for
                // among the proposals.
                let takes_loss_over = is_over && self.parts.study.plan.train.is_some();
                let untold = takes_loss_over.then(|| self.next_untold()).flatten();
                let variant = untold.or_else(|| self.next_variant());
                variant.or_else(|| self.next_for_longer())?
            }
        };
        Some((self.trials.next(&proposed), Some(proposed)))
    }

    /// The first trial to be repeated that has to wait for no other.
    fn next_unfinished(&mut self) -> Option<Trial> {
        let may_begin = |number: &TrialNumber| {
            let trial = self.trials.get(*number);
            trial.is_none_or(|trial| !self.has_to_wait(&trial.params))
        };
        let number = self.queue.unfinished().find(may_begin)?;
        self.queue.take_unfinished(number);
        self.trials.get(number).cloned()
    }

    /// A setting whose cost predictions do not tell, beside a trial that differs in nothing else. Samplers that go by the
    /// predictions would pass it over.
    fn next_untold(&self) -> Option<Proposed> {
        let goes_by_them = self.parts.sampler.weighs_gains();
        let predictions = self.predictions.as_ref().filter(|_| goes_by_them);
        let predictions = predictions.filter(|_| self.schedule().has_time_for_variant())?;
        let params = predictions.next_untold(&self.problem, &self.trials)?;
        (!self.has_to_wait(&params)).then_some(Proposed { params, score: None })
    }

    /// The variant of a trained setting to measure next, once nothing is left to train.
    fn next_variant(&self) -> Option<Proposed> {
        let predictions = self.predictions.as_ref();
        let predictions = predictions.filter(|_| self.schedule().has_time_for_variant())?;
        let params = predictions.next_variant(&self.problem, &self.trials)?;
        (!self.has_to_wait(&params)).then_some(Proposed { params, score: None })
    }

    /// The setting that a finalist has in a faster precision or at half its learning rate, once nothing else is left to
    /// do; a few at most, and as far as there is time for them and for the longer trainings that they are for.
    fn next_for_longer(&mut self) -> Option<Proposed> {
        if !self.confirmation.may_try_another() {
            return None;
        }
        let schedule = self.schedule();
        let left_s = schedule.left_s() - self.clock.expected_s(None);
        if left_s <= 0.0 {
            return None;
        }
        let params = schedule.for_longer(left_s)?;
        self.confirmation.try_another();
        Some(Proposed { params, score: None })
    }

    /// The setting of the next new trial: one that was deferred, one that people asked for, or what the sampler proposes.
    fn next_proposed(&mut self, ending: &mut Option<Ending>) -> Option<Proposed> {
        if *ending != Some(Ending::TimeSpent)
            && let Some(proposed) = self.queue.next_deferred(&self.running)
        {
            *ending = None;
            return Some(proposed);
        }
        if self.trials.all().is_empty()
            && ending.is_none()
            && let Some(params) = self.queue.baseline().cloned()
        {
            return Some(Proposed { params, score: None });
        }
        let asked_for = self.requests.first_setting().filter(|_| ending.is_none());
        if asked_for.is_some_and(|params| !self.has_to_wait(params))
            && let Some(params) = self.requests.next_setting()
        {
            return Some(Proposed { params, score: None });
        }
        if ending.is_none()
            && let Some(proposed) = self.next_untold()
        {
            return Some(proposed);
        }
        // With one more deferred for every place, what is handed out next would be known too late to be of use.
        while ending.is_none() && self.queue.deferred().len() < self.parts.evaluator.capacity() {
            *ending = self.rule_ending();
            if ending.is_none() {
                let Some(proposed) = self.ask() else {
                    *ending = Some(Ending::Exhausted);
                    break;
                };
                if let Some(proposed) = self.defer(proposed) {
                    if self.schedule().has_time_for(&proposed.params) {
                        return Some(proposed);
                    }
                    self.clock.run_out();
                    *ending = Some(Ending::TimeSpent);
                    break;
                }
                *ending = self.schedule().budget_ending();
            }
        }
        None
    }

    /// The setting that the sampler proposes. It sees deferred proposals as trials, so that it does not propose them
    /// again.
    fn ask(&mut self) -> Option<Proposed> {
        let (study, known, problem) = (self.parts.study, &self.known, &self.problem);
        let whole_steps = self.whole_steps();
        let kernels = self.forms.current();
        let share = |params: &_| known.share(study, problem, params, kernels, whole_steps);
        let is_predicted = self.predictions.is_some();
        let sampler = self.parts.sampler.as_mut();
        let deferred = self.queue.deferred();
        self.trials.with_waiting(deferred, |history| {
            let relatives = match is_predicted {
                // Their costs are predicted: those that matter are measured at the end.
                true => Vec::new(),
                false => relatives(problem, history),
            };
            propose(sampler, problem, history, &relatives, &share)
        })
    }

    fn rule_ending(&self) -> Option<Ending> {
        let rule = self.parts.study.stop.as_ref()?;
        let reason = self.trials.stop_reason(rule, &self.problem)?;
        Some(Ending::Stopped { reason })
    }

    /// Steps of a whole trial of a command: what the file says, or those of the longest trial that was not stopped.
    pub(super) fn whole_steps(&self) -> Option<u64> {
        let Backend::Command(command) = &self.parts.study.backend else {
            return None;
        };
        command.steps.or(self.trials.longest())
    }

    /// Puts a proposal off if it has to wait; else returns it.
    fn defer(&mut self, proposed: Proposed) -> Option<Proposed> {
        let claims = self.claims_of(&proposed.params);
        if !self.running.measure_any(&claims) {
            return Some(proposed);
        }
        self.queue.defer(proposed, claims);
        None
    }

    /// Whether a trial under way is measuring what these params need.
    fn has_to_wait(&self, params: &Params) -> bool {
        self.running.measure_any(&self.claims_of(params))
    }

    fn claims_of(&self, params: &Params) -> Vec<Claim> {
        match self.running.is_empty() {
            true => Vec::new(),
            false => self.known.claims(self.parts.study, &self.problem, params),
        }
    }
}
