//! Two profiles side by side.

use std::fmt::Write;

use super::{percent, time};
use crate::report::{Align, TextTable, bytes, metric_value};
use peft_tune_engine::profile::{ChangedSetting, Comparison, Difference};

/// Ops that are shown: those that changed most.
const MOST_OPS: usize = 12;

/// What got slower or faster, and what grew or shrank. `before` and `after` name the profiles.
pub fn comparison_text(comparison: &Comparison, before: &str, after: &str, width: Option<usize>) -> String {
    let mut text = format!("{before} against {after}\n");
    for ChangedSetting { name, before, after } in &comparison.settings {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name}: {before} -> {after}");
    }
    let number = |difference: &Difference, value: f64| match difference.name.as_str() {
        "mfu" | "hfu" | "adapter_share" => percent(value),
        "step_s" => time(value),
        name => metric_value(name, value),
    };
    let tables = [
        table("profile", &comparison.headlines, width, &number),
        table("phase, 1000 tokens", &comparison.phases, width, &|_, value| time(value)),
        table("op, 1000 tokens", top(&comparison.ops), width, &|_, value| time(value)),
        table("memory at the peak", &comparison.memory, width, &|_, value| {
            bytes(value)
        }),
    ];
    for table in tables {
        text.push('\n');
        text.push_str(&table);
        text.push('\n');
    }
    text.push('\n');
    text.push_str(&verdict(comparison));
    text
}

fn top(ops: &[Difference]) -> &[Difference] {
    &ops[..ops.len().min(MOST_OPS)]
}

fn table(
    heading: &str,
    differences: &[Difference],
    width: Option<usize>,
    number: &dyn Fn(&Difference, f64) -> String,
) -> String {
    use Align::{Left, Right};
    let columns = [(heading, Left), ("before", Right), ("after", Right), ("change", Right)];
    let mut table = TextTable::new(columns.map(|(name, align)| (name.to_owned(), align)));
    for difference in differences {
        table.push([
            difference.name.clone(),
            number(difference, difference.before),
            number(difference, difference.after),
            difference
                .relative()
                .map_or_else(|| "new".to_owned(), |change| format!("{:+.1}%", 100.0 * change)),
        ]);
    }
    table.to_text(width)
}

/// The worst of both kinds in a sentence each.
fn verdict(comparison: &Comparison) -> String {
    let mut text = String::new();
    if let Some(op) = comparison.slower_ops().next() {
        let _ = writeln!(
            text,
            "slower: {} takes {} more for 1000 tokens",
            op.name,
            time(op.after - op.before)
        );
    }
    let grown = comparison
        .grown_parts()
        .max_by(|a, b| (a.after - a.before).total_cmp(&(b.after - b.before)));
    if let Some(part) = grown {
        let _ = writeln!(text, "grown: {} by {}", part.name, bytes(part.after - part.before));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_engine::profile::fixtures::sound_profile;

    #[test]
    fn what_got_slower_is_said() {
        let before = sound_profile();
        let mut after = sound_profile();
        after.ops[1].seconds *= 2.0;
        let text = comparison_text(&Comparison::new(&before, &after), "profile 1", "profile 2", Some(80));
        assert!(text.starts_with("profile 1 against profile 2\n"), "{text}");
        assert!(
            text.contains("slower: backward matmul_nn takes 40.00 ms more for 1000 tokens"),
            "{text}"
        );
    }
}
