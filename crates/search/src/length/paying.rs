//! The length after which more training no longer pays: the least number of tokens from which on twice as many are
//! expected to lower the loss by less than a share of it.
//!
//! | name | meaning |
//! |---|---|
//! | T, T0 | tokens of a training; those of the shortest |
//! | t | T / T0 |
//! | a | exponent of the fall |
//! | f | floor, as a share of the loss at T0 |
//! | d | length, in T0, before which a loss hardly falls yet |
//! | c | level of the losses |
//! | gain | 1 - loss(2 T) / loss(T) |
//!
//! loss(T) = c (f + (1 - f) ((1 + d) / (t + d))^a)
//!
//! The trainings of one setting at several lengths decide between the shapes of a grid; c follows from each shape. Shapes are averaged
//! by their likelihood and prior. No optimiser, no random numbers.
//!
//! Design note: this is no part of the model of `model.rs`. That one compares settings at one length; beyond its trainings its
//! trend falls on like the power law that its prior has, and knows no floor.

use super::covariance::LONGER;

/// a, with a normal prior of its logarithm.
const EXPONENTS: [f64; 10] = [0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4];
const USUAL_EXPONENT: (f64, f64) = (0.3, 0.8);
/// f, all as probable.
const FLOORS: [f64; 13] = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0];
/// d, the first with this prior in those of the others.
const PLATEAUS: [f64; 8] = [0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0];
const NO_PLATEAU: f64 = 4.0;
/// Standard deviation of ln loss around its shape: the seed's, and what a schedule of another length does.
const NOISE: f64 = 0.01;
/// Standard deviation of what bends a curve behind its last training, as a share of the gain. On the tables of `cargo bench --bench
/// length` the intervals then hold 95% of the gains of settings within 5% of the best, and 85% of all.
const BENT: f64 = 0.75;
/// Deviations of a 95% interval.
const INTERVAL: f64 = 1.96;
/// Factor between lengths that are looked at.
const STEP: f64 = 1.05;
/// Most lengths that are looked at.
const MOST_LENGTHS: usize = 1000;
/// Longest length that is looked at, in lengths of the longest training.
const BEYOND: f64 = 10.0;
/// Passes over the rows that a length may have, in those that were trained, where it has more than one.
const MORE_PASSES: f64 = 2.0;
/// Digits that a length is rounded up to.
const DIGITS: i32 = 2;

/// The length from which on more training is not expected to pay, or the greatest that the evidence carries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PayingLength {
    pub tokens: f64,
    /// Share by which twice the tokens are expected to lower the loss.
    pub gain: f64,
    /// Half width of its 95% interval.
    pub interval: f64,
}

impl PayingLength {
    /// The length from which on the gain is below `least_gain`, of trainings of one setting with these tokens and losses. `epoch_tokens`
    /// are those of a pass over the rows. `None` where fewer than two lengths are known, or a number is none.
    pub fn of(trained: &[(f64, f64)], epoch_tokens: f64, least_gain: f64) -> Option<Self> {
        let shapes = Shapes::of(trained)?;
        let Shapes { shortest, longest, .. } = shapes;
        if epoch_tokens <= 0.0 || epoch_tokens.is_nan() {
            return None;
        }
        let most = (BEYOND * longest).min(epoch_tokens.max(MORE_PASSES * longest));
        let lengths = std::iter::successors(Some(most), |tokens| Some(tokens / STEP));
        let lengths = lengths.take_while(|tokens| *tokens > shortest).take(MOST_LENGTHS);
        // A loss that hardly falls at first may fall later: all that is longer has to pay no more either.
        let no_more = lengths
            .chain([shortest])
            .take_while(|tokens| shapes.gain(*tokens).0 < least_gain);
        let least = no_more.last().map_or(most, |tokens| rounded_up(tokens).min(most));
        Some(shapes.paying(least.floor()))
    }

    /// The length at so many tokens, and what twice as many are expected to bring, from trainings of one setting with
    /// these tokens and losses; `None` as for [`PayingLength::of`].
    pub fn at(trained: &[(f64, f64)], tokens: f64) -> Option<Self> {
        Some(Shapes::of(trained)?.paying(tokens))
    }
}

/// One shape: a, f, d.
#[derive(Clone, Copy, Debug)]
struct Shape {
    exponent: f64,
    floor: f64,
    plateau: f64,
}

impl Shape {
    /// The loss as a share of that at T0.
    fn at(&self, times: f64) -> f64 {
        let fallen = ((1.0 + self.plateau) / (times + self.plateau)).powf(self.exponent);
        self.floor + (1.0 - self.floor) * fallen
    }

