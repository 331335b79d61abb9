//! Rows of prompts and completions beside a model with a chat template: they are trained as the chats that it will answer.

use std::path::Path;

use super::columns::has_column;
use super::count_tokens::count_tokens;
use super::found_here::begins_with_chat_marks;
use crate::cli::data::study_rows::files_of;
use crate::draft::{Answers, Renames, TokenLengths, column, first_file};
use peft_tune_core::bounded::{SETTINGS_BYTES, read_text};
use peft_tune_core::recipe::DataFormat;
use peft_tune_engine::hub::TokenizerFiles;

/// Columns that are read of prompts and completions, and not of questions and answers that become chats.
const OF_COMPLETIONS_ALONE: [&str; 2] = ["tools", "label"];

/// Counts the tokens of the rows, as chats where they can be chats, which the answers then say. `None` where they cannot be
/// counted.
pub(super) fn count(answers: &mut Answers) -> Option<TokenLengths> {
    if let Some(columns) = columns_of_chats(answers) {
        let plain = std::mem::replace(&mut answers.columns, columns);
        answers.format = DataFormat::Alpaca;
        if let Some(lengths) = count_tokens(answers) {
            answers.as_plain = Some(plain);
            return Some(lengths);
        }
        // Lists of messages, which are chats already, or a template that does not show where answers lie.
        answers.columns = plain;
        answers.format = DataFormat::PromptCompletion;
    }
    count_tokens(answers)
}

/// Whether the model is here and has a chat template.
pub(super) fn has_template(model: &str) -> bool {
    files_of(model).is_some_and(|files| names_template(&files.tokenizer))
}

/// Whether the model's tokenizer is not here, so that nobody knows whether it has a chat template.
pub(super) fn is_unknown(model: &str) -> bool {
    files_of(model).is_none_or(|files| !files.tokenizer.are_there())
}

/// The columns by which prompts and completions become chats; `None` where they are to stay as they are.
fn columns_of_chats(answers: &Answers) -> Option<Renames> {
    let is_known = |name: &String| name == "prompt" || name == "completion";
    if answers.format != DataFormat::PromptCompletion || !answers.columns.keys().all(is_known) {
        return None;
    }
    let data = first_file(&answers.data);
    if !has_template(&answers.model) || !may_be_chats(&data) {
        return None;
    }
    let names = [("instruction", "prompt"), ("output", "completion")];
    let renamed = names.map(|(name, plain)| (name.to_owned(), column(&answers.columns, plain)));
    Some(renamed.into_iter().collect())
}

fn may_be_chats(data: &Path) -> bool {
    let has_more = OF_COMPLETIONS_ALONE.iter().any(|column| has_column(data, column));
    !has_more && !begins_with_chat_marks(data)
}

fn names_template(files: &TokenizerFiles) -> bool {
    let named = |path: &Path| {
        let text = read_text(path, SETTINGS_BYTES).ok()?;
        let config: serde_json::Value = serde_json::from_str(&text).ok()?;
        Some(!config["chat_template"].is_null())
    };
    files.chat_template.is_some() || files.config.as_deref().and_then(named).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_stands_in_a_file_of_its_own_or_in_the_tokenizers_config() {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("tokenizer_config.json");
        let mut files = TokenizerFiles {
            tokenizer: folder.path().join("tokenizer.json"),
            config: Some(config.clone()),
            special_tokens_map: None,
            chat_template: None,
            generation_config: None,
            model_config: None,
        };
        assert!(!names_template(&files));
        std::fs::write(&config, "{\"chat_template\": null}").unwrap();
        assert!(!names_template(&files));
        std::fs::write(&config, "{\"chat_template\": \"{{ messages }}\"}").unwrap();
        assert!(names_template(&files));
        files.config = None;
        files.chat_template = Some(folder.path().join("chat_template.jinja"));
        assert!(names_template(&files));
    }

    #[test]
    fn rows_with_more_than_texts_and_rows_that_are_rendered_stay_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let may = |row: &str| {
            std::fs::write(&path, row).unwrap();
            may_be_chats(&path)
        };
        assert!(may("{\"question\": \"a\", \"answer\": \"b\"}\n"));
        assert!(!may("{\"question\": \"a\", \"answer\": \"b\", \"label\": false}\n"));
        assert!(!may("{\"question\": \"<|im_start|>user\\na\", \"answer\": \"b\"}\n"));
    }
}
