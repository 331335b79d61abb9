//! The length of the full training where the search is to find it: after how many tokens more no longer pays.

use super::length::PayingLength;
use super::loss_margins::NEAR_BEST_LOSS;
use super::reason::grouped;
use peft_tune_core::objective::{
    DOUBLING_GAIN, DOUBLING_GAIN_INTERVAL, EPOCH_TOKENS, FULL_TOKENS, LEAST_LOSS_STEP, LEAST_LOSS_TOKENS, LOSS_RISE,
};
use peft_tune_core::study::{Metrics, Trial};

/// The loss of an evaluation on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EvaluatedLoss {
    /// Steps and tokens that were trained before it.
    pub step: u64,
    pub tokens: u64,
    pub loss: f64,
}

/// A loss that was least before the end of its training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossRise {
    /// Step after which the loss was least, and tokens until then.
    pub step: f64,
    pub tokens: f64,
    /// Share by which the loss at the end was above it.
    pub rise: f64,
}

impl LossRise {
    /// The rise of a training with these evaluations, in their order. `None` where the loss at the end is nearly the least.
    pub fn of(evaluations: &[EvaluatedLoss]) -> Option<Self> {
        let finite = evaluations.iter().filter(|one| one.loss > 0.0 && one.loss.is_finite());
        let least = finite.min_by(|a, b| a.loss.total_cmp(&b.loss))?;
        let rise = evaluations.last()?.loss / least.loss - 1.0;
        (rise > NEAR_BEST_LOSS && rise.is_finite()).then_some(Self {
            step: least.step as f64,
            tokens: least.tokens as f64,
            rise,
        })
    }

    /// The rise that a trial's metrics tell; a rise of 0 is none.
    pub fn in_metrics(metrics: &Metrics) -> Option<Self> {
        Some(Self {
            step: metrics.value(LEAST_LOSS_STEP)?,
            tokens: metrics.value(LEAST_LOSS_TOKENS)?,
            rise: metrics.value(LOSS_RISE).filter(|rise| *rise > 0.0)?,
        })
    }

    /// The metrics that say it, or that there is none.
    pub fn metrics(rise: Option<Self>) -> [(&'static str, f64); 3] {
        let Self { step, tokens, rise } = rise.unwrap_or_default();
        [(LEAST_LOSS_STEP, step), (LEAST_LOSS_TOKENS, tokens), (LOSS_RISE, rise)]
    }
}

/// A length that was found, and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundLength {
    pub length: PayingLength,
    pub epoch_tokens: f64,
    /// Rise of the longest training of the setting that the length was found for.
    pub rise: Option<LossRise>,
}

impl FoundLength {
    /// The length of a setting that was trained for so many tokens each, with these losses. What it learns no more from is left out:
    /// where the loss rose again in its longest training, the length ends where it was least.
    pub fn new(trained: &[(f64, f64)], epoch_tokens: f64, rise: Option<LossRise>) -> Option<Self> {
        let mut length = PayingLength::of(trained, epoch_tokens, NEAR_BEST_LOSS)?;
        if let Some(rise) = rise.filter(|rise| rise.tokens < length.tokens) {
            length = PayingLength::at(trained, rise.tokens)?;
        }
        Some(Self {
            length,
            epoch_tokens,
            rise,
        })
    }

    /// The length that a study's trials have as metrics; `None` where none was asked for, or it is not known.
    pub fn of(history: &[Trial]) -> Option<Self> {
        let mut metrics = history.iter().filter_map(|trial| trial.state.metrics());
        metrics.find_map(|metrics| {
            let length = PayingLength {
                gain: metrics.value(DOUBLING_GAIN)?,
                tokens: metrics.value(FULL_TOKENS)?,
                interval: metrics.value(DOUBLING_GAIN_INTERVAL)?,
            };
            Some(Self {
                length,
                epoch_tokens: metrics.value(EPOCH_TOKENS)?,
                rise: LossRise::in_metrics(metrics),
            })
        })
    }

