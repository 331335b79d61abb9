//! The curve of an inference bench: time of a token against tokens per second, one line for each form of the model, one
//! point for each batch size.

use super::axis::{Area, Scale, ScaleOptions, frame};
use super::svg::{Anchor, LINES, Svg, Weight};
use super::text_plot::TextPlot;
use crate::report::profile::time;

/// Points of one form of the model, in the order of their batch sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveLine {
    /// Name of the form, such as `base` or `adapter r16`.
    pub name: String,
    pub points: Vec<CurvePoint>,
}

/// One batch size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    pub batch: usize,
    /// Median seconds of a token.
    pub token_s: f64,
    /// Tokens per second of all sequences together.
    pub tokens_per_s: f64,
}

/// Marks of the lines in a terminal.
const MARKS: [char; 8] = ['o', 'x', '+', '*', '#', '@', '%', '&'];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const AREA: Area = Area {
    left: 78.0,
    right: WIDTH - 160.0,
    top: 64.0,
    bottom: HEIGHT - 52.0,
};
const LOGARITHMIC: ScaleOptions<'_> = ScaleOptions {
    metric: "",
    log: true,
    zero: false,
    pad: 0.05,
};

/// The lines with the points that both axes have a place for; `None` where there is none.
fn drawable(lines: &[CurveLine]) -> Option<Vec<CurveLine>> {
    let has_place = |point: &&CurvePoint| {
        [point.token_s, point.tokens_per_s]
            .iter()
            .all(|value| value.is_normal() && *value > 0.0)
    };
    let line = |line: &CurveLine| CurveLine {
        name: line.name.clone(),
        points: line.points.iter().filter(has_place).copied().collect(),
    };
    let lines: Vec<CurveLine> = lines.iter().map(line).collect();
    lines.iter().any(|line| !line.points.is_empty()).then_some(lines)
}

fn scale(lines: &[CurveLine], value: fn(&CurvePoint) -> f64, from: f64, to: f64) -> Scale {
    let points = lines.iter().flat_map(|line| &line.points);
    Scale::new(points.map(value), from, to, LOGARITHMIC)
}

/// The curve in plain characters, at most `width` columns wide.
pub fn curve_text(lines: &[CurveLine], width: Option<usize>) -> String {
    let Some(lines) = drawable(lines) else {
        return String::new();
    };
    let x = scale(&lines, |point| point.token_s, 0.0, 1.0);
    let y = scale(&lines, |point| point.tokens_per_s, 0.0, 1.0);
    let (slowest, fastest) = y.ends();
    let mut plot = TextPlot::new([fastest, slowest].map(|rate| format!("{rate:.0}")), width);
    let mut under = vec!["median time of a token; both axes logarithmic".to_owned()];
    for (line, mark) in lines.iter().zip(MARKS.iter().cycle()) {
        for point in &line.points {
            plot.mark(x.place(point.token_s), y.place(point.tokens_per_s), *mark);
        }
        let batches: Vec<String> = line.points.iter().map(|point| point.batch.to_string()).collect();
        under.push(format!("{mark} {}, batch {}", line.name, batches.join(" ")));
    }
    let (least, most) = x.ends();
    plot.finish("tokens/s, all sequences", [&time(least), &time(most)], &under)
}

/// The curve as an SVG drawing that stands alone.
pub fn curve_svg(lines: &[CurveLine], title: &str) -> String {
    let mut svg = Svg::new(WIDTH, HEIGHT, title);
    svg.text(8.0, 24.0, Anchor::Start, Weight::Strong, title);
    if let Some(lines) = drawable(lines) {
        let x = scale(&lines, milliseconds, AREA.left, AREA.right);
        let y = scale(&lines, |point| point.tokens_per_s, AREA.bottom, AREA.top);
        let names = (
            "median time of a token (ms, logarithmic)",
            "tokens/s, all sequences (logarithmic)",
        );
        frame(&mut svg, AREA, &x, &y, names);
        for (number, line) in lines.iter().enumerate() {
            draw_line(&mut svg, &x, &y, number, line);
        }
    }
    svg.finish()
}

fn milliseconds(point: &CurvePoint) -> f64 {
    1e3 * point.token_s
}

/// A line with its batch sizes, and its name on the right.
fn draw_line(svg: &mut Svg, x: &Scale, y: &Scale, number: usize, line: &CurveLine) {
    let colour = LINES[number % LINES.len()];
    let look = format!(r#"fill="none" stroke="{colour}" stroke-width="2""#);
    let place = |point: &CurvePoint| (x.place(milliseconds(point)), y.place(point.tokens_per_s));
    let places: Vec<(f64, f64)> = line.points.iter().map(place).collect();
    svg.path(&places, &look);
    for ((x, y), point) in places.iter().zip(&line.points) {
        svg.circle(*x, *y, 4.0, &format!(r#"fill="{colour}""#));
        svg.text(x + 6.0, y - 6.0, Anchor::Start, Weight::Plain, &point.batch.to_string());
    }
    let (left, height) = (AREA.right + 16.0, AREA.top + 12.0 + 20.0 * number as f64);
    svg.path(&[(left, height - 4.0), (left + 18.0, height - 4.0)], &look);
    svg.text(left + 24.0, height, Anchor::Start, Weight::Plain, &line.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> Vec<CurveLine> {
        let points = |factor: f64| {
            let point = |batch: usize| CurvePoint {
                batch,
                token_s: 0.01 * factor * (batch as f64).sqrt(),
                tokens_per_s: batch as f64 / (0.01 * factor * (batch as f64).sqrt()),
            };
            [1, 4, 16].map(point).to_vec()
        };
        vec![
            CurveLine {
                name: "base".to_owned(),
                points: points(1.0),
            },
            CurveLine {
                name: "adapter <r16>".to_owned(),
                points: points(1.4),
            },
        ]
    }

    #[test]
    fn every_point_is_drawn_within_the_axes() {
        let svg = curve_svg(&lines(), "a & b");
        assert_eq!(svg.matches("<circle").count(), 6);
        assert!(
            svg.contains("a &amp; b") && svg.contains("adapter &lt;r16&gt;"),
            "{svg}"
        );
        let (x, y) = (
            scale(&lines(), milliseconds, AREA.left, AREA.right),
            scale(&lines(), |point| point.tokens_per_s, AREA.bottom, AREA.top),
        );
        for point in lines().iter().flat_map(|line| &line.points) {
            assert!((AREA.left..=AREA.right).contains(&x.place(milliseconds(point))));
            assert!((AREA.top..=AREA.bottom).contains(&y.place(point.tokens_per_s)));
        }
    }

    #[test]
    fn a_terminal_shows_a_mark_for_each_form() {
        let text = curve_text(&lines(), Some(70));
        assert!(
            text.contains("o base, batch 1 4 16") && text.contains("x adapter <r16>"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 70), "{text}");
    }

    #[test]
    fn what_no_axis_has_a_place_for_is_not_drawn() {
        let mut lines = lines();
        for line in &mut lines {
            line.points.iter_mut().for_each(|point| point.token_s = 0.0);
        }
        assert_eq!(curve_text(&lines, None), "");
        assert_eq!(curve_text(&[], Some(70)), "");
        assert_eq!(curve_svg(&lines, "").matches("<circle").count(), 0);
    }
}
