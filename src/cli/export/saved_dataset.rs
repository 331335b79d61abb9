//! Rows of tokens as `datasets.DatasetDict.save_to_disk` keeps them (datasets 4): a folder for each split with an Arrow stream, what its
//! columns are, and where its rows stand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::builder::{Int8Builder, Int32Builder, Int64Builder, ListBuilder};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use serde_json::{Value, json};

use super::token_row::TokenRow;
use crate::cli::CliError;
use crate::export::ExportError;
use peft_tune_core::hexadecimal;
use peft_tune_core::whole_file::{WholeFile, make_folder, write_whole};

/// Rows of one record batch, as many as the library itself writes at once.
const ROWS_AT_ONCE: usize = 1000;
const ROWS: &str = "data-00000-of-00001.arrow";

/// Columns with the types that the library gives token ids.
const COLUMNS: [(&str, DataType, &str); 3] = [
    ("input_ids", DataType::Int32, "int32"),
    ("attention_mask", DataType::Int8, "int8"),
    ("labels", DataType::Int64, "int64"),
];

/// Writes the splits `train` and `validation` into `folder`, and returns the files of rows.
///
/// # Errors
/// Bad input: the folder is there and `force` is not given, or it cannot be written to.
pub(super) fn write(
    folder: &Path,
    force: bool,
    fingerprint: [u8; 32],
    train: impl Iterator<Item = TokenRow>,
    validation: impl Iterator<Item = TokenRow>,
) -> Result<Vec<PathBuf>, CliError> {
    if !force && folder.symlink_metadata().is_ok() {
        return Err(CliError::bad_input(ExportError::Exists {
            path: folder.to_owned(),
        }));
    }
    let written = || {
        let (of_train, of_validation) = (&fingerprint[..8], &fingerprint[8..16]);
        let files = vec![
            split(folder, "train", of_train, force, train)?,
            split(folder, "validation", of_validation, force, validation)?,
        ];
        // Without this file the folder is no data set, so that it comes last.
        write_json(
            &folder.join("dataset_dict.json"),
            &json!({"splits": ["train", "validation"]}),
            force,
        )?;
        Ok(files)
    };
    written().map_err(|error: io::Error| CliError::cannot_write(folder, &error, "--output"))
}

/// Writes a split, which the library tells from others by a fingerprint.
fn split(
    folder: &Path,
    name: &str,
    fingerprint: &[u8],
    force: bool,
    rows: impl Iterator<Item = TokenRow>,
) -> io::Result<PathBuf> {
    let folder = folder.join(name);
    make_folder(&folder)?;
    let path = folder.join(ROWS);
    let mut file = WholeFile::create(&path, force)?;
    write_rows(&mut file, rows).map_err(io::Error::other)?;
    file.finish()?;
    let feature = |kind: &str| json!({"feature": {"dtype": kind, "_type": "Value"}, "_type": "Sequence"});
    let features = COLUMNS.map(|(name, _, kind)| (name.to_owned(), feature(kind)));
    let about = json!({
        "citation": "", "description": "", "homepage": "", "license": "",
        "features": Value::Object(features.into_iter().collect()),
    });
    write_json(&folder.join("dataset_info.json"), &about, force)?;
    let state = json!({
        "_data_files": [{"filename": ROWS}],
        "_fingerprint": hexadecimal(fingerprint),
        "_format_columns": null, "_format_kwargs": {}, "_format_type": null,
        "_output_all_columns": false, "_split": name,
    });
    write_json(&folder.join("state.json"), &state, force)?;
    Ok(path)
}

fn write_json(path: &Path, value: &Value, force: bool) -> io::Result<()> {
    write_whole(path, format!("{value:#}\n").as_bytes(), force)
}

/// Writes rows as the one stream of a split, in the columns of [`COLUMNS`].
pub(super) fn write_rows(output: impl io::Write, rows: impl Iterator<Item = TokenRow>) -> Result<(), ArrowError> {
    let fields = COLUMNS.map(|(name, kind, _)| Field::new_list(name, Field::new_list_field(kind, true), true));
    let schema = Arc::new(Schema::new(fields.to_vec()));
    let mut writer = StreamWriter::try_new(output, &schema)?;
    let mut rows = rows.peekable();
    while rows.peek().is_some() {
        let mut ids = ListBuilder::new(Int32Builder::new());
        let mut mask = ListBuilder::new(Int8Builder::new());
        let mut labels = ListBuilder::new(Int64Builder::new());
        for row in rows.by_ref().take(ROWS_AT_ONCE) {
            mask.values().append_slice(&vec![1; row.ids.len()]);
            row.ids
                .iter()
                .for_each(|id| ids.values().append_value(id.cast_signed()));
            labels.values().append_slice(&row.labels);
            ids.append(true);
            mask.append(true);
            labels.append(true);
        }
        let columns: Vec<ArrayRef> = vec![
            Arc::new(ids.finish()),
            Arc::new(mask.finish()),
            Arc::new(labels.finish()),
        ];
        writer.write(&RecordBatch::try_new(schema.clone(), columns)?)?;
    }
    writer.finish()
}
