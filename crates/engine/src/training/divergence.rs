//! How far a trained model's next-token distributions are from those of another model, such as the one that it began as.
//!
//! | name | meaning |
//! |---|---|
//! | p, q | distributions over the V tokens of the vocabulary: the other model's, and the trained one's |
//! | KL(p, q) | sum over v of p(v) (ln p(v) - ln q(v)), in nats: 0 where both are the same, and never below |
//!
//! (Kullback and Leibler, On information and sufficiency, 1951.)

use rayon::prelude::*;

use super::logits::rows_of_logits;
use super::trainer::Trainer;
use crate::TrainError;
use crate::data::MicroBatch;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// Divergence of a trained model from another one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// Mean of KL(p, q) over the positions, in nats.
    pub nats: f64,
    /// Positions that it was measured at.
    pub positions: u64,
}

impl Divergence {
    /// Compares `trainer` with `other` at the target positions of `batches`; which tokens the targets are does not matter. Neither model
    /// changes, and logits exist for a few positions at a time.
    ///
    /// # Errors
    /// Errors of [`Trainer::logits`].
    pub fn measure(trainer: &mut Trainer, other: &mut Trainer, batches: &[MicroBatch]) -> Result<Self, TrainError> {
        let (mut sum, mut positions) = (0.0, 0);
        for batch in batches {
            let (own, others) = (trainer.normed(batch)?, other.normed(batch)?);
            for rows in rows_of_logits(batch.tokens()) {
                let first = rows.start;
                let targets = rows.clone().filter(|row| batch.targets[*row] != IGNORE);
                let targets: Vec<usize> = targets.map(|row| row - first).collect();
                if targets.is_empty() {
                    continue;
                }
                let q: Vec<Vec<f32>> = trainer.logits_at(&own, rows.clone())?.to_vec2()?;
                let p: Vec<Vec<f32>> = other.logits_at(&others, rows)?.to_vec2()?;
                let each: Vec<f64> = targets.par_iter().map(|row| nats(&p[*row], &q[*row])).collect();
                positions += each.len() as u64;
                sum += each.iter().sum::<f64>();
            }
        }
        Ok(Self {
            nats: sum / positions.max(1) as f64,
            positions,
        })
    }
}

/// KL(p, q) of the distributions with these logits.
fn nats(p: &[f32], q: &[f32]) -> f64 {
    let (of_p, of_q) = (log_sum_exp(p), log_sum_exp(q));
    let terms = p.iter().zip(q).map(|(p, q)| {
        let (p, q) = (f64::from(*p) - of_p, f64::from(*q) - of_q);
        // What p rules out adds nothing, whatever q says of it.
        if p == f64::NEG_INFINITY { 0.0 } else { p.exp() * (p - q) }
    });
    let sum: f64 = terms.sum();
    // Rounding may leave a trace below 0, and what is no number stays none.
    if sum < 0.0 { 0.0 } else { sum }
}

/// Logarithm of the sum of the exponentials.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let greatest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - greatest).exp()).sum();
    greatest + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(probabilities: [f32; 3], shift: f32) -> [f32; 3] {
        probabilities.map(|probability| probability.ln() + shift)
    }

    #[test]
    fn the_divergence_is_that_of_the_definition() {
        let (p, q) = ([0.5, 0.25, 0.25], [1.0 / 3.0; 3]);
        // 1/2 ln(3/2) + 1/2 ln(3/4), and 1/3 ln(2/3) + 2/3 ln(4/3).
        for (first, second, expected) in [(p, q, 0.058_891_518), (q, p, 0.056_633_012), (p, p, 0.0)] {
            let found = nats(&logits(first, 0.0), &logits(second, 0.0));
            assert!((found - expected).abs() < 1e-7, "{found} {expected}");
            // Logits say the same wherever their zero is.
            let shifted = nats(&logits(first, 90.0), &logits(second, -90.0));
            assert!((shifted - expected).abs() < 1e-4, "{shifted} {expected}");
        }
    }

    #[test]
    fn tokens_without_a_chance_and_numbers_that_are_none_keep_their_meaning() {
        let none = f32::NEG_INFINITY;
        assert!((nats(&[0.0, 0.0, none], &[0.0, 0.0, 0.0]) - 1.5_f64.ln()).abs() < 1e-12);
        assert_eq!(nats(&[0.0, 0.0, 0.0], &[0.0, 0.0, none]), f64::INFINITY);
        assert!(nats(&[0.0, f32::NAN], &[0.0, 0.0]).is_nan());
    }
}
