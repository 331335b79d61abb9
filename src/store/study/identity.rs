//! Identity of a study: its definition, but for where files lie, how far ranges may be widened and what devices cost.

use sha2::{Digest, Sha256};

use super::overview::PRICE;
use peft_tune_core::hexadecimal;

/// The part of a definition that makes two studies the same: all but how far ranges may be widened and what devices cost, which change
/// no trial.
pub(super) fn identity_of(definition: &serde_json::Value) -> serde_json::Value {
    let mut identity = definition.clone();
    if let Some(settings) = identity
        .pointer_mut("/settings")
        .and_then(|settings| settings.as_object_mut())
    {
        settings.remove(PRICE);
    }
    let parameters = identity.pointer_mut("/settings/space/parameters");
    let parameters = parameters.and_then(serde_json::Value::as_array_mut);
    for parameter in parameters.into_iter().flatten().filter_map(|one| one.as_object_mut()) {
        parameter.remove("widest");
    }
    identity
}

/// Pointers to the values of a definition that say where files lie.
pub(super) const PLACES: [&str; 6] = [
    "/settings/base/model",
    "/settings/base/data/train",
    "/settings/base/data/held_out",
    "/settings/base/data/retain",
    "/settings/base/data/chat_template",
    "/settings/backend/folder",
];

/// The definition without the values that say where files lie; a fraction of held-out rows stays.
pub(super) fn without_places(mut definition: serde_json::Value) -> serde_json::Value {
    for place in PLACES {
        if let Some(value) = definition.pointer_mut(place).filter(|value| is_place(value)) {
            *value = serde_json::Value::Bool(true);
        }
    }
    definition
}

/// Whether a value names files: a fraction of the rows does not.
pub(super) fn is_place(value: &serde_json::Value) -> bool {
    !value.is_number() && !value.is_null()
}

/// SHA-256 of a JSON value in hexadecimal, the same for every order of its keys.
pub(super) fn json_hash(value: &serde_json::Value) -> String {
    let digest = Sha256::digest(sorted(value).to_string().as_bytes());
    hexadecimal(&digest)
}

/// Paths of at most `most` places in which two JSON values differ, such as `settings.space.rank.high`. Elements of a list
/// are called by their `name` where they have one.
pub(super) fn json_differences(old: &serde_json::Value, new: &serde_json::Value, most: usize) -> Vec<String> {
    let mut found = Vec::new();
    collect_differences(old, new, String::new(), &mut found);
    let more = found.len().saturating_sub(most);
    found.truncate(most);
    if more > 0 {
        found.push(format!("{more} more"));
    }
    found
}

fn collect_differences(old: &serde_json::Value, new: &serde_json::Value, path: String, found: &mut Vec<String>) {
    if old == new {
        return;
    }
    let (Some(old), Some(new)) = (children(old), children(new)) else {
        found.push(path);
        return;
    };
    let inside = |name: &str| match path.as_str() {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    };
    for (name, value) in &old {
        match new.iter().find(|(other, _)| other == name) {
            Some((_, other)) => collect_differences(value, other, inside(name), found),
            None => found.push(inside(name)),
        }
    }
    let added = new
        .iter()
        .filter(|(name, _)| old.iter().all(|(other, _)| other != name));
    found.extend(added.map(|(name, _)| inside(name)));
}

/// Members of an object, or elements of a list by name or place.
fn children(value: &serde_json::Value) -> Option<Vec<(String, &serde_json::Value)>> {
    match value {
        serde_json::Value::Object(members) => Some(members.iter().map(|(name, value)| (name.clone(), value)).collect()),
        serde_json::Value::Array(elements) => Some(
            elements
                .iter()
                .enumerate()
                .map(|(place, element)| {
                    let name = element.get("name").and_then(|name| name.as_str());
                    (name.map_or_else(|| place.to_string(), str::to_owned), element)
                })
                .collect(),
        ),
        _ => None,
    }
}

/// The value with the keys of every object in order.
fn sorted(value: &serde_json::Value) -> serde_json::Value {
    match value {
        serde_json::Value::Object(members) => {
            let mut members: Vec<_> = members
                .iter()
                .map(|(name, value)| (name.clone(), sorted(value)))
                .collect();
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            serde_json::Value::Object(members.into_iter().collect())
        }
        serde_json::Value::Array(elements) => elements.iter().map(sorted).collect(),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_order_of_keys_does_not_change_the_hash() {
        assert_eq!(
            json_hash(&json!({"a": 1, "b": [{"c": 2, "d": 3}]})),
            json_hash(&json!({"b": [{"d": 3, "c": 2}], "a": 1}))
        );
        assert_ne!(json_hash(&json!([1, 2])), json_hash(&json!([2, 1])));
    }

    #[test]
    fn a_price_makes_no_other_study() {
        let of = |settings: serde_json::Value| identity_of(&json!({"settings": settings}));
        assert_eq!(
            of(json!({"base": 1, "price": {"usd_per_h": 2.0}})),
            of(json!({"base": 1}))
        );
        assert_ne!(of(json!({"base": 1})), of(json!({"base": 2})));
    }

    #[test]
    fn differences_are_named_by_path() {
        let old = json!({"space": [{"name": "rank", "high": 8}, {"name": "alpha", "high": 8}], "model": "a"});
        let new = json!({"space": [{"name": "rank", "high": 16}], "model": "a", "data": "b"});
        assert_eq!(
            json_differences(&old, &new, 5),
            ["space.rank.high", "space.alpha", "data"]
        );
        assert_eq!(json_differences(&old, &new, 1), ["space.rank.high", "2 more"]);
        assert!(json_differences(&old, &old, 5).is_empty());
    }
}
