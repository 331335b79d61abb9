//! The numbers of a recommendation in words.

use super::Problem;
use super::history::Evaluated;
use peft_tune_core::objective::{Bound, Constraint, Direction, Objective};

/// Percent above the best from which a factor is easier to read.
const LARGE: f64 = 200.0;

/// A limit with its unit: `at most 11.25 GiB`.
pub(super) fn bound_text(constraint: &Constraint) -> String {
    match constraint.bound {
        Bound::AtMost(limit) => format!("at most {}", value_text(&constraint.metric, limit)),
        Bound::AtLeast(limit) => format!("at least {}", value_text(&constraint.metric, limit)),
    }
}

/// Limits with their metrics: `peak_memory at most 11.25 GiB and loss at most 2.100 nats`.
pub(super) fn limits_text(constraints: &[Constraint]) -> String {
    let one = |constraint: &Constraint| format!("{} {}", constraint.metric, bound_text(constraint));
    constraints.iter().map(one).collect::<Vec<_>>().join(" and ")
}

/// Each objective's value, and how far it is from the best that any of these complete feasible trials reached; `beyond` is said
/// of that best where it is not reached.
pub(super) fn numbers_text(
    problem: &Problem,
    complete: &[Evaluated<'_>],
    chosen: &Evaluated<'_>,
    beyond: &str,
) -> String {
    let feasible: Vec<&[f64]> = complete
        .iter()
        .filter(|one| one.is_feasible())
        .map(|one| one.values.as_slice())
        .collect();
    let one = |(index, objective): (usize, &Objective)| {
        let value = chosen.values[index];
        let best = feasible.iter().map(|point| point[index]).fold(value, f64::min);
        let text = format!(
            "{} {}",
            objective.metric.replace('_', " "),
            value_text(&objective.metric, objective.minimised(value))
        );
        if value == best {
            return format!("{text} (the best)");
        }
        let share = 100.0 * (value - best) / best.abs();
        let side = match objective.direction {
            Direction::Minimize => "above",
            Direction::Maximize => "below",
        };
        if share >= LARGE {
            format!("{text} ({:.1} times the best{beyond})", 1.0 + share / 100.0)
        } else if share.is_finite() {
            format!("{text} ({share:.1}% {side} the best{beyond})")
        } else {
            text
        }
    };
    problem
        .objectives
        .iter()
        .enumerate()
        .map(one)
        .collect::<Vec<_>>()
        .join(", ")
}

/// A metric's value with its unit, to four digits: `11.25 GiB`, `5,240 tokens/s`, `1.930 nats`.
pub(super) fn value_text(metric: &str, value: f64) -> String {
    let unit = Objective::new(metric).unit();
    if unit == "bytes" {
        let (scale, unit) = [(30, "GiB"), (20, "MiB"), (10, "KiB")]
            .into_iter()
            .map(|(shift, unit)| (f64::from(1u32 << shift), unit))
            .find(|(scale, _)| value.abs() >= *scale)
            .unwrap_or((1.0, "bytes"));
        return format!("{} {unit}", four_digits(value / scale));
    }
    let space = if unit == "%" { "" } else { " " };
    format!("{}{space}{unit}", four_digits(value)).trim_end().to_owned()
}

fn four_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor();
    if !(-4.0..=9.0).contains(&magnitude) {
        return format!("{value:.3e}");
    }
    grouped(&format!("{value:.*}", (3.0 - magnitude).max(0.0) as usize))
}

/// A learning rate: `2.1e-3`.
pub(super) fn rate_text(rate: f64) -> String {
    format!("{rate:.1e}")
}

/// A decimal number with its whole part in groups of three digits: `71,303`.
pub(super) fn grouped(number: &str) -> String {
    let (whole, fraction) = number.split_at(number.find('.').unwrap_or(number.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let groups: Vec<&str> = (0..digits.len())
        .filter(|at| *at == 0 || (digits.len() - at) % 3 == 0)
        .map(|at| &digits[at..digits.len().min(at + (digits.len() - at - 1) % 3 + 1)])
        .collect();
    format!("{sign}{}{fraction}", groups.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_four_digits_in_groups() {
        let tokens = |value| value_text("throughput", value);
        let shown = [7.0, -950.5, 1000.0, 71303.2, 1_234_567.0].map(tokens);
        assert_eq!(
            shown,
            [
                "7.000 tokens/s",
                "-950.5 tokens/s",
                "1,000 tokens/s",
                "71,303 tokens/s",
                "1,234,567 tokens/s"
            ]
        );
        assert_eq!(value_text("loss", 1.93), "1.930 nats");
        assert_eq!(value_text("peak_memory", 1536.0 * 1024.0 * 1024.0), "1.500 GiB");
    }
}
