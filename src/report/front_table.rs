//! The table of the Pareto front.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use serde::Serialize;

use super::basis::{basis, loss_rows_text};
use super::money::dollars;
use super::number::{metric_heading, metric_value, param_value};
use super::study_costs::StudyCosts;
use super::table::{Align, TextTable, printable};
use crate::store::Variants;
use peft_tune_core::objective::{Objective, TARGET_SHORTFALL, THROUGHPUT, measured_of};
use peft_tune_core::study::{Confirmations, Metrics, ParamValue, Params, TrialNumber, disturbed, in_peace, neighbours};

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
    pub confirmed: &'a Confirmations,
    pub predicted: &'a BTreeMap<TrialNumber, BTreeMap<String, f64>>,
    /// Trials that took their loss over, with the training that measured it.
    pub variants: &'a Variants,
    /// Costs in money, where they are known.
    pub costs: Option<&'a StudyCosts>,
}

/// The front as a table: the objectives, then the params that differ from row to row; those that are the same in all rows
/// stand in a line below. A star marks the recommended trial. What was predicted of an objective stands beside it, where there is
/// room, and what the full training costs where that is known. Where some trials were repeated, or are variants of a training, a
/// column says of which the values are `confirmed`, of which `measured` once, and whose loss a variant has; also which losses rest on a
/// part of the held-out rows.
pub(super) fn front_table(
    objectives: &[Objective],
    rows: &[FrontRow],
    notes: FrontNotes<'_>,
    width: Option<usize>,
) -> String {
    let mut columns = FrontColumns::of(objectives, rows, notes);
    let mut table = columns.table(rows);
    if !table.fits(width) {
        columns.is_predicted.fill(false);
        table = columns.table(rows);
    }
    let mut text = table.to_text(width);
    if let (Some(first), false) = (rows.first(), columns.same.is_empty()) {
        let same = columns.same.iter();
        let same: Vec<String> = same
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

/// What the columns of a front are.
struct FrontColumns<'a> {
    notes: FrontNotes<'a>,
    objectives: &'a [Objective],
    /// Whether predictions stand beside an objective, for each of them.
    is_predicted: Vec<bool>,
    says_basis: bool,
    /// Whether the full training of some trial has a cost.
    has_costs: bool,
    /// Params that differ from row to row.
    varying: Vec<&'a String>,
    same: Vec<&'a String>,
}

impl<'a> FrontColumns<'a> {
    fn of(objectives: &'a [Objective], rows: &'a [FrontRow], notes: FrontNotes<'a>) -> Self {
        let names: BTreeSet<&String> = rows.iter().flat_map(|row| row.params.keys()).collect();
        let differs = |name: &&String| {
            let first = rows.first().and_then(|row| row.params.get(name));
            rows.iter().any(|row| row.params.get(name) != first)
        };
        let (varying, same) = names.into_iter().partition(differs);
        let is_predicted = |objective: &Objective| rows.iter().any(|row| notes.prediction(row, objective).is_some());
        let has_note = |row: &FrontRow| {
            let number = &row.trial;
            let is_noted = notes.confirmed.contains_key(number) || notes.variants.contains_key(number);
            is_noted || is_disturbed(row) || may_not_fit(row) || loss_rows_text(&row.metrics).is_some()
        };
        Self {
            notes,
            objectives,
            is_predicted: objectives.iter().map(is_predicted).collect(),
            says_basis: rows.iter().any(has_note),
            has_costs: rows.iter().any(|row| notes.training_usd(row).is_some()),
            varying,
            same,
        }
    }

    fn table(&self, rows: &[FrontRow]) -> TextTable {
        let mut table = TextTable::new(self.headings(rows));
        for row in rows {
            table.push(self.cells(row));
        }
        table
    }

    fn headings(&self, rows: &[FrontRow]) -> Vec<(String, Align)> {
        let is_number = |name: &str| {
            let mut values = rows.iter().filter_map(|row| row.params.get(name));
            values.all(|value| value.as_f64().is_some())
        };
        let mut headings = vec![("trial".to_owned(), Align::Right)];
        for (objective, is_predicted) in self.objectives.iter().zip(&self.is_predicted) {
            headings.push((metric_heading(&objective.metric), Align::Right));
            headings.extend(
                measured_here(objective).map(|metric| (format!("{} here", metric_heading(metric)), Align::Right)),
            );
            headings.extend(is_predicted.then(|| ("predicted".to_owned(), Align::Right)));
        }
        headings.extend(self.has_costs.then(|| ("full training".to_owned(), Align::Right)));
        headings.extend(self.says_basis.then(|| ("basis".to_owned(), Align::Left)));
        headings.extend(self.varying.iter().map(|name| {
            let align = if is_number(name) { Align::Right } else { Align::Left };
            ((*name).clone(), align)
        }));
        headings
    }

    fn cells(&self, row: &FrontRow) -> Vec<String> {
        let is_recommended = Some(row.trial) == self.notes.recommended;
        let star = if is_recommended { "* " } else { "" };
        let mut cells = vec![format!("{star}{}", row.trial)];
        for (objective, is_predicted) in self.objectives.iter().zip(&self.is_predicted) {
            let text = |value: Option<f64>| {
                value.map_or_else(|| "-".to_owned(), |value| metric_value(&objective.metric, value))
            };
            cells.push(text(row.metrics.value(&objective.metric)));
            cells.extend(measured_here(objective).map(|metric| text(row.metrics.value(metric))));
            cells.extend(is_predicted.then(|| text(self.notes.prediction(row, objective))));
        }
        let usd = || self.notes.training_usd(row).map_or_else(|| "-".to_owned(), dollars);
        cells.extend(self.has_costs.then(usd));
        cells.extend(self.says_basis.then(|| self.basis_of(row)));
        cells.extend(self.varying.iter().map(|name| param_text(row.params.get(name))));
        cells
    }

    fn basis_of(&self, row: &FrontRow) -> String {
        let confirmed = self.notes.confirmed.get(&row.trial);
        let mut basis = basis(self.objectives, confirmed, self.notes.variants.get(&row.trial));
        if is_disturbed(row) {
            basis += ", disturbed";
        }
        if may_not_fit(row) {
            basis += ", may not fit the target";
        }
        if let Some(rows) = loss_rows_text(&row.metrics) {
            basis += &format!(", {rows}");
        }
        basis
    }
}

impl FrontNotes<'_> {
    fn prediction(&self, row: &FrontRow, objective: &Objective) -> Option<f64> {
        self.predicted.get(&row.trial)?.get(&objective.metric).copied()
    }

    /// US dollars of a trial's full training.
    fn training_usd(&self, row: &FrontRow) -> Option<f64> {
        self.costs?.training_usd(row.trial)
    }
}

