//! Whether the held-out set is large enough to tell the finalists of a search apart.
//!
//! Losses within 1% of the best count as equal, so the loss should be known to 1%. The standard error of a trial's
//! mean loss says how far another choice of held-out rows would move it. Two trials are compared on the same rows,
//! where rows that are hard for one are hard for the other. The standard error of their difference is
//! sqrt(2 (1 - c)) of one's own at a correlation c of their rows' losses: no more than one's own from c = 0.5 on, and
//! two trainings of one model lie far above that. So what is said here is a cautious bound on the difference.

use peft_tune_core::objective::{LOSS, LOSS_STANDARD_ERROR};
use peft_tune_core::study::Metrics;
use peft_tune_search::NEAR_BEST_LOSS;

/// Says that the loss in `metrics` is known to less than 1%, from `rows` held-out rows, and how many would do. `None` where
/// it is known well enough, or nothing is known of it.
pub fn held_out_warning(metrics: &Metrics, rows: u64) -> Option<String> {
    let (loss, error) = (metrics.value(LOSS)?, metrics.value(LOSS_STANDARD_ERROR)?);
    let part = error / loss;
    if part.is_nan() || part <= NEAR_BEST_LOSS || rows == 0 {
        return None;
    }
    // The error falls with the root of the rows.
    let needed = rows as f64 * (part / NEAR_BEST_LOSS).powi(2);
    Some(format!(
        "the {rows} held-out rows know the loss to ±{:.1}% (standard error), and settings within 1% count as equal: \
         the order of close ones may be chance. About {} rows would do; raise `data.held_out` or `trial.evaluation.rows`",
        100.0 * part,
        two_digits(needed)
    ))
}

/// A count rounded up to two digits.
fn two_digits(count: f64) -> f64 {
    let unit = 10_f64.powf((count.log10().floor() - 1.0).max(0.0));
    (count / unit).ceil() * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(loss: f64, error: f64) -> Metrics {
        let mut metrics = Metrics::default();
        metrics.insert(LOSS, loss);
        metrics.insert(LOSS_STANDARD_ERROR, error);
        metrics
    }

    #[test]
    fn twice_the_error_needs_four_times_the_rows() {
        assert_eq!(held_out_warning(&metrics(2.0, 0.02), 50), None);
        let text = held_out_warning(&metrics(2.0, 0.04), 50).unwrap();
        assert!(text.contains("the 50 held-out rows know the loss to ±2.0%"), "{text}");
        assert!(text.contains("About 200 rows"), "{text}");
        assert_eq!(held_out_warning(&Metrics::default(), 50), None);
        assert_eq!(
            (two_digits(7.0), two_digits(12.1), two_digits(1234.0)),
            (7.0, 13.0, 1300.0)
        );
    }
}
