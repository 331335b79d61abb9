//! Rehearsal of a study: before the first trial, one small step of a setting on every worker. What no setting decides
//! (weights, tokenizer, data, devices, what another machine sees) is found out before it fails every trial.

use std::collections::BTreeSet;

use super::fail_alike::cause_of;
use super::interrupt::POLL;
use super::kernel_fault::{KernelFault, SaferForm};
use super::{TuneError, Tuner};
use crate::space::{Study, recipe_for};
use crate::worker::{Task, TrialEvent, TrialRequest};
use peft_tune_core::recipe::{PrecisionSchedule, TrainingLength};
use peft_tune_core::study::{AccuracyPlan, FailReason, Params, TrainPlan, TrialNumber, TrialPlan, TrialState};
use peft_tune_kernels::Kernels;

/// Settings that are tried before the study is to blame.
const SETTINGS: usize = 3;

impl Tuner<'_> {
    /// Runs one small step of a setting on every worker; of up to three settings, where it fails.
    ///
    /// # Errors
    /// [`TuneError::Rehearsal`] where all settings fail alike, and the workers' own.
    pub(super) fn rehearse(&mut self) -> Result<(), TuneError> {
        let mut first: Option<FailReason> = None;
        for params in self.rehearsed_settings() {
            let Some(reason) = self.rehearse_setting(&params)? else {
                return Ok(());
            };
            match &first {
                // Different settings fail differently: their own faults.
                Some(first) if cause_of(first) != cause_of(&reason) => return Ok(()),
                Some(_) => {}
                None => first = Some(reason),
            }
        }
        match first {
            Some(reason) if !self.parts.interrupt.is_requested() => Err(TuneError::Rehearsal {
                message: reason.message().to_owned(),
            }),
            _ => Ok(()),
        }
    }

    /// Settings that are known to work or likely to, the likeliest first.
    fn rehearsed_settings(&self) -> Vec<Params> {
        let space = &self.problem.space;
        let corner = |unit: f64| space.params_at(&vec![unit; space.dimensions()]);
        let complete = self.trials.all().iter().rev();
        let complete = complete.filter(|trial| matches!(trial.state, TrialState::Complete { .. }));
        let known = complete.map(|trial| trial.params.clone()).next();
        let mut settings: Vec<Params> = Vec::new();
        let likely = known.into_iter().chain(self.queue.baseline().cloned());
        for params in likely.chain([corner(0.0), corner(0.5), corner(1.0 - 1e-9)]) {
            if !settings.contains(&params) {
                settings.push(params);
            }
        }
        settings.truncate(SETTINGS);
        settings
    }

    /// Runs one small step of a setting on every worker; returns how it failed on one of them, if that is not the
    /// setting's memory or time. Where a kernel failed, the step runs in a safer form of the ops, with which the search
    /// stays if it works.
    fn rehearse_setting(&mut self, params: &Params) -> Result<Option<FailReason>, TuneError> {
        let mut safer: Option<SaferForm> = None;
        loop {
            let kernels = safer.as_ref().map_or(self.forms.current(), |safer| safer.kernels);
            let (failed, fault) = self.rehearse_in(kernels, params)?;
            match fault.and_then(|fault| Some((fault.safer()?, fault))) {
                Some((kernels, fault)) if failed.is_some() => {
                    let instead_of = self.forms.current();
                    safer = Some(SaferForm {
                        kernels,
                        instead_of,
                        fault,
                    });
                }
                _ => {
                    if let Some(safer) = safer.filter(|_| failed.is_none() && !self.parts.interrupt.is_requested()) {
                        self.stay_with(&safer);
                    }
                    return Ok(failed);
                }
            }
        }
    }

    /// Runs one small step of a setting on every worker in one form of the ops; returns how it failed as
    /// `rehearse_setting` does, with the kernel's fault, if one failed.
    fn rehearse_in(
        &mut self,
        kernels: Kernels,
        params: &Params,
    ) -> Result<(Option<FailReason>, Option<KernelFault>), TuneError> {
        let task = match small_task(self.parts.study, params) {
            Ok(task) => task,
            Err(message) => return Ok((Some(FailReason::Invalid { message }), None)),
        };
        let mut open = BTreeSet::new();
        for worker in 0..self.parts.evaluator.workers() {
            let number = TrialNumber::rehearsal(worker);
            self.parts.evaluator.submit(TrialRequest {
                number,
                attempt: 1,
                task: task.clone(),
                memory_limit_bytes: self.parts.study.memory_limit_bytes,
                time_limit_s: None,
                kernels: Some(kernels),
                assignments: Vec::new(),
                pairing: None,
                first_adapter: None,
            })?;
            open.insert(number);
        }
        let (mut failed, mut met) = (None, None);
        while !open.is_empty() {
            if self.parts.interrupt.is_requested() {
                open.iter()
                    .try_for_each(|number| self.parts.evaluator.cancel(*number))?;
            }
            let (number, reason) = match self.parts.evaluator.next_event(POLL)? {
                Some(TrialEvent::Ended { number, state, .. }) => (number, failure_of(state)),
                Some(TrialEvent::Lost { number, reason, .. }) => (number, Some(reason)),
                Some(event) => {
                    met = met.or_else(|| KernelFault::of(&event));
                    continue;
                }
                None if self.parts.interrupt.is_immediate() => return Ok((None, None)),
                None => continue,
            };
            open.remove(&number);
            failed = failed.or(reason.filter(|reason| cause_of(reason).is_some()));
        }
        Ok((failed, met))
    }
}

/// The failure of a rehearsal. Nothing has been learned after one step, so that a loss that is no number is not the
/// setting's.
fn failure_of(state: TrialState) -> Option<FailReason> {
    match state {
        TrialState::Failed {
            reason: FailReason::Diverged { .. },
            ..
        } => Some(FailReason::Invalid {
            message:
                "the loss of the first step is not a finite number: the base weights hold values that are not finite, \
                      or are too large for this precision"
                    .to_owned(),
        }),
        TrialState::Failed { reason, .. } => Some(reason),
        _ => None,
    }
}

/// The task of a rehearsal: one step of a single row a device, and a single held-out row.
fn small_task(study: &Study, params: &Params) -> Result<Task, String> {
    let mut recipe = recipe_for(study, params).map_err(|error| error.to_string())?;
    recipe.batch.micro_batch = 1;
    recipe.batch.gradient_accumulation = 1;
    // One step has none before the switch and one behind it.
    recipe.precision_schedule = PrecisionSchedule::None;
    let train = TrainPlan {
        length: TrainingLength::Steps(1),
        evaluations: 1,
        evaluation_rows: Some(1),
        accuracy: AccuracyPlan::default(),
        seed_offset: 0,
    };
    Ok(Task::Recipe {
        recipe: Box::new(recipe),
        plan: TrialPlan {
            measure: None,
            train: Some(train),
        },
    })
}
