//! Regular expressions in the place of a list of `target_modules`, matched as PEFT matches them: against the whole name of a module.
//!
//! They are Python's, with looks ahead and behind. What one selects is written as names again, which every tool and a study take.

use std::collections::BTreeSet;

use fancy_regex::Regex;

use super::shape::{BaseShape, LinearKind, last_component};
use super::target::{each_once, ends_in, known_suffixes};
use crate::architecture::{Architecture, names_in_whole_models};

/// The LM head, which PEFT adapts where an expression matches it.
const HEAD: &str = "lm_head";

/// Modules that an expression selects, as settings of an adapter say them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedModules {
    /// Ends of the names.
    pub names: Vec<String>,
    /// Decoder layers that they are of; all where absent.
    pub layers: Option<Vec<usize>>,
}

/// Why an expression selects nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    #[error("it is no regular expression ({reason}); write a list of module names")]
    NotOne { reason: String },
    #[error("no module of the model is called so, which PEFT refuses; the model has: {known}")]
    NoMatch { known: String },
}

/// The modules of a model that `expression` matches.
///
/// # Errors
/// A text that is no expression, or one that matches no module.
pub fn matched_modules(expression: &str, architecture: &Architecture) -> Result<MatchedModules, ExpressionError> {
    let regex = Regex::new(&format!("^(?:{expression})$")).map_err(|error| ExpressionError::NotOne {
        reason: error.to_string().lines().last().unwrap_or_default().trim().to_owned(),
    })?;
    let base = BaseShape::new(architecture);
    let layers = base.linears.iter().filter(|linear| linear.kind == LinearKind::Layer);
    let all: Vec<&str> = layers.map(|linear| linear.name.as_str()).chain([HEAD]).collect();
    // One that takes too many steps matches nothing.
    let is_one = |name: &str| regex.is_match(name).unwrap_or(false);
    let is_matched = |name: &str| spellings(name, architecture.within).iter().any(|name| is_one(name));
    let matched: Vec<&str> = all.iter().copied().filter(|name| is_matched(name)).collect();
    if matched.is_empty() {
        return Err(ExpressionError::NoMatch {
            known: known_suffixes(all.into_iter()),
        });
    }
    Ok(as_names(&matched, &all))
}

/// The names that a module has in the whole model, in either version of transformers.
fn spellings(name: &str, within: Option<&str>) -> Vec<String> {
    match within {
        None => vec![name.to_owned()],
        Some(_) => names_in_whole_models(name).into(),
    }
}

/// The shortest names, with layers where they take some, that stand for these modules and no others.
fn as_names(matched: &[&str], all: &[&str]) -> MatchedModules {
    let layers: BTreeSet<usize> = matched.iter().filter_map(|name| Some(in_layer(name)?.0)).collect();
    let layers: Vec<usize> = layers.into_iter().collect();
    let endings = each_once(matched.iter().map(|name| last_component(name)));
    let inner = each_once(
        matched
            .iter()
            .map(|name| in_layer(name).map_or(*name, |(_, inner)| inner)),
    );
    for layers in [None, Some(layers)] {
        for names in [&endings, &inner] {
            let is_taken = |name: &&&str| {
                let is_in = layers
                    .as_ref()
                    .is_none_or(|layers| in_layer(name).is_some_and(|(layer, _)| layers.contains(&layer)));
                is_in && names.iter().any(|end| ends_in(name, end))
            };
            if all.iter().filter(is_taken).eq(matched.iter()) {
                return MatchedModules {
                    names: names.iter().map(|name| (*name).to_owned()).collect(),
                    layers,
                };
            }
        }
    }
    MatchedModules {
        names: matched.iter().map(|name| (*name).to_owned()).collect(),
        layers: None,
    }
}

/// The decoder layer that a module is of, and its name in that.
fn in_layer(name: &str) -> Option<(usize, &str)> {
    let (layer, inner) = name.strip_prefix("model.layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, inner))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SIZES: &str = r#""vocab_size": 512, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256"#;

    fn matched(expression: &str, model_type: &str) -> Result<MatchedModules, ExpressionError> {
        let text = match model_type {
            "qwen3_vl" => {
                format!(r#"{{"model_type": "qwen3_vl", "text_config": {{"model_type": "qwen3_vl_text", {SIZES}}}}}"#)
            }
            other => format!(r#"{{"model_type": "{other}", {SIZES}}}"#),
        };
        let architecture = Architecture::from_json(Path::new("config.json"), &text).unwrap();
        matched_modules(expression, &architecture)
    }

    fn names(expression: &str, model_type: &str) -> (String, Option<Vec<usize>>) {
        let matched = matched(expression, model_type).unwrap();
        (matched.names.join(" "), matched.layers)
    }

    #[test]
    fn an_expression_is_matched_against_whole_names() {
        for (expression, model_type, expected, layers) in [
            (".*(q|v)_proj", "llama", "q_proj v_proj", None),
            (
                r"model\.layers\.\d+\.mlp\..*",
                "llama",
                "gate_proj up_proj down_proj",
                None,
            ),
            (
                r"model.layers.[01].self_attn.q_proj",
                "llama",
                "q_proj",
                Some(vec![0, 1]),
            ),
            (
                r".*layers\.(0\.mlp\.up_proj|2\.mlp\.down_proj)",
                "llama",
                "model.layers.0.mlp.up_proj model.layers.2.mlp.down_proj",
                None,
            ),
            (".*lm_head|.*o_proj", "llama", "o_proj lm_head", None),
            (r"^(?!.*visual).*k_proj$", "qwen3_vl", "k_proj", None),
            (
                r"model.language_model.layers.\d+.mlp.up_proj",
                "qwen3_vl",
                "up_proj",
                None,
            ),
            (
                r"language_model.model.layers.\d+.mlp.up_proj",
                "qwen3_vl",
                "up_proj",
                None,
            ),
            (r".*(?<=mlp\.)down_proj", "llama", "down_proj", None),
        ] {
            assert_eq!(
                names(expression, model_type),
                (expected.to_owned(), layers),
                "{expression}"
            );
        }
    }

    #[test]
    fn what_matches_nothing_is_refused_with_the_names_that_there_are() {
        let error = matched("q_proj", "llama").unwrap_err().to_string();
        assert!(
            error.contains("no module") && error.contains("q_proj, k_proj"),
            "{error}"
        );
        let error = matched("(q_proj", "llama").unwrap_err().to_string();
        assert!(error.contains("no regular expression"), "{error}");
    }
}
