//! Which trial of a front to take: the fastest with nearly the best loss, or what the user asked for, and why in one
//! sentence.
//!
//! People want the best loss that they can get, and then not to wait for it; memory that is free is worth nothing to
//! them. So the default is the fastest trial whose loss is at most 1% above the best ([`NEAR_BEST_LOSS`]). Without
//! both objectives it is the knee.

use std::collections::BTreeSet;

use super::cheaper_precision::{in_cheaper_precision, instead_of};
use super::history::{Evaluated, evaluated};
use super::knee::{LEARNED_SHARE, Scaled, learned_limit, scales};
use super::long_training::{LongTrainings, diverged};
use super::loss_margins::NEAR_BEST_LOSS;
use super::reason::{bound_text, limits_text, numbers_text, value_text};
use super::{Problem, pareto_front};
use peft_tune_core::objective::{Bound, Constraint, Direction, LOSS, Objective, THROUGHPUT, counted_as};
use peft_tune_core::study::{Trial, TrialNumber};

/// How to choose among the trials that keep every limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Rule {
    /// The fastest of the trials whose loss is at most [`NEAR_BEST_LOSS`] above the best, or as far above as `slack`
    /// says. Where throughput and loss are not both objectives, as [`Rule::Knee`].
    #[default]
    Fastest,
    /// The knee of the front, among the trials that learn nearly as much as the best where `slack` does not speak of the
    /// loss.
    Knee,
    /// The least weighted sum of the scaled objectives; an objective that is not named has weight 0.
    Weights(Vec<(String, f64)>),
    /// The best value of one metric.
    Prefer(String),
}

/// What the user asks of the recommended trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Preference {
    pub rule: Rule,
    /// Limits beside the study's own constraints, such as `peak_memory <= 16 GiB`.
    pub limits: Vec<Constraint>,
    /// How much worse than the best trial's a metric may be, as a share: `("loss", 0.01)` allows 1% more loss.
    pub slack: Vec<(String, f64)>,
}

/// The trial to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation<'a> {
    pub trial: &'a Trial,
    /// One sentence with the numbers that decided.
    pub reason: String,
}

/// Why there is nothing to recommend; the message says what would have to give.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecommendError {
    #[error("no trial is complete with every objective known: run more trials")]
    NothingComplete,
    #[error("`{metric}` is not an objective of this study: use one of {known}")]
    UnknownMetric { metric: String, known: String },
    /// `closest` is the best value that any complete trial reaches.
    #[error("no complete trial has {metric} {bound}: the closest is trial {number} with {closest}; relax that limit")]
    LimitOutOfReach {
        metric: String,
        bound: String,
        closest: String,
        number: u64,
    },
    #[error("every limit is kept by some trial but no trial keeps them all ({limits}): relax one of them")]
    LimitsConflict { limits: String },
}

/// Recommends one complete trial of `history`. Where the loss decides and some trainings were made longer, the loss of each trial
/// is the one that all trainings let expect at the full length: what is best after a short training need not be after a long one.
/// Then the cheapest by the wish is taken of those whose loss is nearly the best. A trial that diverged in a longer training is taken
/// where no other keeps the limits.
///
/// # Errors
/// Where nothing is complete, a metric is not an objective, or no trial keeps the limits.
pub fn recommend<'a>(
    problem: &Problem,
    history: &'a [Trial],
    preference: &Preference,
) -> Result<Recommendation<'a>, RecommendError> {
    let by_loss = match &preference.rule {
        Rule::Fastest => true,
        Rule::Prefer(metric) => metric == LOSS,
        Rule::Knee | Rule::Weights(_) => false,
    };
    if by_loss
        && let Some(longer) = LongTrainings::of(history)
        && let Ok(chosen) = choose(problem, &longer.trials, history, preference)
        && let Some(trial) = history.iter().find(|trial| trial.number == chosen.trial.number)
    {
        let Choice { why, numbers, .. } = &chosen;
        let (number, said, outlook) = (trial.number, longer.said(), longer.outlook(trial));
        return Ok(Recommendation {
            trial,
            reason: format!("trial {number} {why} {said}: {numbers}{outlook}"),
        });
    }
    let diverged = if by_loss { diverged(history) } else { BTreeSet::new() };
    if let Some(sound) = others_than(&diverged, history)
        && let Ok(chosen) = choose(problem, &sound, history, preference)
        && let Some(trial) = history.iter().find(|trial| trial.number == chosen.trial.number)
    {
        let Choice { why, numbers, .. } = &chosen;
        let (number, left_out) = (trial.number, numbers_of(&diverged));
        return Ok(Recommendation {
            trial,
            reason: format!("trial {number} {why}: {numbers}; left out as the longer training diverged: {left_out}"),
        });
    }
    let chosen = choose(problem, history, history, preference)?;
    let warned = match diverged.contains(&chosen.trial.number) {
        true => "; its longer training diverged",
        false => "",
    };
    Ok(Recommendation {
        trial: chosen.trial,
        reason: format!(
            "trial {} {}: {}{warned}",
            chosen.trial.number, chosen.why, chosen.numbers
        ),
    })
}

