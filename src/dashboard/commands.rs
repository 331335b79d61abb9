//! The command lines that use a trial.

use std::path::Path;

use crate::report::html::Command;
use peft_tune_core::study::TrialNumber;

/// How to use a trial: export it, train with it, look at it.
pub fn commands(database: &Path, study: &str, trial: TrialNumber) -> Vec<Command> {
    let folder = format!("trial-{trial}");
    let of = format!(
        "--study {} --trial {trial} --db {}",
        quoted(study),
        quoted(&database.to_string_lossy())
    );
    let command = |purpose: &str, line: String| Command {
        purpose: purpose.to_owned(),
        line,
    };
    vec![
        command(
            "Train with it, and get a PEFT adapter",
            format!(
                "peft-tune export --format recipe {of} --output {folder}\npeft-tune train {folder}/recipe.yaml --output {folder}/trained"
            ),
        ),
        command(
            "Take it to PEFT or TRL",
            format!(
                "peft-tune export --format peft {of} --output {folder}/peft\npeft-tune export --format trl {of} --output {folder}/trl"
            ),
        ),
        command(
            "See it in depth",
            format!(
                "peft-tune show {} --trial {trial} --db {}",
                quoted(study),
                quoted(&database.to_string_lossy())
            ),
        ),
    ]
}

/// A word as a POSIX shell takes it.
fn quoted(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./=:@%+,".contains(character);
    if !word.is_empty() && !word.starts_with('-') && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_one_word() {
        assert_eq!(quoted("quickstart"), "quickstart");
        assert_eq!(quoted("a b'; rm -rf $HOME"), r"'a b'\''; rm -rf $HOME'");
        assert_eq!(quoted("--db"), "'--db'");
    }
}
