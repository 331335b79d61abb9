//! The command lines that use a trial.

use std::path::Path;

use crate::report::html::Command;
use crate::shell::shell_word;
use peft_tune_core::study::TrialNumber;

/// How to use a trial: export it, train with it, look at it.
pub(super) fn commands(database: &Path, study: &str, trial: TrialNumber) -> Vec<Command> {
    let folder = format!("trial-{trial}");
    let of = format!(
        "--study {} --trial {trial} --db {}",
        shell_word(study),
        shell_word(&database.to_string_lossy())
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
                shell_word(study),
                shell_word(&database.to_string_lossy())
            ),
        ),
    ]
}
