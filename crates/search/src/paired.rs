//! Two settings on the same held-out rows: by how much one loses more, and whether that is sure after a part of the rows.
//!
//! Rows that are hard for one setting are hard for another, so that differences on the same rows spread far less than losses do.
//!
//! | name | meaning |
//! |---|---|
//! | d_i, t_i | a row's difference of summed losses in nats, and its target tokens |
//! | D | sum d_i / sum t_i, the difference per target token |
//! | e_i | (d_i - D t_i) / (1 - t_i / sum t), the residual without what the row itself takes of it |
//! | SE | sqrt((n - 1) / n sum e_i^2) / sum t, by the jackknife (Cochran, Sampling Techniques, 1977, section 6.17) |
//! | m | (sum t)^2 / sum t_i^2, how many rows of one length n rows of these lengths are worth |
//!
//! D is surely above a limit where D - q SE is, with q the quantile of Student's t with m - 1 degrees of freedom. It is looked at
//! several times, so each of the looks has an equal part of the chance that a single one would have (Bonferroni). With rows of
//! log-normal lengths the plain estimate of the ratio's error stops twice as often as it says it does; this one does not.

use super::normal::cumulative;

/// Chance that an evaluation ends although the true difference is no more than the limit, over all looks.
pub const WRONG_STOP: f64 = 0.005;

/// Rows after which an evaluation is looked at first.
const FIRST_LOOK: usize = 16;

/// Rows of one length that a difference is worth at the least where it decides.
const LEAST_WORTH: f64 = 6.0;

/// Difference of two settings' losses per target token, on the rows that both were evaluated on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedDifference {
    /// Loss of the one setting less that of the other, in nats: below zero where it loses less.
    pub value: f64,
    /// Standard error over the choice of rows, in nats.
    pub standard_error: f64,
    /// Rows of one length that these rows are worth.
    worth: f64,
}

/// One row under two settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairedRow {
    /// Summed loss in nats, less that under the other setting.
    pub difference: f64,
    pub target_tokens: f64,
}

impl PairedDifference {
    /// The difference over `rows`; `None` where they are too few to tell how sure it is, or a loss is not finite.
    pub fn of(rows: &[PairedRow]) -> Option<Self> {
        let tokens: f64 = rows.iter().map(|row| row.target_tokens).sum();
        let squares: f64 = rows.iter().map(|row| row.target_tokens * row.target_tokens).sum();
        let worth = tokens * tokens / squares;
        if worth.is_nan() || worth < LEAST_WORTH {
            return None;
        }
        let value = rows.iter().map(|row| row.difference).sum::<f64>() / tokens;
        let residual = |row: &PairedRow| {
            let rest = row.difference - value * row.target_tokens;
            (rest / (1.0 - row.target_tokens / tokens)).powi(2)
        };
        let count = rows.len() as f64;
        let squared: f64 = rows.iter().map(residual).sum();
        let standard_error = ((count - 1.0) / count * squared).sqrt() / tokens;
        let is_finite = value.is_finite() && standard_error.is_finite();
        is_finite.then_some(Self {
            value,
            standard_error,
            worth,
        })
    }

    /// Whether the difference is above `limit` at one of so many looks, but for a chance of [`WRONG_STOP`] in all of
    /// them together.
    pub fn is_surely_above(&self, limit: f64, looks: usize) -> bool {
        let chance = WRONG_STOP / looks.max(1) as f64;
        self.value - student(chance, self.worth - 1.0) * self.standard_error > limit
    }
}

/// Rows after which an evaluation of `rows` rows is looked at: some, and then twice as many as at the last look.
pub fn looks(rows: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(FIRST_LOOK), |look| look.checked_mul(2));
    doubled.take_while(|look| *look < rows).collect()
}

/// The value that Student's t with this many degrees of freedom is above with a chance of `chance`: the expansion in inverse powers of
/// the degrees (Abramowitz and Stegun, 26.7.5), good to 1% from 5 on.
fn student(chance: f64, degrees: f64) -> f64 {
    let z = normal_above(chance);
    let odd = |factors: &[f64]| factors.iter().rev().fold(0.0, |sum, factor| sum * z * z + factor) * z;
    let terms = [
        odd(&[1.0, 1.0]) / 4.0,
        odd(&[3.0, 16.0, 5.0]) / 96.0,
        odd(&[-15.0, 17.0, 19.0, 3.0]) / 384.0,
        odd(&[-945.0, -1920.0, 1482.0, 776.0, 79.0]) / 92160.0,
    ];
    z + terms.iter().rev().fold(0.0, |sum, term| (sum + term) / degrees)
}

