//! Files of rows as other tools name them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::reader::Reader;
use crate::stacks::StackFileError;
use crate::stacks::keys::Keys;
use peft_tune_core::recipe::{DataSettings, HubDataSet, HubPart};

/// Endings of files that rows can be read from.
const ENDINGS: [&str; 10] = [
    "jsonl", "ndjson", "json", "csv", "tsv", "parquet", "txt", "text", "md", "arrow",
];

/// A part of a data set, as the `datasets` library writes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Split {
    All,
    /// So many rows from the beginning.
    First(usize),
    /// So many hundredths from the beginning.
    Percent(f64),
}

impl Split {
    /// `train`, `train[:100]` or `train[:90%]`; `None` for others.
    pub(super) fn of(text: &str) -> Option<Self> {
        let Some((name, range)) = text.split_once('[') else {
            return Some(Self::All);
        };
        let end = range.strip_suffix(']')?.strip_prefix(':')?;
        if name.is_empty() {
            return None;
        }
        match end.strip_suffix('%') {
            Some(percent) => percent
                .parse()
                .ok()
                .filter(|percent| (1.0..=100.0).contains(percent))
                .map(Self::Percent),
            None => end.parse().ok().filter(|rows| *rows > 0).map(Self::First),
        }
    }
}

/// Where a path of the file leads: relative ones begin in the working directory, as the tools have it, or beside the file.
pub(super) fn located(file: &Path, path: &str) -> PathBuf {
    let path = PathBuf::from(path);
    let beside = file.parent().unwrap_or(Path::new("")).join(&path);
    match path.is_relative() && !path.exists() && beside.exists() {
        true => beside,
        false => path,
    }
}

/// Whether a text names a file of rows, and no data set of the hub.
pub(super) fn is_file(file: &Path, text: &str) -> bool {
    let ending = Path::new(text)
        .extension()
        .map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) || located(file, text).is_file()
}

/// Files under a key: one, a list, or a map with `train`.
pub(super) fn files(keys: &Keys<'_>, key: &str) -> Vec<PathBuf> {
    let value = match keys.raw(key) {
        Some(Value::Object(parts)) => parts.get("train"),
        other => other,
    };
    let one = |value: &Value| value.as_str().map(|path| located(keys.path(), path));
    match value {
        Some(Value::Array(all)) => all.iter().filter_map(one).collect(),
        Some(value) => one(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The data set of the hub that a file names under `key`, by the words of the `datasets` library; `None` where that is no id.
pub(super) fn on_hub(set: &Keys<'_>, key: &str) -> Result<Option<PathBuf>, StackFileError> {
    let Some(id) = set.text(key)? else {
        return Ok(None);
    };
    let configuration = match set.text("name")? {
        Some(name) => Some(name),
        None => set.text("subset")?,
    };
    let split = set.text("split")?.unwrap_or_default();
    let split = split.split('[').next().unwrap_or_default();
    let set = HubDataSet {
        id,
        revision: set.text("revision")?,
        part: HubPart::Split {
            configuration,
            split: (!["", "train"].contains(&split)).then(|| split.to_owned()),
        },
    };
    let path = PathBuf::from(set.to_string());
    Ok(HubDataSet::of(&path)
        .is_some_and(|read| read == Ok(set))
        .then_some(path))
}

/// Notes a column that the file calls otherwise.
pub(super) fn rename(data: &mut DataSettings, name: &str, own: Option<String>) {
    if let Some(own) = own.filter(|own| own != name) {
        data.columns.insert(name.to_owned(), own);
    }
}

impl Reader<'_> {
    /// Says that a data set is neither a file nor on the hub.
    pub(super) fn not_a_file(&mut self, key: &str, name: &str) {
        self.data_note(format!(
            "`{key}: {name}` is neither a file of rows nor a data set of the hub: name one with `--data`"
        ));
    }

    /// Takes a number of rows from a split's text.
    pub(super) fn split(&mut self, key: &str, text: Option<String>) {
        let Some(text) = text else { return };
        match Split::of(&text) {
            Some(Split::All) => {}
            Some(Split::First(rows)) => self.recipe.data.max_rows = Some(rows),
            Some(Split::Percent(_)) | None => self.unknown_word(key, &text, "all of the rows"),
        }
    }
}
