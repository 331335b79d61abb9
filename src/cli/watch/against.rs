//! What is otherwise in a run than in an earlier one.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::Value;

use super::report::{Measured, RunReport};
use super::report_text::metric_title;
use crate::report::{Align, TextTable, change, metric_value, printable};

/// A number of a run, where it was measured.
type Number = fn(&Measured) -> Option<f64>;

/// Numbers of both runs.
const METRICS: [(&str, Number); 4] = [
    ("step_s", |run| run.step_s),
    ("tokens_per_s", |run| run.tokens_per_s),
    ("counted_tokens_per_s", |run| run.counted_tokens_per_s),
    ("peak_bytes", |run| {
        Some(run.peak_bytes() as f64).filter(|bytes| *bytes > 0.0)
    }),
];

/// The differences in at most `width` columns of characters.
pub(super) fn text_of(now: &RunReport, then: &RunReport, width: Option<usize>) -> String {
    let names = [
        ("", Align::Left),
        ("then", Align::Right),
        ("now", Align::Right),
        ("difference", Align::Right),
    ];
    let mut table = TextTable::new(names.map(|(name, align)| (name.to_owned(), align)));
    for (metric, value) in METRICS {
        if let Some((then, now)) = value(&then.measured).zip(value(&now.measured)) {
            table.push([
                metric_title(metric).to_owned(),
                metric_value(metric, then),
                metric_value(metric, now),
                change(now / then - 1.0),
            ]);
        }
    }
    let mut text = "against the earlier run\n".to_owned();
    text.push_str(&table.to_text(width));
    for line in changes(now, then) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {}", printable(&line));
    }
    text
}

/// Packages, settings and causes that are otherwise, a line each.
fn changes(now: &RunReport, then: &RunReport) -> Vec<String> {
    let mut lines = Vec::new();
    let names: BTreeSet<&String> = now.packages.keys().chain(then.packages.keys()).collect();
    for name in names {
        let of = |run: &RunReport| {
            run.packages
                .get(name)
                .cloned()
                .unwrap_or_else(|| "not installed".to_owned())
        };
        if of(now) != of(then) {
            lines.push(format!("package {name}: {} then, {} now", of(then), of(now)));
        }
    }
    let settings = |run: &RunReport| run.read.as_ref().map_or(Value::Null, |read| read.setting.clone());
    differences("", &settings(then), &settings(now), &mut lines);
    let causes = |run: &RunReport| -> BTreeSet<String> { run.causes.iter().map(|cause| cause.name.clone()).collect() };
    let (had, has) = (causes(then), causes(now));
    lines.extend(has.difference(&had).map(|name| format!("new cause: {name}")));
    lines.extend(had.difference(&has).map(|name| format!("no longer a cause: {name}")));
    if lines.is_empty() {
        lines.push("packages, settings and causes are the same".to_owned());
    }
    lines
}

/// Values that are otherwise, by the path of their keys.
fn differences(path: &str, then: &Value, now: &Value, lines: &mut Vec<String>) {
    match (then, now) {
        (Value::Object(had), Value::Object(has)) => {
            let names: BTreeSet<&String> = had.keys().chain(has.keys()).collect();
            for name in names {
                let inner = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                let of = |keys: &serde_json::Map<String, Value>| keys.get(name).cloned().unwrap_or_default();
                differences(&inner, &of(had), &of(has), lines);
            }
        }
        (then, now) if then != now => {
            let name = if path.is_empty() { "settings" } else { path };
            let shown = |value: &Value| match value {
                Value::Object(_) => "read".to_owned(),
                Value::Null => "none".to_owned(),
                other => other.to_string(),
            };
            lines.push(format!("setting {name}: {} then, {} now", shown(then), shown(now)));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::causes::Cause;
    use super::super::report::ReadSettings;
    use super::super::report::tests::with_expectation;
    use super::*;

    fn read(setting: Value) -> Option<ReadSettings> {
        Some(ReadSettings {
            file: "c.yaml".to_owned(),
            tool: "TRL".to_owned(),
            model: "m".to_owned(),
            rows: "full".to_owned(),
            text: "lora".to_owned(),
            setting,
        })
    }

    #[test]
    fn speeds_packages_settings_and_causes_are_held_against_each_other() {
        let (mut now, mut then) = (with_expectation(), with_expectation());
        assert!(text_of(&now, &then, None).contains("are the same"));
        then.measured.step_s = Some(0.5);
        then.packages.insert("torch".to_owned(), "2.8".to_owned());
        now.packages.insert("torch".to_owned(), "2.9".to_owned());
        then.read = read(json!({"micro_batch": 2, "trains": {"adapters": {"rank": 8}}}));
        now.read = read(json!({"micro_batch": 2, "trains": {"adapters": {"rank": 16}}}));
        now.causes.push(Cause {
            name: "stall".to_owned(),
            evidence: "x".to_owned(),
            advice: "y".to_owned(),
            share: None,
        });
        let text = text_of(&now, &then, None);
        for part in [
            "+100.0%",
            "counted tokens/s",
            "package torch: 2.8 then, 2.9 now",
            "setting trains.adapters.rank: 8 then, 16 now",
            "new cause: stall",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
