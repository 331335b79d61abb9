//! Expected hypervolume improvement, exact for independent marginals (Yang et al. 2019), and its logarithm in a form that
//! neither underflows nor loses its gradient (Ament et al. 2023).
//!
//! The region that the front leaves is cut into boxes. The expected volume gained in a box from l to u is the product over
//! objectives of P(u) - P(l) with P(u) = E[max(u - Y, 0)]; P depends on one coordinate only, so it is tabulated once.

use super::marginal::{LogShare, Marginal, NOTHING};
use crate::boxes::Boxes;
use crate::normal::log_one_less_exp;

/// Below this the plain form may have lost its digits to underflow.
const UNDERFLOW: f64 = 1e-200;

/// The acquisition for one front and reference point.
#[derive(Clone, Debug)]
pub(crate) struct Ehvi {
    boxes: Boxes,
}

impl Ehvi {
    pub(crate) fn new<P: AsRef<[f64]>>(front: &[P], reference: &[f64]) -> Self {
        Self {
            boxes: Boxes::new(front, reference),
        }
    }

    /// The expected improvement in plain numbers.
    pub(crate) fn value(&self, marginals: &[Marginal]) -> f64 {
        let tables: Vec<Vec<f64>> = marginals
            .iter()
            .zip(&self.boxes.coordinates)
            .map(|(marginal, values)| {
                let parts = values[1..].iter().map(|value| marginal.improvement(*value));
                std::iter::once(0.0).chain(parts).collect()
            })
            .collect();
        let cells = self.boxes.cells.iter().map(|cell| {
            let sides = cell
                .iter()
                .zip(&tables)
                .map(|((low, high), table)| table[*high as usize] - table[*low as usize]);
            sides.product::<f64>()
        });
        cells.sum()
    }

    /// ln of the expected improvement: the plain form where that is safe, which is faster.
    pub(crate) fn log_value(&self, marginals: &[Marginal]) -> f64 {
        let plain = self.value(marginals);
        if plain > UNDERFLOW {
            plain.ln()
        } else {
            self.log_slope(marginals).0
        }
    }

    /// ln of the expected improvement, and its derivatives by mean and deviation of each marginal.
    pub(crate) fn log_slope(&self, marginals: &[Marginal]) -> (f64, Vec<(f64, f64)>) {
        let tables: Vec<Vec<LogShare>> = marginals
            .iter()
            .zip(&self.boxes.coordinates)
            .map(|(marginal, values)| {
                let parts = values[1..].iter().map(|value| marginal.log_improvement(*value));
                std::iter::once(NOTHING).chain(parts).collect()
            })
            .collect();
        let side =
            |(ends, table): (&(u32, u32), &Vec<LogShare>)| difference(table[ends.1 as usize], table[ends.0 as usize]);
        let cells: Vec<Vec<LogShare>> = self
            .boxes
            .cells
            .iter()
            .map(|cell| cell.iter().zip(&tables).map(side).collect())
            .collect();
        let logs: Vec<f64> = cells
            .iter()
            .map(|sides| sides.iter().map(|side| side.value).sum())
            .collect();
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut slopes = vec![(0.0, 0.0); marginals.len()];
        if most == f64::NEG_INFINITY {
            return (most, slopes);
        }
        let total: f64 = logs.iter().map(|log| (log - most).exp()).sum();
        for (sides, log) in cells.iter().zip(&logs) {
            let weight = (log - most).exp() / total;
            if weight > 0.0 {
                for (slope, side) in slopes.iter_mut().zip(sides) {
                    slope.0 += weight * side.by_mean;
                    slope.1 += weight * side.by_deviation;
                }
            }
        }
        (most + total.ln(), slopes)
    }
}

/// ln of the sum of exponentials, with its derivatives.
pub(super) fn log_sum(parts: &[LogShare]) -> LogShare {
    let most = parts.iter().map(|part| part.value).fold(f64::NEG_INFINITY, f64::max);
    if most == f64::NEG_INFINITY {
        return NOTHING;
    }
    let total: f64 = parts.iter().map(|part| (part.value - most).exp()).sum();
    let mut sum = LogShare {
        value: most + total.ln(),
        ..NOTHING
    };
    for part in parts {
        let weight = (part.value - most).exp() / total;
        if weight > 0.0 {
            sum.by_mean += weight * part.by_mean;
            sum.by_deviation += weight * part.by_deviation;
        }
    }
    sum
}

