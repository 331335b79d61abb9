//! How far the mean loss of an evaluation would move with other held-out rows.
//!
//! The mean per target token is a ratio of sums over micro-batches, L = sum l_b / sum t_b, and its standard error by
//! the usual estimator for one (Cochran, Sampling Techniques, 1977, section 6.4) is
//!
//! ```text
//! SE^2 = n / (n - 1) * sum (l_b - L t_b)^2 / (sum t_b)^2
//! ```
//!
//! Micro-batches stand for the rows in them, as clusters do: rows are drawn on their own, so it is unbiased, and less
//! certain the fewer micro-batches there are.

/// Sums over micro-batches of l, t, l^2, l t, t^2 and 1: those of several ranks add up.
#[derive(Debug, Default)]
pub(super) struct Spread(pub [f64; 6]);

impl Spread {
    /// Adds a micro-batch: its summed loss in nats, and its targets.
    pub(super) fn add(&mut self, loss: f64, targets: usize) {
        let t = targets as f64;
        let of_batch = [loss, t, loss * loss, loss * t, t * t, 1.0];
        self.0.iter_mut().zip(of_batch).for_each(|(sum, one)| *sum += one);
    }

    /// Adds those of another share.
    pub(super) fn add_up(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, one)| *sum += one);
    }

    /// The summed loss in nats.
    pub(super) fn loss(&self) -> f64 {
        self.0[0]
    }

    /// Standard error of the mean loss per target in nats; `None` with fewer than two micro-batches.
    pub(super) fn standard_error(&self) -> Option<f64> {
        let [loss, targets, squares, mixed, squared_targets, count] = self.0;
        if count < 2.0 || targets == 0.0 {
            return None;
        }
        let mean = loss / targets;
        let residual = squares - 2.0 * mean * mixed + mean * mean * squared_targets;
        let error = (count / (count - 1.0) * residual.max(0.0)).sqrt() / targets;
        error.is_finite().then_some(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(batches: &[(f64, usize)]) -> Spread {
        let mut spread = Spread::default();
        batches.iter().for_each(|(loss, targets)| spread.add(*loss, *targets));
        spread
    }

    #[test]
    fn of_equal_micro_batches_it_is_the_standard_error_of_their_means() {
        // Means 1, 2, 3, 6 of ten targets each: deviations -2, -1, 0, 3, variance 14 / 3.
        let spread = spread(&[(10.0, 10), (20.0, 10), (30.0, 10), (60.0, 10)]);
        let expected = (14.0_f64 / 3.0 / 4.0).sqrt();
        assert!((spread.standard_error().unwrap() - expected).abs() < 1e-12);
        assert_eq!(spread.loss(), 120.0);
    }

    #[test]
    fn alike_micro_batches_have_none_and_one_says_nothing() {
        assert_eq!(spread(&[(10.0, 5), (40.0, 20)]).standard_error(), Some(0.0));
        assert_eq!(spread(&[(10.0, 5)]).standard_error(), None);
    }
}
