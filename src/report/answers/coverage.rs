//! Coverage of the search: trainings by value, and whether the best lies at the edge of what was searched.

use serde::Serialize;

use super::input::AnswersInput;
use super::values::rounded;
use crate::report::param_value;
use peft_tune_core::objective::LOSS;
use peft_tune_core::space::{Distribution, Parameter, Widening};
use peft_tune_core::study::{ParamValue, Trial, TrialNumber, TrialState};
use peft_tune_search::{UntoldOutcome, costs_changed_by, evaluated};

/// Values above which a range is shown in parts.
const MOST_VALUES: u64 = 12;
/// Parts of a range.
const PARTS: usize = 5;
/// Share of a continuous range that is its edge.
const EDGE: f64 = 0.03;
/// Trainings below which a value was hardly looked at.
pub(super) const FEW: usize = 2;

/// One parameter.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Coverage {
    pub parameter: String,
    /// Cells in the order of the values.
    pub cells: Vec<CoverageCell>,
    /// End of the range at which the best was found, where it was.
    pub edge: Option<Edge>,
    /// How a search widened the range by itself, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub widened: Vec<Widening>,
    /// Values whose costs predictions do not tell.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub compared: Vec<ComparedValue>,
}

/// A value whose cost predictions do not tell, beside another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedValue {
    pub value: ParamValue,
    pub beside: ParamValue,
    /// Trials that measured the two, and differ in nothing else; none where the value was passed over, as it is predicted to be
    /// clearly worse.
    pub trials: Option<[TrialNumber; 2]>,
    /// Changes from the other value to this one: measured, or predicted.
    pub changes: Vec<MetricChange>,
}

/// A change of a metric, as a share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MetricChange {
    pub metric: String,
    pub change: f64,
}

/// A value, or a part of a range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CoverageCell {
    /// `32`, or `1e-4 to 3e-4`.
    pub values: String,
    /// Trials that trained there; of a parameter that cannot change the loss, those that measured its cost too.
    pub trainings: usize,
    /// Whether the trial that the edge is asked of has a value here.
    pub holds_best: bool,
}

/// A best trial at an end of what was searched.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Edge {
    pub value: ParamValue,
    /// Whether the end is that of the highest value, rather than of the lowest.
    pub highest: bool,
    /// The trial: with the least loss, or the recommended one where the loss is no objective.
    pub trial: TrialNumber,
}

/// Every parameter with more than one value, in the order of the space.
pub(super) fn coverage(input: &AnswersInput<'_>) -> Vec<Coverage> {
    let ended = |trial: &&Trial| trial.state.is_finished() && !matches!(trial.state, TrialState::Skipped { .. });
    let all: Vec<&Trial> = input.trials.iter().filter(ended).collect();
    let is_training = |trial: &&&Trial| !input.variants.contains_key(&trial.number);
    let trained: Vec<&Trial> = all.iter().filter(is_training).copied().collect();
    let best = best_trial(input);
    let parameters = input.problem.space.parameters.iter();
    let searched = parameters.filter(|parameter| parameter.distribution.cardinality() != Some(1));
    let widened = |name: &str| -> Vec<Widening> {
        let of_parameter = input.widened.iter().filter(|widening| widening.parameter == name);
        of_parameter.cloned().collect()
    };
    searched
        .map(|parameter| Coverage {
            widened: widened(&parameter.name),
            compared: compared(input, parameter),
            ..match parameter.can_change(LOSS) {
                true => of_parameter(parameter, &trained, best),
                // A variant measures all that such a parameter changes.
                false => of_parameter(parameter, &all, best),
            }
        })
        .collect()
}

/// The trial with the least loss that keeps the constraints.
fn best_trial<'a>(input: &AnswersInput<'a>) -> Option<&'a Trial> {
    let Some(index) = input.problem.objectives.iter().position(|one| one.metric == LOSS) else {
        return input.recommended_trial();
    };
    let all = evaluated(input.problem, input.trials)
        .into_iter()
        .filter(|one| one.is_feasible());
    all.min_by(|a, b| a.values[index].total_cmp(&b.values[index]))
        .map(|one| one.trial)
}

