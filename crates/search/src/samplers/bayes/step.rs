//! Steps from a training to one that differs in a parameter, at the learning rate that is usual for it.

use super::candidates::{Candidates, Choice};
use crate::Problem;
use crate::encode::{Encoding, Point};
use crate::length::LEARNING_RATE;
use peft_tune_core::recipe::OptimizerKind;
use peft_tune_core::study::{ParamValue, Params};

/// Name of the parameter of an adapter's rank.
const RANK: &str = "rank";
/// Name of the parameter of rows that one optimizer step trains.
const GLOBAL_BATCH: &str = "global_batch";
/// Name of the parameter of the update rule.
const OPTIMIZER: &str = "optimizer";
/// Distance of two learning rates, as a share of their range where that is continuous.
pub(super) const STEP: f64 = 0.18;
/// Steps towards what learns more of a given number of tokens: more that can be learned, and more updates.
const LEARNS_MORE: [(&str, Side); 2] = [(RANK, Side::Above), (GLOBAL_BATCH, Side::Below)];

/// A setting that differs from another by all steps that there are towards what learns more; `None` where there is none.
pub(super) fn learns_more(problem: &Problem, params: &Params) -> Option<Params> {
    let encoding = Encoding::new(&problem.space);
    let candidates = Candidates::new(&problem.space, &encoding);
    let named = |name: &str| problem.space.parameters.iter().position(|one| one.name == name);
    let mut point = encoding.point(&problem.space, params)?;
    let before = point.clone();
    for (name, side) in LEARNS_MORE {
        let ordered = named(name).filter(|index| !candidates.is_choice(*index) && candidates.has(&point, *index));
        let Some(parameter) = ordered else { continue };
        let Some(coordinate) = step(point[parameter], &candidates.levels(parameter), side) else {
            continue;
        };
        let choice = Choice { parameter, coordinate };
        if let Some(rate) = named(LEARNING_RATE) {
            point[rate] = usual_rate(problem, &candidates, &point, choice, rate);
        }
        point = choice.in_point(&point);
    }
    (point != before).then(|| candidates.params(&point))
}

/// The rate at which a training that has another value of one parameter than the best one is compared first. Beside another
/// optimizer it is the best one's times what is usual between the two; beside another batch times the root of the batches'
/// ratio, which holds for AdamW (Malladi et al. 2022, "On the SDEs and scaling rules for adaptive gradient algorithms").
pub(super) fn usual_rate(
    problem: &Problem,
    candidates: &Candidates<'_>,
    best: &Point,
    choice: Choice,
    rate: usize,
) -> f64 {
    let index = choice.parameter;
    let own_and_other = || {
        let own = candidates.value(index, best[index])?;
        Some((own, candidates.value(index, choice.coordinate)?))
    };
    let factor = || match problem.space.parameters[index].name.as_str() {
        GLOBAL_BATCH => {
            let (own, other) = own_and_other()?;
            Some((other.as_f64()? / own.as_f64()?).sqrt())
        }
        OPTIMIZER => {
            let (own, other) = own_and_other()?;
            let usual = |value: &ParamValue| match value {
                ParamValue::Text(name) => OptimizerKind::from_name(name)?.row().usual_rate,
                _ => None,
            };
            Some(usual(&other)? / usual(&own)?)
        }
        _ => None,
    };
    let usual = || {
        let wanted = candidates.value(rate, best[rate])?.as_f64()? * factor()?;
        (wanted.is_finite() && wanted > 0.0).then(|| candidates.nearest_to(rate, wanted))?
    };
    usual().unwrap_or(best[rate])
}

/// Direction from a coordinate to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Above,
    Below,
}

