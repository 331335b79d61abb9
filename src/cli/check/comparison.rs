//! Two trainings of one recipe side by side: where they differ, by how much, and whether that is more than rounding.

use serde::Serialize;

use crate::cli::engines::{Bound, RATES, Trained, relative, relative_of};
use peft_tune_engine::StepEvent;

/// Largest relative differences between two trainings; infinite where one has no number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Differences {
    /// Difference of losses, of steps and of the held-out rows.
    pub losses: f64,
    pub gradients: f64,
    /// Difference of learning rates, over the highest one.
    pub rates: f64,
}

/// Two trainings, and what is made of them.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    pub agrees: bool,
    /// Reasons why they do not agree; none where they do.
    pub reasons: Vec<String>,
    pub bound: Bound,
    pub differences: Differences,
    /// The built-in engine's training.
    pub native: Trained,
    /// The other engine's.
    pub trl: Trained,
}

impl Comparison {
    pub(super) fn new(native: Trained, trl: Trained, bound: Bound) -> Self {
        let reasons = reasons(&native, &trl, bound);
        Self {
            agrees: reasons.is_empty(),
            reasons,
            bound,
            differences: differences(&native, &trl),
            native,
            trl,
        }
    }
}

/// A step of the built-in engine, and the same of the other.
type Pair<'a> = (&'a StepEvent, &'a StepEvent);

/// Difference of two steps in one number.
type Differs<'a> = &'a dyn Fn(&StepEvent, &StepEvent) -> f64;

fn pairs<'a>(ours: &'a Trained, theirs: &'a Trained) -> Vec<Pair<'a>> {
    ours.steps.iter().zip(&theirs.steps).collect()
}

/// Everything in which the trainings differ by more than rounding, with its first place.
fn reasons(ours: &Trained, theirs: &Trained, bound: Bound) -> Vec<String> {
    let counts = [ours.steps.len(), theirs.steps.len()];
    if counts[0] != counts[1] || counts[0] == 0 {
        return vec![format!(
            "the built-in engine told of {} steps, and TRL of {}",
            counts[0], counts[1]
        )];
    }
    let (pairs, highest) = (pairs(ours, theirs), highest_rate(ours));
    let of_rates = |our: &StepEvent, their: &StepEvent| rates(our, their, highest);
    let of_steps = [
        other_rows(&pairs),
        beyond(&pairs, "learning rates", RATES, &of_rates),
        beyond(&pairs, "losses", bound.losses, &losses),
        beyond(&pairs, "norms of gradients", bound.gradients, &gradients),
    ];
    let held_out = [
        held_out(
            "before the first step",
            [ours, theirs].map(|one| one.held_out_loss_before),
            bound,
        ),
        held_out(
            "behind the last step",
            [ours, theirs].map(|one| one.held_out_loss),
            bound,
        ),
    ];
    of_steps.into_iter().chain(held_out).flatten().collect()
}

