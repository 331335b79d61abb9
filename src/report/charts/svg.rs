//! Writing SVG: elements with escaped text, in one palette.

use std::fmt::Write;

pub(super) const INK: &str = "#191c20";
pub(super) const QUIET: &str = "#5a636d";
pub(super) const GRID: &str = "#eceef0";
pub(super) const LINE: &str = "#cfd4d9";
pub(super) const FRONT: &str = "#1559b7";
pub(super) const BEST: &str = "#b83f0a";
pub(super) const OTHER: &str = "#8b949e";
pub(super) const PALE: &str = "#c9d4e3";
pub(super) const DEEP: &str = "#0b3d8c";
/// Parts of a whole, apart in lightness too.
pub(super) const PARTS: [&str; 5] = ["#0b6bb0", "#d98a00", "#11866a", "#b4608f", "#8b949e"];

/// Lines of several models, told apart by readers who do not see all colours (Okabe and Ito 2008).
pub(super) const LINES: [&str; 8] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442",
];

/// Side on which a text's place lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    Quiet,
    Plain,
    Strong,
}

/// A picture under construction. Places are in pixels from the upper left corner.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    title: String,
    body: String,
}

impl Svg {
    /// An empty white picture.
    pub(super) fn new(width: f64, height: f64, title: &str) -> Self {
        Self {
            width,
            height,
            title: title.to_owned(),
            body: String::new(),
        }
    }

    /// A line of text.
    pub(super) fn text(&mut self, x: f64, y: f64, anchor: Anchor, weight: Weight, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let look = match weight {
            Weight::Quiet => format!(r#"fill="{QUIET}""#),
            Weight::Plain => format!(r#"fill="{INK}""#),
            Weight::Strong => format!(r#"fill="{INK}" font-weight="bold""#),
        };
        self.push(format_args!(
            r#"<text x="{}" y="{}" text-anchor="{anchor}" {look}>{}</text>"#,
            px(x),
            px(y),
            escaped(text)
        ));
    }

    /// A straight line.
    pub(super) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &str) {
        let (x1, y1, x2, y2) = (px(from.0), px(from.1), px(to.0), px(to.1));
        self.push(format_args!(
            r#"<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}"/>"#
        ));
    }

    /// A filled rectangle.
    pub(super) fn rect(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let (x, y, width, height) = (px(x), px(y), px(width.max(0.0)), px(height.max(0.0)));
        self.push(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}"/>"#
        ));
    }

    /// A filled rectangle that what is below it shows through.
    pub(super) fn faint_rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str, opacity: f64) {
        let (x, y, width, height) = (px(x), px(y), px(width.max(0.0)), px(height.max(0.0)));
        self.push(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" fill-opacity="{opacity:.2}"/>"#
        ));
    }

    /// A line through points; `look` has its attributes.
    pub(super) fn path(&mut self, points: &[(f64, f64)], look: &str) {
        let mut d = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(d, "{}{} {}", if index == 0 { 'M' } else { 'L' }, px(*x), px(*y));
        }
        self.push(format_args!(r#"<path d="{d}" {look}/>"#));
    }

    /// A disc or ring.
    pub(super) fn circle(&mut self, x: f64, y: f64, radius: f64, look: &str) {
        self.push(format_args!(
            r#"<circle cx="{}" cy="{}" r="{}" {look}/>"#,
            px(x),
            px(y),
            px(radius)
        ));
    }

    /// A five-pointed star.
    pub(super) fn star(&mut self, x: f64, y: f64, radius: f64) {
        let corner = |index: usize| {
            let angle = std::f64::consts::PI * (index as f64 / 5.0 - 0.5);
            let length = if index % 2 == 1 { 0.45 * radius } else { radius };
            (x + length * angle.cos(), y + length * angle.sin())
        };
        let corners: Vec<(f64, f64)> = (0..10).map(corner).collect();
        self.path(
            &corners,
            &format!(r##"fill="{BEST}" stroke="#ffffff" stroke-width="1.2""##),
        );
    }

    /// The picture as a file.
    pub(super) fn finish(self) -> String {
        let (width, height) = (px(self.width), px(self.height));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n\
             <title>{}</title>\n<rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n{}</svg>\n",
            escaped(&self.title),
            self.body
        )
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }
}

/// A coordinate to a tenth of a pixel, which no eye tells apart.
fn px(value: f64) -> String {
    let text = format!("{value:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text for the inside of an element. Control characters have no place in XML at all.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            '\u{fffe}' | '\u{ffff}' => safe.push('\u{fffd}'),
            control if control.is_control() => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// Shortens a name to `most` characters.
pub(super) fn short(name: &str, most: usize) -> String {
    if name.chars().count() <= most {
        return name.to_owned();
    }
    let start: String = name.chars().take(most.saturating_sub(1)).collect();
    format!("{start}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_is_text() {
        let mut svg = Svg::new(10.0, 10.0, "</title><script>alert(1)</script>");
        svg.text(0.0, 0.0, Anchor::Start, Weight::Plain, "\"><script>\u{1b}&");
        let text = svg.finish();
        assert!(
            !text.contains("<script") && text.contains("&quot;&gt;&lt;script&gt;\u{fffd}&amp;"),
            "{text}"
        );
    }
}