/// The coordinate beside another, of these levels or in a continuous range.
pub(super) fn step(from: f64, levels: &[f64], side: Side) -> Option<f64> {
    if levels.is_empty() {
        let next = match side {
            Side::Above => from + STEP,
            Side::Below => from - STEP,
        };
        return (0.0..=1.0).contains(&next).then_some(next);
    }
    match side {
        Side::Above => levels
            .iter()
            .copied()
            .filter(|level| *level > from)
            .min_by(f64::total_cmp),
        Side::Below => levels
            .iter()
            .copied()
            .filter(|level| *level < from)
            .max_by(f64::total_cmp),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{categorical, parameter};
    use peft_tune_core::objective::{LOSS, Objective};
    use peft_tune_core::space::{Distribution, Scale, SearchSpace};

    fn log(low: f64, high: f64) -> Distribution {
        Distribution::Float {
            low,
            high,
            scale: Scale::Log,
            step: None,
        }
    }

    fn problem(parameters: Vec<peft_tune_core::space::Parameter>) -> Problem {
        Problem {
            space: SearchSpace { parameters },
            objectives: vec![Objective::new(LOSS)],
            constraints: Vec::new(),
        }
    }

    #[test]
    fn another_optimizer_or_batch_is_compared_at_the_rate_that_is_usual_for_it() {
        let optimizers = categorical(["adamw", "lion", "muon"]);
        let usual_beside = |rates: Distribution, best: [f64; 3], changed: (usize, f64)| {
            let parameters = vec![
                parameter("learning_rate", rates),
                parameter("global_batch", categorical([8i64, 16, 32])),
                parameter("optimizer", optimizers.clone()),
            ];
            let problem = problem(parameters);
            let encoding = Encoding::new(&problem.space);
            let candidates = Candidates::new(&problem.space, &encoding);
            let (parameter, coordinate) = changed;
            let choice = Choice { parameter, coordinate };
            let rate = usual_rate(&problem, &candidates, &best.to_vec(), choice, 0);
            candidates.value(0, rate).and_then(|value| value.as_f64()).unwrap()
        };
        let of = |best: [f64; 3], changed: (usize, f64)| usual_beside(log(1e-4, 1e-2), best, changed);
        let is_near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        // The middle of the range is 1e-3, and batch 8 its first value.
        is_near(of([0.5, 0.0, 0.0], (1, 1.0)), 2e-3);
        is_near(of([0.5, 1.0, 0.0], (1, 0.0)), 0.5e-3);
        is_near(of([0.5, 0.0, 0.0], (2, 1.0)), 1e-3 / 3.0);
        is_near(of([0.5, 0.0, 1.0], (2, 0.0)), 3e-3);
        // Nothing is known of Muon's; and a rate stays within its range and among its values.
        is_near(of([0.5, 0.0, 0.0], (2, 2.0)), 1e-3);
        is_near(of([1.0, 0.0, 1.0], (2, 0.0)), 1e-2);
        let levels = categorical([1e-4, 1e-3, 1e-2]);
        is_near(usual_beside(levels, [0.5, 0.0, 1.0], (2, 0.0)), 1e-3);
    }

    #[test]
    fn what_learns_more_has_the_next_rank_and_the_next_smaller_batch_at_its_usual_rate() {
        let problem = problem(vec![
            parameter("rank", categorical([4i64, 8, 16])),
            parameter("target_modules", categorical(["attention", "mlp"])),
            parameter("global_batch", categorical([8i64, 16, 32])),
            parameter("learning_rate", log(1e-4, 1e-2)),
        ]);
        let of = |rank: i64, batch: i64, rate: f64| {
            Params::from([
                ("rank".to_owned(), rank.into()),
                ("target_modules".to_owned(), "mlp".into()),
                ("global_batch".to_owned(), batch.into()),
                ("learning_rate".to_owned(), rate.into()),
            ])
        };
        let is = |found: Option<Params>, expected: &Params| {
            let found = found.unwrap();
            for (name, value) in expected {
                let is_same = match (found[name].as_f64(), value.as_f64()) {
                    (Some(one), Some(other)) => (one / other - 1.0).abs() < 1e-9,
                    _ => found[name] == *value,
                };
                assert!(is_same, "{found:?} {expected:?}");
            }
        };
        is(
            learns_more(&problem, &of(8, 32, 1e-3)),
            &of(16, 16, 1e-3 * 0.5f64.sqrt()),
        );
        // At the end of one range the other parameter moves alone; a rank changes no rate.
        is(learns_more(&problem, &of(4, 8, 1e-3)), &of(8, 8, 1e-3));
        is(learns_more(&problem, &of(16, 32, 1e-4)), &of(16, 16, 1e-4));
        assert_eq!(learns_more(&problem, &of(16, 8, 1e-3)), None);
    }
}