/// The trials but for these; `None` where these are none.
fn others_than(left_out: &BTreeSet<TrialNumber>, history: &[Trial]) -> Option<Vec<Trial>> {
    let others = history.iter().filter(|trial| !left_out.contains(&trial.number));
    (!left_out.is_empty()).then(|| others.cloned().collect())
}

/// Numbers of trials in words: `trials 1, 4`.
fn numbers_of(trials: &BTreeSet<TrialNumber>) -> String {
    let numbers: Vec<String> = trials.iter().map(|number| number.0.to_string()).collect();
    let noun = if numbers.len() == 1 { "trial" } else { "trials" };
    format!("{noun} {}", numbers.join(", "))
}

/// A trial that was chosen, what is said of it, and its numbers.
struct Choice<'a> {
    trial: &'a Trial,
    why: String,
    numbers: String,
}

/// `history` has the losses that count, and `measured` those of the trials themselves.
fn choose<'a>(
    problem: &Problem,
    history: &'a [Trial],
    measured: &[Trial],
    preference: &Preference,
) -> Result<Choice<'a>, RecommendError> {
    check_metrics(problem, preference)?;
    let (preference, implied) = &explicit(problem, preference);
    let complete = evaluated(problem, history);
    if complete.is_empty() {
        return Err(RecommendError::NothingComplete);
    }
    let mut limited = problem.clone();
    limited.constraints.extend(preference.limits.iter().cloned());
    // The default's slack is of the best that keeps the limits.
    let implied = slack_limits(problem, &evaluated(&limited, history), implied);
    limited
        .constraints
        .extend(slack_limits(problem, &complete, &preference.slack));
    let asked_for = (!implied.is_empty()).then(|| limited.clone());
    limited.constraints.extend(implied);
    // The user's own slack counts instead.
    let speaks_of_loss = preference.slack.iter().any(|(metric, _)| metric == LOSS);
    let learned = match preference.rule {
        Rule::Knee if !speaks_of_loss => learned_limit(&limited, &complete),
        _ => None,
    };
    limited.constraints.extend(learned.clone());
    let front = pareto_front(&limited, history);
    if front.is_empty() {
        return Err(what_must_give(&limited, &complete));
    }
    let scaled = Scaled::new(&front, &scales(problem, &front, learned.as_ref()));
    let (chosen, why) = choice(&limited, &scaled, &preference.rule, learned.is_some());
    // What the knee's name says already is not said again.
    let said = limited.constraints.len() - usize::from(learned.is_some());
    let kept = match preference.rule {
        Rule::Fastest | Rule::Knee | Rule::Weights(_) if said > 0 => {
            format!(" with {}", limits_text(&limited.constraints[..said]))
        }
        _ => String::new(),
    };
    // What keeps the limits may be far from what does not.
    let beyond = match said {
        0 => "",
        1 => " without that limit",
        _ => " without those limits",
    };
    let (chosen, mut why) = (&front[chosen], format!("{why}{kept}"));
    // What was asked for is kept; that the loss is nearly the best is what the default adds.
    let front = asked_for.map(|asked_for| pareto_front(&asked_for, history));
    let cheaper = front
        .as_deref()
        .and_then(|front| in_cheaper_precision(problem, front, chosen, measured));
    if let Some(cheaper) = cheaper {
        why = format!("{}; trial {} {why}", instead_of(chosen, cheaper), chosen.trial.number);
    }
    let taken = cheaper.unwrap_or(chosen);
    Ok(Choice {
        trial: taken.trial,
        why,
        numbers: numbers_text(problem, &complete, taken, beyond),
    })
}

/// The point of a front that a rule takes, and what is said of it. `learned` says that only those that learn nearly as much
/// as the best are on it.
fn choice(limited: &Problem, scaled: &Scaled, rule: &Rule, learned: bool) -> (usize, String) {
    match rule {
        Rule::Fastest | Rule::Knee => (scaled.knee(), format!("is {}", knee_name(scaled.len(), learned))),
        Rule::Weights(weights) => {
            let weights = weights_of(limited, weights);
            (
                scaled.least(|point| point.iter().zip(&weights).map(|(u, w)| u * w).sum()),
                "has the best weighted sum of the objectives".to_owned(),
            )
        }
        Rule::Prefer(metric) => {
            let mut objectives = limited.objectives.iter();
            let index = objectives.position(|one| one.metric == *metric).unwrap_or(0);
            let among = if limited.constraints.is_empty() {
                "of all".to_owned()
            } else {
                format!("with {}", limits_text(&limited.constraints))
            };
            // The sum decides between equals.
            let key = |point: &[f64]| point[index] + 1e-9 * point.iter().sum::<f64>();
            (scaled.least(key), format!("has the best {metric} {among}"))
        }
    }
}

