//! Files of rows as other tools name them.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Keys, StackFileError};
use peft_tune_core::recipe::{DataSettings, HubDataSet, HubPart};

/// Endings of files that rows can be read from.
const ENDINGS: [&str; 10] = [
    "jsonl", "ndjson", "json", "csv", "tsv", "parquet", "txt", "text", "md", "arrow",
];

/// A part of a data set, as the `datasets` library writes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Split {
    All,
    /// Rows from the beginning, so many of them.
    First(usize),
    /// Hundredths from the beginning, so many of them and fewer than 100.
    Percent(f64),
}

impl Split {
    /// `train`, `train+test`, `train[:100]` or `train[:90%]`; `None` for others.
    pub(crate) fn of(text: &str) -> Option<Self> {
        let Some((name, range)) = text.split_once('[') else {
            return Some(Self::All);
        };
        let end = range.strip_suffix(']')?.trim_start_matches('0').strip_prefix(':')?;
        if name.is_empty() {
            return None;
        }
        match end.strip_suffix('%') {
            Some(percent) => {
                let percent: f64 = percent.parse().ok().filter(|percent| (1.0..=100.0).contains(percent))?;
                Some(if percent < 100.0 {
                    Self::Percent(percent)
                } else {
                    Self::All
                })
            }
            None if end.is_empty() => Some(Self::All),
            None => end.parse().ok().filter(|rows| *rows > 0).map(Self::First),
        }
    }
}

/// Finds where a path of the file leads: relative ones begin in the working directory, as the tools have it, or beside
/// the file.
pub(crate) fn located(file: &Path, path: &str) -> PathBuf {
    let path = PathBuf::from(path);
    let beside = file.parent().unwrap_or(Path::new("")).join(&path);
    match path.is_relative() && !path.exists() && beside.exists() {
        true => beside,
        false => path,
    }
}

/// Whether a text names a file of rows, and no data set of the hub.
pub(crate) fn is_file(file: &Path, text: &str) -> bool {
    let ending = Path::new(text)
        .extension()
        .map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) || located(file, text).is_file()
}

/// Names of the files of a split: one, a list, or a map by splits.
pub(crate) fn names_of(files: &Value, split: &str) -> Vec<String> {
    let files = match files {
        Value::Object(splits) => splits.get(split).unwrap_or(&Value::Null),
        other => other,
    };
    match files {
        Value::String(one) => vec![one.clone()],
        Value::Array(all) => all.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// Names of the files to train on under a key.
pub(crate) fn train_names(keys: &Keys<'_>, key: &str) -> Vec<String> {
    let named = keys.raw(key).map(|files| names_of(files, "train"));
    named.unwrap_or_default()
}

/// Files to train on under a key.
pub(crate) fn files(keys: &Keys<'_>, key: &str) -> Vec<PathBuf> {
    let names = train_names(keys, key).into_iter();
    names.map(|name| located(keys.path(), &name)).collect()
}

/// A split of a data set of the hub as a file names it; `None` where that is no id.
pub(crate) fn hub_set(id: &str, configuration: Option<String>, split: Option<&str>) -> Option<PathBuf> {
    hub_split(id, None, configuration, split.unwrap_or_default())
}

/// The address of a split of a data set of the hub; `None` where its parts make none. `train`, the usual one, is left out.
pub(crate) fn hub_split(
    id: &str,
    revision: Option<String>,
    configuration: Option<String>,
    split: &str,
) -> Option<PathBuf> {
    let split = Some(split.trim()).filter(|split| !["", "train"].contains(split));
    address(HubDataSet {
        id: id.to_owned(),
        revision,
        part: HubPart::Split {
            configuration,
            split: split.map(str::to_owned),
        },
    })
}

/// The address of a file of a data set of the hub; `None` where its parts make none.
pub(crate) fn hub_file(id: &str, revision: Option<String>, file: String) -> Option<PathBuf> {
    address(HubDataSet {
        id: id.to_owned(),
        revision,
        part: HubPart::File(file),
    })
}

/// The data set of the hub that a file names under `key`, by the words of the `datasets` library, once for each split; nothing where
/// that is no id.
pub(crate) fn on_hub(set: &Keys<'_>, key: &str) -> Result<Vec<PathBuf>, StackFileError> {
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
        let split = split.split('[').next().unwrap_or_default();
        hub_split(&id, revision.clone(), configuration.clone(), split)
    };
    let found: Option<Vec<PathBuf>> = splits.split('+').map(of_split).collect();
    Ok(found.unwrap_or_default())
}

/// The address of a data set of the hub; `None` where its parts make none.
fn address(set: HubDataSet) -> Option<PathBuf> {
    let path = PathBuf::from(set.to_string());
    HubDataSet::of(&path)
        .is_some_and(|read| read == Ok(set))
        .then_some(path)
}

/// Notes a column that the file calls otherwise.
pub(crate) fn rename(data: &mut DataSettings, name: &str, own: Option<String>) {
    if let Some(own) = own.filter(|own| own != name) {
        data.columns.insert(name.to_owned(), own);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_hundredths_of_a_split_are_all_of_it() {
        for (text, split) in [
            ("train", Some(Split::All)),
            ("train[:100%]", Some(Split::All)),
            ("train[:90%]", Some(Split::Percent(90.0))),
            ("train[:100]", Some(Split::First(100))),
            ("train[:101%]", None),
            ("train[:0%]", None),
        ] {
            assert_eq!(Split::of(text), split, "{text}");
        }
    }

    #[test]
    fn files_of_a_split_are_one_or_a_list_or_stand_in_a_map() {
        let cases: [(Value, &[&str]); 5] = [
            (json!("a"), &["a"]),
            (json!(["a", "b"]), &["a", "b"]),
            (json!({"train": "a", "test": "b"}), &["a"]),
            (json!({"train": ["a", "b"]}), &["a", "b"]),
            (json!({"test": "b"}), &[]),
        ];
        for (files, names) in cases {
            assert_eq!(names_of(&files, "train"), names, "{files}");
        }
    }
}
