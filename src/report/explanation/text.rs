//! The words of `peft-tune explain`.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::contents::Explanation;
use super::failures::failure_lines;
use crate::report::answers::{Answer, answers_text, effect_sentence};
use crate::report::{
    Align, Counts, TextTable, confirmation_text, duration, metric_heading, metric_value, param_value, printable,
    target_text,
};
use peft_tune_core::objective::Objective;
use peft_tune_core::study::{ParamValue, Trial, TrialNumber};
use peft_tune_search::{Effect, EffectPoint, Importance, Proposal};

/// Shares below this are not named.
const LEAST_NAMED: f64 = 0.01;
/// Parameters that an objective's line names.
const MOST_NAMED: usize = 5;
/// Rows of a table of places.
const MOST_PLACES: usize = 9;

/// What the recommended trial's full training costs, and what the search did.
fn cost_lines(one: &Explanation, number: TrialNumber) -> Vec<String> {
    let Some(costs) = &one.costs else { return Vec::new() };
    let training = costs.training_text(number);
    let training = training.map(|text| format!("  full training: {}", printable(&text)));
    let search = format!("  the search cost {}", printable(&costs.search_text()));
    training.into_iter().chain([search]).collect()
}

/// The whole explanation as text.
pub fn explanation_text(one: &Explanation, width: Option<usize>) -> String {
    let counts = Counts::of(&one.trials).with_variants(&one.trials, &one.variants);
    let mut text = format!(
        "study {}: {}, {}\n",
        printable(&one.study.name),
        counts.to_text(),
        duration(one.study.wall_s)
    );
    let mut answers: Vec<Answer> = answers_text(&one.answers);
    let mut answer = |name: &str| {
        let found = answers.iter().position(|answer| answer.name == name);
        found
            .map(|index| answers.remove(index))
            .map(answer_section)
            .unwrap_or_default()
    };
    text.push_str(&recommendation(one));
    text.push_str(&answer("neighbours"));
    text.push_str(&what_matters(&one.importance));
    text.push_str(&answer("worth"));
    for (parameter, effects) in &one.effects {
        text.push_str(&how_it_works(parameter, effects, width));
    }
    for name in ["coverage", "loss-certainty"] {
        text.push_str(&answer(name));
    }
    text.push_str(&section("What failed or was stopped", failure_lines(&one.trials)));
    text.push_str(&progress(one));
    text.push_str(&answer("more-time"));
    text.push_str(&next(one, width));
    text
}

/// The most important parameters of every objective in one line: what the end of a search shows.
pub fn importance_line(importance: &[Importance]) -> Option<String> {
    let parts: Vec<String> = importance
        .iter()
        .filter_map(|one| {
            let shares = one.shares.iter().take(2).filter(|share| share.total >= 0.1);
            let named: Vec<String> = shares
                .map(|share| format!("{} {}", printable(&share.parameter), percent(share.total)))
                .collect();
            let metric = printable(&one.metric.replace('_', " "));
            (!named.is_empty()).then(|| format!("{metric} by {}", named.join(" and ")))
        })
        .collect();
    (!parts.is_empty()).then(|| format!("decided most: {}", parts.join("; ")))
}

fn answer_section(answer: Answer) -> String {
    let lines = answer.lines.iter().map(|line| format!("  {}", printable(line)));
    section(answer.question, lines.collect())
}

fn section(heading: &str, lines: Vec<String>) -> String {
    match lines.is_empty() {
        true => String::new(),
        false => format!("\n{heading}\n{}\n", lines.join("\n")),
    }
}

