//! Part of a text that is its answer.

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{JsonPath, JsonPathError};

/// Largest regular expression, compiled, in bytes.
const REGEX_BYTES: usize = 1 << 20;

/// Place of the answer in a text: one of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Extract {
    /// A regular expression: its first group, or the whole match where it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regex: Option<String>,
    /// A JSON path such as `$.answer`, in the first JSON object or list of the text that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_path: Option<String>,
    /// Match of the regular expression that counts; default `first`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub take: Option<Take>,
}

/// Choice among several matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Take {
    First,
    Last,
}

/// Why an extractor cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExtractError {
    #[error("write one of `regex` and `json_path`")]
    NotOne,
    #[error("this is no regular expression: {message}")]
    Regex { message: String },
    #[error(transparent)]
    JsonPath(#[from] JsonPathError),
    #[error("`take` is about matches of a `regex`; remove it")]
    Take,
}

/// An extractor that can be applied.
#[derive(Clone, Debug)]
pub(super) enum Extractor {
    Regex { regex: Regex, take: Take },
    JsonPath(JsonPath),
}

impl Extract {
    /// The extractor that can be applied.
    pub(super) fn compiled(&self) -> Result<Extractor, ExtractError> {
        match (&self.regex, &self.json_path) {
            (Some(regex), None) => {
                let built = regex::RegexBuilder::new(regex).size_limit(REGEX_BYTES).build();
                let regex = built.map_err(|error| ExtractError::Regex {
                    message: last_line(&error.to_string()),
                })?;
                let take = self.take.unwrap_or(Take::First);
                Ok(Extractor::Regex { regex, take })
            }
            (None, Some(_)) if self.take.is_some() => Err(ExtractError::Take),
            (None, Some(path)) => Ok(Extractor::JsonPath(path.parse()?)),
            _ => Err(ExtractError::NotOne),
        }
    }
}

/// Message that an error of several lines has in the last one.
fn last_line(text: &str) -> String {
    let last = text.lines().last().unwrap_or(text);
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

impl Extractor {
    /// The answer in `text`; `None` where there is none.
    pub(super) fn answer(&self, text: &str) -> Option<String> {
        match self {
            Self::Regex { regex, take } => {
                let mut all = regex.captures_iter(text);
                let found = match take {
                    Take::First => all.next(),
                    Take::Last => all.last(),
                }?;
                let group = found
                    .get(1)
                    .filter(|_| regex.captures_len() > 1)
                    .or_else(|| found.get(0))?;
                Some(group.as_str().to_owned())
            }
            Self::JsonPath(path) => json_values(text).find_map(|document| {
                Some(match path.find(&document)? {
                    Value::String(text) => text.clone(),
                    value => value.to_string(),
                })
            }),
        }
    }
}

/// The JSON objects and lists of a text, which may stand between other words.
fn json_values(text: &str) -> impl Iterator<Item = Value> + '_ {
    let starts = text.match_indices(['{', '[']).map(|(at, _)| at);
    starts.filter_map(|at| serde_json::Deserializer::from_str(&text[at..]).into_iter().next()?.ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regex(pattern: &str, take: Option<Take>) -> Extract {
        Extract {
            regex: Some(pattern.to_owned()),
            take,
            ..Extract::default()
        }
    }

    #[test]
    fn a_group_or_the_whole_match_is_the_answer() {
        let text = "3 + 4 is 7\n#### 7 and #### 8";
        let answer = |extract: Extract| extract.compiled().unwrap().answer(text);
        assert_eq!(answer(regex(r"#### (\d+)", None)).unwrap(), "7");
        assert_eq!(answer(regex(r"#### (\d+)", Some(Take::Last))).unwrap(), "8");
        assert_eq!(answer(regex(r"\d \+ \d", None)).unwrap(), "3 + 4");
        assert_eq!(answer(regex("none", None)), None);
    }

    #[test]
    fn json_may_stand_between_words() {
        let path = Extract {
            json_path: Some("$.answer".to_owned()),
            ..Extract::default()
        };
        let extractor = path.compiled().unwrap();
        let answer = |text: &str| extractor.answer(text);
        assert_eq!(answer("[1] [sic] so: {\"answer\": \"b\"}").unwrap(), "b");
        assert_eq!(answer("so: {\"answer\": \"b\"}, done").unwrap(), "b");
        assert_eq!(answer("```json\n{\"answer\": [1, 2.5]}\n```").unwrap(), "[1,2.5]");
        assert_eq!(answer("{\"answer\": "), None);
        assert_eq!(answer("{broken {\"answer\": 3}").unwrap(), "3");
    }

    #[test]
    fn what_cannot_be_applied_says_why() {
        let error = |extract: Extract| extract.compiled().unwrap_err().to_string();
        assert_eq!(error(Extract::default()), "write one of `regex` and `json_path`");
        assert_eq!(error(regex("(", None)), "this is no regular expression: unclosed group");
    }
}
