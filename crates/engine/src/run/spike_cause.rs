//! Cause of a spike, from its evidence.
//!
//! | cause | evidence |
//! |---|---|
//! | overflow | in fp16 alone: the same batch on the same values has a usual loss in F32; or its gradients overflowed whatever the loss scale |
//! | data | rows of the batch, or of the one whose update came before, stand out from other rows on values that are good |
//! | rate | an update came before, and no row explains it: the rows have a usual loss on good values, or the update was large |
//!
//! Rows stand out as losses do ([`limit_of`]). Where the values themselves became worse, other rows have higher losses too, and no row
//! is blamed. What nothing explains is unclear.

use super::spike_watch::limit_of;
use crate::SpikeStep;
use peft_tune_core::median;
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_core::study::SpikeCause;

/// An update over the values that it changes from which on it is large.
const LARGE_UPDATE: f64 = 0.1;
/// Rows that others are held against, at least; the suspected ones are held against each other where there are fewer.
const LEAST_ROWS: usize = 4;
/// Steps in a row whose losses rise that are evidence for the rate.
const RISES: usize = 3;

/// What is known of a spike.
#[derive(Debug)]
pub(super) struct SpikeFacts<'a> {
    pub recipe: &'a Recipe,
    /// Peak of the learning rate, which may be below the recipe's.
    pub learning_rate: f64,
    pub at_step: u64,
    pub total_steps: u64,
    /// Whether what is no good is a number, if a high one: not so a loss, norm or value that is infinite or NaN.
    pub is_number: bool,
    /// The last steps, the spike last.
    pub recent: &'a [SpikeStep],
    /// Loss of the batch in F32, on the values that the step began with; in fp16 only.
    pub loss_in_fp32: Option<f64>,
    /// Mean losses of the rows of the suspected steps on good values; NaN where they are not finite, empty where there are none.
    pub suspects: &'a [f64],
    /// Mean losses of rows of earlier steps on the same values.
    pub others: &'a [f64],
    /// Steps taken before the good values; `None` where they are those of now.
    pub good_step: Option<u64>,
    /// Whether the training backs off already.
    pub backs_off: bool,
}

/// Cause of a spike.
#[derive(Debug, PartialEq)]
pub(super) struct Judgement {
    pub cause: SpikeCause,
    pub evidence: Vec<String>,
    pub help: Vec<String>,
    /// Whether each of the suspected rows stands out.
    pub stands_out: Vec<bool>,
}

