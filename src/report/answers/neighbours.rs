//! Why this setting and not its neighbours: the recommended setting with one thing changed, as a trial measured it or as the
//! surrogates predict it.

use serde::Serialize;

use super::input::AnswersInput;
use peft_tune_core::objective::Objective;
use peft_tune_core::space::{Parameter, SearchSpace};
use peft_tune_core::study::{ParamValue, Params, Trial, TrialNumber, TrialState};

/// Values of a parameter without order that are looked at.
const MOST_CHOICES: usize = 8;
/// Levels above which a range is walked along like a continuous one.
const MOST_LEVELS: u64 = 64;
/// A step along a continuous range, as a share of it.
const STEP: f64 = 0.1;
/// Differences below this share are none that matter.
const SAME: f64 = 0.005;

/// The recommended setting with one parameter changed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Neighbour {
    pub parameter: String,
    /// The recommended value.
    pub from: ParamValue,
    pub value: ParamValue,
    pub basis: NeighbourBasis,
    /// The objectives that are known of it, in the study's order.
    pub metrics: Vec<NeighbourMetric>,
}

/// Source of a neighbour's values.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum NeighbourBasis {
    /// A trial that differs in this parameter alone.
    Measured { trial: TrialNumber },
    /// A trial that differs in this parameter alone, and ended without a result.
    Ended { trial: TrialNumber, outcome: String },
    /// No such trial: the surrogates and, where there is one, the prediction of costs.
    Predicted,
}

/// An objective of a neighbour, in its own unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NeighbourMetric {
    pub metric: String,
    pub value: f64,
    /// The interval that holds it: 95% of measurements, 90% of predictions.
    pub low: f64,
    pub high: f64,
    /// Change against the recommended trial, as a share of its value.
    pub change: f64,
    pub comparison: Comparison,
}

/// A neighbour's value beside the recommended trial's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Comparison {
    Better,
    Worse,
    /// No difference that matters.
    Same,
    /// The difference lies within what is not known.
    CannotTell,
}

/// Every neighbour of the recommended trial, by parameter in the order of the space; empty without a recommended trial.
pub(super) fn neighbours(input: &AnswersInput<'_>) -> Vec<Neighbour> {
    let Some(recommended) = input.recommended_trial() else {
        return Vec::new();
    };
    let space = &input.problem.space;
    let of_parameter = |parameter: &Parameter| -> Vec<Neighbour> {
        let Some(from) = recommended.params.get(&parameter.name) else {
            return Vec::new();
        };
        let mut found: Vec<Neighbour> = measured(input, recommended, &parameter.name, from);
        for value in beside(parameter, from) {
            if found.iter().any(|one| one.value.is_same(&value)) || is_bracketed(parameter, &found, from, &value) {
                continue;
            }
            found.extend(
                changed(space, recommended, &parameter.name, &value)
                    .and_then(|params| predicted(input, recommended, &parameter.name, from, value.clone(), &params)),
            );
        }
        found.sort_by(|a, b| order(&a.value).total_cmp(&order(&b.value)));
        found
    };
    space.parameters.iter().flat_map(of_parameter).collect()
}

/// Trials that differ from the recommended one in one parameter alone: of an ordered one the nearest on either side.
fn measured(input: &AnswersInput<'_>, recommended: &Trial, name: &str, from: &ParamValue) -> Vec<Neighbour> {
    let differs_alone = |trial: &&Trial| {
        let value = trial.params.get(name);
        let mut others = trial.params.clone();
        others.insert(name.to_owned(), from.clone());
        value.is_some_and(|value| !value.is_same(from)) && others == recommended.params && trial.state.is_finished()
    };
    let mut all: Vec<(&Trial, &ParamValue)> = input
        .trials
        .iter()
        .filter(differs_alone)
        .filter_map(|trial| Some((trial, trial.params.get(name)?)))
        .collect();
    if let Some(at) = from.as_f64() {
        let distance = |value: &ParamValue| value.as_f64().map_or(f64::INFINITY, |value| (value - at).abs());
        all.sort_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        let side = |below: bool| all.iter().find(move |(_, value)| (order(value) < at) == below).copied();
        all = [side(true), side(false)].into_iter().flatten().collect();
    }
    let one = |(trial, value): (&Trial, &ParamValue)| Neighbour {
        parameter: name.to_owned(),
        from: from.clone(),
        value: value.clone(),
        basis: match &trial.state {
            TrialState::Complete { .. } => NeighbourBasis::Measured { trial: trial.number },
            state => NeighbourBasis::Ended {
                trial: trial.number,
                outcome: outcome(state),
            },
        },
        metrics: match trial.state {
            TrialState::Complete { .. } => measured_metrics(input, recommended, trial),
            _ => Vec::new(),
        },
    };
    all.into_iter().map(one).collect()
}

