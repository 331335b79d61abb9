//! The front in each pair of objectives.

use super::axis::{Area, Scale, ScaleOptions, frame};
use super::svg::{Anchor, FRONT, OTHER, Svg, Weight};
use super::{Chart, file_part};
use crate::report::html::{ObjectiveView, StudyView, TrialView};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 440.0;
const AREA: Area = Area {
    left: 78.0,
    right: WIDTH - 18.0,
    top: 64.0,
    bottom: HEIGHT - 52.0,
};
/// Objectives whose pairs are drawn.
const MOST_OBJECTIVES: usize = 4;

/// How a trial is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    /// Stopped before its end.
    Stopped,
    Infeasible,
    Beaten,
    Front,
    Best,
}

/// The mark of a trial.
pub(super) fn mark(view: &StudyView, trial: &TrialView) -> Mark {
    match () {
        () if view
            .recommendation
            .as_ref()
            .is_some_and(|one| one.trial == trial.number) =>
        {
            Mark::Best
        }
        () if trial.front => Mark::Front,
        () if trial.feasible => Mark::Beaten,
        () if trial.state == "pruned" => Mark::Stopped,
        () => Mark::Infeasible,
    }
}

/// A chart for each pair of objectives.
pub(super) fn pairs(view: &StudyView) -> Vec<Chart> {
    let count = view.objectives.len().min(MOST_OBJECTIVES);
    let pairs = (0..count).flat_map(|y| (0..y).map(move |x| (x, y)));
    pairs.filter_map(|(x, y)| pair(view, x, y)).collect()
}

/// A trial in two objectives.
struct Point {
    mark: Mark,
    x: f64,
    y: f64,
}

/// The chart of the objectives `xi` and `yi`; `None` where no trial ended with both.
fn pair(view: &StudyView, xi: usize, yi: usize) -> Option<Chart> {
    let (x_objective, y_objective) = (&view.objectives[xi], &view.objectives[yi]);
    let points = points(view, xi, yi);
    // What was stopped early may stand anywhere: it does not decide the axes.
    let ended: Vec<&Point> = points.iter().filter(|point| point.mark != Mark::Stopped).collect();
    if ended.is_empty() {
        return None;
    }
    let title = format!(
        "{}: {} against {}",
        view.study.name, y_objective.label, x_objective.label
    );
    let mut svg = Svg::new(WIDTH, HEIGHT, &title);
    let options = |metric| ScaleOptions {
        metric,
        pad: 0.05,
        ..Default::default()
    };
    let (across, up) = (ended.iter().map(|point| point.x), ended.iter().map(|point| point.y));
    let x = Scale::new(across, AREA.left, AREA.right, options(&x_objective.metric));
    let y = Scale::new(up, AREA.bottom, AREA.top, options(&y_objective.metric));
    let has_stopped = points.len() > ended.len();
    legend(&mut svg, view, has_stopped);
    let better = |one: &ObjectiveView, up: &str, down: &str| {
        format!("{} {} better", one.label, if one.maximize { up } else { down })
    };
    let (x_name, y_name) = (better(x_objective, "→", "←"), better(y_objective, "↑", "↓"));
    frame(&mut svg, AREA, &x, &y, (&x_name, &y_name));
    for point in &points {
        let across = x.place(point.x).clamp(AREA.left, AREA.right);
        let down = y.place(point.y).clamp(AREA.top, AREA.bottom);
        draw_mark(&mut svg, point.mark, across, down);
    }
    Some(Chart {
        name: format!(
            "front-{}-{}",
            file_part(&x_objective.metric),
            file_part(&y_objective.metric)
        ),
        svg: svg.finish(),
    })
}

/// The trials that have both objectives, in the order in which they are drawn: the best last.
fn points(view: &StudyView, xi: usize, yi: usize) -> Vec<Point> {
    let point = |trial: &TrialView| {
        Some(Point {
            mark: mark(view, trial),
            x: trial.metrics[xi]?,
            y: trial.metrics[yi]?,
        })
    };
    let ran = view.trials.iter();
    let ran = ran.filter(|trial| ["complete", "pruned"].contains(&trial.state));
    let mut points: Vec<Point> = ran.filter_map(point).collect();
    points.sort_by_key(|point| point.mark);
    points
}

fn draw_mark(svg: &mut Svg, mark: Mark, x: f64, y: f64) {
    match mark {
        Mark::Best => svg.star(x, y, 10.0),
        Mark::Front => svg.circle(x, y, 5.0, &format!(r##"fill="{FRONT}" stroke="#ffffff""##)),
        Mark::Beaten => svg.circle(
            x,
            y,
            3.2,
            &format!(r#"fill="none" stroke="{OTHER}" stroke-width="1.4""#),
        ),
        Mark::Stopped => {
            let look = format!(r#"fill="none" stroke="{OTHER}" stroke-width="1.2" stroke-opacity="0.7""#);
            let r = 2.8;
            svg.path(&[(x - r, y - r), (x + r, y + r)], &look);
            svg.path(&[(x - r, y + r), (x + r, y - r)], &look);
        }
        Mark::Infeasible => {
            let look = format!(r#"fill="none" stroke="{OTHER}" stroke-width="1.4" stroke-dasharray="2 1.6""#);
            svg.circle(x, y, 3.2, &look);
        }
    }
}

fn legend(svg: &mut Svg, view: &StudyView, stopped: bool) {
    let infeasible = view
        .trials
        .iter()
        .any(|trial| trial.state == "complete" && !trial.feasible);
    let entries = [
        (Mark::Best, "recommended", view.recommendation.is_some(), 112.0),
        (Mark::Front, "on the front", true, 106.0),
        (Mark::Beaten, "beaten by another", true, 140.0),
        (Mark::Infeasible, "breaks a bound", infeasible, 120.0),
        (Mark::Stopped, "stopped early, where it stood", stopped, 0.0),
    ];
    let mut x = 14.0;
    for (mark, text, shown, width) in entries {
        if shown {
            draw_mark(svg, mark, x, 20.0);
            svg.text(x + 12.0, 24.0, Anchor::Start, Weight::Quiet, text);
            x += width;
        }
    }
}
