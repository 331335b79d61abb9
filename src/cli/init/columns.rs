//! Which columns of a data file are what.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::data::data_files::check_data;
use crate::draft::{Renames, first_file};
use peft_tune_core::recipe::DataFormat;
use peft_tune_engine::data::recognise;

/// Names that columns of questions and answers often have, for `prompt` and `completion`.
const USUAL_COLUMNS: [(&str, &str); 9] = [
    ("question", "answer"),
    ("question", "response"),
    ("prompt", "response"),
    ("prompt", "answer"),
    ("query", "response"),
    ("query", "answer"),
    ("instruction", "response"),
    ("input", "output"),
    ("problem", "solution"),
];

/// What the rows of a file are, with the columns that have other names than the format's.
pub(super) fn format_of(data: &Path, given: Option<&Renames>) -> Result<(DataFormat, Renames), CliError> {
    check_data(data)?;
    let data = &*first_file(data);
    let as_named = given.cloned().unwrap_or_default();
    let error = match recognise(data, &as_named) {
        Ok(Some(format)) => return Ok((format, as_named)),
        Ok(None) => return Err(CliError::bad(format!("{} has no rows", data.display()))),
        Err(error) => error,
    };
    let usual = USUAL_COLUMNS
        .into_iter()
        .filter(|_| given.is_none())
        .find_map(|(prompt, completion)| {
            let columns = [("prompt", prompt), ("completion", completion)].into_iter();
            let columns: Renames = columns
                .filter(|(name, column)| name != column)
                .map(|(name, column)| (name.to_owned(), column.to_owned()))
                .collect();
            let format = recognise(data, &columns).ok().flatten()?;
            Some((format, columns))
        });
    usual.ok_or_else(|| {
        CliError::bad_input(anyhow::Error::new(error).context(
            "the data's columns have no names that are known: say which is what, such as \
             `--data FILE --columns prompt=question,completion=answer`",
        ))
    })
}

/// Whether the first row of a file has a column of this name.
pub(super) fn has_column(data: &Path, column: &str) -> bool {
    // Rows of tokens are recognised before all others, by this column alone.
    let as_tokens = Renames::from([("input_ids".to_owned(), column.to_owned())]);
    matches!(recognise(data, &as_tokens), Ok(Some(DataFormat::Tokenized)))
}

/// Reads `NAME=COLUMN,..` as the command line has it.
pub(super) fn parse_columns(text: &str) -> Result<Renames, String> {
    let pair = |part: &str| match part.split_once('=') {
        Some((name, column)) if !name.trim().is_empty() && !column.trim().is_empty() => {
            Ok((name.trim().to_owned(), column.trim().to_owned()))
        }
        _ => Err(format!("`{part}` is no NAME=COLUMN, such as prompt=question")),
    };
    text.split(',').map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_the_first_row_are_known_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        std::fs::write(&path, "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n").unwrap();
        assert!(has_column(&path, "label") && has_column(&path, "prompt") && !has_column(&path, "tools"));
    }
}