fn outcome(state: &TrialState) -> String {
    match state {
        TrialState::Failed { reason, .. } => reason.name().to_owned(),
        TrialState::Pruned { .. } => "stopped early".to_owned(),
        other => other.name().to_owned(),
    }
}

fn measured_metrics(input: &AnswersInput<'_>, recommended: &Trial, trial: &Trial) -> Vec<NeighbourMetric> {
    let one = |objective: &Objective| {
        let value = trial.state.metrics()?.value(&objective.metric)?;
        let half = input.half_interval(trial, &objective.metric, value);
        // What is positive stays so, however little is known of it.
        let low = if value > 0.0 {
            (value - half).max(0.0)
        } else {
            value - half
        };
        let interval = Interval {
            low,
            value,
            high: value + half,
        };
        compared(input, recommended, objective, interval)
    };
    input.problem.objectives.iter().filter_map(one).collect()
}

/// A setting that was not tried, as the surrogates have it.
fn predicted(
    input: &AnswersInput<'_>,
    recommended: &Trial,
    name: &str,
    from: &ParamValue,
    value: ParamValue,
    params: &Params,
) -> Option<Neighbour> {
    let predicted = input.insight.predict(params);
    let one = |objective: &Objective| {
        let found = predicted.iter().find(|one| one.metric == objective.metric)?;
        let interval = Interval {
            low: found.low,
            value: found.median,
            high: found.high,
        };
        compared(input, recommended, objective, interval)
    };
    let metrics: Vec<NeighbourMetric> = input.problem.objectives.iter().filter_map(one).collect();
    (!metrics.is_empty()).then(|| Neighbour {
        parameter: name.to_owned(),
        from: from.clone(),
        value,
        basis: NeighbourBasis::Predicted,
        metrics,
    })
}

/// A value with the ends of its interval.
struct Interval {
    low: f64,
    value: f64,
    high: f64,
}

/// A value beside the recommended trial's.
fn compared(
    input: &AnswersInput<'_>,
    recommended: &Trial,
    objective: &Objective,
    Interval { low, value, high }: Interval,
) -> Option<NeighbourMetric> {
    let own = recommended.state.metrics()?.value(&objective.metric)?;
    let half = (high - low).abs() / 2.0;
    let unsure = half.hypot(input.half_interval(recommended, &objective.metric, own));
    let (gap, change) = (value - own, (value - own) / own.abs());
    Some(NeighbourMetric {
        metric: objective.metric.clone(),
        value,
        low,
        high,
        change: if change.is_finite() { change } else { 0.0 },
        comparison: match () {
            () if gap.abs() > unsure && change.abs() >= SAME => match objective.minimised(gap) < 0.0 {
                true => Comparison::Better,
                false => Comparison::Worse,
            },
            () if gap.abs() + unsure < SAME * own.abs() => Comparison::Same,
            () if change.abs() < SAME && unsure < 4.0 * SAME * own.abs() => Comparison::Same,
            () => Comparison::CannotTell,
        },
    })
}

/// The values beside `from`: the next ones on either side, or the other choices of a parameter without order.
fn beside(parameter: &Parameter, from: &ParamValue) -> Vec<ParamValue> {
    let distribution = &parameter.distribution;
    let count = distribution.cardinality().filter(|count| *count <= MOST_LEVELS);
    if !distribution.is_ordered() {
        let all = (0..count.unwrap_or(0)).filter_map(|index| distribution.nth(index));
        return all.filter(|value| !value.is_same(from)).take(MOST_CHOICES).collect();
    }
    if let Some(count) = count {
        let mut values: Vec<ParamValue> = (0..count).filter_map(|index| distribution.nth(index)).collect();
        values.sort_by(|a, b| order(a).total_cmp(&order(b)));
        let below = values.iter().rev().find(|value| order(value) < order(from));
        let above = values.iter().find(|value| order(value) > order(from));
        return below.into_iter().chain(above).cloned().collect();
    }
    let Some(unit) = distribution.unit_of(from) else {
        return Vec::new();
    };
    let steps = [unit - STEP, unit + STEP]
        .into_iter()
        .filter(|unit| (0.0..=1.0).contains(unit));
    steps
        .map(|unit| distribution.value_at(unit))
        .filter(|value| !value.is_same(from))
        .collect()
}

