//! Whether a range is to be widened: the best trainings sit at its edge, and the loss still falls towards it.
//!
//! Notation: a training lies `d` from an end of the range, as a share of the range on its scale; at most 0.1 is the edge. Of the
//! trainings with the parameter, E lie at the edge and I elsewhere. An end is moved where
//!
//! 1. there are at least six of them, two of E and two of I,
//! 2. the best of all is one of E,
//! 3. in three of four pairs of E and I that of E has the lower loss,
//! 4. the best of E is better than the best of I by more than s / √n, the standard error of the better half of E,
//! 5. none of E that lies farther out than the best is worse by more than that: the loss falls up to the end,
//! 6. no trial diverged at the edge or beyond it.
//!
//! Design note: pairs are counted, and means not compared, as one learning rate far too low has a loss that no mean survives. The
//! other params of the trainings differ; what they scatter is in the standard error.

use std::collections::HashSet;

use super::Problem;
use super::history::{Evaluated, evaluated};
use super::seeded::SettingKey;
use peft_tune_core::objective::LOSS;
use peft_tune_core::space::{Bounds, Parameter, RangeEnd, Scale, Widening};
use peft_tune_core::study::{FailReason, Params, Trial, TrialNumber, TrialState};

/// Trainings below which nothing is widened.
const FEWEST: usize = 6;
/// Trainings at the edge, and elsewhere, below which nothing is.
const FEWEST_EACH: usize = 2;
/// Share of a range that is its edge.
const EDGE_SHARE: f64 = 0.1;
/// Share of a range by which a training lies farther out than another.
const FARTHER: f64 = 0.025;
/// Share of the pairs in which the training at the edge has the lower loss.
const MOST_PAIRS: f64 = 0.75;

/// The range that is to be widened now, and to what; `None` where all stay as they are. The first in the order of the space. Only
/// continuous ranges that may be wider ([`Parameter::widest`]) and can change the loss are looked at, and only where the loss is an
/// objective.
pub fn next_widening(problem: &Problem, history: &[Trial]) -> Option<Widening> {
    let may_widen = |parameter: &&Parameter| parameter.widest.is_some() && parameter.can_change(LOSS);
    if !problem.space.parameters.iter().any(|parameter| may_widen(&parameter)) {
        return None;
    }
    let trainings = trainings(problem, history);
    let parameters = problem.space.parameters.iter().filter(may_widen);
    parameters
        .filter_map(|parameter| Some((parameter, parameter.distribution.bounds()?)))
        .find_map(|(parameter, (bounds, scale))| {
            let widest = parameter.widest?;
            [RangeEnd::High, RangeEnd::Low].into_iter().find_map(|end| {
                let edge = Edge { bounds, scale, end };
                let to = edge.moved_within(widest)?;
                let (best, trainings) = edge.evidence(&parameter.name, &trainings)?;
                (!edge.diverges(&parameter.name, history)).then(|| Widening {
                    parameter: parameter.name.clone(),
                    from: bounds,
                    to,
                    best,
                    trainings,
                })
            })
        })
}

/// A training with its loss, to be minimised.
struct Training<'a> {
    number: TrialNumber,
    params: &'a Params,
    loss: f64,
}

/// The complete trials that keep the constraints, one of those that train the same.
fn trainings<'a>(problem: &Problem, history: &'a [Trial]) -> Vec<Training<'a>> {
    let Some(index) = problem.objectives.iter().position(|one| one.metric == LOSS) else {
        return Vec::new();
    };
    let deciding: Vec<&str> = problem
        .space
        .parameters
        .iter()
        .filter(|parameter| parameter.can_change(LOSS))
        .map(|parameter| parameter.name.as_str())
        .collect();
    let mut met = HashSet::new();
    let mut is_new = |params: &Params| {
        let mut params = params.clone();
        params.retain(|name, _| deciding.contains(&name));
        met.insert(SettingKey::new(&params))
    };
    let feasible = evaluated(problem, history).into_iter().filter(Evaluated::is_feasible);
    feasible
        .filter(|one| is_new(&one.trial.params))
        .map(|one| Training {
            number: one.trial.number,
            params: &one.trial.params,
            loss: one.values[index],
        })
        .collect()
}