fn of_parameter(parameter: &Parameter, trained: &[&Trial], best: Option<&Trial>) -> Coverage {
    let distribution = &parameter.distribution;
    let own = |trial: &&Trial| trial.params.get(&parameter.name).cloned();
    let values: Vec<ParamValue> = trained.iter().filter_map(own).collect();
    let best_value = best.and_then(|trial| trial.params.get(&parameter.name));
    let cells = match distribution.cardinality().filter(|count| *count <= MOST_VALUES) {
        Some(count) => {
            let one = |value: ParamValue| CoverageCell {
                values: param_value(&value),
                trainings: values.iter().filter(|other| other.is_same(&value)).count(),
                holds_best: best_value.is_some_and(|best| best.is_same(&value)),
            };
            (0..count)
                .filter_map(|index| distribution.nth(index))
                .map(one)
                .collect()
        }
        None => parts(distribution, &values, best_value),
    };
    Coverage {
        parameter: parameter.name.clone(),
        cells,
        edge: best
            .zip(best_value)
            .and_then(|(trial, value)| edge(parameter, value, trial)),
        widened: Vec::new(),
        compared: Vec::new(),
    }
}

/// The values of a parameter whose costs predictions do not tell, as far as one was held against another.
fn compared(input: &AnswersInput<'_>, parameter: &Parameter) -> Vec<ComparedValue> {
    let name = parameter.name.as_str();
    let of_parameter = input.untold.iter().filter(|one| one.parameter == name);
    let compared = of_parameter.filter_map(|one| {
        let (beside, trials, changes) = match &one.outcome {
            // Of the two the later one was measured for that.
            UntoldOutcome::Tried { trial, beside } if trial > beside => {
                let pair = [input.trial(*trial)?, input.trial(*beside)?];
                (
                    *beside,
                    Some([*trial, *beside]),
                    measured_changes(input, parameter, pair),
                )
            }
            UntoldOutcome::ClearlyWorse { metric, change, beside } => {
                let (metric, change) = (metric.clone(), *change);
                (*beside, None, vec![MetricChange { metric, change }])
            }
            UntoldOutcome::Tried { .. } | UntoldOutcome::Open(_) => return None,
        };
        let value = one.value.clone();
        let beside = input.trial(beside)?.params.get(name)?.clone();
        (!changes.is_empty()).then_some(ComparedValue {
            value,
            beside,
            trials,
            changes,
        })
    });
    compared.collect()
}

/// Changes that a parameter made from the second of two trials to the first, as far as both measured them.
fn measured_changes(input: &AnswersInput<'_>, parameter: &Parameter, pair: [&Trial; 2]) -> Vec<MetricChange> {
    let changes = costs_changed_by(input.problem, parameter).filter_map(|objective| {
        let [own, other] = pair.map(|trial| trial.state.metrics()?.value(&objective.metric));
        let change = own? / other? - 1.0;
        let metric = objective.metric.clone();
        change.is_finite().then_some(MetricChange { metric, change })
    });
    changes.collect()
}

fn parts(distribution: &Distribution, values: &[ParamValue], best: Option<&ParamValue>) -> Vec<CoverageCell> {
    let at = |value: &ParamValue| {
        distribution
            .unit_of(value)
            .map(|unit| ((unit * PARTS as f64) as usize).min(PARTS - 1))
    };
    let text = |part: usize| param_value(&rounded(&distribution.value_at(part as f64 / PARTS as f64)));
    let one = |part: usize| CoverageCell {
        values: format!("{} to {}", text(part), text(part + 1)),
        trainings: values.iter().filter(|value| at(value) == Some(part)).count(),
        holds_best: best.and_then(at) == Some(part),
    };
    (0..PARTS).map(one).collect()
}