fn is_disturbed(row: &FrontRow) -> bool {
    disturbed(&row.metrics).is_some()
}

/// What was measured here of an objective that is predicted of another stack.
fn measured_here(objective: &Objective) -> Option<&'static str> {
    measured_of(&objective.metric)
}

fn may_not_fit(row: &FrontRow) -> bool {
    row.metrics.value(TARGET_SHORTFALL).is_some()
}

/// A line on what something else slowed down, with the most that it may have been undisturbed.
fn disturbed_text(rows: &[FrontRow]) -> String {
    let slowed = rows.iter().filter(|row| is_disturbed(row));
    let each: Vec<String> = slowed
        .filter_map(|row| {
            let best = in_peace(row.metrics.clone()).value(THROUGHPUT)?;
            Some(format!(
                "trial {} at most {}",
                row.trial,
                metric_value(THROUGHPUT, best)
            ))
        })
        .collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(
            "\n\ndisturbed: something else slowed these measurements down, by how much is not known; undisturbed, throughput is: {} (upper \
             bounds, no estimates)",
            each.join(", ")
        ),
    }
}

/// A param's value; a dash where the trial does not have it.
fn param_text(value: Option<&ParamValue>) -> String {
    value.map_or_else(|| "-".to_owned(), param_value)
}