impl SpikeFacts<'_> {
    /// Names the cause.
    pub(super) fn judge(&self) -> Judgement {
        let stands_out = self.stands_out();
        let (cause, evidence) = self
            .overflow()
            .or_else(|| self.data(&stands_out))
            .or_else(|| self.rate())
            .unwrap_or_else(|| (SpikeCause::Unclear, self.unclear()));
        Judgement {
            cause,
            evidence,
            help: self.help(cause),
            stands_out,
        }
    }

    fn at(&self) -> &SpikeStep {
        self.recent.last().expect("a step led here")
    }

    /// Steps before the spike, the last one last.
    fn before(&self) -> &[SpikeStep] {
        &self.recent[..self.recent.len() - 1]
    }

    /// Usual loss of the steps before.
    fn usual(&self) -> Option<f64> {
        median(self.before().iter().filter_map(|step| step.loss))
    }

    fn is_finite(&self) -> bool {
        self.at().loss.is_some() && self.at().grad_norm.is_some()
    }

    /// Losses that rows are held against.
    fn held_against(&self) -> Vec<f64> {
        let all = match self.others.len() >= LEAST_ROWS {
            true => self.others,
            false => self.suspects,
        };
        all.iter().copied().filter(|loss| loss.is_finite()).collect()
    }

    fn stands_out(&self) -> Vec<bool> {
        let limit = limit_of(&self.held_against());
        let out = |loss: &f64| limit.is_finite() && (!loss.is_finite() || *loss > limit);
        self.suspects.iter().map(out).collect()
    }

    fn overflow(&self) -> Option<(SpikeCause, Vec<String>)> {
        if self.recipe.precision != Precision::Fp16 || self.is_finite() {
            return None;
        }
        let is_usual = |loss: f64| loss.is_finite() && self.usual().is_none_or(|usual| loss < usual + SpikeCause::NATS);
        let in_fp32 = self.loss_in_fp32.filter(|loss| is_usual(*loss));
        let in_a_row = self
            .recent
            .iter()
            .rev()
            .take_while(|step| step.grad_norm.is_none())
            .count();
        let mut evidence = Vec::new();
        evidence.extend(in_fp32.map(|loss| {
            format!("in float32 the same batch has a loss of {loss:.4} on the same values: fp16 ends at 65,504")
        }));
        if in_a_row > 1 {
            evidence.push(format!(
                "the gradients of {in_a_row} steps in a row overflowed, though the loss scale was halved each time"
            ));
        }
        let is_unknown = self.loss_in_fp32.is_none() && in_a_row > 1;
        (in_fp32.is_some() || is_unknown).then_some((SpikeCause::Overflow, evidence))
    }

    fn data(&self, stands_out: &[bool]) -> Option<(SpikeCause, Vec<String>)> {
        let count = stands_out.iter().filter(|out| **out).count();
        // Where most stand out it is not the rows.
        if count == 0 || 2 * count > stands_out.len() || self.values_are_worse() {
            return None;
        }
        let against = self.held_against();
        let middle = median(against.iter().copied())?;
        let highest = self
            .suspects
            .iter()
            .copied()
            .filter(|loss| loss.is_finite())
            .reduce(f64::max);
        let have = if count == 1 { "has" } else { "have" };
        let loss = match highest {
            Some(loss) if self.suspects.iter().all(|loss| loss.is_finite()) => format!("of up to {loss:.4}"),
            _ => "that is no number".to_owned(),
        };
        Some((
            SpikeCause::Data,
            vec![format!(
                "{count} of the {} rows that led there {have} a loss {loss} {}, where other rows have {middle:.4}",
                stands_out.len(),
                self.values_of()
            )],
        ))
    }

    /// Whether rows of earlier steps have a loss by now that explains the spike.
    fn values_are_worse(&self) -> bool {
        let (Some(usual), Some(at), None) = (self.usual(), self.at().loss, self.good_step) else {
            return false;
        };
        let now = median(self.others.iter().copied().filter(|loss| loss.is_finite()));
        self.others.len() >= LEAST_ROWS && now.is_none_or(|now| now - usual > (at - usual) / 2.0)
    }

    /// The step whose update made the values that are no good; `None` where no update was made. The loss of a step is that of the values
    /// which the updates before it left. Where that and the gradients are numbers, and what came behind the step is not, it was its own.
    fn last_update(&self) -> Option<&SpikeStep> {
        match !self.is_number && self.is_finite() {
            true => self.recent.last(),
            false => self.before().last(),
        }
    }

    fn rate(&self) -> Option<(SpikeCause, Vec<String>)> {
        let last = self.last_update()?;
        let mut evidence = Vec::new();
        let share = last
            .update
            .zip(last.values)
            .map(|(update, values)| update / values.max(f64::MIN_POSITIVE));
        match (last.update, share) {
            (Some(update), Some(share)) => evidence.push(format!(
                "the update of step {} changed the trained values by {update:.2e}, {share:.1e} times what they are (root mean squares)",
                last.step
            )),
            _ => evidence.push(format!("the update of step {} left values that are no numbers", last.step)),
        }
        let is_large = share.is_none_or(|share| share > LARGE_UPDATE);
        let usual = median(self.suspects.iter().copied().filter(|loss| loss.is_finite()));
        let is_worse = self.values_are_worse();
        if is_worse {
            evidence.push("rows of the steps before have higher losses by now, too".to_owned());
        } else if let Some(loss) = usual {
            evidence.push(format!("its rows have a usual loss {}: {loss:.4}", self.values_of()));
        }
        let losses: Vec<f64> = self.recent.iter().filter_map(|step| step.loss).collect();
        let rises = losses.windows(2).rev().take_while(|pair| pair[1] > pair[0]).count();
        if rises >= RISES {
            evidence.push(format!("the loss had risen for {rises} steps"));
        }
        let norms = self.before().iter().filter_map(|step| step.grad_norm);
        if let (Some(norm), Some(usual)) = (last.grad_norm, median(norms))
            && norm > 4.0 * usual
        {
            evidence.push(format!(
                "the norm of the gradients was {norm:.2e} before it, and {usual:.2e} as a rule"
            ));
        }
        let explains = is_large || is_worse || rises >= RISES || (usual.is_some() && self.good_step.is_some());
        explains.then_some((SpikeCause::Rate, evidence))
    }

    fn unclear(&self) -> Vec<String> {
        let what = match self.last_update().is_none() {
            true => {
                "no update had been made since the training began or was resumed: the values that it began with give this loss"
            }
            false => "neither its rows nor the updates before it stand out",
        };
        vec![what.to_owned()]
    }

    /// Values that rows were looked at on.
    fn values_of(&self) -> String {
        match self.good_step {
            None => "on the values as they are now".to_owned(),
            Some(0) => "on the values that the training began with".to_owned(),
            Some(step) => format!("on the values after step {step}"),
        }
    }

    fn help(&self, cause: SpikeCause) -> Vec<String> {
        let optimizer = &self.recipe.optimizer;
        let clip = optimizer.max_grad_norm.is_none().then(|| {
            "set `optimizer.max_grad_norm: 1.0`, which keeps one step from being much larger than others".to_owned()
        });
        let mut help = Vec::new();
        match cause {
            SpikeCause::Overflow => {
                help.push("train with `precision: bf16`, whose range is that of float32, or `fp32`".to_owned());
            }
            SpikeCause::Rate => {
                let (now, half) = (self.learning_rate, self.learning_rate / 2.0);
                help.push(format!("lower `learning_rate` to {half:.1e} or less, from {now:.1e}"));
                if !self.backs_off {
                    help.push(
                        "`train --on-spike back-off` returns to the last good checkpoint at half the rate by itself"
                            .to_owned(),
                    );
                }
                let warmup = self.recipe.schedule.warmup_steps(self.total_steps);
                if warmup < self.at_step && self.at_step <= self.total_steps / 10 {
                    help.push(format!("warm up for longer than {warmup} steps (`schedule.warmup`)"));
                }
                help.extend(clip);
            }
            SpikeCause::Data => {
                help.push("correct these rows or leave them out".to_owned());
                help.extend(clip);
            }
            SpikeCause::Unclear => {
                help.push(match self.last_update().is_none() {
                    true => "look at the base model and at what `adapter_init` names".to_owned(),
                    false => "lower `learning_rate`, and train with `precision: fp32` to see whether it happens there"
                        .to_owned(),
                });
                help.extend(clip);
            }
        }
        help
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::DataSettings;

    fn step(step: u64, loss: f64, update: f64) -> SpikeStep {
        SpikeStep {
            step,
            loss: Some(loss).filter(|loss| loss.is_finite()),
            learning_rate: 1e-3,
            grad_norm: Some(1.0).filter(|_| loss.is_finite()),
            update: Some(update).filter(|update| update.is_finite()),
            values: Some(0.02),
        }
    }

    /// Ten calm steps, then one with this loss.
    fn spiking(loss: f64) -> Vec<SpikeStep> {
        let calm = (1..=10).map(|number| step(number, 3.0 + 0.01 * (number % 3) as f64, 1e-4));
        calm.chain([step(11, loss, 1e-4)]).collect()
    }

    fn facts<'a>(recipe: &'a Recipe, recent: &'a [SpikeStep]) -> SpikeFacts<'a> {
        SpikeFacts {
            recipe,
            learning_rate: 1e-3,
            at_step: recent.last().unwrap().step,
            total_steps: 100,
            is_number: recent.last().unwrap().loss.is_some(),
            recent,
            loss_in_fp32: None,
            suspects: &[],
            others: &[],
            good_step: None,
            backs_off: false,
        }
    }

    fn recipe() -> Recipe {
        Recipe::new("model", DataSettings::default())
    }

    #[test]
    fn rows_that_stand_out_on_good_values_are_the_cause() {
        let (recipe, recent) = (recipe(), spiking(6.0));
        let mut facts = facts(&recipe, &recent);
        facts.suspects = &[3.1, 2.9, 14.0, 3.3];
        facts.others = &[3.0, 3.2, 2.8, 3.1, 2.9];
        let judgement = facts.judge();
        assert_eq!(judgement.cause, SpikeCause::Data);
        assert_eq!(judgement.stands_out, [false, false, true, false]);
        assert_eq!(
            judgement.evidence,
            [
                "1 of the 4 rows that led there has a loss of up to 14.0000 on the values as they are now, where other rows have 3.0000"
            ]
        );
        // Behind the end of the loss as a number, on the values of a checkpoint.
        facts.suspects = &[3.1, f64::NAN, 2.9, 3.3];
        facts.good_step = Some(8);
        let judgement = facts.judge();
        assert_eq!(judgement.cause, SpikeCause::Data);
        assert!(judgement.evidence[0].contains("a loss that is no number on the values after step 8"));
    }

    #[test]
    fn values_that_became_worse_are_blamed_on_the_rate_whatever_the_rows() {
        let (recipe, recent) = (recipe(), spiking(9.0));
        let mut facts = facts(&recipe, &recent);
        facts.suspects = &[8.9, 9.1, 18.0, 9.0];
        facts.others = &[9.0, 8.8, 9.2, 9.1];
        let judgement = facts.judge();
        assert_eq!(judgement.cause, SpikeCause::Rate);
        assert!(
            judgement.help[0].starts_with("lower `learning_rate` to 5.0e-4"),
            "{:?}",
            judgement.help
        );
        assert!(judgement.help[1].contains("--on-spike back-off"));
    }

    #[test]
    fn an_update_larger_than_the_values_is_the_rate() {
        let recent = [step(1, 6.0, 0.0), step(2, 6.0, 1e28), step(3, f64::NAN, f64::NAN)];
        let recipe = recipe();
        let mut facts = facts(&recipe, &recent);
        facts.suspects = &[6.1, 6.2];
        facts.good_step = Some(1);
        let judgement = facts.judge();
        assert_eq!(judgement.cause, SpikeCause::Rate);
        assert!(judgement.evidence[0].starts_with("the update of step 2 changed the trained values by 1.00e28"));
        assert_eq!(
            judgement.evidence[1],
            "its rows have a usual loss on the values after step 1: 6.1500"
        );
        // The values became infinite behind a step whose own loss was a number.
        let recent = [step(1, 6.0, 0.0), step(2, 6.0, f64::INFINITY)];
        let mut facts = self::facts(&recipe, &recent);
        facts.is_number = false;
        let judgement = facts.judge();
        assert_eq!(judgement.cause, SpikeCause::Rate);
        assert_eq!(
            judgement.evidence[0],
            "the update of step 2 left values that are no numbers"
        );
        // Nothing was looked at, and the updates were small.
        let recent = spiking(f64::NAN);
        assert_eq!(self::facts(&recipe, &recent).judge().cause, SpikeCause::Unclear);
    }

    #[test]
    fn only_fp16_overflows() {
        let mut recipe = recipe();
        let recent = [step(1, f64::NAN, 0.0)];
        for (precision, in_fp32, cause) in [
            (Precision::Fp16, Some(6.0), SpikeCause::Overflow),
            (Precision::Fp16, Some(f64::NAN), SpikeCause::Unclear),
            (Precision::Bf16, None, SpikeCause::Unclear),
        ] {
            recipe.precision = precision;
            let mut facts = facts(&recipe, &recent);
            facts.loss_in_fp32 = in_fp32;
            assert_eq!(facts.judge().cause, cause, "{precision:?} {in_fp32:?}");
        }
        // Gradients that overflow in step after step, of values that are far away in F32 too.
        recipe.precision = Precision::Fp16;
        let mut recent = spiking(6.0);
        recent.iter_mut().skip(7).for_each(|step| step.grad_norm = None);
        let mut facts = facts(&recipe, &recent);
        assert_eq!(facts.judge().cause, SpikeCause::Overflow);
        assert!(facts.judge().evidence[0].starts_with("the gradients of 4 steps in a row overflowed"));
        facts.loss_in_fp32 = Some(80.0);
        assert_ne!(facts.judge().cause, SpikeCause::Overflow);
    }
}