/// Whether a trial lies on the same side of a continuous range, at least as near: then it is the neighbour.
fn is_bracketed(parameter: &Parameter, found: &[Neighbour], from: &ParamValue, value: &ParamValue) -> bool {
    let continuous = parameter.distribution.is_ordered() && parameter.distribution.cardinality().is_none();
    let (at, to) = (order(from), order(value));
    let between = |one: &Neighbour| {
        let other = order(&one.value);
        (at < other && other <= to) || (to <= other && other < at)
    };
    continuous && found.iter().any(between)
}

/// The recommended params with one value changed: parameters that this brings to life take the middle of their range.
fn changed(space: &SearchSpace, recommended: &Trial, name: &str, value: &ParamValue) -> Option<Params> {
    let mut params = Params::new();
    for parameter in &space.parameters {
        if !space.is_active(parameter, &params) {
            continue;
        }
        let own = recommended.params.get(&parameter.name).cloned();
        let value = match parameter.name == name {
            true => value.clone(),
            false => own.unwrap_or_else(|| parameter.distribution.value_at(0.5)),
        };
        params.insert(parameter.name.clone(), value);
    }
    params.get(name).is_some().then_some(params)
}

/// Place of a value among others; those without order keep theirs.
fn order(value: &ParamValue) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Case, number, study};
    use super::*;
    use peft_tune_core::objective::{LOSS, THROUGHPUT};

    /// Throughput falls with the rank, the loss is best at a rate of 0.3 and falls with the rank.
    fn case() -> Case {
        let params = [
            (16, 0.3),
            (8, 0.3),
            (4, 0.2),
            (4, 0.5),
            (8, 0.5),
            (16, 0.5),
            (8, 0.15),
            (4, 0.35),
        ];
        study(&params, |rank, rate| {
            [
                1000.0 - 10.0 * number(rank),
                3.0 - number(rank) / 16.0 + 8.0 * (number(rate) - 0.3).powi(2),
            ]
        })
    }

    #[test]
    fn a_neighbour_that_ran_is_measured_and_another_predicted() {
        let all = case().with(|input| neighbours(&input));
        let found = |value: ParamValue| all.iter().find(|one| one.value == value).unwrap();
        let of = |one: &Neighbour, metric: &str| one.metrics.iter().find(|one| one.metric == metric).cloned().unwrap();
        // Trial 1 differs in the rank alone.
        let rank = found(8i64.into());
        assert_eq!(rank.basis, NeighbourBasis::Measured { trial: TrialNumber(1) });
        assert_eq!(of(rank, LOSS).comparison, Comparison::Worse);
        assert_eq!(of(rank, THROUGHPUT).comparison, Comparison::Better);
        assert!((of(rank, LOSS).change - 0.25).abs() < 1e-9);
        // A rank of 4 at this rate did not run, and is no neighbour: 8 is the next one.
        assert!(all.iter().all(|one| one.value != 4i64.into()));
        // Trial 5 has a higher rate, but a tenth of the range above lies nearer; below nothing ran.
        let rates: Vec<f64> = all
            .iter()
            .filter(|one| one.parameter == "rate")
            .map(|one| number(&one.value))
            .collect();
        assert_eq!(rates.len(), 3, "{rates:?}");
        assert_eq!(
            found(0.5.into()).basis,
            NeighbourBasis::Measured { trial: TrialNumber(5) }
        );
        let below = all
            .iter()
            .find(|one| one.parameter == "rate" && number(&one.value) < 0.3)
            .unwrap();
        assert_eq!(below.basis, NeighbourBasis::Predicted);
        let loss = of(below, LOSS);
        assert!(loss.low <= 2.02 && loss.high >= 2.02, "{loss:?}");
    }

    #[test]
    fn differences_within_what_is_not_known_are_not_called_any() {
        let mut case = case();
        // 0.4% less loss, trained once.
        case.trials[1].state = TrialState::Complete {
            metrics: [(THROUGHPUT, 840.0), (LOSS, 2.0 * 0.99)].into(),
        };
        let all = case.with(|input| neighbours(&input));
        let rank = all.iter().find(|one| one.value == 8i64.into()).unwrap();
        assert_eq!(rank.metrics[0].comparison, Comparison::Same, "{rank:?}");
        assert_eq!(rank.metrics[1].comparison, Comparison::CannotTell, "{rank:?}");
    }
}
