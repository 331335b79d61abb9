//! Scales and axes.

use super::svg::{Anchor, GRID, LINE, Svg, Weight};
use peft_tune_core::objective::{PEAK_MEMORY, TARGET_PEAK_MEMORY};

/// Scale from values to places. Empty and constant values get some room around them.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
    /// Bytes are divided into binary units.
    is_bytes: bool,
}

/// How a scale is made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScaleOptions<'a> {
    /// Metric that the values are of, which decides how they are written.
    pub metric: &'a str,
    pub log: bool,
    /// Whether the scale begins at 0.
    pub zero: bool,
    /// Share of the span that stays free at both ends.
    pub pad: f64,
}

impl Scale {
    /// A scale that takes the lowest of `values` near `from` and the highest near `to`.
    pub(super) fn new(values: impl IntoIterator<Item = f64>, from: f64, to: f64, options: ScaleOptions<'_>) -> Self {
        let finite = values.into_iter().filter(|value| value.is_finite());
        let (mut low, mut high) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        let log = options.log && low > 0.0;
        if options.zero {
            low = low.min(0.0);
        }
        let (mut a, mut b) = if log { (low.ln(), high.ln()) } else { (low, high) };
        if a == b {
            let by = if log {
                0.5
            } else {
                0.05 * a.abs() + f64::from(u8::from(a == 0.0))
            };
            (a, b) = (a - by, b + by);
        }
        let room = (b - a) * options.pad;
        Self {
            low: if options.zero && low == 0.0 { a } else { a - room },
            high: b + room,
            log,
            from,
            to,
            is_bytes: [PEAK_MEMORY, TARGET_PEAK_MEMORY].contains(&options.metric) || options.metric.ends_with("_bytes"),
        }
    }

    /// Place of a value.
    pub(super) fn place(&self, value: f64) -> f64 {
        let value = if self.log { value.ln() } else { value };
        self.from + (value - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// The values at both ends, room included.
    pub(super) fn ends(&self) -> (f64, f64) {
        match self.log {
            true => (self.low.exp(), self.high.exp()),
            false => (self.low, self.high),
        }
    }

    /// Round values inside the scale with their texts, about `count` of them.
    pub(super) fn ticks(&self, count: usize) -> Vec<(f64, String)> {
        if self.log {
            let (low, high) = self.ends();
            return log_ticks(low, high, count)
                .into_iter()
                .map(|tick| (tick, plain(tick)))
                .collect();
        }
        if !self.is_bytes {
            return linear_ticks(self.low, self.high, count)
                .into_iter()
                .map(|tick| (tick, plain(tick)))
                .collect();
        }
        let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")]
            .map(|(shift, name)| ((1u64 << shift) as f64, name));
        let (size, name) = units
            .into_iter()
            .find(|(size, _)| self.high >= *size)
            .unwrap_or((1.0, "B"));
        let ticks = linear_ticks(self.low / size, self.high / size, count);
        ticks
            .into_iter()
            .map(|tick| (tick * size, format!("{} {name}", plain(tick))))
            .collect()
    }
}

/// Multiples of 1, 2, 2.5 or 5 times a power of ten.
fn linear_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let rough = (high - low) / count.max(1) as f64;
    if !(rough > 0.0 && rough.is_finite()) {
        return Vec::new();
    }
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|one| one * power)
        .into_iter()
        .find(|step| *step >= 0.75 * rough);
    let step = step.unwrap_or(rough);
    let first = (low / step - 1e-9).ceil();
    let many = ((high / step + 1e-9).floor() - first).max(-1.0) as usize + 1;
    (0..many.min(50))
        .map(|index| (first + index as f64) * step)
        .map(|tick| if tick.abs() < 1e-9 * step { 0.0 } else { tick })
        .collect()
}

