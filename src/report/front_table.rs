//! The table of the Pareto front.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::basis::basis;
use super::number::{metric_heading, metric_value, param_value};
use super::table::{Align, TextTable, printable};
use peft_tune_core::objective::Objective;
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::study::{Confirmed, Metrics, ParamValue, Params, TrialNumber, disturbed, in_peace, neighbours};

/// A trial of the front.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FrontRow {
    pub trial: TrialNumber,
    pub params: Params,
    /// Every metric, raw.
    pub metrics: Metrics,
}

/// What a table of the front says beside what was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrontNotes<'a> {
    pub recommended: Option<TrialNumber>,
    pub confirmed: &'a BTreeMap<TrialNumber, BTreeMap<String, Confirmed>>,
    pub predicted: &'a BTreeMap<TrialNumber, BTreeMap<String, f64>>,
    /// Trials that took their loss over, with the training that measured it.
    pub variants: &'a BTreeMap<TrialNumber, TrialNumber>,
}

/// The front as a table: the objectives, then the params that differ from row to row; those that are the same in all rows
/// stand in a line below. A star marks the recommended trial. What was predicted of an objective stands beside it. Where some
/// trials were repeated, or are variants of a training, a column says of which the values are `confirmed`, of which `measured`
/// once, and whose loss a variant has.
pub(super) fn front_table(
    objectives: &[Objective],
    rows: &[FrontRow],
    notes: FrontNotes<'_>,
    width: Option<usize>,
) -> String {
    let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.params.keys()).collect();
    let differs = |name: &&&String| {
        let first = rows.first().and_then(|row| row.params.get(name));
        rows.iter().any(|row| row.params.get(name) != first)
    };
    let varying: Vec<&String> = names.iter().filter(differs).copied().collect();
    let same: Vec<&String> = names.iter().filter(|name| !differs(name)).copied().collect();

    let number = |name: &str| {
        rows.iter()
            .filter_map(|row| row.params.get(name))
            .all(|value| value.as_f64().is_some())
    };
    let mut columns = vec![("trial".to_owned(), Align::Right)];
    let prediction =
        |row: &FrontRow, objective: &Objective| notes.predicted.get(&row.trial)?.get(&objective.metric).copied();
    let is_predicted = |objective: &Objective| rows.iter().any(|row| prediction(row, objective).is_some());
    for objective in objectives {
        columns.push((metric_heading(&objective.metric), Align::Right));
        columns.extend(is_predicted(objective).then(|| ("predicted".to_owned(), Align::Right)));
    }
    let is_disturbed = |row: &FrontRow| disturbed(&row.metrics).is_some();
    let has_note = |row: &FrontRow| {
        notes.confirmed.contains_key(&row.trial) || notes.variants.contains_key(&row.trial) || is_disturbed(row)
    };
    let says_basis = rows.iter().any(has_note);
    columns.extend(says_basis.then(|| ("basis".to_owned(), Align::Left)));
    columns.extend(varying.iter().map(|name| {
        let align = if number(name) { Align::Right } else { Align::Left };
        ((*name).clone(), align)
    }));
    let mut table = TextTable::new(columns);
    for row in rows {
        let star = if Some(row.trial) == notes.recommended { "* " } else { "" };
        let mut cells = vec![format!("{star}{}", row.trial)];
        for objective in objectives {
            let text = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |value| metric_value(&objective.metric, value))
            };
            cells.push(text(row.metrics.value(&objective.metric)));
            cells.extend(is_predicted(objective).then(|| text(prediction(row, objective))));
        }
        let confirmed = notes.confirmed.get(&row.trial);
        let basis = || {
            let basis = basis(objectives, confirmed, notes.variants.get(&row.trial));
            if is_disturbed(row) {
                format!("{basis}, disturbed")
            } else {
                basis
            }
        };
        cells.extend(says_basis.then(basis));
        cells.extend(varying.iter().map(|name| param_text(row.params.get(name))));
        table.push(cells);
    }
    let mut text = table.to_text(width);
    if let (Some(first), false) = (rows.first(), same.is_empty()) {
        let same: Vec<String> = same
            .iter()
            .map(|name| format!("{} {}", printable(name), param_text(first.params.get(name))))
            .collect();
        let whose = if rows.len() == 1 { "params" } else { "the same in all" };
        let _ = write!(text, "\n\n{whose}: {}", same.join(", "));
    }
    let crowded = rows.iter().filter(|row| neighbours(&row.metrics).is_some());
    let crowded: Vec<String> = crowded.map(|row| row.trial.to_string()).collect();
    if !crowded.is_empty() {
        let _ = write!(
            text,
            "\n\nthroughput measured beside other trials: {}",
            crowded.join(", ")
        );
    }
    text += &disturbed_text(rows);
    text
}

/// A line on what something else slowed down, with what may be reached in peace.
fn disturbed_text(rows: &[FrontRow]) -> String {
    let slowed = rows.iter().filter(|row| disturbed(&row.metrics).is_some());
    let each: Vec<String> = slowed
        .filter_map(|row| {
            let best = in_peace(row.metrics.clone()).value(THROUGHPUT)?;
            Some(format!("trial {} up to {}", row.trial, metric_value(THROUGHPUT, best)))
        })
        .collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(
            "\n\ndisturbed: something else slowed these measurements down; throughput in peace: {}",
            each.join(", ")
        ),
    }
}

/// A param's value; a dash where the trial does not have it.
fn param_text(value: Option<&ParamValue>) -> String {
    value.map_or_else(|| "-".to_owned(), param_value)
}