/// The edge of a range at one end.
#[derive(Clone, Copy)]
struct Edge {
    bounds: Bounds,
    scale: Scale,
    end: RangeEnd,
}

impl Edge {
    /// The range with this end moved by a step, as far as `widest` allows; `None` where it is there.
    fn moved_within(self, widest: Bounds) -> Option<Bounds> {
        let stepped = self.bounds.stepped(self.scale, self.end);
        let to = Bounds {
            low: stepped.low.max(widest.low).min(self.bounds.low),
            high: stepped.high.min(widest.high).max(self.bounds.high),
        };
        (to != self.bounds).then_some(to)
    }

    /// How far a value lies from this end, as a share of the range: 1 at the other end, and below 0 beyond this one. `None` of what
    /// has no place on the scale.
    fn distance(self, name: &str, params: &Params) -> Option<f64> {
        let value = params.get(name)?.as_f64()?;
        let place = |value: f64| match self.scale {
            Scale::Linear => value,
            Scale::Log => value.ln(),
        };
        let (low, high) = (place(self.bounds.low), place(self.bounds.high));
        let share = (place(value) - low) / (high - low);
        let distance = match self.end {
            RangeEnd::High => 1.0 - share,
            RangeEnd::Low => share,
        };
        distance.is_finite().then_some(distance)
    }