fn recommendation(one: &Explanation) -> String {
    let (number, reason) = match &one.recommendation {
        Ok(chosen) => chosen,
        Err(reason) => return section("Recommendation", vec![format!("  none: {}", printable(reason))]),
    };
    let mut lines = vec![format!("  {}", printable(reason))];
    if let Some(trial) = one.trials.iter().find(|trial| trial.number == *number) {
        let params: Vec<String> = trial
            .params
            .iter()
            .map(|(name, value)| format!("{} {}", printable(name), param_value(value)))
            .collect();
        lines.push(format!("  settings: {}", params.join(", ")));
        let both = trial
            .state
            .metrics()
            .and_then(|metrics| target_text(one.study.target, metrics));
        lines.extend(both.map(|text| format!("  {text}")));
        lines.extend(predicted_beside_measured(one, trial));
    }
    lines.extend(confirmation_text(one.confirmed.get(number)).map(|text| format!("  {}", printable(&text))));
    lines.extend(one.against_baseline.iter().map(|text| format!("  {}", printable(text))));
    lines.extend(cost_lines(one, *number));
    section("Recommendation", lines)
}

/// What was predicted of the recommended trial before it ran, beside what it measured.
fn predicted_beside_measured(one: &Explanation, trial: &Trial) -> Option<String> {
    let parts: Vec<String> = one
        .predictions
        .iter()
        .filter_map(|prediction| {
            let measured = trial.state.metrics()?.value(&prediction.metric)?;
            Some(format!(
                "{} {} (measured {})",
                printable(&prediction.metric.replace('_', " ")),
                metric_value(&prediction.metric, prediction.value),
                metric_value(&prediction.metric, measured)
            ))
        })
        .collect();
    (!parts.is_empty()).then(|| format!("  predicted before it ran: {}", parts.join(", ")))
}

/// One line an objective: the shares of its variation over the search space.
fn what_matters(importance: &[Importance]) -> String {
    let line = |one: &Importance| {
        let named: Vec<String> = one
            .shares
            .iter()
            .filter(|share| share.total >= LEAST_NAMED)
            .take(MOST_NAMED)
            .map(|share| {
                let alone = match share.total - share.first >= 0.05 {
                    true => format!(" ({} alone)", percent(share.first)),
                    false => String::new(),
                };
                format!("{} {}{alone}", printable(&share.parameter), percent(share.total))
            })
            .collect();
        let named = if named.is_empty() {
            "nothing that was searched".to_owned()
        } else {
            named.join(", ")
        };
        format!("  {}: {named}", printable(&one.metric.replace('_', " ")))
    };
    section(
        "What matters (share of each objective's variation over the search space)",
        importance.iter().map(line).collect(),
    )
}

fn how_it_works(parameter: &str, effects: &[Effect], width: Option<usize>) -> String {
    let mut text = format!("\n{}\n", printable(parameter));
    for effect in effects {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}", printable(&effect_sentence(effect)));
    }
    if let Some(table) = places(effects, width) {
        let _ = writeln!(text, "\n{table}");
    }
    text
}

/// The objectives along the parameter, the other settings held, with the 90% interval of each difference to the others.
fn places(effects: &[Effect], width: Option<usize>) -> Option<String> {
    let first = effects.first()?;
    let count = first.places.len();
    let mut columns = vec![(first.parameter.clone(), Align::Right)];
    columns.extend(
        effects
            .iter()
            .map(|effect| (metric_heading(&effect.metric), Align::Right)),
    );
    let mut table = TextTable::new(columns);
    let shown = count.min(MOST_PLACES);
    for row in 0..shown {
        let index = if shown < 2 { 0 } else { row * (count - 1) / (shown - 1) };
        let mut cells = vec![short(&first.places[index].value)];
        cells.extend(effects.iter().map(|effect| {
            let place = effect.places.get(index);
            place.map_or_else(|| "-".to_owned(), |place| place_text(effect, place))
        }));
        table.push(cells);
    }
    (count > 1).then(|| table.to_text(width))
}

fn place_text(effect: &Effect, place: &EffectPoint) -> String {
    let value = |value: f64| metric_value(&effect.metric, value);
    let (low, high) = (value(place.low), value(place.high));
    match low == high {
        true => value(place.median),
        false => format!("{} ({low} to {high})", value(place.median)),
    }
}

