//! Rows of the database for a trial's events.

use crate::store::{EvaluationRecord, PrecisionRecord, StepRecord};
use peft_tune_core::objective::{LOSS, REWARD_ACCURACY, REWARD_MARGIN, TOKEN_ACCURACY};
use peft_tune_core::study::{Metrics, Phase};
use peft_tune_engine::{Evaluation, StepEvent};

pub(super) fn step_record(phase: Phase, event: &StepEvent) -> StepRecord {
    StepRecord {
        phase,
        step: event.step,
        loss: event.loss,
        learning_rate: event.learning_rate,
        grad_norm: event.grad_norm,
        tokens: event.tokens,
        target_tokens: event.target_tokens,
        data_s: event.seconds.data,
        forward_s: event.seconds.forward,
        backward_s: event.seconds.backward,
        optimizer_s: event.seconds.optimizer,
        total_s: event.seconds.total,
    }
}

/// The decision on the precision at the end of a step, if there was one.
pub(super) fn precision_record(event: &StepEvent) -> Option<PrecisionRecord> {
    event.precision_decision.map(|decision| PrecisionRecord {
        step: event.step,
        precision: decision.precision.name().to_owned(),
        cause: decision.cause.name().to_owned(),
        noise_scale: decision.noise_scale,
        step_targets: decision.step_targets,
        overflows: decision.overflows,
    })
}

pub(super) fn evaluation_record(evaluation: &Evaluation) -> EvaluationRecord {
    EvaluationRecord {
        step: evaluation.step,
        tokens: evaluation.tokens,
        loss: evaluation.loss,
        accuracy: evaluation.accuracy,
        target_tokens: evaluation.target_tokens,
        seconds: evaluation.seconds,
    }
}

/// Metrics that an evaluation adds to a trial's curve.
pub(super) fn evaluation_metrics(evaluation: &Evaluation) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.insert(LOSS, evaluation.loss);
    match evaluation.reward {
        Some(reward) => {
            metrics.insert(REWARD_ACCURACY, reward.accuracy);
            metrics.insert(REWARD_MARGIN, reward.margin);
        }
        None => {
            metrics.insert(TOKEN_ACCURACY, evaluation.accuracy);
        }
    }
    metrics
}
