//! Building a page's content from what the database has.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::costs::{memory, phases};
use super::growth::growth;
use super::input::{MeasuredCurve, PageInput, TrialCurves};
use super::outcome::outcome;
use super::rounded::{rounded, rounded_to, shown};
use super::thin::thinned;
use super::view::{
    AnswerView, AxisView, CurveView, Growth, ObjectiveView, PredictionView, RecommendationView, StudyHead, StudyView,
    TrialView,
};
use crate::report::answers::{Answer, answers_text};
use crate::report::charts::answer_picture;
use crate::report::scaling::MOST_SCALED;
use crate::report::{Counts, StudyCosts, loss_rows_text, metric_heading, metric_value, target_note};
use crate::store::InheritedValue;
use peft_tune_core::objective::{Bound, Constraint, Direction};
use peft_tune_core::study::{Metrics, ParamValue, Trial, TrialNumber, TrialState};

/// Points that all curves of a page may have together: about a megabyte.
const CURVE_POINTS: usize = 60_000;
/// Points of one curve: more than a screen shows, and enough to see its shape.
const POINTS_A_CURVE: std::ops::RangeInclusive<usize> = 16..=300;

impl StudyView {
    /// Puts together what a page shows.
    pub fn new(input: &PageInput) -> Self {
        let names: BTreeSet<&String> = input.trials.iter().flat_map(|trial| trial.params.keys()).collect();
        let metrics = metric_names(input);
        let counts =
            Counts::of(&input.trials).with_variants(&input.trials, &InheritedValue::variants(&input.inherited));
        let growth = growth(
            &input.objectives,
            &input.constraints,
            &input.trials,
            &input.trial_wall_s,
        );
        Self {
            study: head(input),
            objectives: input
                .objectives
                .iter()
                .map(|one| objective(&one.metric, one.direction))
                .collect(),
            constraints: input.constraints.iter().map(constraint_text).collect(),
            counts_text: counts.to_text(),
            counts,
            params: names.iter().map(|name| axis(name, &input.trials)).collect(),
            trials: trials(input, &names, &metrics),
            metrics,
            answers: answers(input, growth.as_ref()),
            growth,
            curves: curves(&input.trial_curves),
            phases: input
                .trials
                .iter()
                .filter_map(|trial| phases(trial, &input.trial_curves))
                .collect(),
            memory: input.trials.iter().filter_map(|trial| memory(trial, input)).collect(),
            importance: input.importance.clone(),
            predictions: predictions(input),
            recommendation: recommendation(input),
            baseline: input.baseline.map(|number| number.0),
            findings: input.findings.clone(),
        }
    }
}