    /// The metrics that say it, for all trials that were trained longer.
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        let Self {
            length,
            epoch_tokens,
            rise,
        } = self;
        let PayingLength { tokens, gain, interval } = *length;
        let own = [
            (FULL_TOKENS, tokens),
            (DOUBLING_GAIN, gain),
            (DOUBLING_GAIN_INTERVAL, interval),
            (EPOCH_TOKENS, *epoch_tokens),
        ];
        own.into_iter().chain(LossRise::metrics(*rise)).collect()
    }

    /// The length in words, as people read it.
    pub fn said(&self) -> String {
        let PayingLength { tokens, gain, interval } = self.length;
        let text = self.tokens_text(tokens);
        if let Some(rise) = self.rise.filter(|rise| tokens >= rise.tokens) {
            let (step, percent) = (rise.step, percent_text(rise.rise));
            return format!(
                "more than {text} is too long: the loss of the longest training was least there, at step {step:.0}, and \
                 {percent} higher at its end"
            );
        }
        let (said, interval) = (percent_text(gain), percent_text(interval));
        let share = percent_text(NEAR_BEST_LOSS);
        match gain < NEAR_BEST_LOSS {
            true => format!(
                "more than {text} no longer pays: doubling it lowers the loss by less than {share} ({said} ±{interval})"
            ),
            false => format!(
                "at least {text}, not known beyond: doubling it lowers the loss by {said} ±{interval}; train longer (a \
                 larger `confirm.longer`, or `training.length` in tokens) to know more"
            ),
        }
    }

    /// Tokens with their epochs: `410,000 tokens (1.1 epochs)`.
    fn tokens_text(&self, tokens: f64) -> String {
        let epochs = tokens / self.epoch_tokens;
        format!(
            "{} tokens ({} epochs)",
            grouped(&format!("{tokens:.0}")),
            digits_text(epochs)
        )
    }
}

fn percent_text(share: f64) -> String {
    format!("{}%", digits_text(100.0 * share))
}

/// A number with a digit behind the point where its whole digits are few, and without a last zero.
fn digits_text(number: f64) -> String {
    let text = match number.abs() {
        none if none < 0.005 => "0".to_owned(),
        small if small < 0.095 => format!("{number:.2}"),
        large if large >= 9.95 => format!("{number:.0}"),
        _ => format!("{number:.1}"),
    };
    match text.strip_suffix(".0") {
        Some(whole) => whole.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(gain: f64, rise: Option<LossRise>) -> FoundLength {
        FoundLength {
            length: PayingLength {
                tokens: 4.1e5,
                gain,
                interval: 0.005,
            },
            epoch_tokens: 3.7e5,
            rise,
        }
    }

    #[test]
    fn what_is_found_is_said_with_its_interval() {
        insta::assert_snapshot!(found(0.004, None).said(), @"more than 410,000 tokens (1.1 epochs) no longer pays: doubling it lowers the loss by less than 1% (0.4% ±0.5%)");
        insta::assert_snapshot!(found(0.12, None).said(), @"at least 410,000 tokens (1.1 epochs), not known beyond: doubling it lowers the loss by 12% ±0.5%; train longer (a larger `confirm.longer`, or `training.length` in tokens) to know more");
        let rise = LossRise {
            step: 120.0,
            tokens: 4.1e5,
            rise: 0.023,
        };
        insta::assert_snapshot!(found(0.03, Some(rise)).said(), @"more than 410,000 tokens (1.1 epochs) is too long: the loss of the longest training was least there, at step 120, and 2.3% higher at its end");
    }

    #[test]
    fn a_loss_that_is_least_before_the_end_ends_the_length() {
        let at = |step: u64, loss| EvaluatedLoss {
            step,
            tokens: 100 * step,
            loss,
        };
        let evaluations = [at(10, 2.0), at(20, 1.6), at(30, 1.5), at(40, 1.6)];
        let rise = LossRise::of(&evaluations).unwrap();
        assert_eq!((rise.step, rise.tokens), (30.0, 3000.0));
        assert_eq!(LossRise::of(&evaluations[..3]), None);
        assert_eq!(LossRise::of(&[]), None);
        // What chance does to a loss is no rise.
        assert_eq!(LossRise::of(&[at(1, 1.0), at(2, 1.009)]), None);
        assert_eq!(LossRise::of(&[at(1, 1.0), at(2, f64::NAN)]), None);
        let trained = [(500.0, 3.0), (4000.0, 1.6)];
        let ended = FoundLength::new(&trained, 1e6, Some(rise)).unwrap();
        assert_eq!(ended.length.tokens, 3000.0);
        assert!(FoundLength::new(&trained, 1e6, None).unwrap().length.tokens > 3000.0);
    }

    #[test]
    fn metrics_say_what_was_found() {
        let rise = LossRise {
            step: 3.0,
            tokens: 4.1e5,
            rise: 0.02,
        };
        for found in [found(0.004, None), found(0.004, Some(rise))] {
            let mut metrics = Metrics::default();
            for (name, value) in found.metrics() {
                metrics.insert(name, value);
            }
            let trial = Trial {
                number: peft_tune_core::study::TrialNumber(0),
                params: peft_tune_core::study::Params::new(),
                state: peft_tune_core::study::TrialState::Complete { metrics },
            };
            assert_eq!(FoundLength::of(&[trial]), Some(found));
        }
        assert_eq!(FoundLength::of(&[]), None);
    }
}