/// ln(exp(high) - exp(low)) with its derivatives.
pub(super) fn difference(high: LogShare, low: LogShare) -> LogShare {
    if low.value == f64::NEG_INFINITY {
        return high;
    }
    let gap = low.value - high.value;
    if gap >= 0.0 {
        return NOTHING;
    }
    let value = high.value + log_one_less_exp(gap);
    // Shares of the two ends in the difference.
    let (upper, lower) = ((high.value - value).exp(), (low.value - value).exp());
    LogShare {
        value,
        by_mean: upper * high.by_mean - lower * low.by_mean,
        by_deviation: upper * high.by_deviation - lower * low.by_deviation,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_distr::{Distribution, StandardNormal};

    use super::super::marginal::Shape;
    use super::*;
    use crate::hypervolume;

    fn normal(mean: f64, deviation: f64) -> Marginal {
        Marginal {
            mean,
            deviation,
            shape: Shape::Plain,
        }
    }

    fn front(objectives: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
        prop::collection::vec(prop::collection::vec(0.0..1.0f64, objectives), 0..8)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn it_equals_monte_carlo(
            front in (1usize..5).prop_flat_map(front),
            means in prop::collection::vec(0.0..1.2f64, 4),
            deviations in prop::collection::vec(0.05..0.6f64, 4),
            seed: u64,
        ) {
            let objectives = front.first().map_or(2, Vec::len);
            let shapes = [Shape::Plain, Shape::Log, Shape::Plain, Shape::MinusLog];
            let marginals: Vec<Marginal> = (0..objectives)
                .map(|index| Marginal { mean: means[index] - 0.5, deviation: deviations[index], shape: shapes[index] })
                .collect();
            let reference = vec![1.0; objectives];
            let ehvi = Ehvi::new(&front, &reference);
            let before = hypervolume(&front, &reference);
            let mut random = rand_pcg::Pcg64::seed_from_u64(seed);
            let samples = 4000;
            let (mut sum, mut squares, mut hits) = (0.0, 0.0, 0);
            for _ in 0..samples {
                let sample: Vec<f64> = marginals
                    .iter()
                    .map(|marginal| {
                        let z: f64 = StandardNormal.sample(&mut random);
                        marginal.shape.outer(marginal.mean + marginal.deviation * z)
                    })
                    .collect();
                let mut points = front.clone();
                points.push(sample);
                let gain = hypervolume(&points, &reference) - before;
                sum += gain;
                squares += gain * gain;
                hits += u32::from(gain > 0.0);
            }
            // The spread of a handful of rare gains says nothing about their mean.
            prop_assume!(hits >= 50);
            let mean = sum / f64::from(samples);
            let error = ((squares / f64::from(samples) - mean * mean) / f64::from(samples)).sqrt();
            let exact = ehvi.value(&marginals);
            // Gains so rare that no sample met one: a share of 10 in all samples, each of a tenth at most.
            let missed = 1.0 / f64::from(samples);
            prop_assert!((exact - mean).abs() < 6.0 * error + missed, "{} against {} +- {}", exact, mean, error);
            prop_assert!((ehvi.log_slope(&marginals).0 - exact.ln()).abs() < 1e-7);
        }

        #[test]
        fn the_gradient_is_the_derivative(
            front in (1usize..5).prop_flat_map(front),
            means in prop::collection::vec(-0.5..3.0f64, 4),
            deviations in prop::collection::vec(0.02..0.6f64, 4),
        ) {
            let objectives = front.first().map_or(2, Vec::len);
            let ehvi = Ehvi::new(&front, &vec![1.0; objectives]);
            let marginals: Vec<Marginal> = (0..objectives).map(|i| normal(means[i], deviations[i])).collect();
            let (_, slopes) = ehvi.log_slope(&marginals);
            for index in 0..objectives {
                let moved = |mean: f64, deviation: f64| {
                    let mut marginals = marginals.clone();
                    marginals[index].mean += mean;
                    marginals[index].deviation += deviation;
                    ehvi.log_slope(&marginals).0
                };
                let by_mean = (moved(1e-6, 0.0) - moved(-1e-6, 0.0)) / 2e-6;
                let by_deviation = (moved(0.0, 1e-6) - moved(0.0, -1e-6)) / 2e-6;
                prop_assert!((by_mean - slopes[index].0).abs() < 1e-3 * (1.0 + by_mean.abs()));
                prop_assert!((by_deviation - slopes[index].1).abs() < 1e-3 * (1.0 + by_deviation.abs()));
            }
        }
    }

    #[test]
    fn a_hopeless_point_still_has_a_finite_value_and_a_gradient() {
        let ehvi = Ehvi::new(&[[0.1, 0.1]], &[1.0, 1.0]);
        let marginals = [normal(0.9, 1e-3), normal(0.9, 1e-3)];
        assert_eq!(ehvi.value(&marginals), 0.0);
        let (log, slopes) = ehvi.log_slope(&marginals);
        assert!(log.is_finite() && log < -1e5, "{log}");
        assert!(slopes.iter().any(|slope| slope.0 < -1e3), "{slopes:?}");
    }

    #[test]
    fn without_a_front_it_is_the_volume_below_the_reference() {
        let ehvi = Ehvi::new::<[f64; 2]>(&[], &[1.0, 1.0]);
        let sure = [normal(0.25, 1e-9), normal(0.5, 1e-9)];
        assert!((ehvi.value(&sure) - 0.375).abs() < 1e-6);
    }
}
