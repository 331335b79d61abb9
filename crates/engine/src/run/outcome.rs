//! How far a training is, and how it ended.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{BackOff, Evaluation, PrecisionDecision, TrainerPosition};
use peft_tune_core::study::SpikeCause;

/// How far a training is: what a checkpoint keeps besides values and optimizer state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunProgress {
    pub trainer: TrainerPosition,
    /// Training loss of the last step, in nats.
    pub last_loss: Option<f64>,
    pub last_evaluation: Option<Evaluation>,
    /// The evaluation with the lowest loss.
    pub best: Option<BestEvaluation>,
    /// Evaluations since then.
    pub evaluations_since_best: u64,
    /// Decisions on the precision of the steps, with a `precision_schedule`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub precision_decisions: Vec<DecidedAt>,
    /// Returns to earlier checkpoints, each at half the rate before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub back_offs: Vec<BackOff>,
    /// Seconds spent in steps and evaluations, over all times that the training was resumed.
    pub seconds: f64,
    /// Seconds beside steps and evaluations; absent in checkpoints of versions that did not say.
    #[serde(default)]
    pub beside: Beside,
    /// Most other trainings whose rows went through the model in the same passes: the seconds are those of all then.
    #[serde(default, skip_serializing_if = "is_none")]
    pub shared_with: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands fields over by reference")]
fn is_none(others: &usize) -> bool {
    *others == 0
}

/// A decision on the precision, with its place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecidedAt {
    /// The step at whose end it was decided.
    pub step: u64,
    #[serde(flatten)]
    pub decision: PrecisionDecision,
}

/// Seconds that a training spent beside its steps, over all times that it was resumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Beside {
    /// A part of [`RunProgress::seconds`], which the others are not.
    pub evaluation_s: f64,
    pub checkpoint_s: f64,
    /// Telling the observer: event file, progress.
    pub logging_s: f64,
}

impl RunProgress {
    /// Progress of a training that has done nothing yet.
    pub(super) fn new(trainer: TrainerPosition) -> Self {
        Self {
            trainer,
            last_loss: None,
            last_evaluation: None,
            best: None,
            evaluations_since_best: 0,
            precision_decisions: Vec::new(),
            back_offs: Vec::new(),
            seconds: 0.0,
            beside: Beside::default(),
            shared_with: 0,
        }
    }

    /// Goes back to where a checkpoint was written. The best evaluation stays the best of all that were made, and so do the returns and
    /// the time that was spent.
    pub(super) fn return_to(&mut self, checkpoint: Self, back_off: BackOff) {
        let mut back_offs = std::mem::take(&mut self.back_offs);
        back_offs.push(back_off);
        let best = self.best;
        let is_best_before = best == checkpoint.best;
        *self = Self {
            back_offs,
            best,
            evaluations_since_best: if is_best_before {
                checkpoint.evaluations_since_best
            } else {
                0
            },
            seconds: self.seconds,
            beside: self.beside,
            shared_with: self.shared_with.max(checkpoint.shared_with),
            ..checkpoint
        };
    }

    /// Takes note of an evaluation; whether it is the best so far.
    pub(super) fn take_evaluation(&mut self, evaluation: &Evaluation) -> bool {
        self.seconds += evaluation.seconds;
        self.beside.evaluation_s += evaluation.seconds;
        self.last_evaluation = Some(evaluation.clone());
        let is_best = self.best.is_none_or(|best| evaluation.loss < best.loss);
        if is_best {
            self.evaluations_since_best = 0;
            self.best = Some(BestEvaluation {
                step: evaluation.step,
                loss: evaluation.loss,
            });
        } else {
            self.evaluations_since_best += 1;
        }
        is_best
    }
}

/// The evaluation with the lowest loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BestEvaluation {
    /// Optimizer steps taken before it.
    pub step: u64,
    /// Held-out loss in nats.
    pub loss: f64,
}

/// Why a training ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ending")]
pub enum Ending {
    /// The training went its whole length.
    Finished,
    /// The held-out loss had not become lower for so many evaluations.
    StoppedEarly { evaluations: u64 },
    /// The observer asked it to stop; it can continue from this checkpoint.
    Interrupted { checkpoint: PathBuf },
    /// A number stopped being finite in this step. The last good checkpoint is kept, if one had been written.
    Diverged {
        at_step: u64,
        what: String,
        cause: SpikeCause,
        /// Change that would help most.
        help: String,
        checkpoint: Option<PathBuf>,
    },
}

/// A training that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub ending: Ending,
    #[serde(flatten)]
    pub progress: RunProgress,
    /// Steps that the whole training would take.
    pub total_steps: u64,
    /// Folder of the best adapter or model, where there were several evaluations.
    pub best_folder: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lower_loss_counts_as_better() {
        let position = serde_json::from_str(r#"{"step": 0, "tokens": 0, "loss_scale": null}"#).unwrap();
        let mut progress = RunProgress::new(position);
        let mut take = |step, loss| {
            let evaluation = Evaluation {
                step,
                tokens: 0,
                loss,
                standard_error: None,
                accuracy: 0.0,
                target_tokens: 1,
                seconds: 1.0,
                reward: None,
            };
            let is_best = progress.take_evaluation(&evaluation);
            (is_best, progress.evaluations_since_best)
        };
        assert_eq!(take(1, 3.0), (true, 0));
        assert_eq!(take(2, 3.0), (false, 1));
        assert_eq!(take(3, 3.5), (false, 2));
        assert_eq!(take(4, 2.0), (true, 0));
        assert_eq!(progress.best, Some(BestEvaluation { step: 4, loss: 2.0 }));
        assert_eq!((progress.seconds, progress.beside.evaluation_s), (4.0, 4.0));
    }

    #[test]
    fn a_return_takes_no_time_back() {
        let at = |step: u64| {
            serde_json::from_value(serde_json::json!({"step": step, "tokens": 8 * step, "loss_scale": null}))
        };
        let checkpoint = RunProgress::new(at(2).unwrap());
        let mut progress = RunProgress {
            seconds: 9.0,
            beside: Beside {
                checkpoint_s: 1.0,
                ..Beside::default()
            },
            last_loss: Some(3.0),
            ..RunProgress::new(at(5).unwrap())
        };
        let back_off = BackOff {
            at_step: 5,
            to_step: 2,
            learning_rate: 1e-3,
        };
        progress.return_to(checkpoint, back_off);
        assert_eq!((progress.seconds, progress.beside.checkpoint_s), (9.0, 1.0));
        assert_eq!((progress.trainer.step, progress.last_loss), (2, None));
        assert_eq!(progress.back_offs.len(), 1);
    }
}
