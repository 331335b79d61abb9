//! The answers in words.

use serde::Serialize;

use super::all::Answers;
use super::certainty::{LossCertainty, NoiseSource};
use super::coverage::{ComparedValue, Coverage, FEW};
use super::more_time::MoreTime;
use super::neighbours::{Comparison, Neighbour, NeighbourBasis, NeighbourMetric};
use super::values::rounded;
use crate::report::change as share_text;
use crate::report::{duration, metric_heading, metric_value, param_value};
use peft_tune_core::objective::LOSS;
use peft_tune_search::{Effect, Trend};

/// Parameters that a line names.
const MOST_NAMED: usize = 4;
/// Rivals that a line names.
const MOST_RIVALS: usize = 5;
/// Share of a metric below which a difference is not named.
const LEAST_NAMED: f64 = 0.005;

/// One answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Name of its picture.
    pub name: &'static str,
    pub question: &'static str,
    /// Sentences without full stop.
    pub lines: Vec<String>,
}

/// Every answer that the trials give, in the order in which people ask.
pub fn answers_text(answers: &Answers) -> Vec<Answer> {
    let one = |name, question, lines| Answer { name, question, lines };
    let all = [
        one(
            "neighbours",
            "Why this setting and not its neighbours",
            answers.neighbours.iter().map(neighbour_line).collect(),
        ),
        one(
            "worth",
            "What each setting is worth (the other settings held)",
            worth_lines(&answers.worth),
        ),
        one(
            "coverage",
            "Where the search did not look",
            coverage_lines(&answers.coverage),
        ),
        one(
            "loss-certainty",
            "How sure the loss is",
            answers.loss.as_ref().map(loss_lines).unwrap_or_default(),
        ),
        one(
            "more-time",
            "What ten more minutes would bring",
            answers.more_time.as_ref().map(more_time_lines).unwrap_or_default(),
        ),
    ];
    all.into_iter().filter(|answer| !answer.lines.is_empty()).collect()
}

/// `rank 16 instead of 32 (predicted): worse in loss; tokens/s 20,100 (19,000 to 21,200), loss 1.9800 (1.9500 to 2.0200)`.
fn neighbour_line(one: &Neighbour) -> String {
    let change = format!(
        "{} {} instead of {}",
        one.parameter,
        param_value(&one.value),
        param_value(&one.from)
    );
    let values: Vec<String> = one.metrics.iter().map(metric_text).collect();
    match &one.basis {
        NeighbourBasis::Ended { trial, outcome } => format!("{change} (trial {trial}): {outcome}"),
        NeighbourBasis::Measured { trial } => {
            format!(
                "{change} (measured, trial {trial}): {}; {}",
                verdict(one),
                values.join(", ")
            )
        }
        NeighbourBasis::Predicted => format!("{change} (predicted): {}; {}", verdict(one), values.join(", ")),
    }
}

fn metric_text(one: &NeighbourMetric) -> String {
    let value = |value: f64| metric_value(&one.metric, value);
    let (low, middle, high) = (value(one.low), value(one.value), value(one.high));
    let heading = metric_heading(&one.metric);
    match low == high {
        true => format!("{heading} {middle}"),
        false => format!("{heading} {middle} ({low} to {high})"),
    }
}

fn verdict(one: &Neighbour) -> String {
    let of = |comparison: Comparison| -> Vec<String> {
        let all = one.metrics.iter().filter(|metric| metric.comparison == comparison);
        all.map(|metric| metric.metric.replace('_', " ")).collect()
    };
    let (better, worse, unsure) = (
        of(Comparison::Better),
        of(Comparison::Worse),
        of(Comparison::CannotTell),
    );
    let mut parts = Vec::new();
    if !worse.is_empty() {
        parts.push(format!("worse in {}", worse.join(" and ")));
    }
    if !better.is_empty() {
        parts.push(format!("better in {}", better.join(" and ")));
    }
    if !unsure.is_empty() {
        parts.push(format!("not known to differ in {}", unsure.join(" and ")));
    }
    match parts.is_empty() {
        true => "the same".to_owned(),
        false => parts.join(", "),
    }
}

/// One line an objective: what the best value of each parameter gains over the worst, and what the trials cannot tell.
fn worth_lines(effects: &[Effect]) -> Vec<String> {
    let mut metrics: Vec<&str> = Vec::new();
    for effect in effects {
        if !metrics.contains(&effect.metric.as_str()) {
            metrics.push(&effect.metric);
        }
    }
    metrics
        .into_iter()
        .filter_map(|metric| worth_line(metric, effects))
        .collect()
}

