//! Watch on the numbers of a training's steps: it keeps the last ones and notices a loss that is far above the others.
//!
//! A loss is a spike where it is above the median of the last 16 losses by six standard deviations (1.4826 times the median absolute
//! deviation, which other spikes do not widen) and by two nats, the factor 7 in perplexity. It is told once, and again where it has
//! stayed there for four steps: then no single batch explains it.

use std::collections::VecDeque;

use super::update_sample::UpdateSample;
use crate::{Parameters, SpikeStep, StepEvent};
use peft_tune_core::study::SpikeCause;
use peft_tune_core::{median, normal_deviation};

/// Steps that are kept.
const KEPT: usize = 40;
/// Losses that a spike is told from, at least.
const LEAST: usize = 8;
/// Losses that a spike is told from, at most: of more, a loss that falls as it should would widen the spread.
const MOST: usize = 16;
/// Standard deviations from the median from which on something stands out.
const DEVIATIONS: f64 = 6.0;
/// Steps of a spike after which it is told again.
const PERSISTS: usize = 4;

/// A number of a step that is no good.
#[derive(Debug)]
pub(super) struct Spike {
    /// Number and its value.
    pub what: String,
    /// Whether the training can go on behind it.
    pub is_finite: bool,
}

/// The last steps of a training.
#[derive(Debug)]
pub(super) struct SpikeWatch {
    recent: VecDeque<SpikeStep>,
    sample: UpdateSample,
    /// Steps in a row whose losses were spikes.
    high: usize,
}

impl SpikeWatch {
    /// A watch on a training whose trained values are `parameters`.
    pub(super) fn new(parameters: &Parameters) -> candle_core::Result<Self> {
        Ok(Self {
            recent: VecDeque::new(),
            sample: UpdateSample::new(parameters)?,
            high: 0,
        })
    }

    /// Takes in a step, and returns whether to tell its loss as a spike.
    pub(super) fn take(&mut self, event: &StepEvent, parameters: &Parameters) -> candle_core::Result<bool> {
        let size = self.sample.take(parameters)?;
        let finite = |number: f64| Some(number).filter(|number| number.is_finite());
        let step = SpikeStep {
            step: event.step,
            loss: finite(event.loss),
            learning_rate: event.learning_rate,
            grad_norm: finite(event.grad_norm),
            update: finite(size.update),
            values: finite(size.values),
        };
        let usual: Vec<f64> = self.losses().collect();
        let is_high = usual.len() >= LEAST && step.loss.is_some_and(|loss| loss > limit_of(&usual));
        // A loss that is no number goes on with what was high before it.
        let is_worse = step.loss.is_none() && self.high > 0;
        self.high = if is_high || is_worse { self.high + 1 } else { 0 };
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        self.recent.push_back(step);
        Ok(is_high && (self.high == 1 || self.high == PERSISTS))
    }

    /// Steps in a row up to the last whose losses were spikes, or no numbers behind spikes.
    pub(super) fn high_steps(&self) -> u64 {
        self.high as u64
    }

    /// The last steps, the last one last.
    pub(super) fn recent(&self) -> Vec<SpikeStep> {
        self.recent.iter().cloned().collect()
    }

    /// Goes on behind step `step`, to which the training returned.
    pub(super) fn return_to(&mut self, step: u64, parameters: &Parameters) -> candle_core::Result<()> {
        self.recent.retain(|one| one.step <= step);
        self.high = 0;
        self.sample.take(parameters)?;
        Ok(())
    }

    /// Losses of the steps before a spike.
    fn losses(&self) -> impl Iterator<Item = f64> + '_ {
        let before = self.recent.len() - self.high.min(self.recent.len());
        let losses = self.recent.iter().take(before).rev();
        losses.filter_map(|step| step.loss).take(MOST)
    }
}

/// The value above which one stands out from `usual` ones; infinite where there are none.
pub(super) fn limit_of(usual: &[f64]) -> f64 {
    let Some(middle) = median(usual.iter().copied()) else {
        return f64::INFINITY;
    };
    let deviation = normal_deviation(usual.iter().copied(), middle).unwrap_or_default();
    middle + (DEVIATIONS * deviation).max(SpikeCause::NATS)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::{ParameterKind, ParameterLayout, StepSeconds};

    fn parameters() -> Parameters {
        let mut layout = ParameterLayout::default();
        layout.push("a", &[2, 3], ParameterKind::LoraA);
        Parameters::zeros(layout, &Device::Cpu).unwrap()
    }

    /// Numbers of the steps that are told of these losses.
    fn told(losses: &[f64]) -> Vec<u64> {
        watched(losses).0
    }

    /// Numbers of the steps that are told of these losses, and how many up to the last one are high.
    fn watched(losses: &[f64]) -> (Vec<u64>, u64) {
        let parameters = parameters();
        let mut watch = SpikeWatch::new(&parameters).unwrap();
        let mut told = Vec::new();
        for (step, loss) in (1..).zip(losses) {
            let event = StepEvent {
                step,
                loss: *loss,
                learning_rate: 1e-3,
                grad_norm: 1.0,
                tokens: 8,
                target_tokens: 8,
                seconds: StepSeconds::default(),
                precision: None,
                precision_decision: None,
            };
            if watch.take(&event, &parameters).unwrap() {
                told.push(step);
            }
        }
        (told, watch.high_steps())
    }

    #[test]
    fn a_loss_far_above_the_others_is_told_once_and_again_where_it_stays() {
        let calm = [3.0, 3.2, 2.9, 3.1, 3.0, 2.8, 3.1, 2.9];
        assert_eq!(told(&[&calm[..], &[6.0, 3.0, 6.5, 3.0]].concat()), [9, 11]);
        assert_eq!(told(&[&calm[..], &[6.0; 9]].concat()), [9, 12]);
        // Too few to tell, and a spread that explains it.
        assert_eq!(told(&[3.0, 3.0, 9.0]), [0; 0]);
        assert_eq!(told(&[1.0, 5.0, 2.0, 6.0, 1.5, 4.0, 3.0, 5.5, 9.0]), [0; 0]);
    }

    #[test]
    fn losses_that_are_no_numbers_go_on_with_high_ones() {
        let calm = [3.0; 8];
        let high = |losses: &[f64]| watched(&[&calm[..], losses].concat()).1;
        assert_eq!(high(&[6.0]), 1);
        assert_eq!(high(&[6.0, 7.0, f64::NAN]), 3);
        assert_eq!(high(&[f64::NAN]), 0);
        assert_eq!(high(&[6.0, 3.0]), 0);
    }

    #[test]
    fn nothing_stands_out_from_nothing() {
        assert_eq!(limit_of(&[]), f64::INFINITY);
    }
}
