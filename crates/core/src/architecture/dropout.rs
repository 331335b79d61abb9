//! Dropout that a base model's `config.json` asks for: transformers drops values of the base model in training, and the engine never.

use super::config::Config;
use super::{Architecture, ArchitectureError};

/// The probabilities above 0 under `keys`, each with what it is where it is absent.
///
/// # Errors
/// A value that is no probability below 1.
pub(super) fn read(
    config: &Config,
    keys: &[(&'static str, f64)],
) -> Result<Vec<(&'static str, f64)>, ArchitectureError> {
    let mut dropout = Vec::new();
    for (key, default) in keys {
        let probability = match config.value(key) {
            None => *default,
            Some(value) => value
                .as_f64()
                .filter(|number| (0.0..1.0).contains(number))
                .ok_or_else(|| config.impossible(key, value, "from 0, below 1".to_owned()))?,
        };
        if probability > 0.0 {
            dropout.push((*key, probability));
        }
    }
    Ok(dropout)
}

impl Architecture {
    /// What to know before a training is compared with one of a trainer that obeys [`Architecture::dropout`]; `None` where there is
    /// nothing to obey. A fragment that ends in what to do.
    pub fn dropout_warning(&self) -> Option<String> {
        if self.dropout.is_empty() {
            return None;
        }
        let keys: Vec<String> = self
            .dropout
            .iter()
            .map(|(key, value)| format!("`{key}: {value}`"))
            .collect();
        Some(format!(
            "{} of config.json: trainers that read it drop values of the base model as they train, and nothing here does; for the \
             same training there set it to 0 in the file",
            keys.join(" and ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn seed_oss(more: &str) -> Result<Architecture, ArchitectureError> {
        let text = format!(
            r#"{{"model_type": "seed_oss", "vocab_size": 512, "hidden_size": 64, "intermediate_size": 176,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4,
            "max_position_embeddings": 256{more}}}"#
        );
        Architecture::from_json(Path::new("config.json"), &text)
    }

    #[test]
    fn dropout_is_told_where_it_is_above_zero() {
        let published = seed_oss("").unwrap().dropout_warning().unwrap();
        let keys = "`attention_dropout: 0.1` and `residual_dropout: 0.1` of config.json";
        assert!(published.starts_with(keys), "{published}");
        let none = seed_oss(r#", "attention_dropout": 0, "residual_dropout": 0.0"#);
        assert_eq!(none.unwrap().dropout_warning(), None);
    }

    #[test]
    fn what_is_no_probability_is_refused() {
        let error = seed_oss(r#", "residual_dropout": 1.5"#).unwrap_err().to_string();
        assert!(
            error.contains("residual_dropout") && error.contains("from 0, below 1"),
            "{error}"
        );
    }
}
