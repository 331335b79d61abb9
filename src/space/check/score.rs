//! What trained models are asked, and what scores their answers.

use std::path::Path;

use super::Context;
use super::objective::RECIPE_METRICS;
use crate::space::SpaceError;
use crate::space::file::{ScoreEntry, StudyFile};
use peft_tune_core::objective::{Direction, EXACT_MATCH};
use peft_tune_core::recipe::{DataFormat, LossOn};
use peft_tune_core::score::{ExtractError, ScoreCommand, ScorePlan};

const DEFAULT_ROWS: usize = 64;
const DEFAULT_NEW_TOKENS: usize = 64;
const DEFAULT_BATCH: usize = 16;
const DEFAULT_TIMEOUT_S: f64 = 600.0;

impl Context<'_> {
    /// What the file asks to be generated and scored.
    pub(super) fn score(&self, file: &StudyFile) -> Result<Option<ScorePlan>, SpaceError> {
        let Some(entry) = &file.score else {
            return Ok(None);
        };
        if entry.exact_match.is_none() && entry.command.is_none() {
            return Err(SpaceError::Rejected {
                at: self.document.key(&["score"]),
                message: "nothing scores the answers; write `exact_match: {}` or `command: [program, argument, ..]`"
                    .into(),
            });
        }
        self.check_prompts(file)?;
        if let Some(exact_match) = &entry.exact_match {
            exact_match.matcher().map_err(|error| self.extract_error(&error))?;
        }
        Ok(Some(ScorePlan {
            rows: entry.rows.map_or(DEFAULT_ROWS, usize::from),
            max_new_tokens: entry.max_new_tokens.map_or(DEFAULT_NEW_TOKENS, usize::from),
            batch: entry.batch.map_or(DEFAULT_BATCH, usize::from),
            exact_match: entry.exact_match.clone(),
            command: self.score_command(entry)?,
        }))
    }

    /// Refuses data whose rows have no prompt by what the file says of it.
    fn check_prompts(&self, file: &StudyFile) -> Result<(), SpaceError> {
        let Some(data) = &file.data else {
            return Ok(());
        };
        let (key, said) = match (data.loss_on, data.format) {
            (LossOn::All, _) => ("loss_on", "`loss_on: all` tells no prompt from an answer"),
            (_, DataFormat::Text) => ("format", "rows of text have no prompt"),
            _ => return Ok(()),
        };
        Err(SpaceError::Rejected {
            at: self.document.value(&["data", key]),
            message: format!("`score` has models answer the prompts of held-out rows, and {said}; remove one of both"),
        })
    }

    fn extract_error(&self, error: &ExtractError) -> SpaceError {
        let extract = ["score", "exact_match", "extract"];
        let last = match error {
            ExtractError::Regex { .. } => Some("regex"),
            ExtractError::JsonPath(_) => Some("json_path"),
            ExtractError::Take => Some("take"),
            ExtractError::NotOne => None,
        };
        let keys: Vec<&str> = extract.into_iter().chain(last).collect();
        SpaceError::Rejected {
            at: self.document.value(&keys),
            message: error.to_string(),
        }
    }

    fn score_command(&self, entry: &ScoreEntry) -> Result<Option<ScoreCommand>, SpaceError> {
        let rejected = |keys: &[&str], message: &str| SpaceError::Rejected {
            at: self.document.value(keys),
            message: message.into(),
        };
        let Some(command) = &entry.command else {
            let of_commands = ["metrics", "timeout", "folder", "env"];
            return match of_commands.iter().find(|key| self.document.has(&["score", key])) {
                Some(key) => Err(rejected(
                    &["score", key],
                    "this is about the program of `score.command`, and there is none; add it, or remove this key",
                )),
                None => Ok(None),
            };
        };
        if command.first().is_none_or(|program| program.trim().is_empty()) {
            return Err(rejected(
                &["score", "command"],
                "there is no program; write [program, argument, ..]",
            ));
        }
        if entry.metrics.is_empty() {
            return Err(rejected(
                &["score", "command"],
                "no metric of this program is named; add `metrics: {name: maximize}` beside it, with what it prints",
            ));
        }
        for name in entry.metrics.keys() {
            self.check_name(name)?;
        }
        let timeout_s = entry.timeout.map_or(DEFAULT_TIMEOUT_S, |timeout| timeout.0);
        if timeout_s <= 0.0 {
            return Err(rejected(
                &["score", "timeout"],
                "no program keeps a limit of 0; raise it, or remove the key",
            ));
        }
        Ok(Some(ScoreCommand {
            command: command.clone(),
            folder: match &entry.folder {
                Some(folder) => self.folder(&["score", "folder"], folder)?,
                None => self.absolute(Path::new(".")),
            },
            env: entry.env.clone(),
            timeout_s,
            metrics: entry.metrics.clone(),
        }))
    }

    /// Refuses a name that a metric of the engine has, or that is none.
    fn check_name(&self, name: &str) -> Result<(), SpaceError> {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        let message = if name.is_empty() || !name.chars().all(is_word) {
            "the name of a metric has letters, digits and `_`, `-`, `.` or `/`"
        } else if RECIPE_METRICS.contains(&name) || name == EXACT_MATCH {
            "the engine has a metric of this name; give the program's another"
        } else {
            return Ok(());
        };
        Err(SpaceError::Rejected {
            at: self.document.key(&["score", "metrics", name]),
            message: message.into(),
        })
    }
}

/// The metrics that a plan's answers have, each with what is better of it.
pub(super) fn score_metrics(plan: Option<&ScorePlan>) -> Vec<(String, Direction)> {
    let Some(plan) = plan else {
        return Vec::new();
    };
    let own = plan
        .exact_match
        .iter()
        .map(|_| (EXACT_MATCH.to_owned(), Direction::Maximize));
    let printed = plan.command.iter().flat_map(|command| &command.metrics);
    own.chain(printed.map(|(name, direction)| (name.clone(), *direction)))
        .collect()
}
