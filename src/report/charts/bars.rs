//! What time and memory consist of, and which parameters decide.

use super::svg::{Anchor, FRONT, PALE, PARTS, Svg, Weight, short};
use super::{Chart, file_part};
use crate::report::html::{ImportanceView, StudyView};
use crate::report::{duration, metric_value};
use peft_tune_core::objective::PEAK_MEMORY;

const WIDTH: f64 = 640.0;
const LINE: f64 = 26.0;
/// Trials, or parameters, of one chart.
const MOST: usize = 16;

/// A trial's bar in parts.
struct Row {
    trial: u64,
    parts: Vec<(String, f64)>,
}

impl Row {
    /// Length of the whole bar.
    fn whole(&self) -> f64 {
        self.parts.iter().map(|part| part.1).sum()
    }
}

/// Seconds of a step by part, for the trials of the front.
pub(super) fn step_time(view: &StudyView) -> Option<Chart> {
    let rows = view.phases.iter().map(|one| Row {
        trial: one.trial,
        parts: one
            .parts
            .iter()
            .map(|(name, seconds)| ((*name).to_owned(), *seconds))
            .collect(),
    });
    stacked(view, "step-time", "Time of a step", rows.collect(), step_text)
}

/// Peak memory by part, for the trials of the front.
pub(super) fn peak_memory(view: &StudyView) -> Option<Chart> {
    let rows = view.memory.iter().map(|one| Row {
        trial: one.trial,
        parts: match one.parts.is_empty() {
            true => vec![("in use".to_owned(), one.peak)],
            false => one.parts.clone(),
        },
    });
    stacked(view, "peak-memory", "Peak memory", rows.collect(), |bytes| {
        metric_value(PEAK_MEMORY, bytes)
    })
}

/// A chart for each objective.
pub(super) fn importance(view: &StudyView) -> Vec<Chart> {
    view.importance
        .iter()
        .filter(|one| !one.shares.is_empty())
        .map(|one| importance_chart(view, one))
        .collect()
}

fn step_text(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.1} ms", 1e3 * seconds)
    } else {
        duration(seconds)
    }
}

/// Bars in parts, one a trial; `text` writes what a bar is in all.
fn stacked(view: &StudyView, name: &str, title: &str, rows: Vec<Row>, text: impl Fn(f64) -> String) -> Option<Chart> {
    let best = view.recommendation.as_ref().map(|one| one.trial);
    let shown = shown(view, &rows, best);
    let longest = shown.iter().map(|row| row.whole()).fold(0.0, f64::max);
    if longest <= 0.0 {
        return None;
    }
    let names = part_names(&shown);
    let colour = |part: &str| {
        let place = names.iter().position(|name| *name == part).unwrap_or(0);
        PARTS[place.min(PARTS.len() - 1)]
    };
    let height = 74.0 + LINE * shown.len() as f64;
    let mut svg = Svg::new(WIDTH, height, &format!("{}: {title}", view.study.name));
    svg.text(14.0, 24.0, Anchor::Start, Weight::Strong, title);
    let mut place = 14.0;
    for part in &names {
        svg.rect(place, 38.0, 11.0, 11.0, colour(part));
        svg.text(place + 17.0, 48.0, Anchor::Start, Weight::Quiet, part);
        place += 36.0 + 7.2 * part.chars().count() as f64;
    }
    let left = 86.0;
    for (index, row) in shown.iter().enumerate() {
        let y = 62.0 + LINE * index as f64;
        let star = if Some(row.trial) == best { "★ " } else { "" };
        let trial = format!("{star}trial {}", row.trial);
        svg.text(left - 9.0, y + 13.0, Anchor::End, Weight::Plain, &trial);
        let mut from = left;
        for (part, value) in &row.parts {
            let width = value / longest * (WIDTH - left - 96.0);
            svg.rect(from, y, width - 0.8, 18.0, colour(part));
            from += width;
        }
        svg.text(from + 6.0, y + 13.0, Anchor::Start, Weight::Quiet, &text(row.whole()));
    }
    Some(Chart {
        name: name.to_owned(),
        svg: svg.finish(),
    })
}

/// The bars of the front, or all where none is of it; the recommended trial's first.
fn shown<'a>(view: &StudyView, rows: &'a [Row], best: Option<u64>) -> Vec<&'a Row> {
    let is_of_front = |row: &&Row| view.trials.iter().any(|trial| trial.number == row.trial && trial.front);
    let mut shown: Vec<&Row> = rows.iter().filter(is_of_front).collect();
    if shown.is_empty() {
        shown = rows.iter().collect();
    }
    shown.sort_by_key(|row| Some(row.trial) != best);
    shown.truncate(MOST);
    shown
}

/// Names of the parts, in the order in which they first come.
fn part_names<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for (part, _) in rows.iter().flat_map(|row| &row.parts) {
        if !names.contains(&part.as_str()) {
            names.push(part);
        }
    }
    names
}

fn importance_chart(view: &StudyView, importance: &ImportanceView) -> Chart {
    let shares = &importance.shares[..importance.shares.len().min(MOST)];
    let label = importance.metric.replace('_', " ");
    let title = format!("{}: what decides {label}", view.study.name);
    let mut svg = Svg::new(WIDTH, 56.0 + LINE * shares.len() as f64, &title);
    svg.text(
        14.0,
        24.0,
        Anchor::Start,
        Weight::Strong,
        &format!("What decides {label}: alone (dark), with interactions (light)"),
    );
    let left = 196.0;
    let width = |share: f64| share.clamp(0.0, 1.0) * (WIDTH - left - 60.0);
    for (index, share) in shares.iter().enumerate() {
        let y = 42.0 + LINE * index as f64;
        svg.text(
            left - 9.0,
            y + 13.0,
            Anchor::End,
            Weight::Plain,
            &short(&share.param, 24),
        );
        svg.rect(left, y, width(share.total), 18.0, PALE);
        svg.rect(left, y, width(share.first), 18.0, FRONT);
        let text = format!("{:.0}%", 100.0 * share.total);
        svg.text(
            left + width(share.total) + 6.0,
            y + 13.0,
            Anchor::Start,
            Weight::Quiet,
            &text,
        );
    }
    Chart {
        name: format!("importance-{}", file_part(&importance.metric)),
        svg: svg.finish(),
    }
}
