//! Files of rows as other tools name them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Keys, Reader, StackFileError};
use peft_tune_core::recipe::{DataSettings, HubDataSet, HubPart, TrainingData, TrainingSet};

/// Endings of files that rows can be read from.
const ENDINGS: [&str; 10] = [
    "jsonl", "ndjson", "json", "csv", "tsv", "parquet", "txt", "text", "md", "arrow",
];

/// A part of a data set, as the `datasets` library writes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tools) enum Split {
    All,
    /// Rows from the beginning, so many of them.
    First(usize),
    /// Hundredths from the beginning, so many of them.
    Percent(f64),
}

impl Split {
    /// `train`, `train[:100]` or `train[:90%]`; `None` for others.
    pub(in crate::tools) fn of(text: &str) -> Option<Self> {
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

/// Finds where a path of the file leads: relative ones begin in the working directory, as the tools have it, or beside
/// the file.
pub(in crate::tools) fn located(file: &Path, path: &str) -> PathBuf {
    let path = PathBuf::from(path);
    let beside = file.parent().unwrap_or(Path::new("")).join(&path);
    match path.is_relative() && !path.exists() && beside.exists() {
        true => beside,
        false => path,
    }
}

/// Whether a text names a file of rows, and no data set of the hub.
pub(in crate::tools) fn is_file(file: &Path, text: &str) -> bool {
    let ending = Path::new(text)
        .extension()
        .map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) || located(file, text).is_file()
}

/// Files under a key: one, a list, or a map with `train`.
pub(in crate::tools) fn files(keys: &Keys<'_>, key: &str) -> Vec<PathBuf> {
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
pub(in crate::tools) fn on_hub(set: &Keys<'_>, key: &str) -> Result<Option<PathBuf>, StackFileError> {
    let Some(id) = set.text(key)? else {
        return Ok(None);
    };
    let configuration = match set.text("name")? {
        Some(name) => Some(name),
        None => set.text("subset")?,
    };
    let split = set.text("split")?.unwrap_or_default();
    let split = split.split('[').next().unwrap_or_default();
    Ok(hub_address(HubDataSet {
        id,
        revision: set.text("revision")?,
        part: HubPart::Split {
            configuration,
            split: (!["", "train"].contains(&split)).then(|| split.to_owned()),
        },
    }))
}

/// The address of a data set of the hub; `None` where it has no such name.
pub(in crate::tools) fn hub_address(set: HubDataSet) -> Option<PathBuf> {
    let path = PathBuf::from(set.to_string());
    HubDataSet::of(&path)
        .is_some_and(|read| read == Ok(set))
        .then_some(path)
}

/// Notes a column that the file calls otherwise.
pub(in crate::tools) fn rename(data: &mut DataSettings, name: &str, own: Option<String>) {
    if let Some(own) = own.filter(|own| own != name) {
        data.columns.insert(name.to_owned(), own);
    }
}

impl Reader<'_> {
    /// Says that a data set is neither a file nor on the hub.
    pub(in crate::tools) fn not_a_file(&mut self, key: &str, name: &str) {
        self.data_note(format!(
            "`{key}: {name}` is neither a file of rows nor a data set of the hub: name one with `--data`"
        ));
    }

    /// Sets of files with shares, as far as there is one above 0 for each; else the files, which is told.
    pub(in crate::tools) fn mixture(
        &mut self,
        key: &str,
        sets: Vec<Vec<PathBuf>>,
        weights: Option<Vec<f64>>,
    ) -> TrainingData {
        let weights = weights.filter(|weights| weights.len() == sets.len());
        if let Some(weights) = weights {
            let of = |(files, weight)| TrainingSet { files, weight };
            let mixture = TrainingData::Mixture(sets.iter().cloned().zip(weights).map(of).collect());
            if let Ok(mixture) = mixture.normalized() {
                return mixture;
            }
        }
        self.data_note(format!(
            "`{key}` has no share above 0 for each of the {} data sets, which are read one after another: write weights in \
             `data.train`",
            sets.len()
        ));
        sets.concat().into()
    }

    /// Takes a number or a share of rows from a split's text.
    pub(in crate::tools) fn split(&mut self, key: &str, text: Option<String>) {
        let Some(text) = text else { return };
        match Split::of(&text) {
            Some(Split::All) => {}
            Some(Split::First(rows)) => self.recipe.data.max_rows = Some(rows),
            Some(Split::Percent(percent)) => self.share_of_rows = Some(percent / 100.0),
            None => self.unknown_word(key, &text, "all of the rows"),
        }
    }
}
