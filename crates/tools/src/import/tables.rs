//! The rows of the tables of precisions, schedules and the like that a file's keys mean: what `export` writes, read back.

use serde_json::Value;

use super::Keys;
use crate::{Tool, Word};
use peft_tune_core::recipe::{AttentionImplementation, ScheduleKind};

/// The one of some rows whose words the file has: no key says otherwise, most say the same, and the fewest are missing.
pub(crate) fn row_of<T>(keys: &Keys<'_>, rows: impl IntoIterator<Item = (T, Option<Vec<Word>>)>) -> Option<T> {
    let mut best: Option<(usize, usize, T)> = None;
    for (kind, words) in rows {
        let Some(words) = words else { continue };
        let found: Vec<bool> = words
            .iter()
            .filter_map(|(key, value)| Some(is_same(keys.raw(key)?, value)))
            .collect();
        if found.is_empty() || found.contains(&false) {
            continue;
        }
        let (same, missing) = (found.len(), words.len() - found.len());
        let is_better = best
            .as_ref()
            .is_none_or(|(most, least, _)| same > *most || same == *most && missing < *least);
        if is_better {
            best = Some((same, missing, kind));
        }
    }
    best.map(|(_, _, kind)| kind)
}

/// Whether a file's value is the table's. A command line has texts for all values, and Python its own for truth.
fn is_same(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::String(text), Value::Bool(flag)) => text.eq_ignore_ascii_case(if *flag { "true" } else { "false" }),
        (Value::String(text), Value::Number(number)) if number.is_f64() => {
            number.as_f64().is_some_and(|number| text.trim().parse() == Ok(number))
        }
        (Value::String(text), Value::Number(number)) => text.trim() == number.to_string(),
        (Value::Number(found), Value::Number(number)) if number.is_f64() => found.as_f64() == number.as_f64(),
        (Value::Object(found), Value::Object(entries)) => entries
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| is_same(found, value))),
        (found, wanted) => found == wanted,
    }
}

/// How attention is computed.
pub(crate) fn attention(keys: &Keys<'_>, tool: Tool) -> Option<AttentionImplementation> {
    let rows = AttentionImplementation::ALL.map(|kind| (kind, (tool.keys().attention)(kind)));
    row_of(keys, rows)
}

/// The schedule, by the words for it with a warm-up or without.
pub(crate) fn schedule(keys: &Keys<'_>, tool: Tool) -> Option<ScheduleKind> {
    let plain = ScheduleKind::ALL.map(|kind| (kind, (tool.keys().schedule)(kind)));
    let warmed = ScheduleKind::ALL.map(|kind| (kind, (tool.keys().schedule_after_warmup)(kind)));
    row_of(keys, plain.into_iter().chain(warmed))
}