/// Whether a value that can decide the loss lies at an end that could be moved.
fn edge(parameter: &Parameter, value: &ParamValue, trial: &Trial) -> Option<Edge> {
    let number = value
        .as_f64()
        .filter(|_| parameter.can_change(LOSS) && parameter.distribution.is_ordered())?;
    let (lowest, highest) = match parameter.distribution.cardinality() {
        Some(count) => {
            let numbers = (0..count).filter_map(|index| parameter.distribution.nth(index)?.as_f64());
            let (low, high) = numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), one| {
                (low.min(one), high.max(one))
            });
            (number <= low, number >= high)
        }
        None => {
            let unit = parameter.distribution.unit_of(value)?;
            (unit <= EDGE, unit >= 1.0 - EDGE)
        }
    };
    // Below 0, or below one of a number that is counted, there is nothing.
    let is_end = number == 0.0 || (number == 1.0 && matches!(value, ParamValue::Int(_)));
    ((lowest && !is_end) || highest).then(|| Edge {
        value: value.clone(),
        highest,
        trial: trial.number,
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Case, number, study};
    use super::*;
    use peft_tune_core::space::Bounds;
    use peft_tune_search::UntoldCost;

    #[test]
    fn what_hardly_ran_and_a_best_at_the_edge_are_told() {
        // The loss falls with the rank: the best is at the highest one. Most rates ran once or never.
        let case: Case = study(&[(4, 0.1), (8, 0.1), (16, 0.1), (16, 0.35), (8, 0.55)], |rank, rate| {
            [10.0, 3.0 - number(rank) / 16.0 + number(rate)]
        });
        let coverage = case.with(|input| coverage(&input));
        let rank = &coverage[0];
        let counts: Vec<(&str, usize)> = rank
            .cells
            .iter()
            .map(|cell| (cell.values.as_str(), cell.trainings))
            .collect();
        assert_eq!(counts, [("4", 1), ("8", 2), ("16", 2)]);
        let edge = rank.edge.as_ref().unwrap();
        assert_eq!(
            (edge.highest, edge.trial, &edge.value),
            (true, TrialNumber(2), &16i64.into())
        );
        // A variant is no training; of what cannot change the loss, it measured all there is.
        let mut case = case;
        case.variants.insert(TrialNumber(4), TrialNumber(1));
        assert_eq!(case.with(|input| super::coverage(&input))[0].cells[1].trainings, 1);
        case.problem.space.parameters[0].affects = Some(vec!["throughput".to_owned()]);
        let all = case.with(|input| super::coverage(&input));
        assert_eq!((all[0].cells[1].trainings, &all[0].edge), (2, &None));
        case.widened = vec![Widening {
            parameter: "rate".to_owned(),
            from: Bounds { low: 0.2, high: 0.6 },
            to: Bounds { low: 0.1, high: 0.6 },
            best: TrialNumber(2),
            trainings: 6,
        }];
        let widened = case.with(|input| super::coverage(&input));
        assert!(widened[0].widened.is_empty() && widened[0].compared.is_empty());
        assert_eq!(widened[1].widened, case.widened);
        let rate = &coverage[1];
        assert_eq!(
            rate.cells.iter().map(|cell| cell.trainings).collect::<Vec<_>>(),
            [3, 0, 1, 0, 1]
        );
        assert!(!rate.edge.as_ref().unwrap().highest, "{rate:?}");
    }

    #[test]
    fn a_value_whose_cost_is_not_predicted_is_told_beside_another() {
        let mut case = study(&[(4, 0.1), (8, 0.1), (8, 0.3)], |rank, _| [100.0 / number(rank), 2.0]);
        case.problem.space.parameters[0].affects = Some(vec!["throughput".to_owned()]);
        let of = |value: i64, outcome| UntoldCost {
            parameter: "rank".to_owned(),
            value: value.into(),
            outcome,
        };
        let tried = |trial, beside| UntoldOutcome::Tried {
            trial: TrialNumber(trial),
            beside: TrialNumber(beside),
        };
        case.untold = vec![
            of(4, tried(0, 1)),
            of(8, tried(1, 0)),
            of(
                16,
                UntoldOutcome::ClearlyWorse {
                    metric: "throughput".to_owned(),
                    change: -0.75,
                    beside: TrialNumber(0),
                },
            ),
        ];
        let found = case.with(|input| coverage(&input)).remove(0).compared;
        let change = |change: f64| MetricChange {
            metric: "throughput".to_owned(),
            change,
        };
        let compared = |value: i64, trials, by: f64| ComparedValue {
            value: value.into(),
            beside: 4i64.into(),
            trials,
            changes: vec![change(by)],
        };
        let measured = compared(8, Some([TrialNumber(1), TrialNumber(0)]), -0.5);
        assert_eq!(found, [measured, compared(16, None, -0.75)]);
    }
}
