//! Events that the trainer tells while it runs: the seam between the engine and whoever watches it.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use super::{PrecisionDecision, SpikeReport};
use peft_tune_core::recipe::Precision;

/// One finished optimizer step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepEvent {
    /// Number of the step, from 1.
    pub step: u64,
    /// Training loss before the step: mean over the target tokens of the global batch, in nats.
    pub loss: f64,
    pub learning_rate: f64,
    /// Global norm of the gradients before clipping; infinite where they overflowed, which JSON has no number for: `null`.
    #[serde(deserialize_with = "infinite_where_null")]
    #[schemars(with = "Option<f64>")]
    pub grad_norm: f64,
    /// Tokens that went through the model; padding is never counted.
    pub tokens: u64,
    /// Tokens that counted in the loss.
    pub target_tokens: u64,
    pub seconds: StepSeconds,
    /// Precision that the step computed in, where the recipe has a schedule of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Decision at the end of the step on the precision of the next ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision_decision: Option<PrecisionDecision>,
}

fn infinite_where_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::INFINITY))
}

impl StepEvent {
    /// Tokens that went through the model in a second of the whole step; padding is never counted.
    pub fn tokens_per_s(&self) -> f64 {
        self.tokens as f64 / self.seconds.total
    }
}

/// Seconds of one step by what they were spent on, of wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepSeconds {
    /// Seconds of waiting for the batch.
    pub data: f64,
    pub forward: f64,
    /// Backward, recomputation for activation checkpointing included.
    pub backward: f64,
    /// Seconds of the backward pass in which this rank waited for the gradients of others and added them up; 0 where it is alone, and
    /// in other engines. Gathers of weights that are shared out are not counted.
    #[serde(default)]
    pub link: f64,
    /// Clipping and parameter update.
    pub optimizer: f64,
    /// The whole step.
    pub total: f64,
}

impl StepSeconds {
    /// The part of one of `count` trainings that took a step together.
    #[must_use]
    pub fn share(self, count: usize) -> Self {
        let part = |seconds: f64| seconds / count.max(1) as f64;
        Self {
            data: part(self.data),
            forward: part(self.forward),
            backward: part(self.backward),
            link: part(self.link),
            optimizer: part(self.optimizer),
            total: part(self.total),
        }
    }
}

/// One evaluation on the held-out set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evaluation {
    /// Optimizer steps taken before it.
    pub step: u64,
    /// Training tokens seen before it.
    pub tokens: u64,
    /// Mean cross-entropy per held-out target token, in nats; of preferences the mean loss of a held-out row.
    pub loss: f64,
    /// Standard error of the loss over the choice of held-out rows, in nats; absent with a single micro-batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    /// Share of target tokens whose most likely prediction is right, in [0, 1]; of preferences that of the pairs whose chosen answer is
    /// rewarded more.
    pub accuracy: f64,
    pub target_tokens: u64,
    pub seconds: f64,
    /// Rewards of held-out answers; absent where no preferences are learnt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reward: Option<HeldOutReward>,
}

/// Rewards that a trained model implies of held-out answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldOutReward {
    /// Share of pairs whose chosen answer has the higher reward, in [0, 1].
    pub accuracy: f64,
    /// Mean reward of chosen answers above that of rejected ones.
    pub margin: f64,
}

/// Whether to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    Continue,
    Stop,
}

/// Watches a training. The defaults watch nothing, so an observer writes only what it needs.
pub trait StepObserver {
    /// Hears of each optimizer step, after it.
    fn step(&mut self, _event: &StepEvent) -> Control {
        Control::Continue
    }

    /// Hears of each evaluation, after it.
    fn evaluation(&mut self, _evaluation: &Evaluation) -> Control {
        Control::Continue
    }

    /// Hears of each spike, and of a divergence, after it was looked into.
    fn spike(&mut self, _report: &SpikeReport) {}
}

/// The observer that watches nothing.
impl StepObserver for () {}