fn head(input: &PageInput) -> StudyHead {
    StudyHead {
        name: input.study.clone(),
        space: input.space.clone(),
        model: input.model.clone(),
        learnt: input.learnt.clone(),
        target: input.target.map(target_note),
        sampler: input.sampler.clone(),
        seed: input.seed.to_string(),
        began: input.began.clone(),
        resumed: input.resumed.clone(),
        wall_s: rounded(input.wall_s),
        cost: input.costs.as_ref().map(StudyCosts::search_text),
        scaling: input
            .scaling
            .iter()
            .take(MOST_SCALED)
            .map(ToString::to_string)
            .collect(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

fn objective(metric: &str, direction: Direction) -> ObjectiveView {
    ObjectiveView {
        metric: metric.to_owned(),
        label: metric_heading(metric),
        maximize: direction == Direction::Maximize,
    }
}

fn constraint_text(constraint: &Constraint) -> String {
    let name = metric_heading(&constraint.metric);
    match constraint.bound {
        Bound::AtMost(limit) => format!("{name} at most {}", metric_value(&constraint.metric, limit)),
        Bound::AtLeast(limit) => format!("{name} at least {}", metric_value(&constraint.metric, limit)),
    }
}

/// Objectives first, then what else was measured, by name.
fn metric_names(input: &PageInput) -> Vec<String> {
    let mut names: Vec<String> = input.objectives.iter().map(|one| one.metric.clone()).collect();
    let measured: BTreeSet<&str> = input
        .trials
        .iter()
        .filter_map(|trial| trial.state.metrics())
        .flat_map(|metrics| metrics.iter().map(|(name, _)| name))
        .collect();
    let rest: Vec<String> = measured
        .into_iter()
        .filter(|name| !names.iter().any(|known| known == name))
        .map(str::to_owned)
        .collect();
    names.extend(rest);
    names
}

fn axis(name: &str, trials: &[Trial]) -> AxisView {
    let values: Vec<&ParamValue> = trials.iter().filter_map(|trial| trial.params.get(name)).collect();
    let numbers: Vec<f64> = values.iter().filter_map(|value| value.as_f64()).collect();
    let number = !values.is_empty() && numbers.len() == values.len();
    let low = numbers.iter().copied().fold(f64::INFINITY, f64::min);
    let high = numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers = numbers.iter().all(|value| *value >= 1.0 && value.log2().fract() == 0.0);
    AxisView {
        name: name.to_owned(),
        number,
        // Ranks and batch sizes double; learning rates span decades.
        log: number && low > 0.0 && (high / low > 20.0 || (powers && high / low >= 4.0)),
    }
}

fn trials(input: &PageInput, names: &BTreeSet<&String>, metrics: &[String]) -> Vec<TrialView> {
    let front: BTreeSet<TrialNumber> = input.front.iter().copied().collect();
    let mut inherited: HashMap<u64, Vec<(String, u64)>> = HashMap::new();
    for value in &input.inherited {
        let of_trial = inherited.entry(value.trial.0).or_default();
        of_trial.push((value.part.clone(), value.source.0));
    }
    let none = Metrics::default();
    let variants = InheritedValue::variants(&input.inherited);
    let training_usd = |number| input.costs.as_ref()?.training_usd(number);
    let view = |trial: &Trial| {
        let measured = trial.state.metrics().unwrap_or(&none);
        let holds = |one: &Constraint| measured.value(&one.metric).is_some_and(|value| one.holds(value));
        let (mut outcome, detail) = outcome(&trial.state);
        if let Some(training) = variants.get(&trial.number) {
            outcome.push_str(&format!(", variant of {training}"));
        }
        if let Some(rows) = loss_rows_text(measured) {
            outcome.push_str(&format!(", {rows}"));
        }
        TrialView {
            number: trial.number.0,
            state: trial.state.name(),
            outcome,
            detail,
            params: names.iter().map(|name| trial.params.get(name).map(shown)).collect(),
            metrics: metrics.iter().map(|name| measured.value(name).map(rounded)).collect(),
            intervals: intervals(input, trial.number, metrics),
            front: front.contains(&trial.number),
            feasible: matches!(trial.state, TrialState::Complete { .. }) && input.constraints.iter().all(holds),
            wall_s: input.trial_wall_s.get(&trial.number).copied().map_or(0.0, rounded),
            full_training_usd: training_usd(trial.number).map(rounded),
            inherited: inherited.remove(&trial.number.0).unwrap_or_default(),
        }
    };
    let mut view = view;
    input.trials.iter().map(&mut view).collect()
}

/// The 95% intervals of what was measured more than once.
fn intervals(input: &PageInput, number: TrialNumber, metrics: &[String]) -> Vec<(usize, f64, f64)> {
    let Some(confirmed) = input.confirmed.get(&number) else {
        return Vec::new();
    };
    let interval = |(index, name): (usize, &String)| {
        let one = confirmed.get(name).filter(|one| one.repeats > 1)?;
        let half = one.value.abs() * one.interval;
        Some((index, rounded(one.value - half), rounded(one.value + half)))
    };
    metrics.iter().enumerate().filter_map(interval).collect()
}

fn curves(trial_curves: &[TrialCurves]) -> Vec<CurveView> {
    let whole: Vec<_> = trial_curves
        .iter()
        .flat_map(|one| one.curves.iter().map(|curve| (one.number, curve)))
        .filter(|(_, curve)| !curve.points.is_empty())
        .collect();
    let most = (CURVE_POINTS / whole.len().max(1)).clamp(*POINTS_A_CURVE.start(), *POINTS_A_CURVE.end());
    let thin = |(trial, curve): &(u64, &MeasuredCurve)| CurveView {
        trial: *trial,
        name: curve.name.clone(),
        over: curve.over,
        points: thinned(&curve.points, most)
            .into_iter()
            .filter(|(x, y)| x.is_finite() && y.is_finite())
            .map(|(x, y)| (rounded(x), rounded_to(y, 4)))
            .collect(),
    };
    whole.iter().map(thin).collect()
}

fn predictions(input: &PageInput) -> Vec<PredictionView> {
    let measured: HashMap<u64, &Metrics> = input
        .trials
        .iter()
        .filter_map(|trial| Some((trial.number.0, trial.state.metrics()?)))
        .collect();
    let mut by_metric: BTreeMap<&str, Vec<(u64, f64, f64)>> = BTreeMap::new();
    for one in &input.predictions {
        let Some(value) = measured
            .get(&one.number.0)
            .and_then(|metrics| metrics.value(&one.metric))
        else {
            continue;
        };
        by_metric
            .entry(&one.metric)
            .or_default()
            .push((one.number.0, rounded(one.value), rounded(value)));
    }
    let view = |(metric, points): (&str, Vec<_>)| PredictionView {
        metric: metric.to_owned(),
        points,
    };
    by_metric.into_iter().map(view).collect()
}

/// The answers in words, each with its picture.
fn answers(input: &PageInput, growth: Option<&Growth>) -> Vec<AnswerView> {
    let Some(answers) = &input.answers else {
        return Vec::new();
    };
    let one = |answer: Answer| AnswerView {
        picture: answer_picture(answer.name, &input.study, answers, growth),
        name: answer.name,
        question: answer.question,
        lines: answer.lines,
    };
    answers_text(answers).into_iter().map(one).collect()
}

fn recommendation(input: &PageInput) -> Option<RecommendationView> {
    let chosen = input.recommendation.as_ref()?;
    let trial = input.trials.iter().find(|trial| trial.number == chosen.trial)?;
    Some(RecommendationView {
        trial: chosen.trial.0,
        reason: chosen.reason.clone(),
        against_baseline: input.against_baseline.clone(),
        gains: input.gains.clone(),
        full_training: input.costs.as_ref().and_then(|costs| costs.training_text(chosen.trial)),
        settings: trial.params.clone(),
        recipe: input.recipe.clone(),
        commands: input.commands.clone(),
        confirmation: input.confirmation.clone(),
    })
}

/// A param for a page: floats to six digits, as sampled ones have up to 17.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::html::{MemoryParts, PhaseTimes, Prediction};
    use peft_tune_core::objective::{LOSS, Objective, PEAK_MEMORY, THROUGHPUT};
    use peft_tune_core::study::{FailReason, Params, Phase};

    fn trial(number: u64, rank: i64, state: TrialState) -> Trial {
        Trial {
            number: TrialNumber(number),
            params: Params::from([("rank".to_owned(), rank.into())]),
            state,
        }
    }

    fn input() -> PageInput {
        let measured = Metrics::from([
            (THROUGHPUT, 1_234.567_890_123),
            (PEAK_MEMORY, 100.0),
            (LOSS, 2.0),
            ("base_memory_bytes", 60.0),
            ("step_s", 1.0),
            ("forward_s", 0.25),
            ("backward_s", 0.5),
        ]);
        let reason = FailReason::OutOfMemory {
            phase: Phase::Train,
            in_use_bytes: Some(1 << 30),
            requested_bytes: None,
            limit_bytes: None,
        };
        let pruned = TrialState::Pruned {
            at_step: 7,
            rule: "median".into(),
            metrics: Metrics::default(),
        };
        PageInput {
            study: "a study".into(),
            objectives: [THROUGHPUT, PEAK_MEMORY, LOSS].map(Objective::new).to_vec(),
            trials: vec![
                trial(0, 4, TrialState::Complete { metrics: measured }),
                trial(
                    1,
                    64,
                    TrialState::Failed {
                        reason,
                        metrics: Metrics::default(),
                    },
                ),
                trial(2, 8, pruned),
            ],
            trial_wall_s: [(TrialNumber(0), 3.0)].into(),
            front: vec![TrialNumber(0)],
            trial_curves: vec![TrialCurves {
                number: 2,
                curves: vec![MeasuredCurve {
                    name: "training loss".into(),
                    over: "tokens",
                    points: vec![(1.0, 3.0), (2.0, f64::NAN), (3.0, 2.0)],
                }],
                phases: vec![PhaseTimes {
                    phase: Phase::Train,
                    steps: 4,
                    forward_s: 2.0,
                    total_s: 4.0,
                    ..Default::default()
                }],
            }],
            predictions: vec![Prediction {
                number: TrialNumber(0),
                metric: PEAK_MEMORY.into(),
                value: 90.0,
            }],
            ..PageInput::default()
        }
    }

    #[test]
    fn outcomes_tell_rule_and_reason() {
        let view = StudyView::new(&input());
        let outcomes: Vec<&str> = view.trials.iter().map(|trial| trial.outcome.as_str()).collect();
        assert_eq!(outcomes, ["complete", "out_of_memory", "pruned at step 7 (median)"]);
        assert_eq!(
            view.trials[1].detail.as_deref(),
            Some("in phase train, 1.00 GiB in use")
        );
        assert!(view.trials[0].front && view.trials[0].feasible && !view.trials[2].feasible);
        assert_eq!(view.trials[0].metrics[0], Some(1234.568));
        assert!(view.params[0].log, "ranks double");
    }

    #[test]
    fn time_and_memory_add_up_to_the_whole() {
        let view = StudyView::new(&input());
        let step: f64 = view.phases[0].parts.iter().map(|(_, seconds)| seconds).sum();
        assert_eq!((step, view.phases[0].parts[4]), (1.0, ("other", 0.25)));
        assert_eq!(view.phases[1].parts[1], ("forward", 0.5), "mean of the recorded steps");
        assert_eq!(
            view.memory[0].parts,
            [("base model".to_owned(), 60.0), ("training".to_owned(), 40.0)]
        );
        let mut input = input();
        input.memory = vec![MemoryParts {
            number: 0,
            parts: vec![("weights".into(), 60.0), ("logits".into(), 30.0)],
        }];
        assert_eq!(StudyView::new(&input).memory[0].parts[2], ("rest".to_owned(), 10.0));
    }

    #[test]
    fn predictions_stand_beside_what_was_measured() {
        let view = StudyView::new(&input());
        assert_eq!(view.predictions[0].points, [(0, 90.0, 100.0)]);
    }

    #[test]
    fn what_is_not_finite_is_left_out_of_curves() {
        assert_eq!(StudyView::new(&input()).curves[0].points, [(1.0, 3.0), (3.0, 2.0)]);
    }
}
