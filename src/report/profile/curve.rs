//! The curve of an inference bench: time of a token against tokens per second, one line for each form of the model, one
//! point for each batch size.

use std::fmt::Write;

/// Points of one form of the model, in the order of their batch sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct CurveLine {
    /// Such as `base` or `adapter r16`.
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
/// Colours of the lines in a drawing, told apart by readers who do not see all colours (Okabe and Ito 2008).
const COLOURS: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442",
];
const ROWS: usize = 14;

/// Both axes, logarithmic.
struct Axes {
    latency: (f64, f64),
    rate: (f64, f64),
}

impl Axes {
    /// Around all points, with a little room; `None` where there is nothing to draw.
    fn around(lines: &[CurveLine]) -> Option<Self> {
        let points = || lines.iter().flat_map(|line| &line.points);
        let range = |value: fn(&CurvePoint) -> f64| {
            let values = points().map(value).filter(|value| *value > 0.0 && value.is_finite());
            let bounds = values.fold(None, |bounds: Option<(f64, f64)>, value| {
                let (low, high) = bounds.unwrap_or((value, value));
                Some((low.min(value), high.max(value)))
            });
            bounds.map(|(low, high)| (low / 1.1, high * 1.1))
        };
        Some(Self {
            latency: range(|point| point.token_s)?,
            rate: range(|point| point.tokens_per_s)?,
        })
    }

    /// Where a point stands, both in [0, 1] from the left and the bottom.
    fn place(&self, point: &CurvePoint) -> (f64, f64) {
        let along = |value: f64, (low, high): (f64, f64)| ((value / low).ln() / (high / low).ln()).clamp(0.0, 1.0);
        (along(point.token_s, self.latency), along(point.tokens_per_s, self.rate))
    }
}

/// The curve in plain characters, `width` columns wide.
pub fn curve_text(lines: &[CurveLine], width: usize) -> String {
    let Some(axes) = Axes::around(lines) else {
        return String::new();
    };
    let columns = width.clamp(40, 100) - 12;
    let mut grid = vec![vec![' '; columns]; ROWS];
    for (line, mark) in lines.iter().zip(MARKS.iter().cycle()) {
        for point in &line.points {
            let (across, up) = axes.place(point);
            let column = (across * (columns - 1) as f64).round() as usize;
            let row = ROWS - 1 - (up * (ROWS - 1) as f64).round() as usize;
            grid[row][column] = *mark;
        }
    }
    let mut text = "tokens/s, all sequences\n".to_owned();
    for (number, row) in grid.iter().enumerate() {
        let label = match number {
            0 => format!("{:.0}", axes.rate.1),
            number if number == ROWS - 1 => format!("{:.0}", axes.rate.0),
            _ => String::new(),
        };
        let cells: String = row.iter().collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:>9} |{}", cells.trim_end());
    }
    let (low, high) = (super::time(axes.latency.0), super::time(axes.latency.1));
    let gap = columns.saturating_sub(low.len() + high.len());
    let _ = writeln!(text, "{:>9} +{}", "", "-".repeat(columns));
    let _ = writeln!(text, "{:>10} {low}{}{high}", "", " ".repeat(gap));
    let _ = writeln!(text, "{:>10} median time of a token; both axes logarithmic", "");
    for (line, mark) in lines.iter().zip(MARKS.iter().cycle()) {
        let batches: Vec<String> = line.points.iter().map(|point| point.batch.to_string()).collect();
        let _ = writeln!(text, "{:>10} {mark} {}, batch {}", "", line.name, batches.join(" "));
    }
    text
}

const DRAWING: (f64, f64) = (760.0, 460.0);
/// Left, top, right and bottom margins.
const MARGINS: (f64, f64, f64, f64) = (80.0, 40.0, 160.0, 60.0);

