//! Whether an answer is the row's own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::extract::Extractor;
use super::{Extract, ExtractError, Normalize};

/// Comparison by which two answers count as the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExactMatch {
    /// Part of a text that is its answer: `{regex: ..}` or `{json_path: ..}`; default the whole text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extract: Option<Extract>,
    /// Changes that are made to both answers before they are compared, in order; default `[strip]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalize: Option<Vec<Normalize>>,
}

/// Compares answers.
#[derive(Clone, Debug)]
pub struct Matcher {
    extractor: Option<Extractor>,
    steps: Vec<Normalize>,
}

impl ExactMatch {
    /// Matcher that compares answers in this way.
    ///
    /// # Errors
    /// An extractor that cannot be applied.
    pub fn matcher(&self) -> Result<Matcher, ExtractError> {
        Ok(Matcher {
            extractor: self.extract.as_ref().map(Extract::compiled).transpose()?,
            steps: self.normalize.clone().unwrap_or_else(|| vec![Normalize::Strip]),
        })
    }
}

impl Matcher {
    /// Whether `generated` gives the answer of `reference`. Where the extractor finds nothing in the reference, that is an answer as
    /// a whole; a generated text in which it finds nothing gives none.
    pub fn matches(&self, generated: &str, reference: &str) -> bool {
        let (generated, reference) = match &self.extractor {
            None => (Some(generated.to_owned()), reference.to_owned()),
            Some(extractor) => (
                extractor.answer(generated),
                extractor.answer(reference).unwrap_or_else(|| reference.to_owned()),
            ),
        };
        generated.is_some_and(|generated| self.normalized(generated) == self.normalized(reference))
    }

    fn normalized(&self, text: String) -> String {
        self.steps.iter().fold(text, |text, step| step.apply(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(yaml: serde_json::Value) -> Matcher {
        serde_json::from_value::<ExactMatch>(yaml).unwrap().matcher().unwrap()
    }

    #[test]
    fn blanks_around_a_whole_text_do_not_count() {
        let whole = matcher(serde_json::json!({}));
        assert!(whole.matches(" Berlin\n", "Berlin"));
        assert!(!whole.matches("berlin", "Berlin"));
        let exact = matcher(serde_json::json!({"normalize": []}));
        assert!(!exact.matches(" Berlin", "Berlin"));
    }

    #[test]
    fn steps_are_applied_in_order() {
        let loose = matcher(serde_json::json!({"normalize": ["lower", "punctuation", "articles", "spaces"]}));
        assert!(loose.matches("The  Eiffel Tower!", "eiffel tower"));
    }

    #[test]
    fn a_reference_without_a_match_is_an_answer_and_a_generation_is_none() {
        let sum = matcher(serde_json::json!({"extract": {"regex": r"#### (\S+)"}, "normalize": ["numbers"]}));
        assert!(sum.matches("so it is\n#### 1,200", "because\n#### 1200.0"));
        assert!(sum.matches("#### 7", "7"));
        assert!(!sum.matches("7", "7"));
    }
}