/// The preference with the default rule spelled out, and the slack that it implies.
fn explicit(problem: &Problem, preference: &Preference) -> (Preference, Vec<(String, f64)>) {
    let (mut preference, mut implied) = (preference.clone(), Vec::new());
    if preference.rule == Rule::Fastest {
        let has = |metric: &str| problem.objectives.iter().any(|objective| objective.metric == metric);
        let speed = counted_as(THROUGHPUT, &problem.objectives);
        if has(LOSS) && has(speed) {
            preference.rule = Rule::Prefer(speed.to_owned());
            if !preference.slack.iter().any(|(metric, _)| metric == LOSS) {
                implied.push((LOSS.to_owned(), NEAR_BEST_LOSS));
            }
        } else {
            preference.rule = Rule::Knee;
        }
    }
    (preference, implied)
}

fn knee_name(points: usize, learned: bool) -> String {
    let share = 100.0 * LEARNED_SHARE;
    match (points, learned) {
        (1, false) => "better than or equal to every other in every objective".to_owned(),
        (_, false) => format!("the knee of a front of {points}"),
        (1, true) => format!("the only one on the front whose loss fell at least {share:.0}% as far as the best one's"),
        (_, true) => {
            format!(
                "the best compromise of the {points} on the front whose loss fell at least {share:.0}% as far as the best one's"
            )
        }
    }
}

fn check_metrics(problem: &Problem, preference: &Preference) -> Result<(), RecommendError> {
    let mut named: Vec<&String> = preference.slack.iter().map(|(metric, _)| metric).collect();
    match &preference.rule {
        Rule::Fastest | Rule::Knee => {}
        Rule::Weights(weights) => named.extend(weights.iter().map(|(metric, _)| metric)),
        Rule::Prefer(metric) => named.push(metric),
    }
    let known = |metric: &String| problem.objectives.iter().any(|one| one.metric == *metric);
    match named.into_iter().find(|metric| !known(metric)) {
        None => Ok(()),
        Some(metric) => Err(RecommendError::UnknownMetric {
            metric: metric.clone(),
            known: problem
                .objectives
                .iter()
                .map(|one| one.metric.as_str())
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

/// Turns a share of the best value into a limit.
fn slack_limits(problem: &Problem, complete: &[Evaluated<'_>], slack: &[(String, f64)]) -> Vec<Constraint> {
    let limit = |(metric, share): &(String, f64)| {
        let index = problem.objectives.iter().position(|one| one.metric == *metric)?;
        let feasible = complete.iter().filter(|one| one.is_feasible());
        let best = feasible.map(|one| one.values[index]).min_by(f64::total_cmp)?;
        let bound = best + share * best.abs();
        Some(Constraint {
            metric: metric.clone(),
            bound: match problem.objectives[index].direction {
                Direction::Minimize => Bound::AtMost(bound),
                Direction::Maximize => Bound::AtLeast(-bound),
            },
        })
    };
    slack.iter().filter_map(limit).collect()
}

fn weights_of(problem: &Problem, weights: &[(String, f64)]) -> Vec<f64> {
    let weight = |objective: &Objective| {
        let named = weights.iter().find(|(metric, _)| *metric == objective.metric);
        named.map_or(0.0, |(_, weight)| *weight)
    };
    problem.objectives.iter().map(weight).collect()
}

/// The first limit that no trial keeps, with the trial that comes closest, or that the limits contradict each other.
fn what_must_give(limited: &Problem, complete: &[Evaluated<'_>]) -> RecommendError {
    for constraint in &limited.constraints {
        let measured = complete.iter().filter_map(|one| {
            let value = one.trial.state.metrics()?.value(&constraint.metric)?;
            Some((one.trial.number.0, value))
        });
        let distance = |value: f64| match constraint.bound {
            Bound::AtMost(limit) => value - limit,
            Bound::AtLeast(limit) => limit - value,
        };
        let closest = measured.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        match closest {
            Some((_, value)) if constraint.holds(value) => {}
            Some((number, value)) => {
                return RecommendError::LimitOutOfReach {
                    metric: constraint.metric.clone(),
                    bound: bound_text(constraint),
                    closest: value_text(&constraint.metric, value),
                    number,
                };
            }
            None => {
                return RecommendError::LimitOutOfReach {
                    metric: constraint.metric.clone(),
                    bound: bound_text(constraint),
                    closest: "no measured value".to_owned(),
                    number: complete.first().map_or(0, |one| one.trial.number.0),
                };
            }
        }
    }
    RecommendError::LimitsConflict {
        limits: limits_text(&limited.constraints),
    }
}

#[cfg(test)]
mod tests;
