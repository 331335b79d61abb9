//! The index of a checkpoint that is spread over several files.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use super::HubError;
use peft_tune_core::bounded;

/// The shards that an index of a checkpoint names, each once, in order.
///
/// # Errors
/// Fails on what is not an index, and on names that lead out of the folder.
pub(super) fn shards_of(index: &Path) -> Result<Vec<String>, HubError> {
    let bad = |reason: String| HubError::BadIndex {
        path: index.to_owned(),
        reason,
    };
    let text = bounded::read(index, bounded::SETTINGS_BYTES).map_err(|source| HubError::Read {
        path: index.to_owned(),
        source,
    })?;
    let json: serde_json::Value = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
    let map = json
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| bad("it has no object `weight_map`".to_owned()))?;
    let mut shards = BTreeSet::new();
    for (tensor, shard) in map {
        let shard = shard
            .as_str()
            .ok_or_else(|| bad(format!("the file of `{tensor}` is not a string")))?;
        let mut parts = Path::new(shard).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(bad(format!("`{shard}` is not the plain name of a file")));
        }
        shards.insert(shard.to_owned());
    }
    if shards.is_empty() {
        return Err(bad("it names no shard".to_owned()));
    }
    Ok(shards.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(text: &str) -> Result<Vec<String>, HubError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index.json");
        std::fs::write(&path, text).unwrap();
        shards_of(&path)
    }

    #[test]
    fn each_shard_is_named_once() {
        let text = r#"{"metadata": {}, "weight_map": {"x": "b", "y": "a", "z": "b"}}"#;
        assert_eq!(shards(text).unwrap(), ["a", "b"]);
    }

    #[test]
    fn what_is_no_index_or_leads_elsewhere_is_refused() {
        let cases = [
            ("", "EOF"),
            ("{}", "weight_map"),
            (r#"{"weight_map": {}}"#, "no shard"),
            (r#"{"weight_map": {"x": 1}}"#, "`x`"),
            (r#"{"weight_map": {"x": "../b"}}"#, "../b"),
            (r#"{"weight_map": {"x": "/etc/passwd"}}"#, "/etc/passwd"),
            (r#"{"weight_map": {"x": ""}}"#, "plain name"),
        ];
        for (text, part) in cases {
            let error = shards(text).unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("index.json"), "{error}");
        }
    }
}