fn worth_line(metric: &str, effects: &[Effect]) -> Option<String> {
    let own: Vec<&Effect> = effects.iter().filter(|effect| effect.metric == metric).collect();
    let mut told: Vec<&Effect> = own
        .iter()
        .copied()
        .filter(|one| one.tells && spread(one) >= LEAST_NAMED)
        .collect();
    told.sort_by(|a, b| spread(b).total_cmp(&spread(a)));
    let named: Vec<String> = told
        .iter()
        .take(MOST_NAMED)
        .map(|one| {
            let (best, worst) = (param_value(&rounded(&one.best)), param_value(&rounded(&one.worst)));
            format!("{} {best} against {worst} {}", one.parameter, share_text(change(one)))
        })
        .collect();
    let untold = |one: &&&Effect| !one.tells && spread(one) >= LEAST_NAMED;
    let untold: Vec<&str> = own.iter().filter(untold).map(|one| one.parameter.as_str()).collect();
    let predicted = if own.iter().any(|one| one.predicted) {
        " (predicted, corrected by trials)"
    } else {
        ""
    };
    let mut parts = Vec::new();
    if !named.is_empty() {
        parts.push(named.join("; "));
    }
    if !untold.is_empty() {
        parts.push(format!("the trials cannot tell: {}", untold.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("{}{predicted}: {}", metric.replace('_', " "), parts.join("; ")))
}

/// How much better the best value is than the worst, as a share of the worst's metric; its sign is the metric's.
fn change(effect: &Effect) -> f64 {
    let change = (effect.best_value - effect.worst_value) / effect.worst_value.abs();
    if change.is_finite() { change } else { 0.0 }
}

fn spread(effect: &Effect) -> f64 {
    change(effect).abs()
}

/// `loss is best at 0.003 (1.92) and worst at 1e-5 (2.40), best between the ends`.
pub fn effect_sentence(effect: &Effect) -> String {
    let metric = effect.metric.replace('_', " ");
    let value = |value: f64| metric_value(&effect.metric, value);
    let (best, worst) = (param_value(&effect.best), param_value(&effect.worst));
    let (best_value, worst_value) = (value(effect.best_value), value(effect.worst_value));
    let predicted = if effect.predicted {
        ", as predicted and corrected by trials"
    } else {
        ""
    };
    let along = match effect.trend {
        Trend::Flat => return format!("{metric} hardly depends on it (about {best_value})"),
        _ if !effect.tells => {
            return format!(
                "the trials cannot tell how {metric} depends on it; the best guess is {best} ({best_value})"
            );
        }
        Trend::Rises => ", rising with it",
        Trend::Falls => ", falling with it",
        Trend::BestInside => ", best between the ends",
        Trend::WorstInside => ", worst between the ends",
        Trend::Uneven => "",
    };
    format!("{metric} is best at {best} ({best_value}) and worst at {worst} ({worst_value}){along}{predicted}")
}

fn coverage_lines(coverage: &[Coverage]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for one in coverage {
        let few: Vec<String> = one
            .cells
            .iter()
            .filter(|cell| cell.trainings < FEW)
            .map(|cell| match cell.trainings {
                0 => format!("{} had no training", cell.values),
                _ => format!("{} had one", cell.values),
            })
            .collect();
        if !few.is_empty() {
            lines.push(format!("{}: {}", one.parameter, few.join(", ")));
        }
        if let Some(edge) = &one.edge {
            let (end, beyond) = if edge.highest {
                ("highest", "above")
            } else {
                ("lowest", "below")
            };
            lines.push(format!(
                "{}: the best (trial {}) is at the {end} value, {}: widen the range {beyond} it",
                one.parameter,
                edge.trial,
                param_value(&edge.value)
            ));
        }
    }
    if lines.is_empty() && !coverage.is_empty() {
        lines.push("every value, and every fifth of a range, had at least two trainings".to_owned());
    }
    lines.extend(coverage.iter().filter_map(widened_line));
    for one in coverage {
        lines.extend(one.compared.iter().map(|value| compared_line(&one.parameter, value)));
    }
    lines
}

/// `attn_implementation: predictions do not tell what eager costs; beside sdpa it measured throughput +3.1%, peak memory +12.0%
/// (trials 4 and 1)`.
fn compared_line(parameter: &str, one: &ComparedValue) -> String {
    let (value, beside) = (param_value(&one.value), param_value(&one.beside));
    let changes = one.changes.iter();
    let changes: Vec<String> = changes
        .map(|one| format!("{} {}", one.metric.replace('_', " "), share_text(one.change)))
        .collect();
    let changes = changes.join(", ");
    match one.trials {
        Some([own, other]) => format!(
            "{parameter}: predictions do not tell what {value} costs; beside {beside} it measured {changes} (trials {own} and {other})"
        ),
        None => format!("{parameter}: {value} was not measured beside {beside}: predicted is {changes}"),
    }
}

/// `learning_rate: the search widened its range to 1e-4..0.008, from 1e-4..0.002`
fn widened_line(one: &Coverage) -> Option<String> {
    let (first, last) = (one.widened.first()?, one.widened.last()?);
    Some(format!(
        "{}: the search widened its range to {}, from {}",
        one.parameter, last.to, first.from
    ))
}

fn loss_lines(one: &LossCertainty) -> Vec<String> {
    let loss = metric_value(LOSS, one.loss);
    let half = metric_value(LOSS, one.half_interval);
    let from = match one.source {
        NoiseSource::Repeats { repeats } => format!("±{half} with 95%, from {repeats} repeats"),
        NoiseSource::Evaluation => format!("±{half} with 95%, from its own evaluation"),
        NoiseSource::Assumed => {
            format!("taken as ±{half} (1%): it was trained once, so nothing measured says what another seed would give")
        }
    };
    let within: Vec<String> = one
        .rivals
        .iter()
        .filter(|rival| rival.within_noise)
        .map(|rival| format!("{} ({})", rival.trial, metric_value(LOSS, rival.loss)))
        .collect();
    let rivals = match within.len() {
        0 => "no other training lies within that".to_owned(),
        count => {
            let more = match count > MOST_RIVALS {
                true => format!(" and {} more", count - MOST_RIVALS),
                false => String::new(),
            };
            let shown = &within[..count.min(MOST_RIVALS)];
            format!("within that, by the loss alone, lie trial {}{more}", shown.join(", "))
        }
    };
    vec![format!("trial {}: {loss}, {from}", one.trial), rivals]
}

fn more_time_lines(one: &MoreTime) -> Vec<String> {
    let percent = |share: f64| match share {
        share if share.abs() < 0.0005 => "less than 0.1%".to_owned(),
        // Of a front that has hardly begun.
        share if share > 2.0 => "over 200%".to_owned(),
        share => format!("{:.1}%", 100.0 * share),
    };
    let mut lines = vec![format!(
        "about {} more trials, at {} each one after another",
        one.trials,
        duration(one.trial_s)
    )];
    if let Some(recent) = &one.recent {
        let loss = match recent.loss {
            Some(loss) if loss > 0.0 => format!(", and took {} off the best loss", metric_value(LOSS, loss)),
            Some(_) => ", and did not lower the best loss".to_owned(),
            None => String::new(),
        };
        let trials = match recent.trials {
            1 => "last trial".to_owned(),
            count => format!("last {count} trials"),
        };
        lines.push(format!(
            "the {trials} ({}) added {} to the hypervolume{loss}",
            duration(recent.seconds),
            percent(recent.hypervolume)
        ));
    }
    lines.push(match &one.expected {
        None => "the model proposes nothing more".to_owned(),
        Some(expected) => {
            let each: Vec<String> = expected.proposals.iter().map(|share| percent(*share)).collect();
            format!(
                "the model expects {} of its next proposals, one by one; were all to fall like that, ten minutes would add \
                 {}: a guess",
                each.join(", "),
                percent(expected.all)
            )
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::objective::THROUGHPUT;

    #[test]
    fn a_neighbour_says_where_its_values_come_from_and_what_is_not_known() {
        let metric = |metric: &str, value: f64, half: f64, comparison| NeighbourMetric {
            metric: metric.to_owned(),
            value,
            low: value - half,
            high: value + half,
            change: 0.0,
            comparison,
        };
        let mut one = Neighbour {
            parameter: "rank".to_owned(),
            from: 32i64.into(),
            value: 16i64.into(),
            basis: NeighbourBasis::Predicted,
            metrics: vec![
                metric(THROUGHPUT, 2000.0, 100.0, Comparison::CannotTell),
                metric(LOSS, 2.0, 0.0, Comparison::Worse),
            ],
        };
        assert_eq!(
            neighbour_line(&one),
            "rank 16 instead of 32 (predicted): worse in loss, not known to differ in throughput; \
             tokens/s 2,000 (1,900 to 2,100), loss 2.0000"
        );
        one.basis = NeighbourBasis::Ended {
            trial: peft_tune_core::study::TrialNumber(7),
            outcome: "out_of_memory".to_owned(),
        };
        assert_eq!(neighbour_line(&one), "rank 16 instead of 32 (trial 7): out_of_memory");
    }
}
