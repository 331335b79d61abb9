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
    /// `train`, `train+test`, `train[:100]` or `train[:90%]`; `None` for others.
    pub(in crate::tools) fn of(text: &str) -> Option<Self> {
        let Some((name, range)) = text.split_once('[') else {
            return Some(Self::All);
        };
        let end = range.strip_suffix(']')?.trim_start_matches('0').strip_prefix(':')?;
        if name.is_empty() {
            return None;
        }
        match end.strip_suffix('%') {
            Some(percent) => percent
                .parse()
                .ok()
                .filter(|percent| (1.0..=100.0).contains(percent))
                .map(Self::Percent),
            None if end.is_empty() => Some(Self::All),
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

/// A split of a data set of the hub as a file names it; `None` where that is no id.
pub(in crate::tools) fn hub_set(id: &str, configuration: Option<String>, split: Option<&str>) -> Option<PathBuf> {
    let split = split.map(str::trim).filter(|split| !["", "train"].contains(split));
    hub_address(HubDataSet {
        id: id.to_owned(),
        revision: None,
        part: HubPart::Split {
            configuration,
            split: split.map(str::to_owned),
        },
    })
}

/// The data set of the hub that a file names under `key`, by the words of the `datasets` library, once for each split; nothing where
/// that is no id.
pub(in crate::tools) fn on_hub(set: &Keys<'_>, key: &str) -> Result<Vec<PathBuf>, StackFileError> {
    let Some(id) = set.text(key)? else {
        return Ok(Vec::new());
    };
    let configuration = match set.text("name")? {
        Some(name) => Some(name),
        None => set.text("subset")?,
    };
    let revision = set.text("revision")?;
    let splits = set.text("split")?.unwrap_or_default();
    let of_split = |split: &str| {
        let split = split.split('[').next().unwrap_or_default().trim();
        hub_address(HubDataSet {
            id: id.clone(),
            revision: revision.clone(),
            part: HubPart::Split {
                configuration: configuration.clone(),
                split: (!["", "train"].contains(&split)).then(|| split.to_owned()),
            },
        })
    };
    let found: Option<Vec<PathBuf>> = splits.split('+').map(of_split).collect();
    Ok(found.unwrap_or_default())
}

/// The address of a data set of the hub; `None` where its parts make none.
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

    /// Files of a data set that stands in the file by the words of the `datasets` library: on this machine, or on the hub. `key` is that
    /// of its path, and `name` what messages call it.
    pub(in crate::tools) fn files_of_set(
        &mut self,
        set: &Keys<'_>,
        key: &str,
        name: &str,
    ) -> Result<Vec<PathBuf>, StackFileError> {
        let path = set.text(key)?.unwrap_or_default();
        let named = files(set, "data_files");
        let found = match named.is_empty() {
            true if is_file(self.keys.path(), &path) => vec![located(self.keys.path(), &path)],
            true => match on_hub(set, key)? {
                none if none.is_empty() && set.has("ds_type") => vec![located(self.keys.path(), &path)],
                found => found,
            },
            false if named.iter().any(|file| file.is_file()) => named,
            false => files_on_hub(set, &path)?.unwrap_or(named),
        };
        if found.is_empty() {
            self.not_a_file(name, &path);
        }
        Ok(found)
    }

    /// The share of rows that a key holds out. A whole number is one of rows, which is a share once they are counted.
    pub(in crate::tools) fn held_out_share(
        &mut self,
        keys: &Keys<'_>,
        key: &str,
    ) -> Result<Option<f64>, StackFileError> {
        let said = keys.number(key)?.filter(|said| *said > 0.0 && said.is_finite());
        self.later.held_out = said.filter(|rows| *rows >= 1.0).map(|rows| rows as u64);
        Ok(said.filter(|share| *share < 1.0))
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

    /// Takes a number of rows, or a share of them, from the texts of the splits of all data sets. One that is for a part of them alone
    /// is told.
    pub(in crate::tools) fn splits(&mut self, key: &str, texts: &[Option<String>]) {
        let Some(text) = texts.iter().flatten().find(|text| Split::of(text) != Some(Split::All)) else {
            return;
        };
        let split = Split::of(text);
        let is_of_all = texts
            .iter()
            .all(|one| one.as_deref().is_some_and(|one| Split::of(one) == split));
        match split.filter(|_| is_of_all) {
            Some(Split::First(rows)) => self.recipe.data.max_rows = Some(rows),
            Some(Split::Percent(percent)) => self.later.read = Some(percent / 100.0).filter(|share| *share < 1.0),
            Some(Split::All) | None => self.unknown_word(key, text, "all of the rows"),
        }
    }
}

/// Files of a repository of the hub that a data set names beside its id; `None` where that is no id, or one of them no file there.
fn files_on_hub(set: &Keys<'_>, id: &str) -> Result<Option<Vec<PathBuf>>, StackFileError> {
    let revision = set.text("revision")?;
    let names: Vec<String> = match set.raw("data_files") {
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(Value::Object(parts)) => parts
            .get("train")
            .and_then(Value::as_str)
            .map(str::to_owned)
            .into_iter()
            .collect(),
        Some(one) => one.as_str().map(str::to_owned).into_iter().collect(),
        None => Vec::new(),
    };
    let of_file = |name: String| {
        hub_address(HubDataSet {
            id: id.to_owned(),
            revision: revision.clone(),
            part: HubPart::File(name),
        })
    };
    Ok(names.into_iter().map(of_file).collect())
}