/// The value that a standard normal is above with a chance of `chance`, which is below a half: by halves.
fn normal_above(chance: f64) -> f64 {
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        match cumulative(-middle) > chance {
            true => low = middle,
            false => high = middle,
        }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_distr::{Distribution, Exp1, LogNormal, StandardNormal};
    use rand_pcg::Pcg64;

    /// A limit of 1% of a loss of two nats.
    const LIMIT: f64 = 0.02;
    const ROWS: usize = 256;

    /// The rows after which an evaluation ends early; `None` where it takes all of them.
    fn ends_after(rows: &[PairedRow]) -> Option<usize> {
        let looks = looks(rows.len());
        looks.iter().copied().find(|look| {
            PairedDifference::of(&rows[..*look]).is_some_and(|one| one.is_surely_above(LIMIT, looks.len()))
        })
    }

    /// Rows of log-normal lengths, and what `stray` makes of a length beside a true difference per token.
    fn rows(random: &mut Pcg64, truth: f64, stray: impl Fn(f64, &mut Pcg64) -> f64) -> Vec<PairedRow> {
        let lengths = LogNormal::new(4.0, 0.8).unwrap();
        let row = |_| {
            let length: f64 = lengths.sample(random);
            let target_tokens = length.round().max(1.0);
            PairedRow {
                difference: truth * target_tokens + stray(target_tokens, random),
                target_tokens,
            }
        };
        (0..ROWS).map(row).collect()
    }

    fn normal(random: &mut Pcg64) -> f64 {
        StandardNormal.sample(random)
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (chance, degrees, expected) in [(0.005, 15.0, 2.9467), (0.005, 1e9, 2.5758), (0.001, 31.0, 3.3749)] {
            let found = student(chance, degrees);
            assert!((found - expected).abs() < 1e-3, "{found} {expected}");
        }
    }

    #[test]
    fn looks_double_and_the_last_rows_need_none() {
        assert_eq!(looks(256), [16, 32, 64, 128]);
        assert_eq!((looks(16), looks(17), looks(0)), (vec![], vec![16], vec![]));
    }

    #[test]
    fn what_is_not_above_the_limit_ends_no_evaluation_but_by_the_chance_that_is_said() {
        let mut random = Pcg64::seed_from_u64(5);
        let times = 4000;
        let mut share = |truth: f64, stray: &dyn Fn(f64, &mut Pcg64) -> f64| {
            let ended = (0..times).filter(|_| ends_after(&rows(&mut random, truth, stray)).is_some());
            ended.count() as f64 / f64::from(times)
        };
        // Of 4,000 evaluations a chance of 0.5% ends 20, with a standard deviation of 4.5.
        let chance = WRONG_STOP + 2.0 * (WRONG_STOP / f64::from(times)).sqrt();
        let by_row = |tokens: f64, random: &mut Pcg64| 0.05 * tokens * normal(random);
        let by_token = |tokens: f64, random: &mut Pcg64| 0.5 * tokens.sqrt() * normal(random);
        // Some rows are far better, and most are a little worse.
        let skewed = |tokens: f64, random: &mut Pcg64| {
            let exponential: f64 = Exp1.sample(random);
            0.02 * tokens * (1.0 - exponential)
        };
        assert!(share(0.0, &by_row) <= WRONG_STOP);
        assert!(share(0.0, &skewed) <= WRONG_STOP);
        // Just as much above as it may be.
        for stray in [&by_row as &dyn Fn(f64, &mut Pcg64) -> f64, &by_token] {
            let ended = share(LIMIT, stray);
            assert!(ended <= chance, "{ended}");
        }
    }

    #[test]
    fn what_is_far_above_ends_at_the_first_look_with_its_difference_within_its_error() {
        let mut random = Pcg64::seed_from_u64(7);
        let (mut at_first, mut within) = (0, 0);
        for _ in 0..200 {
            let rows = rows(&mut random, 0.5, |tokens, random| 0.05 * tokens * normal(random));
            let Some(count) = ends_after(&rows) else {
                panic!("it is far above");
            };
            // Where one of the first rows is longer than all others together, they are not enough.
            at_first += usize::from(count == FIRST_LOOK);
            let [first, all] = [count, ROWS].map(|count| PairedDifference::of(&rows[..count]).unwrap());
            within += usize::from((first.value - all.value).abs() <= 2.0 * first.standard_error);
        }
        assert!(at_first > 190 && within > 170, "{at_first} {within}");
    }

    #[test]
    fn what_says_nothing_ends_nothing() {
        let row = |difference, target_tokens| PairedRow {
            difference,
            target_tokens,
        };
        assert_eq!(PairedDifference::of(&[]), None);
        assert_eq!(PairedDifference::of(&[row(1.0, 0.0); 40]), None);
        assert_eq!(PairedDifference::of(&[row(f64::NAN, 3.0); 40]), None);
        // One long row among short ones.
        let mut rows = vec![row(9.0, 1.0); 40];
        rows[7] = row(900.0, 1000.0);
        assert_eq!(PairedDifference::of(&rows), None);
        let alike = PairedDifference::of(&[row(9.0, 3.0); 40]).unwrap();
        assert_eq!((alike.value, alike.standard_error), (3.0, 0.0));
        assert!(alike.is_surely_above(2.9, 4) && !alike.is_surely_above(3.0, 4));
    }
}