/// The first step that has not the same rows in both, as far as their tokens tell.
fn other_rows(pairs: &[Pair<'_>]) -> Option<String> {
    let (our, their) = pairs.iter().find(|(our, their)| rows_of(our) != rows_of(their))?;
    let ([tokens, targets], [their_tokens, their_targets]) = (rows_of(our), rows_of(their));
    Some(format!(
        "step {} has {tokens} tokens and {targets} targets here, and {their_tokens} and {their_targets} in TRL: the engines do not \
         train on the same rows",
        our.step
    ))
}

/// The first step in which a number differs by more than `limit`, and by how much it does in any.
fn beyond(pairs: &[Pair<'_>], what: &str, limit: f64, differs: Differs<'_>) -> Option<String> {
    let (first, _) = pairs.iter().find(|(our, their)| differs(our, their) > limit)?;
    Some(format!(
        "{what} differ by up to {:.1e} from step {} on, and by {limit:.1e} at most where engines agree",
        most(pairs, differs),
        first.step
    ))
}

/// How far two losses over the held-out rows differ, where that is more than rounding.
fn held_out(when: &str, [ours, theirs]: [Option<f64>; 2], bound: Bound) -> Option<String> {
    let (difference, limit) = (relative_of(ours, theirs), bound.losses);
    (difference > limit).then(|| {
        format!("held-out losses {when} differ by {difference:.1e}, and by {limit:.1e} at most where engines agree")
    })
}

/// The largest differences of any step, and of the held-out losses.
fn differences(ours: &Trained, theirs: &Trained) -> Differences {
    let (pairs, highest) = (pairs(ours, theirs), highest_rate(ours));
    let held_out = relative_of(ours.held_out_loss_before, theirs.held_out_loss_before)
        .max(relative_of(ours.held_out_loss, theirs.held_out_loss));
    let of_rates = |our: &StepEvent, their: &StepEvent| rates(our, their, highest);
    Differences {
        losses: most(&pairs, &losses).max(held_out),
        gradients: most(&pairs, &gradients),
        rates: most(&pairs, &of_rates),
    }
}

fn most(pairs: &[Pair<'_>], differs: Differs<'_>) -> f64 {
    pairs.iter().map(|(our, their)| differs(our, their)).fold(0.0, f64::max)
}

/// Tokens and target tokens of a step, by which its rows are known.
fn rows_of(step: &StepEvent) -> [u64; 2] {
    [step.tokens, step.target_tokens]
}

fn highest_rate(trained: &Trained) -> f64 {
    trained
        .steps
        .iter()
        .map(|step| step.learning_rate.abs())
        .fold(0.0, f64::max)
}

/// Difference of the learning rates of a step over the highest one of the training.
fn rates(our: &StepEvent, their: &StepEvent, highest: f64) -> f64 {
    let apart = our.learning_rate - their.learning_rate;
    relative(highest, highest + apart)
}

fn losses(our: &StepEvent, their: &StepEvent) -> f64 {
    relative(our.loss, their.loss)
}

fn gradients(our: &StepEvent, their: &StepEvent) -> f64 {
    relative(our.grad_norm, their.grad_norm)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::engines::Products;
    use peft_tune_core::objective::{LOSS, LOSS_BEFORE, PEAK_MEMORY};
    use peft_tune_core::recipe::Precision;
    use peft_tune_core::study::Metrics;
    use peft_tune_engine::StepSeconds;

    fn trained(change: impl Fn(&mut StepEvent)) -> Trained {
        let step = |step: u64| {
            let mut event = StepEvent {
                step,
                loss: 2.0 / step as f64,
                learning_rate: 1e-3 / step as f64,
                grad_norm: 0.5,
                tokens: 40,
                target_tokens: 30,
                seconds: StepSeconds {
                    total: 10.0 / step as f64,
                    ..StepSeconds::default()
                },
                precision: None,
                precision_decision: None,
            };
            change(&mut event);
            event
        };
        let metrics = Metrics::from([(LOSS_BEFORE, 3.0), (LOSS, 1.0), (PEAK_MEMORY, 1e6)]);
        Trained::new((1..=5).map(step).collect(), &metrics)
    }

    fn compared(change: impl Fn(&mut StepEvent)) -> Comparison {
        let bound = Bound::of(Precision::Fp32, Products::Cpu);
        Comparison::new(trained(|_| {}), trained(change), bound)
    }

    #[test]
    fn rounding_is_no_difference() {
        let found = compared(|step| {
            step.loss *= 1.0 + 2e-7;
            step.grad_norm *= 1.0 - 3e-6;
        });
        assert!(found.agrees, "{:?}", found.reasons);
        assert!((found.differences.losses - 2e-7).abs() < 1e-9 && found.differences.rates == 0.0);
        // The first two steps warm up.
        assert_eq!(found.native.step_s, Some(2.5));
    }

    #[test]
    fn whatever_differs_is_named_with_its_step() {
        let at_third = |step: &StepEvent| step.step == 3;
        type Change = fn(&mut StepEvent);
        let cases: [(Change, &str); 5] = [
            (
                |step| step.loss *= 1.0 + 2e-5,
                "losses differ by up to 2.0e-5 from step 3 on",
            ),
            (
                |step| step.grad_norm *= 1.001,
                "norms of gradients differ by up to 1.0e-3 from step 3 on",
            ),
            (|step| step.learning_rate *= 1.001, "learning rates differ"),
            (
                |step| step.target_tokens += 1,
                "step 3 has 40 tokens and 30 targets here, and 40 and 31 in TRL",
            ),
            (|step| step.loss = f64::NAN, "losses differ by up to inf"),
        ];
        for (change, message) in cases {
            let found = compared(|step| {
                if at_third(step) {
                    change(step);
                }
            });
            assert!(!found.agrees && found.reasons.len() == 1, "{:?}", found.reasons);
            assert!(found.reasons[0].contains(message), "{:?}", found.reasons);
        }
    }

    #[test]
    fn held_out_losses_and_numbers_of_steps_count_too() {
        let bound = Bound::of(Precision::Fp32, Products::Cpu);
        let (ours, mut theirs) = (trained(|_| {}), trained(|_| {}));
        theirs.held_out_loss = Some(1.001);
        theirs.held_out_loss_before = None;
        let found = Comparison::new(ours.clone(), theirs.clone(), bound);
        assert_eq!(found.reasons.len(), 2, "{:?}", found.reasons);
        assert!(found.differences.losses.is_infinite());
        theirs.steps.pop();
        let found = Comparison::new(ours, theirs, bound);
        assert_eq!(found.reasons, ["the built-in engine told of 5 steps, and TRL of 4"]);
    }
}
