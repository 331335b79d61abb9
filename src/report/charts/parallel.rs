//! Parallel coordinates: one axis a setting or objective, one line a trial.

use super::Chart;
use super::axis::{Scale, ScaleOptions};
use super::scatter::{Mark, mark};
use super::svg::{Anchor, BEST, DEEP, LINE, OTHER, PALE, Svg, Weight, short};
use crate::report::html::{StudyView, TrialView};
use crate::report::param_value;
use peft_tune_core::study::ParamValue;

const STEP: f64 = 104.0;
const TOP: f64 = 62.0;
const BOTTOM: f64 = 380.0;
const HEIGHT: f64 = 420.0;

/// Places at which trials pass an axis.
enum Places {
    Number(Scale),
    /// Texts from the top down.
    Text(Vec<String>),
}

struct Axis {
    name: String,
    note: &'static str,
    places: Places,
}

/// Settings that differ, and the objectives.
pub(super) fn settings(view: &StudyView) -> Option<Chart> {
    let complete: Vec<&TrialView> = view
        .trials
        .iter()
        .filter(|trial| trial.state == "complete" && !trial.params.is_empty())
        .collect();
    if complete.is_empty() || view.objectives.is_empty() {
        return None;
    }
    let varies = |index: &usize| {
        complete
            .iter()
            .any(|trial| trial.params[*index] != complete[0].params[*index])
    };
    let params: Vec<usize> = (0..view.params.len()).filter(varies).collect();
    let axes: Vec<Axis> = params
        .iter()
        .map(|index| param_axis(view, &complete, *index))
        .chain((0..view.objectives.len()).map(|index| objective_axis(view, &complete, index)))
        .collect();
    let width = 96.0 + STEP * (axes.len() - 1) as f64 + 40.0;
    let mut svg = Svg::new(width, HEIGHT, &format!("{}: settings and results", view.study.name));
    let at = |index: usize| 64.0 + STEP * index as f64;
    let last = view.objectives.len() - 1;
    let colours = ranks(&complete, last, view.objectives[last].maximize);
    let mut order: Vec<usize> = (0..complete.len()).collect();
    order.sort_by_key(|index| mark(view, complete[*index]));
    for index in order {
        let trial = complete[index];
        let place = |(position, axis): (usize, &Axis)| {
            let y = match params.get(position) {
                Some(param) => axis.param(trial.params[*param].as_ref()),
                None => axis.metric(trial.metrics[position - params.len()]),
            };
            Some((at(position), y?))
        };
        let points: Vec<(f64, f64)> = axes.iter().enumerate().filter_map(place).collect();
        svg.path(&points, &look(mark(view, trial), colours[index]));
    }
    for (index, axis) in axes.iter().enumerate() {
        draw_axis(&mut svg, axis, at(index));
    }
    Some(Chart {
        name: "settings".to_owned(),
        svg: svg.finish(),
    })
}

impl Axis {
    fn param(&self, value: Option<&ParamValue>) -> Option<f64> {
        match &self.places {
            Places::Number(scale) => Some(scale.place(value?.as_f64()?)),
            Places::Text(texts) => {
                let text = value.map_or_else(|| "–".to_owned(), param_value);
                Some(text_place(texts.iter().position(|one| *one == text)?, texts.len()))
            }
        }
    }

    fn metric(&self, value: Option<f64>) -> Option<f64> {
        match &self.places {
            Places::Number(scale) => Some(scale.place(value?)),
            Places::Text(_) => None,
        }
    }
}

fn param_axis(view: &StudyView, trials: &[&TrialView], index: usize) -> Axis {
    let axis = &view.params[index];
    let values = || trials.iter().map(|trial| trial.params[index].as_ref());
    let places = if axis.number {
        let numbers = values().filter_map(|value| value?.as_f64());
        Places::Number(Scale::new(
            numbers,
            BOTTOM,
            TOP,
            ScaleOptions {
                log: axis.log,
                ..Default::default()
            },
        ))
    } else {
        let mut texts: Vec<String> = values()
            .map(|value| value.map_or_else(|| "–".to_owned(), param_value))
            .collect();
        texts.sort();
        texts.dedup();
        Places::Text(texts)
    };
    Axis {
        name: axis.name.clone(),
        note: "",
        places,
    }
}

fn objective_axis(view: &StudyView, trials: &[&TrialView], index: usize) -> Axis {
    let objective = &view.objectives[index];
    let values = trials.iter().filter_map(|trial| trial.metrics[index]);
    let options = ScaleOptions {
        metric: &objective.metric,
        pad: 0.02,
        ..Default::default()
    };
    Axis {
        name: objective.label.clone(),
        note: if objective.maximize { "↑ better" } else { "↓ better" },
        places: Places::Number(Scale::new(values, BOTTOM, TOP, options)),
    }
}

fn text_place(position: usize, count: usize) -> f64 {
    if count < 2 {
        return (TOP + BOTTOM) / 2.0;
    }
    TOP + (BOTTOM - TOP) * position as f64 / (count - 1) as f64
}

/// Place of each trial among all in one objective: 0 the worst, 1 the best; `None` where it is not known.
fn ranks(trials: &[&TrialView], objective: usize, maximize: bool) -> Vec<Option<f64>> {
    let mut known: Vec<f64> = trials.iter().filter_map(|trial| trial.metrics[objective]).collect();
    known.sort_by(f64::total_cmp);
    let rank = |value: f64| {
        let place = known.partition_point(|other| *other < value) as f64 / (known.len().max(2) - 1) as f64;
        if maximize { place } else { 1.0 - place }
    };
    trials.iter().map(|trial| trial.metrics[objective].map(rank)).collect()
}

fn look(mark: Mark, rank: Option<f64>) -> String {
    let (stroke, width, opacity) = match (mark, rank) {
        (Mark::Best, _) => (BEST.to_owned(), 3.0, 1.0),
        (_, None) => (OTHER.to_owned(), 1.0, 0.4),
        (Mark::Front, Some(rank)) => (mixed(rank), 2.0, 1.0),
        (_, Some(rank)) => (mixed(rank), 1.1, 0.6),
    };
    format!(r#"fill="none" stroke="{stroke}" stroke-width="{width}" stroke-opacity="{opacity}""#)
}

/// A colour between pale (0) and deep (1).
fn mixed(share: f64) -> String {
    let part = |colour: &str, at: usize| u8::from_str_radix(&colour[at..at + 2], 16).unwrap_or(0);
    let mix = |at: usize| {
        let (pale, deep) = (f64::from(part(PALE, at)), f64::from(part(DEEP, at)));
        (pale + (deep - pale) * share.clamp(0.0, 1.0)).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", mix(1), mix(3), mix(5))
}

fn draw_axis(svg: &mut Svg, axis: &Axis, x: f64) {
    svg.text(x, 22.0, Anchor::Middle, Weight::Strong, &short(&axis.name, 14));
    svg.text(x, 40.0, Anchor::Middle, Weight::Quiet, axis.note);
    svg.line((x, TOP), (x, BOTTOM), LINE);
    let labels: Vec<(f64, String)> = match &axis.places {
        Places::Number(scale) => scale
            .ticks(5)
            .into_iter()
            .map(|(tick, text)| (scale.place(tick), text))
            .collect(),
        Places::Text(texts) => texts
            .iter()
            .enumerate()
            .map(|(position, text)| (text_place(position, texts.len()), short(text, 13)))
            .collect(),
    };
    for (y, text) in labels {
        svg.text(x + 6.0, y + 4.0, Anchor::Start, Weight::Plain, &text);
    }
}
