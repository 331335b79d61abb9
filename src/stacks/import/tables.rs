//! The rows of the tables of precisions, schedules and the like that a file's keys mean: what `export` writes, read back.

use serde_json::{Value, json};

use crate::stacks::keys::Keys;
use peft_tune_core::recipe::settings::Tool;
use peft_tune_core::recipe::{AdapterInit, Checkpointing, KeyValue, Keys as Words, ScheduleKind};

/// The one of some rows whose words the file has: no key says otherwise, most say the same, and the fewest are missing.
pub(super) fn row_of<T>(keys: &Keys<'_>, rows: impl IntoIterator<Item = (T, Option<Words>)>) -> Option<T> {
    let mut best: Option<(usize, usize, T)> = None;
    for (kind, words) in rows {
        let Some(Words(words)) = words else { continue };
        let found: Vec<bool> = words
            .iter()
            .filter_map(|(key, value)| Some(is_same(keys.raw(key)?, *value)))
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
fn is_same(found: &Value, value: KeyValue) -> bool {
    match (found, value) {
        (Value::String(text), KeyValue::Flag(flag)) => text.eq_ignore_ascii_case(if flag { "true" } else { "false" }),
        (Value::String(text), KeyValue::Number(number)) => text.trim() == number.to_string(),
        (Value::String(text), KeyValue::Float(number)) => text.trim().parse() == Ok(number),
        (Value::Number(found), KeyValue::Float(number)) => found.as_f64() == Some(number),
        (Value::Object(found), KeyValue::Map(Words(entries))) => entries
            .iter()
            .all(|(key, value)| found.get(*key).is_some_and(|found| is_same(found, *value))),
        (found, value) => *found == json!(value),
    }
}

/// What is recomputed.
pub(super) fn checkpointing(keys: &Keys<'_>, tool: Tool) -> Option<Checkpointing> {
    let forms = [Checkpointing::None, Checkpointing::Full, Checkpointing::Offload];
    row_of(keys, forms.map(|form| (form, form.keys(tool))))
}

/// How adapters start.
pub(super) fn init(keys: &Keys<'_>, tool: Tool) -> Option<AdapterInit> {
    row_of(keys, AdapterInit::ALL.map(|init| (init, init.row().keys.at(tool))))
}

/// The schedule, by the words for it with a warm-up or without.
pub(super) fn schedule(keys: &Keys<'_>, tool: Tool) -> Option<ScheduleKind> {
    let plain = ScheduleKind::ALL.map(|kind| (kind, kind.row().keys.at(tool)));
    let warmed = ScheduleKind::ALL.map(|kind| (kind, kind.row().keys_with_warmup.and_then(|keys| keys.at(tool))));
    row_of(keys, plain.into_iter().chain(warmed))
}
