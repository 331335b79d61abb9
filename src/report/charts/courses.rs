//! How the front grew and how trials learned.

use super::axis::{Area, Scale, ScaleOptions, frame};
use super::scatter::{Mark, mark};
use super::svg::{BEST, FRONT, OTHER, Svg};
use super::{Chart, file_part};
use crate::report::html::{CurveView, Growth, StudyView};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 360.0;
const AREA: Area = Area {
    left: 60.0,
    right: WIDTH - 18.0,
    top: 36.0,
    bottom: HEIGHT - 52.0,
};

/// Hypervolume over the time in trials.
pub(super) fn growth(view: &StudyView) -> Option<Chart> {
    let growth = view.growth.as_ref().filter(|growth| growth.points.len() > 1)?;
    let zero = ScaleOptions {
        zero: true,
        ..Default::default()
    };
    let x = Scale::new(
        growth.points.iter().map(|point| minutes(point.elapsed_s)),
        AREA.left,
        AREA.right,
        zero,
    );
    let y = Scale::new([0.0, 100.0], AREA.bottom, AREA.top, zero);
    let mut svg = Svg::new(WIDTH, HEIGHT, &format!("{}: how the front grew", view.study.name));
    frame(&mut svg, AREA, &x, &y, ("minutes of trials", "hypervolume (% of now)"));
    growth_line(&mut svg, (&x, &y), growth);
    Some(Chart {
        name: "hypervolume".to_owned(),
        svg: svg.finish(),
    })
}

/// The hypervolume as steps, in percent of what it is now, against the minutes of trials.
pub(super) fn growth_line(svg: &mut Svg, (x, y): (&Scale, &Scale), growth: &Growth) {
    let mut points = vec![(x.place(0.0), y.place(0.0))];
    for point in &growth.points {
        let place = x.place(minutes(point.elapsed_s));
        let before = points[points.len() - 1].1;
        points.extend([(place, before), (place, y.place(100.0 * point.share))]);
    }
    svg.path(&points, &format!(r#"fill="none" stroke="{FRONT}" stroke-width="2""#));
}

pub(super) fn minutes(seconds: f64) -> f64 {
    seconds / 60.0
}

/// A chart for each kind of curve.
pub(super) fn curves(view: &StudyView) -> Vec<Chart> {
    let mut names: Vec<&str> = view.curves.iter().map(|curve| curve.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| curve_chart(view, name)).collect()
}

fn curve_chart(view: &StudyView, name: &str) -> Chart {
    let of = |curve: &CurveView| {
        let trial = view.trials.iter().find(|trial| trial.number == curve.trial);
        trial.map_or(Mark::Infeasible, |trial| mark(view, trial))
    };
    let mut curves: Vec<(Mark, &CurveView)> = view
        .curves
        .iter()
        .filter(|curve| curve.name == name)
        .map(|curve| (of(curve), curve))
        .collect();
    curves.sort_by_key(|(mark, _)| *mark);
    let points = || curves.iter().flat_map(|(_, curve)| &curve.points);
    let ceiling = ceiling(points().map(|point| point.1).collect());
    let zero = ScaleOptions {
        zero: true,
        ..Default::default()
    };
    let pad = ScaleOptions {
        pad: 0.05,
        ..Default::default()
    };
    let x = Scale::new(points().map(|point| point.0), AREA.left, AREA.right, zero);
    let y = Scale::new(
        points().map(|point| point.1).filter(|value| *value <= ceiling),
        AREA.bottom,
        AREA.top,
        pad,
    );
    let mut svg = Svg::new(WIDTH, HEIGHT, &format!("{}: {name}", view.study.name));
    let over = curves.first().map_or("", |(_, curve)| curve.over);
    frame(&mut svg, AREA, &x, &y, (over, name));
    for (mark, curve) in &curves {
        let (stroke, width, opacity) = match mark {
            Mark::Best => (BEST, 2.4, 1.0),
            Mark::Front => (FRONT, 1.6, 0.85),
            Mark::Beaten | Mark::Infeasible | Mark::Stopped => (OTHER, 1.0, 0.3),
        };
        let place = |point: &(f64, f64)| (x.place(point.0), y.place(point.1).max(AREA.top));
        let places: Vec<(f64, f64)> = curve.points.iter().map(place).collect();
        match places.as_slice() {
            [(x, y)] => svg.circle(*x, *y, 3.0, &format!(r#"fill="{stroke}" fill-opacity="{opacity}""#)),
            places => {
                let look =
                    format!(r#"fill="none" stroke="{stroke}" stroke-width="{width}" stroke-opacity="{opacity}""#);
                svg.path(places, &look);
            }
        }
    }
    Chart {
        name: file_part(&name.replace(' ', "-")),
        svg: svg.finish(),
    }
}

/// The highest value shown: a few exploding losses must not flatten all the others.
fn ceiling(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (Some(low), Some(cut)) = (values.first(), values.get(values.len() * 199 / 200)) else {
        return f64::INFINITY;
    };
    cut + 0.3 * (cut - low)
}
