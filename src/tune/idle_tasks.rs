//! Tasks of finished trials that run while nothing else does: repeats, and longer trainings.

use super::interrupt::POLL;
use super::kernel_fault::{KernelFault, KernelsUsed};
use super::{TuneError, Tuner};
use crate::worker::{Task, TrialEvent};
use peft_tune_core::study::{FailReason, Metrics, TrialNumber, TrialState};
use peft_tune_search::EvaluatedLoss;

/// The end of a task.
#[derive(Default)]
pub(super) struct IdleRun {
    /// Metrics that the task measured, where it completed.
    pub(super) metrics: Option<Metrics>,
    /// Reason of its failure, where it failed.
    pub(super) failed: Option<FailReason>,
    /// Seconds of all attempts at the task.
    pub(super) wall_s: f64,
    /// Kernels of attention that ran, and whether weights' products took those of adapters along.
    pub(super) ran: KernelsUsed,
    /// Evaluations of its training, in their order.
    pub(super) evaluations: Vec<EvaluatedLoss>,
}

/// One attempt at a task.
struct Attempt {
    state: Result<TrialState, FailReason>,
    wall_s: f64,
    ran: KernelsUsed,
    evaluations: Vec<EvaluatedLoss>,
    fault: Option<KernelFault>,
}

impl Tuner<'_> {
    /// Runs a task of a finished trial while nothing else runs. Where a kernel fails, it is repeated in a safer form, as trials
    /// are, and where that works the search stays with it, in another form than the trial was measured in.
    pub(super) async fn run_idle(
        &mut self,
        number: TrialNumber,
        attempt: u64,
        task: Task,
    ) -> Result<IdleRun, TuneError> {
        let mut wall_s = 0.0;
        for attempt in attempt.. {
            let Some(ran) = self.attempt_idle(number, attempt, task.clone()).await? else {
                self.forms.give_up(number);
                break;
            };
            wall_s += ran.wall_s;
            let state = match ran.state {
                Ok(state) => state,
                Err(reason) => {
                    if let Some(fault) = ran.fault {
                        let (store, id) = (self.parts.store, self.parts.id);
                        store.lost_attempts().record(id, number, &reason, ran.wall_s).await?;
                        if self.forms.fall_back(number, fault) {
                            continue;
                        }
                    }
                    let metrics = Metrics::default();
                    TrialState::Failed { reason, metrics }
                }
            };
            self.note_safer_kernels(number, &state);
            let (metrics, failed) = match state {
                TrialState::Complete { metrics } => (Some(metrics), None),
                TrialState::Failed { reason, .. } => (None, Some(reason)),
                _ => (None, None),
            };
            return Ok(IdleRun {
                metrics,
                failed,
                wall_s,
                ran: ran.ran,
                evaluations: ran.evaluations,
            });
        }
        Ok(IdleRun {
            wall_s,
            ..IdleRun::default()
        })
    }

    /// Runs a task once; `None` where the search is ended meanwhile.
    async fn attempt_idle(
        &mut self,
        number: TrialNumber,
        attempt: u64,
        task: Task,
    ) -> Result<Option<Attempt>, TuneError> {
        // What confirms a trial is evaluated on all rows.
        self.hand_out(number, attempt, task, None)?;
        let (mut last, mut fault) = (KernelsUsed::default(), None);
        let mut evaluations = Vec::new();
        loop {
            self.look_at_requests().await?;
            let (state, wall_s) = match self.parts.evaluator.next_event(POLL)? {
                Some(TrialEvent::Ended { state, wall_s, .. }) => (Ok(state), wall_s),
                Some(TrialEvent::Lost { reason, wall_s, .. }) => (Err(reason), wall_s),
                Some(event) => {
                    self.parts.observer.trial_event(&event);
                    if let TrialEvent::Evaluation { evaluation, .. } = &event {
                        evaluations.push(EvaluatedLoss {
                            step: evaluation.step,
                            tokens: evaluation.tokens,
                            loss: evaluation.loss,
                        });
                    }
                    last = KernelsUsed::of(&event).unwrap_or(last);
                    fault = fault.or_else(|| KernelFault::of(&event));
                    continue;
                }
                None if self.parts.interrupt.is_immediate() => return Ok(None),
                None => continue,
            };
            return Ok(Some(Attempt {
                state,
                wall_s,
                ran: last,
                evaluations,
                fault,
            }));
        }
    }
}
