//! The effect of one parameter on one metric, in a form that fits into a sentence: where the metric is best, and which
//! way it goes.

use serde::Serialize;

use peft_tune_core::objective::{Direction, Objective};
use peft_tune_core::study::ParamValue;

/// Share of the metric's range along the parameter that is no change of direction.
const SLACK: f64 = 0.1;
/// Share of the metric's size under which it does not depend on the parameter.
const FLAT: f64 = 0.005;

/// A metric along one parameter, in the metric's own unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dependence {
    pub metric: String,
    pub parameter: String,
    pub places: Vec<EffectPoint>,
    /// Whether the best and the worst place differ by more than is unknown of their difference, with probability 0.95.
    pub tells: bool,
    /// Whether a prior predicts the metric, so that trials only correct it.
    pub predicted: bool,
}

/// One value of the parameter: the metric with it, the other settings held at the same values for all, and the interval
/// that holds its difference to the parameter's other values with probability 0.9.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EffectPoint {
    pub value: ParamValue,
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// Course of a metric along the ordered values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Trend {
    /// The metric hardly changes.
    Flat,
    Rises,
    Falls,
    /// The metric is best between the ends.
    BestInside,
    /// The metric is worst between the ends.
    WorstInside,
    /// The metric goes up and down, or the values have no order.
    Uneven,
}

/// A parameter's effect on a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    pub metric: String,
    pub parameter: String,
    pub trend: Trend,
    /// The value at which the metric is best, the other settings held, and the metric there.
    pub best: ParamValue,
    pub best_value: f64,
    /// The value at which the metric is worst, the other settings held, and the metric there.
    pub worst: ParamValue,
    pub worst_value: f64,
    /// Values that were looked at.
    pub places: Vec<EffectPoint>,
    /// Whether the trials, and a prediction where there is one, tell the best value from the worst.
    pub tells: bool,
    /// Whether the metric is predicted, so that trials only correct it.
    pub predicted: bool,
}

impl Effect {
    /// Sums up a dependence; `None` where it has no places.
    pub fn of(dependence: &Dependence, objective: &Objective) -> Option<Self> {
        let places = &dependence.places;
        let minimised = |place: &EffectPoint| objective.minimised(place.median);
        let index = |of: &dyn Fn(f64, f64) -> bool| {
            (0..places.len()).reduce(|a, b| {
                if of(minimised(&places[b]), minimised(&places[a])) {
                    b
                } else {
                    a
                }
            })
        };
        let (best, worst) = (index(&|a, b| a < b)?, index(&|a, b| a > b)?);
        let ordered = places.iter().all(|place| place.value.as_f64().is_some());
        Some(Self {
            metric: dependence.metric.clone(),
            parameter: dependence.parameter.clone(),
            trend: trend(places, best, worst, ordered, objective.direction),
            best: places[best].value.clone(),
            best_value: places[best].median,
            worst: places[worst].value.clone(),
            worst_value: places[worst].median,
            places: places.clone(),
            tells: dependence.tells,
            predicted: dependence.predicted,
        })
    }
}

fn trend(places: &[EffectPoint], best: usize, worst: usize, ordered: bool, direction: Direction) -> Trend {
    let range = (places[best].median - places[worst].median).abs();
    if range <= FLAT * places[best].median.abs().max(places[worst].median.abs()) {
        return Trend::Flat;
    }
    if !ordered {
        return Trend::Uneven;
    }
    let rises = |values: &mut dyn Iterator<Item = f64>| {
        let mut reached = f64::NEG_INFINITY;
        for value in values {
            if value < reached - SLACK * range {
                return false;
            }
            reached = reached.max(value);
        }
        true
    };
    let values = |sign: f64| rises(&mut places.iter().map(|place| sign * place.median));
    let (up, down) = (values(1.0), values(-1.0));
    // Towards the turn it goes one way from either side.
    let turns_once = |at: usize, sign: f64| {
        let before = rises(&mut places[..=at].iter().map(|place| -sign * place.median));
        before && rises(&mut places[at..].iter().rev().map(|place| -sign * place.median))
    };
    let sign = if direction == Direction::Minimize { 1.0 } else { -1.0 };
    if up {
        Trend::Rises
    } else if down {
        Trend::Falls
    } else if turns_once(best, sign) {
        Trend::BestInside
    } else if turns_once(worst, -sign) {
        Trend::WorstInside
    } else {
        Trend::Uneven
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(medians: &[f64], metric: &str) -> Effect {
        let place = |(index, median): (usize, &f64)| EffectPoint {
            value: (index as i64).into(),
            median: *median,
            low: *median,
            high: *median,
        };
        let dependence = Dependence {
            metric: metric.to_owned(),
            parameter: "rank".to_owned(),
            places: medians.iter().enumerate().map(place).collect(),
            tells: true,
            predicted: false,
        };
        Effect::of(&dependence, &Objective::new(metric)).unwrap()
    }

    #[test]
    fn a_trend_is_named_by_its_shape_and_small_wiggles_do_not_count() {
        for (medians, trend) in [
            (&[1.0, 1.5, 1.48, 2.0][..], Trend::Rises),
            (&[2.0, 1.5, 1.52, 1.0], Trend::Falls),
            (&[2.0, 1.2, 1.0, 1.9], Trend::BestInside),
            (&[1.0, 1.8, 2.0, 1.1], Trend::WorstInside),
            (&[1.0, 2.0, 1.0, 2.0], Trend::Uneven),
            (&[1.0, 1.001, 1.002, 1.0], Trend::Flat),
        ] {
            assert_eq!(effect(medians, "loss").trend, trend, "{medians:?}");
        }
        assert_eq!(effect(&[1.0, 1.8, 2.0, 1.1], "throughput").trend, Trend::BestInside);
    }

    #[test]
    fn the_best_value_follows_the_direction() {
        let (loss, speed) = (effect(&[2.0, 1.0, 3.0], "loss"), effect(&[2.0, 1.0, 3.0], "throughput"));
        assert_eq!((loss.best, loss.best_value), (1i64.into(), 1.0));
        assert_eq!((speed.best, speed.worst_value), (2i64.into(), 1.0));
    }
}