    fn log_prior(&self) -> f64 {
        let (usual, deviation) = USUAL_EXPONENT;
        let of_exponent = -0.5 * ((self.exponent / usual).ln() / deviation).powi(2);
        of_exponent + if self.plateau > 0.0 { 0.0 } else { NO_PLATEAU.ln() }
    }

    /// Logarithm of the likelihood of losses, up to what all shapes have in common.
    fn log_likelihood(&self, trained: &[(f64, f64)], shortest: f64) -> f64 {
        let rest = |(tokens, loss): &(f64, f64)| loss.ln() - self.at(tokens / shortest).ln();
        let level = trained.iter().map(rest).sum::<f64>() / trained.len() as f64;
        let squares: f64 = trained.iter().map(|one| (rest(one) - level).powi(2)).sum();
        -0.5 * squares / (NOISE * NOISE)
    }
}

/// The shapes that a loss may have over the tokens, with their probabilities.
struct Shapes {
    weighted: Vec<(Shape, f64)>,
    /// Tokens of the shortest training and of the longest.
    shortest: f64,
    longest: f64,
}

impl Shapes {
    /// The shapes weighed by a study's trainings; `None` where fewer than two lengths are known, or a number is none.
    fn of(trained: &[(f64, f64)]) -> Option<Self> {
        let counts =
            |(tokens, loss): &(f64, f64)| *tokens > 0.0 && tokens.is_finite() && *loss > 0.0 && loss.is_finite();
        let tokens = || trained.iter().map(|(tokens, _)| *tokens);
        let (shortest, longest) = (tokens().fold(f64::INFINITY, f64::min), tokens().fold(0.0, f64::max));
        if !trained.iter().all(counts) || longest < LONGER * shortest {
            return None;
        }
        let mut weighted = Vec::with_capacity(EXPONENTS.len() * FLOORS.len() * PLATEAUS.len());
        for exponent in EXPONENTS {
            for floor in FLOORS {
                for plateau in PLATEAUS {
                    let shape = Shape {
                        exponent,
                        floor,
                        plateau,
                    };
                    weighted.push((shape, shape.log_prior() + shape.log_likelihood(trained, shortest)));
                }
            }
        }
        let most = weighted.iter().map(|(_, weight)| *weight).max_by(f64::total_cmp)?;
        let share = |weight: f64| (weight - most).exp();
        let total: f64 = weighted.iter().map(|(_, weight)| share(*weight)).sum();
        if !(most.is_finite() && total.is_finite()) {
            return None;
        }
        let weighted = weighted
            .into_iter()
            .map(|(shape, weight)| (shape, share(weight) / total));
        Some(Self {
            weighted: weighted.collect(),
            shortest,
            longest,
        })
    }

    fn paying(&self, tokens: f64) -> PayingLength {
        let (gain, deviation) = self.gain(tokens);
        PayingLength {
            tokens,
            gain,
            interval: INTERVAL * deviation.hypot(BENT * gain),
        }
    }

    /// Mean and standard deviation of the gain at a length.
    fn gain(&self, tokens: f64) -> (f64, f64) {
        let times = tokens / self.shortest;
        let (mut mean, mut square) = (0.0, 0.0);
        for (shape, weight) in &self.weighted {
            let gain = 1.0 - shape.at(2.0 * times) / shape.at(times);
            mean += weight * gain;
            square += weight * gain * gain;
        }
        (mean, (square - mean * mean).max(0.0).sqrt())
    }
}

