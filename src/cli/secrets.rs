//! Secrets in words of commands, in lines that they print and in addresses, which nothing that is shown has.

use std::ffi::OsString;
use std::sync::LazyLock;

use regex::Regex;

/// Ends of names whose values nobody shall read.
const NAMES: [&str; 9] = [
    "token",
    "password",
    "passwd",
    "secret",
    "key",
    "credential",
    "credentials",
    "auth",
    "bearer",
];
/// Stands where a secret was.
const LEFT_OUT: &str = "(left out)";

/// Patterns of secrets within a text, and what stands there instead.
static SECRETS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let names = NAMES.join("|");
    let value = r#"(?:"[^"]*"|'[^']*'|[^\s"',;]+)"#;
    let patterns = [
        (
            format!(r#"(?i)([\w-]*(?:{names})["']?(?:\s*[=:]\s*|\s+)){value}"#),
            "$1(left out)",
        ),
        (r"(^|[^\w-])hf_[A-Za-z0-9]{4,}".to_owned(), "$1(left out)"),
        (r"://[^/\s]+@".to_owned(), "://(left out)@"),
    ];
    let rules = patterns.into_iter();
    rules
        .filter_map(|(pattern, instead)| Some((Regex::new(&pattern).ok()?, instead)))
        .collect()
});

/// A text without what looks like a secret in it.
pub(in crate::cli) fn hidden(text: &str) -> String {
    SECRETS.iter().fold(text.to_owned(), |shown, (pattern, instead)| {
        pattern.replace_all(&shown, *instead).into_owned()
    })
}

/// The words of a command, without values that look like secrets.
pub(in crate::cli) fn without_secrets(command: &[OsString]) -> Vec<String> {
    let mut hides_next = false;
    let words = command.iter().map(|word| {
        let word = word.to_string_lossy();
        let hides = std::mem::take(&mut hides_next) && !word.starts_with("--");
        if hides || word.starts_with("hf_") {
            return LEFT_OUT.to_owned();
        }
        match word.split_once('=') {
            Some((name, _)) if is_secret(name) => format!("{}={LEFT_OUT}", hidden(name)),
            Some(_) => hidden(&word),
            None => {
                hides_next = word.starts_with('-') && is_secret(&word);
                hidden(&word)
            }
        }
    });
    words.collect()
}

/// Whether a name is that of a secret. Numbers of tokens are none.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    NAMES.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<const N: usize>(words: [&str; N]) -> Vec<String> {
        without_secrets(&words.map(OsString::from))
    }

    #[test]
    fn secrets_are_left_out_of_the_command() {
        let words = [
            "x",
            "--hub_token",
            "hf_abc",
            "--max_tokens",
            "5",
            "WANDB_API_KEY=1",
            "hf_1",
            "a=b",
        ];
        assert_eq!(
            shown(words),
            [
                "x",
                "--hub_token",
                "(left out)",
                "--max_tokens",
                "5",
                "WANDB_API_KEY=(left out)",
                "(left out)",
                "a=b"
            ]
        );
        assert_eq!(
            shown([
                "AWS_SECRET_ACCESS_KEY=1",
                "--aws_secret_access_key",
                "2",
                "--wandb_key",
                "3"
            ]),
            [
                "AWS_SECRET_ACCESS_KEY=(left out)",
                "--aws_secret_access_key",
                "(left out)",
                "--wandb_key",
                "(left out)"
            ]
        );
        assert_eq!(shown(["--use-auth", "--lr", "1"]), ["--use-auth", "--lr", "1"]);
    }

    #[test]
    fn secrets_are_left_out_of_words_that_are_commands_themselves() {
        for (word, expected) in [
            ("python t.py --hub_token hf_abc", "python t.py --hub_token (left out)"),
            ("t.py --lr=1 --hub_token hf_abc", "t.py --lr=1 --hub_token (left out)"),
            (
                "t.py --key 1 --password=2",
                "t.py --key (left out) --password=(left out)",
            ),
            ("PASSWD='a b' t.py --max_tokens 5", "PASSWD=(left out)"),
            ("{\"token\": \"a b\", \"lr\": 1}", "{\"token\": (left out), \"lr\": 1}"),
            ("https://u:pw@host/x?a=b", "https://(left out)@host/x?a=b"),
            ("https://u:p@w@host/x", "https://(left out)@host/x"),
            (
                "curl -H 'Authorization: Bearer abc'",
                "curl -H 'Authorization: Bearer (left out)'",
            ),
            ("echo hf_abcdefgh > x", "echo (left out) > x"),
            ("t.py --max_tokens 5 --hf_model x", "t.py --max_tokens 5 --hf_model x"),
        ] {
            assert_eq!(shown([word]), [expected], "{word}");
        }
    }
}
