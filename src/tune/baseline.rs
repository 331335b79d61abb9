//! The setting that people would have used without a search, which a recommendation is measured against.

use crate::space::{Study, recipe_for};
use peft_tune_core::architecture::{Architecture, Family};
use peft_tune_core::recipe::settings::setting;
use peft_tune_core::space::{Parameter, as_sampled};
use peft_tune_core::study::{ParamValue, Params};

/// Targets, optimizer, precision, schedule, rank and batches that guides and tools agree on today.
const USUAL: [(&str, &str); 5] = [
    ("method", "lora"),
    ("target_modules", "all-linear"),
    ("optimizer", "adamw"),
    ("precision", "bf16"),
    ("schedule", "cosine"),
];
const USUAL_NUMBERS: [(&str, f64); 5] = [
    ("rank", 16.0),
    ("alpha", 32.0),
    ("alpha_ratio", 2.0),
    ("micro_batch", 4.0),
    ("global_batch", 16.0),
];

/// Learning rate of full fine-tuning at a width of [`REFERENCE_WIDTH`], and how many times as much LoRA takes.
///
/// Design note: "LoRA Without Regret" (Thinking Machines Lab 2025) finds LoRA's best rate ten times that of full
/// fine-tuning, whatever the rank, and fits how it falls with the model's width over Llama and Qwen models. Between
/// the exponents of the two, other families get the middle one.
const FULL_RATE: f64 = 5e-5;
const LORA_FACTOR: f64 = 10.0;
const REFERENCE_WIDTH: f64 = 2000.0;

/// What the usual learning rate of a model goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Width {
    /// `None` of a family that the built-in engine lacks.
    pub family: Option<Family>,
    pub hidden_size: usize,
}

impl From<&Architecture> for Width {
    fn from(architecture: &Architecture) -> Self {
        Self {
            family: Some(architecture.family),
            hidden_size: architecture.hidden_size,
        }
    }
}

/// The learning rate of the rule of thumb for a LoRA of a model.
fn usual_learning_rate(width: Width) -> f64 {
    let exponent = match width.family {
        Some(Family::Llama) => 0.781,
        Some(Family::Qwen2 | Family::Qwen3) => 0.0775,
        _ => 0.5,
    };
    LORA_FACTOR * FULL_RATE * (REFERENCE_WIDTH / width.hidden_size.max(1) as f64).powf(exponent)
}

/// The baseline of a study: what the file says of it, and the usual values elsewhere, as near as the space has them.
/// `None` for a command whose file says nothing, or where no recipe can be made of the values.
pub fn baseline(study: &Study, width: Option<Width>) -> Option<Params> {
    if study.base.is_none() {
        return (!study.baseline.is_empty()).then(|| whole(study, &|_| None));
    }
    let rate = width.map(usual_learning_rate);
    let usual = |parameter: &Parameter| -> Option<ParamValue> {
        let name = parameter.name.as_str();
        let text = USUAL.iter().find(|(other, _)| *other == name);
        let number = USUAL_NUMBERS.iter().find(|(other, _)| *other == name);
        let value = text
            .map(|(_, value)| ParamValue::from(*value))
            .or(number.map(|(_, value)| ParamValue::Float(*value)))
            .or(rate.filter(|_| name == "learning_rate").map(ParamValue::Float))
            .or_else(|| (setting(name)?.get)(study.base.as_ref()?))?;
        parameter.distribution.nearest(&value)
    };
    let found = whole(study, &usual);
    if recipe_for(study, &found).is_ok() {
        return Some(found);
    }
    // The global batch is no multiple of the micro-batch: the largest that divides it.
    let parameter = study
        .space
        .parameters
        .iter()
        .find(|parameter| parameter.name == "micro_batch")?;
    let count = parameter.distribution.cardinality()?;
    let others = (0..count).rev().filter_map(|index| parameter.distribution.nth(index));
    let mut others = others.map(|value| found.with(&parameter.name, value));
    others.find(|params| recipe_for(study, params).is_ok())
}

/// Values of every active parameter of the space, and what else the file says.
fn whole(study: &Study, usual: &dyn Fn(&Parameter) -> Option<ParamValue>) -> Params {
    let mut params = Params::new();
    for parameter in &study.space.parameters {
        let given = study.baseline.get(&parameter.name);
        let is_active = study.space.is_active(parameter, &params);
        let value = given.map(|value| as_sampled(&parameter.distribution, value).unwrap_or_else(|| value.clone()));
        let value = value
            .or_else(|| is_active.then(|| usual(parameter).unwrap_or_else(|| parameter.distribution.value_at(0.5))));
        params.extend(value.map(|value| (parameter.name.clone(), value)));
    }
    for (name, value) in &study.baseline {
        if !params.contains_key(name) {
            params.insert(name.clone(), value.clone());
        }
    }
    params
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{ReadOptions, StudyFile};
    use std::path::Path;

    fn study(rest: &str) -> Study {
        let text = format!(
            "model: m\ndata: {{train: [a.jsonl]}}\n\
             space: {{rank: [4, 8, 24], target_modules: [attention, all-linear], learning_rate: {{low: 1e-4, high: 1e-3}}, \
             micro_batch: [2, 8], global_batch: [8, 32], optimizer: [lion, adamw], dropout: [0, 0.05]}}\n{rest}"
        );
        StudyFile::parse(Path::new("a.yaml"), &text, ReadOptions { check_files: false }).unwrap()
    }

    #[test]
    fn the_usual_values_are_taken_as_near_as_the_space_has_them() {
        let params = baseline(&study(""), None).unwrap();
        let value = |name: &str| params[name].to_string();
        assert_eq!(value("rank"), "24");
        assert_eq!(value("target_modules"), "all-linear");
        assert_eq!(value("optimizer"), "adamw");
        assert_eq!((value("micro_batch"), value("global_batch")), ("2".into(), "8".into()));
        assert_eq!(value("dropout"), "0");
    }

    #[test]
    fn a_family_that_nobody_measured_has_the_middle_exponent() {
        let rate = |family, hidden_size| usual_learning_rate(Width { family, hidden_size });
        assert!((rate(None, 2000) / 5e-4 - 1.0).abs() < 1e-9);
        assert!((rate(None, 500) / 1e-3 - 1.0).abs() < 1e-9);
        assert!(rate(Some(Family::Llama), 500) > rate(None, 500));
    }

    #[test]
    fn what_the_file_says_goes_first_in_the_space_or_outside() {
        let params = baseline(&study("baseline: {rank: 64, optimizer: lion, warmup: 0.03}\n"), None).unwrap();
        assert_eq!(params["rank"], ParamValue::Int(64));
        assert_eq!(params["optimizer"], "lion".into());
        assert_eq!(params["warmup"], ParamValue::Float(0.03));
    }
}
