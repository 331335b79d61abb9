//! Differences that two answers may have and still be the same.

use std::sync::LazyLock;

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One step that is applied to both answers before they are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Normalize {
    /// Takes blanks off both ends.
    Strip,
    /// Writes everything in lower case.
    Lower,
    /// Takes punctuation and symbols out.
    Punctuation,
    /// Makes one blank of each run of blanks, and takes them off both ends.
    Spaces,
    /// Takes the words a, an and the out.
    Articles,
    /// Writes numbers in one form: `1,200.50`, `$1200.5` and `1200.5` are the same.
    Numbers,
}

impl Normalize {
    /// The text after this step.
    pub fn apply(self, text: &str) -> String {
        match self {
            Self::Strip => text.trim().to_owned(),
            Self::Lower => text.to_lowercase(),
            Self::Punctuation => replaced(&PUNCTUATION, text, ""),
            Self::Spaces => text.split_whitespace().collect::<Vec<_>>().join(" "),
            Self::Articles => replaced(&ARTICLES, text, " "),
            Self::Numbers => match NUMBER.as_ref() {
                Some(number) => number
                    .replace_all(text, |found: &regex::Captures<'_>| plain_number(&found[1]))
                    .into_owned(),
                None => text.to_owned(),
            },
        }
    }
}

static PUNCTUATION: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[\p{P}\p{S}]").ok());
static ARTICLES: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"(?i)\b(a|an|the)\b").ok());
static NUMBER: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?:[$€£]\s?)?(-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)").ok());

fn replaced(pattern: &LazyLock<Option<Regex>>, text: &str, by: &str) -> String {
    match pattern.as_ref() {
        Some(pattern) => pattern.replace_all(text, by).into_owned(),
        None => text.to_owned(),
    }
}

/// A decimal number without commas, and without zeros that say nothing.
fn plain_number(text: &str) -> String {
    let digits = text.replace(',', "");
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", digits.as_str()),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.trim_start_matches('0');
    let whole = if whole.is_empty() { "0" } else { whole };
    let fraction = fraction.trim_end_matches('0');
    let sign = if whole == "0" && fraction.is_empty() { "" } else { sign };
    match fraction {
        "" => format!("{sign}{whole}"),
        fraction => format!("{sign}{whole}.{fraction}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_takes_what_it_says() {
        assert_eq!(Normalize::Strip.apply(" a b \n"), "a b");
        assert_eq!(Normalize::Lower.apply("ÉA"), "éa");
        assert_eq!(Normalize::Punctuation.apply("“It’s” (so)! $5"), "Its so 5");
        assert_eq!(Normalize::Spaces.apply("  a \t b\n"), "a b");
        let without = Normalize::Articles.apply("The cat, a dog and an ant");
        assert_eq!(Normalize::Spaces.apply(&without), "cat, dog and ant");
    }

    #[test]
    fn numbers_have_one_form() {
        let numbers = |text: &str| Normalize::Numbers.apply(text);
        for same in ["1200.5", "1,200.50", "$1200.5", "01200.500"] {
            assert_eq!(numbers(same), "1200.5", "{same}");
        }
        assert_eq!(numbers("-0.0 and -3.0"), "0 and -3");
        assert_eq!(numbers("no numbers, here"), "no numbers, here");
    }
}