    /// The best training, and of how many it is the best, where they say that the loss falls up to this end.
    fn evidence(self, name: &str, trainings: &[Training<'_>]) -> Option<(TrialNumber, u64)> {
        let placed = trainings
            .iter()
            .filter_map(|one| Some((self.distance(name, one.params)?, one)));
        let (mut edge, elsewhere): (Vec<_>, Vec<_>) = placed.partition(|(distance, _)| *distance <= EDGE_SHARE);
        let all = edge.len() + elsewhere.len();
        if all < FEWEST || edge.len() < FEWEST_EACH || elsewhere.len() < FEWEST_EACH {
            return None;
        }
        edge.sort_by(|(_, a), (_, b)| a.loss.total_cmp(&b.loss));
        let (at, best) = *edge.first()?;
        let lower = |loss: f64| elsewhere.iter().filter(|(_, other)| loss < other.loss).count();
        let pairs: usize = edge.iter().map(|(_, one)| lower(one.loss)).sum();
        let next = elsewhere.iter().map(|(_, one)| one.loss).fold(f64::INFINITY, f64::min);
        let better_half: Vec<f64> = edge[..edge.len().div_ceil(2).max(FEWEST_EACH)]
            .iter()
            .map(|(_, one)| one.loss)
            .collect();
        let error = standard_error(&better_half);
        let falls_further = edge
            .iter()
            .all(|(distance, one)| *distance >= at - FARTHER || one.loss <= best.loss + error);
        let is_clear = pairs as f64 >= MOST_PAIRS * (edge.len() * elsewhere.len()) as f64 && next - best.loss > error;
        (is_clear && falls_further).then_some((best.number, all as u64))
    }

    /// Whether a trial diverged at this end or beyond it.
    fn diverges(self, name: &str, history: &[Trial]) -> bool {
        let diverged = |trial: &&Trial| {
            matches!(
                trial.state,
                TrialState::Failed {
                    reason: FailReason::Diverged { .. },
                    ..
                }
            )
        };
        let mut distances = history
            .iter()
            .filter(diverged)
            .filter_map(|trial| self.distance(name, &trial.params));
        distances.any(|distance| distance <= EDGE_SHARE)
    }
}

/// The standard error of the mean of at least two values.
fn standard_error(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0) / count).sqrt()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures::{categorical, parameter, trial};
    use peft_tune_core::objective::Objective;
    use peft_tune_core::space::{Distribution, SearchSpace};
    use peft_tune_core::study::ParamValue;

    const FILE: Bounds = Bounds { low: 1e-4, high: 2e-3 };

    /// A learning rate from `bounds`, which may become as wide as the file's range may, and a rank.
    fn problem(bounds: Bounds) -> Problem {
        let mut rate = parameter(
            "learning_rate",
            Distribution::Float {
                low: bounds.low,
                high: bounds.high,
                scale: Scale::Log,
                step: None,
            },
        );
        rate.widest = FILE.widest(Scale::Log, None);
        Problem {
            space: SearchSpace {
                parameters: vec![rate, parameter("rank", categorical([4i64, 8, 16]))],
            },
            objectives: vec![Objective::new(LOSS)],
            constraints: Vec::new(),
        }
    }

    fn params(rate: f64, rank: i64) -> Params {
        Params::from([
            ("learning_rate".to_owned(), ParamValue::Float(rate)),
            ("rank".to_owned(), ParamValue::Int(rank)),
        ])
    }

    fn complete(number: usize, rate: f64, loss: f64) -> Trial {
        let metrics = [(LOSS, loss)].into();
        trial(number, params(rate, 8), TrialState::Complete { metrics })
    }

    fn diverged(number: usize, rate: f64) -> Trial {
        let reason = FailReason::Diverged {
            at_step: 3,
            loss: None,
            cause: None,
        };
        let metrics = Default::default();
        trial(number, params(rate, 8), TrialState::Failed { reason, metrics })
    }

    /// Trainings at these rates, with the best rate at `optimum`.
    fn bowl(rates: &[f64], optimum: f64) -> Vec<Trial> {
        let loss = |rate: f64| 2.0 + 0.05 * (rate / optimum).ln().powi(2);
        let rates = rates.iter().enumerate();
        rates
            .map(|(number, rate)| complete(number, *rate, loss(*rate)))
            .collect()
    }

    const UPWARDS: [f64; 7] = [1e-4, 3e-4, 6e-4, 1e-3, 1.7e-3, 1.9e-3, 2e-3];

    #[test]
    fn a_range_is_widened_towards_a_best_beyond_its_edge() {
        let widening = next_widening(&problem(FILE), &bowl(&UPWARDS, 8e-3)).unwrap();
        let to = Bounds { low: 1e-4, high: 8e-3 };
        assert_eq!((widening.from, widening.to), (FILE, to));
        assert_eq!((widening.best, widening.trainings), (TrialNumber(6), 7));
        let downwards = [1e-4, 1.1e-4, 1.2e-4, 3e-4, 1e-3, 2e-3];
        let widening = next_widening(&problem(FILE), &bowl(&downwards, 1e-5)).unwrap();
        assert_eq!(
            widening.to,
            Bounds {
                low: 2.5e-5,
                high: 2e-3
            }
        );
    }

    #[test]
    fn a_range_stays_where_the_best_lies_inside_or_too_little_is_known() {
        let is_none = |history: &[Trial]| next_widening(&problem(FILE), history).is_none();
        assert!(is_none(&bowl(&UPWARDS, 1e-3)));
        assert!(is_none(&bowl(&UPWARDS[2..], 8e-3)));
        // The best lies at the edge, and the loss rises again up to the end.
        assert!(is_none(&bowl(&[1e-4, 3e-4, 6e-4, 1e-3, 1.65e-3, 2e-3], 1.6e-3)));
        // Nothing but noise.
        let noise = [2.0, 2.02, 1.99, 2.01, 2.03, 1.985, 2.0];
        let history = UPWARDS.iter().zip(noise).enumerate();
        let history: Vec<Trial> = history
            .map(|(number, (rate, loss))| complete(number, *rate, loss))
            .collect();
        assert!(is_none(&history));
    }

    #[test]
    fn a_variant_is_no_training_of_its_own() {
        let mut problem = problem(FILE);
        problem.space.parameters[1].affects = Some(vec!["throughput".to_owned()]);
        let mut history = bowl(&UPWARDS[2..], 8e-3);
        let mut variant = history[4].clone();
        variant.number = TrialNumber(5);
        variant.params = params(2e-3, 16);
        history.push(variant);
        assert_eq!(next_widening(&problem, &history), None);
    }

    #[test]
    fn a_divergence_at_the_edge_or_beyond_it_keeps_the_range() {
        for (rate, widens) in [(1.9e-3, false), (4e-3, false), (5e-4, true), (1e-4, true)] {
            let mut history = bowl(&UPWARDS, 8e-3);
            history.push(diverged(7, rate));
            assert_eq!(next_widening(&problem(FILE), &history).is_some(), widens, "{rate}");
        }
    }

    #[test]
    fn what_may_not_widen_and_what_changes_no_loss_stays() {
        let history = bowl(&UPWARDS, 8e-3);
        let mut fixed = problem(FILE);
        fixed.space.parameters[0].widest = None;
        assert_eq!(next_widening(&fixed, &history), None);
        let mut free = problem(FILE);
        free.space.parameters[0].affects = Some(vec!["throughput".to_owned()]);
        assert_eq!(next_widening(&free, &history), None);
        let mut other = problem(FILE);
        other.objectives = vec![Objective::new("throughput")];
        assert_eq!(next_widening(&other, &history), None);
    }

    #[test]
    fn a_range_is_widened_a_few_times_at_most() {
        let mut bounds = FILE;
        let mut times = 0;
        loop {
            let at = |share: f64| (bounds.low.ln() + share * (bounds.high / bounds.low).ln()).exp();
            let rates: Vec<f64> = [0.0, 0.2, 0.4, 0.6, 0.95, 0.99, 1.0].map(at).to_vec();
            let Some(widening) = next_widening(&problem(bounds), &bowl(&rates, 1e9)) else {
                break;
            };
            (bounds, times) = (widening.to, times + 1);
        }
        assert_eq!(times, 3);
        assert!((bounds.high / 0.128 - 1.0).abs() < 1e-12 && bounds.low == FILE.low);
    }

    /// Any history of trials in the file's range, some of which diverged.
    fn history() -> impl Strategy<Value = Vec<Trial>> {
        let one = (0.0..=1.0f64, 1.0..3.0f64, prop::bool::weighted(0.05));
        prop::collection::vec(one, 0..20).prop_map(|all| {
            let rate = |share: f64| (FILE.low.ln() + share * (FILE.high / FILE.low).ln()).exp();
            let all = all.into_iter().enumerate();
            all.map(|(number, (share, loss, diverges))| match diverges {
                true => diverged(number, rate(share)),
                false => complete(number, rate(share), loss),
            })
            .collect()
        })
    }

    proptest! {
        #[test]
        fn a_widening_is_wider_within_bounds_and_towards_the_best(history in history(), slope in -3.0..3.0f64) {
            let mut history = history;
            for trial in &mut history {
                let share = (trial.params["learning_rate"].as_f64().unwrap() / FILE.low).ln();
                if let Some(metrics) = trial.state.metrics_mut()
                    && let Some(loss) = metrics.value(LOSS)
                {
                    metrics.insert(LOSS, loss + slope * share);
                }
            }
            let problem = problem(FILE);
            let widest = problem.space.parameters[0].widest.unwrap();
            let found = next_widening(&problem, &history);
            prop_assert_eq!(&found, &next_widening(&problem, &history));
            if let Some(widening) = found {
                prop_assert!(widening.to.contains(widening.from) && widening.to != widening.from);
                prop_assert!(widest.contains(widening.to));
                let best = &history[usize::try_from(widening.best.0).unwrap()];
                let edge = Edge { bounds: FILE, scale: Scale::Log, end: widening.end() };
                prop_assert!(edge.distance("learning_rate", &best.params).unwrap() <= EDGE_SHARE);
                prop_assert!(!edge.diverges("learning_rate", &history));
                let losses = history.iter().filter_map(|trial| trial.state.metrics()?.value(LOSS));
                let least = losses.fold(f64::INFINITY, f64::min);
                prop_assert_eq!(best.state.metrics().and_then(|metrics| metrics.value(LOSS)), Some(least));
            }
            let mut fixed = problem;
            fixed.space.parameters[0].widest = None;
            prop_assert_eq!(next_widening(&fixed, &history), None);
        }
    }
}