/// The curve as an SVG drawing that stands alone.
pub fn curve_svg(lines: &[CurveLine], title: &str) -> String {
    let (width, height) = DRAWING;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"{}\" y=\"24\" font-size=\"15\">{}</text>\n",
        MARGINS.0,
        escaped(title)
    );
    if let Some(axes) = Axes::around(lines) {
        draw_axes(&mut svg, &axes);
        for (number, line) in lines.iter().enumerate() {
            draw_line(&mut svg, &axes, line, number);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Where a point stands in the drawing.
fn position(axes: &Axes, point: &CurvePoint) -> (f64, f64) {
    let (across, up) = axes.place(point);
    let (left, top, right, bottom) = MARGINS;
    let inner = (DRAWING.0 - left - right, DRAWING.1 - top - bottom);
    (left + across * inner.0, top + (1.0 - up) * inner.1)
}

fn draw_axes(svg: &mut String, axes: &Axes) {
    let (left, top, right, bottom) = MARGINS;
    let (end, base) = (DRAWING.0 - right, DRAWING.1 - bottom);
    let _ = writeln!(
        svg,
        "<path d=\"M{left} {top}V{base}H{end}\" fill=\"none\" stroke=\"#444444\"/>"
    );
    let middle = f64::midpoint(left, end);
    let _ = writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">median time of a token (ms, logarithmic)</text>",
        base + 42.0
    );
    let centre = f64::midpoint(top, base);
    let _ = writeln!(
        svg,
        "<text x=\"22\" y=\"{centre}\" text-anchor=\"middle\" transform=\"rotate(-90 22 {centre})\">tokens/s, all \
         sequences (logarithmic)</text>"
    );
    for step in ticks(axes.latency) {
        let at = CurvePoint {
            batch: 0,
            token_s: step,
            tokens_per_s: axes.rate.0,
        };
        let (x, _) = position(axes, &at);
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {base}v5\" stroke=\"#444444\"/><text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            base + 19.0,
            short(1e3 * step)
        );
    }
    for step in ticks(axes.rate) {
        let at = CurvePoint {
            batch: 0,
            token_s: axes.latency.0,
            tokens_per_s: step,
        };
        let (_, y) = position(axes, &at);
        let _ = writeln!(
            svg,
            "<path d=\"M{left} {y:.1}h-5M{left} {y:.1}H{end}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{}</text>",
            left - 9.0,
            y + 4.0,
            short(step)
        );
    }
}

fn draw_line(svg: &mut String, axes: &Axes, line: &CurveLine, number: usize) {
    let colour = COLOURS[number % COLOURS.len()];
    let places: Vec<(f64, f64)> = line.points.iter().map(|point| position(axes, point)).collect();
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
        path.join(" ")
    );
    for ((x, y), point) in places.iter().zip(&line.points) {
        let _ = writeln!(
            svg,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{colour}\"><title>{}, batch {}: {} a token, {:.0} \
             tokens/s</title></circle><text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
            escaped(&line.name),
            point.batch,
            super::time(point.token_s),
            point.tokens_per_s,
            x + 6.0,
            y - 6.0,
            point.batch
        );
    }
    let (x, y) = (DRAWING.0 - MARGINS.2 + 16.0, MARGINS.1 + 12.0 + 20.0 * number as f64);
    let _ = writeln!(
        svg,
        "<path d=\"M{x} {}h18\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" y=\"{y}\">{}</text>",
        y - 4.0,
        x + 24.0,
        escaped(&line.name)
    );
}

/// 1, 2 and 5 times powers of ten within a range.
fn ticks((low, high): (f64, f64)) -> Vec<f64> {
    let first = low.log10().floor() as i32;
    let last = high.log10().ceil() as i32;
    let all = (first..=last).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
    all.filter(|value| (low..=high).contains(value)).collect()
}

fn short(value: f64) -> String {
    crate::report::significant((value * 1e6).round() / 1e6)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
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
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert!(
            svg.contains("a &amp; b") && svg.contains("adapter &lt;r16&gt;"),
            "{svg}"
        );
        let axes = Axes::around(&lines()).unwrap();
        for point in lines().iter().flat_map(|line| &line.points) {
            let (x, y) = position(&axes, point);
            assert!((80.0..=600.0).contains(&x) && (40.0..=400.0).contains(&y));
        }
    }

    #[test]
    fn a_terminal_shows_a_mark_for_each_form() {
        let text = curve_text(&lines(), 70);
        assert!(
            text.contains("o base, batch 1 4 16") && text.contains("x adapter <r16>"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(curve_text(&[], 70), "");
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks((0.9, 6.0)), [1.0, 2.0, 5.0]);
    }
}
