//! What is handed to the database: plain values, one struct a table.

use std::path::PathBuf;

use sha2::{Digest, Sha256};

use peft_tune_core::hexadecimal;
use peft_tune_core::objective::{Constraint, Objective};
use peft_tune_core::study::Phase;

/// A study as a search begins or resumes it.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyRecord {
    pub name: String,
    /// Search-space file, and its text.
    pub space_path: PathBuf,
    pub space_text: String,
    /// Everything beside objectives and constraints that decides what a trial means: parameters, model, data, trial
    /// settings. A study whose definition differs is another study. The budget is no part of it, so that it can be
    /// raised.
    pub definition: serde_json::Value,
    pub objectives: Vec<Objective>,
    pub constraints: Vec<Constraint>,
    pub seed: u64,
    /// Name of the sampler; another one may continue with a study.
    pub sampler: String,
    pub model: Option<ModelRecord>,
    pub data_set: Option<DataSetRecord>,
    pub machine: Option<MachineRecord>,
}

/// The machine that runs trials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MachineRecord {
    pub host: String,
    pub os: String,
    pub cpu: String,
    pub cpu_cores: u64,
    pub memory_bytes: u64,
    /// `cpu`, or the GPU's name.
    pub device: String,
    pub device_memory_bytes: u64,
    /// Empty for `cpu`.
    pub driver: String,
}

/// The base model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelRecord {
    /// Directory or hub id, as the recipe has it.
    pub source: String,
    /// Hash that tells two models of one source apart; may be empty.
    pub fingerprint: String,
    /// Family, such as `qwen2`; may be empty.
    pub architecture: String,
    /// Number of weights.
    pub parameters: Option<u64>,
}

/// The training and held-out data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataSetRecord {
    /// Training file(s), as the recipe has them.
    pub source: String,
    /// Hash that tells two states of one file apart; may be empty.
    pub fingerprint: String,
    pub rows: Option<u64>,
    pub tokens: Option<u64>,
    pub held_out_rows: Option<u64>,
    /// What is learnt of it, in words.
    pub learnt: Option<String>,
}

/// One optimizer step. Numbers that are not finite are stored as null.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepRecord {
    /// [`Phase::Profile`] or [`Phase::Train`].
    pub phase: Phase,
    /// Number within the phase, from 1.
    pub step: u64,
    /// Training loss in nats per target token.
    pub loss: f64,
    pub learning_rate: f64,
    /// Before clipping.
    pub grad_norm: f64,
    /// Tokens that went through the model, padding not counted.
    pub tokens: u64,
    pub target_tokens: u64,
    pub data_s: f64,
    pub forward_s: f64,
    pub backward_s: f64,
    pub optimizer_s: f64,
    pub total_s: f64,
}

/// One evaluation on the held-out set. Numbers that are not finite are stored as null.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvaluationRecord {
    /// Optimizer steps taken before it.
    pub step: u64,
    /// Training tokens seen before it.
    pub tokens: u64,
    /// Held-out loss in nats per target token.
    pub loss: f64,
    /// Share of target tokens predicted right, in [0, 1].
    pub accuracy: f64,
    pub target_tokens: u64,
    pub seconds: f64,
}

impl StudyRecord {
    /// The whole definition: the given one with objectives and constraints.
    pub(super) fn whole_definition(&self) -> Result<serde_json::Value, serde_json::Error> {
        Ok(serde_json::json!({
            "objectives": serde_json::to_value(&self.objectives)?,
            "constraints": serde_json::to_value(&self.constraints)?,
            "settings": self.definition,
        }))
    }
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