/// The least number of so few digits that is not below this.
fn rounded_up(tokens: f64) -> f64 {
    let unit = 10_f64.powi((tokens.log10().floor() as i32 + 1 - DIGITS).max(0));
    (tokens / unit).ceil() * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NEAR_BEST_LOSS;
    use proptest::prelude::*;

    fn length(trained: &[(f64, f64)], epoch_tokens: f64) -> Option<PayingLength> {
        PayingLength::of(trained, epoch_tokens, NEAR_BEST_LOSS)
    }

    fn pays_no_more(found: PayingLength) -> bool {
        found.gain < NEAR_BEST_LOSS
    }

    /// Losses of a power law with a floor, with this noise in turn added and taken away.
    fn curve(lengths: &[f64], (exponent, floor): (f64, f64), noise: f64) -> Vec<(f64, f64)> {
        let signs = [1.0, -1.0].into_iter().cycle();
        let loss = |tokens: &f64| 2.0 * (floor + (1.0 - floor) * (tokens / 1e3).powf(-exponent));
        lengths
            .iter()
            .zip(signs)
            .map(|(tokens, sign)| (*tokens, loss(tokens) * (1.0 + sign * noise)))
            .collect()
    }

    /// The least length at which twice the tokens gain less than 1%.
    fn truth((exponent, floor): (f64, f64)) -> f64 {
        let loss = |tokens: f64| floor + (1.0 - floor) * (tokens / 1e3).powf(-exponent);
        let mut tokens = 1e3;
        while 1.0 - loss(2.0 * tokens) / loss(tokens) >= NEAR_BEST_LOSS {
            tokens *= 1.01;
        }
        tokens
    }

    const LENGTHS: [f64; 5] = [1e3, 4e3, 1.6e4, 6.4e4, 2.56e5];

    #[test]
    fn a_power_law_with_a_floor_pays_until_it_is_near_the_floor() {
        for (shape, noise) in [((1.0, 0.7), 0.0), ((0.7, 0.8), 0.002), ((0.5, 0.9), 0.002)] {
            let found = length(&curve(&LENGTHS, shape, noise), 1e9).unwrap();
            let times = found.tokens / truth(shape);
            assert!(
                pays_no_more(found) && (0.4..2.5).contains(&times),
                "{shape:?}: {found:?}, {times}"
            );
        }
    }

    #[test]
    fn what_falls_on_is_not_known_beyond_the_evidence() {
        let falls = curve(&[1e3, 3e3, 1e4], (0.3, 0.0), 0.0);
        let found = length(&falls, 1e9).unwrap();
        assert!(!pays_no_more(found) && found.tokens == 1e5, "{found:?}");
        let truth = 1.0 - 2_f64.powf(-0.3);
        assert!((found.gain - truth).abs() < found.interval, "{found:?}");
        // Rows that are seen again teach less: no more than one pass, or twice those that were trained.
        assert_eq!(length(&falls, 3e4).unwrap().tokens, 3e4);
        assert_eq!(length(&falls, 1e3).unwrap().tokens, 2e4);
    }

    #[test]
    fn a_rising_end_ends_before_it() {
        let found = length(&[(1e3, 2.0), (3e3, 1.6), (1e4, 1.7)], 1e9).unwrap();
        assert!(pays_no_more(found) && found.tokens <= 1e4, "{found:?}");
        let flat = length(&[(1e3, 2.0), (1e4, 2.0), (1e5, 2.0)], 1e9).unwrap();
        assert!(pays_no_more(flat) && flat.tokens <= 1e4, "{flat:?}");
    }

    #[test]
    fn too_little_says_nothing() {
        for trained in [
            &[][..],
            &[(1e3, 2.0)],
            &[(1e3, 2.0), (1.1e3, 1.9)],
            &[(1e3, 2.0), (1e4, 0.0)],
            &[(0.0, 2.0), (1e4, 1.0)],
            &[(1e3, f64::NAN), (1e4, 1.0)],
        ] {
            assert_eq!(length(trained, 1e9), None, "{trained:?}");
        }
        let two = [(1e3, 2.0), (1e4, 1.9)];
        assert!(length(&two, 1e9).is_some());
        assert_eq!(length(&two, f64::NAN), None);
    }

    proptest! {
        /// Whatever was trained, a length is among those that the evidence carries.
        #[test]
        fn a_length_is_never_beyond_the_evidence(
            losses in prop::collection::vec(1e-3f64..1e3, 2..6),
            times in 1.6f64..8.0,
            epoch in 1e2f64..1e7,
        ) {
            let tokens = (0..).map(|index| 1e3 * times.powi(index));
            let trained: Vec<(f64, f64)> = tokens.zip(losses).collect();
            let longest = trained.last().unwrap().0;
            let found = length(&trained, epoch).unwrap();
            prop_assert!(found.tokens >= 999.0 && found.tokens <= 10.0 * longest);
            prop_assert!(found.tokens <= epoch.max(2.0 * longest));
            prop_assert!(found.gain.is_finite() && found.interval.is_finite());
        }

        /// Neither the unit of the loss nor the order of the trainings changes the length.
        #[test]
        fn units_and_order_change_nothing(factor in 0.1f64..10.0, turned in 0usize..3) {
            let mut other: Vec<(f64, f64)> = vec![(1e3, 2.0), (4e3, 1.5), (1.6e4, 1.4)];
            let plain = length(&other, 1e9).unwrap();
            other.iter_mut().for_each(|one| one.1 *= factor);
            other.rotate_left(turned);
            let other = length(&other, 1e9).unwrap();
            prop_assert!((plain.gain - other.gain).abs() < 1e-9 && plain.tokens == other.tokens);
        }
    }
}