fn log_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    // The room at both ends can lie outside of what a number holds.
    let (low, high) = (low.max(f64::MIN_POSITIVE), high.min(f64::MAX));
    let decades = high.log10() - low.log10();
    let digits: &[f64] = match () {
        () if decades > count as f64 => &[1.0],
        () if decades > 1.3 => &[1.0, 2.0, 5.0],
        () => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
    };
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let all = (first..=last).flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
    let ticks: Vec<f64> = all
        .filter(|tick| tick.is_finite() && (low * 0.999..=high * 1.001).contains(tick))
        .collect();
    let every = ticks.len().div_ceil(count + 1).max(1);
    ticks.into_iter().step_by(every).collect()
}

/// A number as an axis has it: `0.002`, `2.4`, `8,000`, `12k`, `3e-5`.
fn plain(value: f64) -> String {
    let size = value.abs();
    let digits = |value: f64| {
        let text = format!("{value:.4}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match () {
        () if value == 0.0 => "0".to_owned(),
        () if !(1e-3..1e9).contains(&size) => with_exponent(value),
        () if size >= 1e6 => format!("{}M", digits(value / 1e6)),
        () if size >= 1e4 => format!("{}k", digits(value / 1e3)),
        () => digits(value),
    }
}

/// A number to four digits with an exponent: `2e-4`, `1.25e10`.
fn with_exponent(value: f64) -> String {
    let text = format!("{value:.3e}");
    match text.split_once('e') {
        Some((digits, exponent)) if digits.contains('.') => {
            format!("{}e{exponent}", digits.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

/// The area between the axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
}

/// Grid, ticks and names of both axes.
pub(super) fn frame(svg: &mut Svg, area: Area, x: &Scale, y: &Scale, names: (&str, &str)) {
    for (tick, text) in y.ticks(5) {
        let place = y.place(tick);
        svg.line((area.left, place), (area.right, place), GRID);
        svg.text(area.left - 7.0, place + 4.0, Anchor::End, Weight::Quiet, &text);
    }
    for (tick, text) in x.ticks(6) {
        let place = x.place(tick);
        svg.line((place, area.top), (place, area.bottom), GRID);
        svg.text(place, area.bottom + 17.0, Anchor::Middle, Weight::Quiet, &text);
    }
    svg.line((area.left, area.bottom), (area.right, area.bottom), LINE);
    svg.line((area.left, area.top), (area.left, area.bottom), LINE);
    svg.text(area.right, area.bottom + 37.0, Anchor::End, Weight::Strong, names.0);
    svg.text(8.0, area.top - 13.0, Anchor::Start, Weight::Strong, names.1);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(values: &[f64], options: ScaleOptions<'_>) -> Vec<String> {
        Scale::new(values.iter().copied(), 0.0, 100.0, options)
            .ticks(5)
            .into_iter()
            .map(|(_, text)| text)
            .collect()
    }

    #[test]
    fn ticks_are_round_in_the_unit_of_the_metric() {
        let metric = |metric| ScaleOptions {
            metric,
            ..Default::default()
        };
        assert_eq!(texts(&[0.0, 10.0], metric("x")), ["0", "2", "4", "6", "8", "10"]);
        assert_eq!(
            texts(&[1048576.0, 5.0 * 1048576.0], metric(PEAK_MEMORY)),
            ["1 MiB", "2 MiB", "3 MiB", "4 MiB", "5 MiB"]
        );
        let log = ScaleOptions {
            log: true,
            ..Default::default()
        };
        assert_eq!(texts(&[1e-5, 1e-3], log), ["1e-5", "5e-5", "2e-4", "0.001"]);
    }

    proptest! {
        #[test]
        fn any_values_have_a_finite_scale(values in prop::collection::vec(any::<f64>(), 0..6), log: bool, zero: bool) {
            let scale = Scale::new(values.iter().map(|value| value / 4.0), 0.0, 100.0, ScaleOptions { log, zero, pad: 0.05, metric: "" });
            for (tick, _) in scale.ticks(5) {
                prop_assert!(tick.is_finite());
            }
        }
    }
}