fn short(value: &ParamValue) -> String {
    match value {
        ParamValue::Float(value) => crate::report::significant(*value),
        other => param_value(other),
    }
}

fn progress(one: &Explanation) -> String {
    let mut lines = Vec::new();
    let now = one.volumes.last().copied().unwrap_or(0.0);
    if now > 0.0 {
        let count = one.volumes.len();
        let mut marks: Vec<usize> = [1, 2, 3].map(|quarter| (quarter * count / 4).max(1)).to_vec();
        marks.dedup();
        let marks: Vec<String> = marks
            .into_iter()
            .map(|trials| format!("{:.1}% after {trials}", 100.0 * one.volumes[trials - 1] / now))
            .collect();
        let last = one
            .volumes
            .iter()
            .position(|volume| *volume >= now)
            .map_or(count, |index| index + 1);
        lines.push(format!(
            "  hypervolume {now:.4e} after {count} trials ({}); trial {last} of them was the last to raise it",
            marks.join(", ")
        ));
    }
    lines.extend(
        one.ending
            .as_ref()
            .map(|ending| format!("  the search ended: {}", printable(&ending.reason))),
    );
    lines.push(match &one.done {
        _ if one.next.is_empty() => "  there is nothing left to propose".to_owned(),
        Some(reason) => format!("  it is done by the usual rule: {}", printable(reason)),
        None => "  it is not done by the usual rule: further trials may still find something better".to_owned(),
    });
    section("How far it came", lines)
}

fn next(one: &Explanation, width: Option<usize>) -> String {
    if one.next.is_empty() {
        return section(
            "What to try next",
            vec!["  nothing: every setting was tried, or there is no model of them".to_owned()],
        );
    }
    format!(
        "\nWhat to try next (predicted medians with 90% intervals, and the expected gain in hypervolume)\n\n{}\n",
        proposal_table(one).to_text(width)
    )
}

/// The proposals: what is predicted of each objective, the gain, then the params.
fn proposal_table(one: &Explanation) -> TextTable {
    let names: BTreeSet<&String> = one.next.iter().flat_map(|proposal| proposal.params.keys()).collect();
    let objectives = &one.study.objectives;
    let predicted = objectives.iter().map(|objective| {
        let heading = format!("predicted {}", metric_heading(&objective.metric));
        (heading, Align::Right)
    });
    let gain = [("gain".to_owned(), Align::Right)];
    let params = names.iter().map(|name| ((*name).clone(), Align::Left));
    let mut table = TextTable::new(predicted.chain(gain).chain(params));
    let now = one.volumes.last().copied().filter(|now| *now > 0.0);
    for proposal in &one.next {
        let dash = || "-".to_owned();
        let predicted = objectives.iter().map(|objective| predicted_text(proposal, objective));
        let gain = proposal.expected_improvement.zip(now);
        let gain = gain.map(|(gain, now)| percent(gain / now));
        let params = names.iter().map(|name| proposal.params.get(name));
        let params = params.map(|value| value.map_or_else(dash, param_value));
        table.push(predicted.chain([gain.unwrap_or_else(dash)]).chain(params));
    }
    table
}

/// What is predicted of one objective, with its interval; a dash where nothing is.
fn predicted_text(proposal: &Proposal, objective: &Objective) -> String {
    let mut all = proposal.predicted.iter();
    let Some(one) = all.find(|predicted| predicted.metric == objective.metric) else {
        return "-".to_owned();
    };
    let value = |value: f64| metric_value(&objective.metric, value);
    format!("{} ({} to {})", value(one.median), value(one.low), value(one.high))
}

fn percent(share: f64) -> String {
    match share {
        share if share > 0.0 && share < 0.001 => "<0.1%".to_owned(),
        share if share < 0.1 => format!("{:.1}%", 100.0 * share),
        share if share > 2.0 => "over 200%".to_owned(),
        share => format!("{:.0}%", 100.0 * share),
    }
}
