//! References of OmegaConf, by which files of torchtune and LLaMA-Factory name values of their own: `${output_dir}/logs`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::known_keys::written;

/// References that lead to references, at most so many.
const MOST_STEPS: usize = 8;
/// Longest text that references are put into.
const LONGEST: usize = 1 << 16;
/// Bytes that texts may take together where references are put into them.
const ROOM: usize = 1 << 22;
/// Longest path of a reference, in bytes.
const LONGEST_PATH: usize = 256;

/// Puts texts, numbers and flags of the file in the place of references to them. Other references stay as they are.
pub(super) fn interpolate(values: &mut Map<String, Value>) {
    let whole = values.clone();
    let mut room = ROOM;
    values.values_mut().for_each(|value| resolve(value, &whole, &mut room));
}

/// Keys that a text refers to: the paths of its references, and what these begin with.
pub(super) fn referred(text: &str) -> BTreeSet<&str> {
    let behind = text.match_indices("${").map(|(at, mark)| &text[at + mark.len()..]);
    let paths = behind.filter_map(|rest| {
        let end = rest.bytes().take(LONGEST_PATH).position(|letter| letter == b'}')?;
        Some(&rest[..end])
    });
    paths
        .flat_map(|path| [path, path.split('.').next().unwrap_or(path)])
        .collect()
}

fn resolve(value: &mut Value, whole: &Map<String, Value>, room: &mut usize) {
    match value {
        Value::Object(entries) => entries.values_mut().for_each(|value| resolve(value, whole, room)),
        Value::Array(all) => all.iter_mut().for_each(|value| resolve(value, whole, room)),
        _ => {
            for _ in 0..MOST_STEPS {
                let Some(found) = value.as_str().and_then(|text| replaced(text, whole)) else {
                    return;
                };
                let Some(left) = room.checked_sub(found.as_str().map_or(0, str::len)) else {
                    return;
                };
                (*value, *room) = (found, left);
            }
        }
    }
}

/// What a text with references says; `None` where it has none, or one to what is no value of the file.
fn replaced(text: &str, whole: &Map<String, Value>) -> Option<Value> {
    let (before, rest) = text.split_once("${")?;
    let (path, behind) = rest.split_once('}')?;
    let found = value_at(path, whole)?;
    if before.is_empty() && behind.is_empty() {
        return Some(found.clone());
    }
    let found = written(found);
    let text = [before, &found, behind].concat();
    (text.len() <= LONGEST).then_some(Value::String(text))
}

/// The text, number or flag that a path with dots leads to.
fn value_at<'a>(path: &str, whole: &'a Map<String, Value>) -> Option<&'a Value> {
    let mut parts = path.trim().split('.');
    let first = whole.get(parts.next()?)?;
    let found = parts.try_fold(first, |value, part| value.get(part))?;
    matches!(found, Value::String(_) | Value::Number(_) | Value::Bool(_)).then_some(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn references_are_the_values_that_they_name() {
        let mut values = json!({
            "size": 4, "dir": "/models/${name}", "name": "m", "model": {"rank": 8},
            "checkpointer": {"dir": "${dir}", "files": ["${dir}/a"]}, "rank": "${model.rank}", "batch": "${size}",
            "home": "${oc.env:HOME}/x", "none": "${model}", "circle": "${circle}"
        });
        let Value::Object(values) = &mut values else { panic!() };
        interpolate(values);
        assert_eq!(
            values["checkpointer"],
            json!({"dir": "/models/m", "files": ["/models/m/a"]})
        );
        assert_eq!((&values["rank"], &values["batch"]), (&json!(8), &json!(4)));
        assert_eq!(
            (&values["home"], &values["none"]),
            (&json!("${oc.env:HOME}/x"), &json!("${model}"))
        );
        assert_eq!(values["circle"], json!("${circle}"));
        assert_eq!(
            referred("a: ${dir}/${é} ${model.rank} ${never"),
            BTreeSet::from(["dir", "é", "model", "model.rank"])
        );
    }

    #[test]
    fn references_that_grow_without_end_stop() {
        let mut values = json!({"a": "${a}${a}", "b": "x${b}"});
        let Value::Object(values) = &mut values else { panic!() };
        interpolate(values);
        assert!(values["a"].as_str().unwrap().len() < 2 * LONGEST);
    }

    #[test]
    fn values_that_are_put_in_often_take_a_bounded_room() {
        let long = "x".repeat(LONGEST);
        let mut values = json!({"a": long, "all": vec!["${a}"; 1000]});
        let Value::Object(values) = &mut values else { panic!() };
        interpolate(values);
        let all = values["all"].as_array().unwrap();
        let put_in = all.iter().filter(|value| value.as_str() == Some(long.as_str()));
        assert_eq!(put_in.count(), ROOM / LONGEST);
        assert_eq!(all.last(), Some(&json!("${a}")));
    }
}
