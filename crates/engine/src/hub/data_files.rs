//! Files of a repository that hold a split of a data set.
//!
//! | layout | a split's files |
//! |---|---|
//! | the hub's own conversion (`refs/convert/parquet`) | `CONFIGURATION/SPLIT/0000.parquet` and so on |
//! | what `datasets` pushes | `[data or CONFIGURATION]/SPLIT-00000-of-00002.parquet` and so on |
//! | any other | what has `train`, `validation` or `test` (or a word for it) in its name or folder; else all is `train` |

use std::collections::BTreeSet;
use std::path::{Component, Path};

use peft_tune_core::recipe::{HubPart, PARQUET_BRANCH};

/// Endings that are read, the ones first that say most of a row.
const ENDINGS: [&[&str]; 5] = [
    &["parquet", "pq"],
    &["jsonl", "ndjson"],
    &["json"],
    &["csv", "tsv"],
    &["txt"],
];
/// Files that describe a data set and hold no rows.
const DESCRIPTIONS: [&str; 5] = [
    "dataset_infos.json",
    "dataset_info.json",
    "dataset_dict.json",
    "state.json",
    "croissant.json",
];
/// The configuration and the split that are meant where none is named.
const DEFAULT: &str = "default";
const TRAIN: &str = "train";
/// The words of other splits, as `datasets` looks for them.
const WORDS: [(&str, &[&str]); 3] = [
    (TRAIN, &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// Reason why no files were chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotChosen {
    /// Files of which none can be read; an example of what is there.
    Files {
        example: Option<String>,
    },
    Configuration {
        known: Vec<String>,
    },
    Split {
        known: Vec<String>,
    },
    File,
}

/// A file with what its place says.
#[derive(Debug)]
struct Placed<'a> {
    file: &'a str,
    configuration: &'a str,
    split: String,
    /// Index in [`ENDINGS`].
    kind: usize,
}

/// The files of `part` among all of a revision, in order.
///
/// # Errors
/// See [`NotChosen`].
pub(super) fn choose(files: &[String], revision: &str, part: &HubPart) -> Result<Vec<String>, NotChosen> {
    let (configuration, split) = match part {
        HubPart::File(file) => {
            return match files.contains(file) {
                true => Ok(vec![file.clone()]),
                false => Err(NotChosen::File),
            };
        }
        HubPart::Split { configuration, split } => (configuration.as_deref(), split.as_deref()),
    };
    let place = match revision == PARQUET_BRANCH {
        true => of_conversion,
        false => of_repository,
    };
    let mut placed: Vec<Placed<'_>> = files.iter().filter_map(|file| place(file)).collect();
    if placed.is_empty() {
        let hidden = |file: &&String| !file.starts_with('.') && !file.ends_with(".md");
        let example = files.iter().find(hidden).cloned();
        return Err(NotChosen::Files { example });
    }
    let configuration = one_of(placed.iter().map(|file| file.configuration), configuration, DEFAULT)
        .map_err(|known| NotChosen::Configuration { known })?;
    placed.retain(|file| file.configuration == configuration);
    let split = one_of(placed.iter().map(|file| file.split.as_str()), split, TRAIN)
        .map_err(|known| NotChosen::Split { known })?;
    placed.retain(|file| file.split == split);
    let kind = placed.iter().map(|file| file.kind).min();
    placed.retain(|file| Some(file.kind) == kind);
    let mut chosen: Vec<String> = placed.into_iter().map(|file| file.file.to_owned()).collect();
    chosen.sort();
    Ok(chosen)
}

/// The name that is asked for, else the usual one, else the only one; all names where that is none.
fn one_of<'a>(names: impl Iterator<Item = &'a str>, asked: Option<&str>, usual: &str) -> Result<String, Vec<String>> {
    let names: BTreeSet<&str> = names.collect();
    let found = match asked {
        Some(asked) => names.get(asked),
        None => names.get(usual).or(names.first().filter(|_| names.len() == 1)),
    };
    match found {
        Some(found) => Ok((*found).to_owned()),
        None => Err(names.into_iter().map(str::to_owned).collect()),
    }
}

/// Whether files that lie in a cache are all that belong together: their names count them.
pub(super) fn are_complete(files: &[String]) -> bool {
    let stem = |file: &String| {
        Path::new(file)
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
    };
    let stems: Vec<String> = files.iter().filter_map(stem).collect();
    let of_conversion = |(at, stem): (usize, &String)| stem.parse() == Ok(at);
    let is_number = |stem: &String| stem.chars().all(|c| c.is_ascii_digit());
    if stems.iter().all(is_number) {
        return stems.iter().enumerate().all(of_conversion);
    }
    let shards = stems.iter().filter_map(|stem| shard(stem));
    shards.fold(true, |complete, (_, of)| complete && stems.len() >= of)
}

/// `CONFIGURATION/SPLIT/0000.parquet`. A split of which the hub converted the beginning only is none.
fn of_conversion(file: &str) -> Option<Placed<'_>> {
    let parts: Vec<&str> = file.split('/').collect();
    let [configuration, split, name] = parts[..] else {
        return None;
    };
    let is_rows = name.ends_with(".parquet") && is_inside(file) && !split.starts_with("partial-");
    is_rows.then(|| Placed {
        file,
        configuration,
        split: split.to_owned(),
        kind: 0,
    })
}

fn of_repository(file: &str) -> Option<Placed<'_>> {
    let (folders, name) = file.rsplit_once('/').unwrap_or(("", file));
    let is_hidden = file.split('/').any(|part| part.starts_with('.'));
    if is_hidden || DESCRIPTIONS.contains(&name) || !is_inside(file) {
        return None;
    }
    let ending = Path::new(name).extension()?.to_str()?.to_lowercase();
    let kind = ENDINGS.iter().position(|endings| endings.contains(&ending.as_str()))?;
    let first = folders.split('/').next().unwrap_or_default();
    let configuration = match first {
        "" | "data" => DEFAULT,
        first if split_word(first).is_some() => DEFAULT,
        first => first,
    };
    let stem = Path::new(name).file_stem()?.to_str()?;
    let split = match shard(stem) {
        Some((split, _)) => split.to_owned(),
        None => split_word(stem)
            .or_else(|| folders.rsplit('/').find_map(split_word))
            .unwrap_or(TRAIN)
            .to_owned(),
    };
    Some(Placed {
        file,
        configuration,
        split,
        kind,
    })
}

/// `SPLIT-00000-of-00002`, with or without a hash behind it: the split and how many there are.
fn shard(stem: &str) -> Option<(&str, usize)> {
    let parts: Vec<&str> = stem.split('-').collect();
    let of = parts.iter().rposition(|part| *part == "of").filter(|of| *of >= 2)?;
    let is_number = |part: &&str| part.len() == 5 && part.chars().all(|c| c.is_ascii_digit());
    let count = parts.get(of + 1).filter(|part| is_number(part))?.parse().ok()?;
    parts.get(of - 1).filter(|part| is_number(part))?;
    let before: usize = parts[..of - 1].iter().map(|part| part.len() + 1).sum();
    Some((&stem[..before.saturating_sub(1)], count))
}

/// The split that a name has a word of.
fn split_word(name: &str) -> Option<&'static str> {
    let lower = name.to_lowercase();
    let words: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphabetic()).collect();
    let has = |(_, all): &&(&str, &[&str])| all.iter().any(|word| words.contains(word));
    WORDS.iter().find(has).map(|(split, _)| *split)
}

/// Whether a name leads nowhere outside.
fn is_inside(file: &str) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !file.contains('\\') && Path::new(file).components().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(files: &[&str], revision: &str, configuration: &str, split: &str) -> Result<Vec<String>, NotChosen> {
        let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let part = HubPart::Split {
            configuration: named(configuration),
            split: named(split),
        };
        let files: Vec<String> = files.iter().map(|file| (*file).to_owned()).collect();
        choose(&files, revision, &part)
    }

    #[test]
    fn the_conversion_has_a_folder_for_each_configuration_and_split() {
        let files = [
            ".gitattributes",
            "en/train/0001.parquet",
            "en/train/0000.parquet",
            "en/test/0000.parquet",
            "fr/partial-train/0000.parquet",
            "../up/train/0000.parquet",
        ];
        let of = |configuration, split| chosen(&files, PARQUET_BRANCH, configuration, split);
        assert_eq!(of("", "").unwrap(), ["en/train/0000.parquet", "en/train/0001.parquet"]);
        assert_eq!(of("en", "test").unwrap(), ["en/test/0000.parquet"]);
        let known = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            of("", "dev"),
            Err(NotChosen::Split {
                known: known(&["test", "train"])
            })
        );
        assert_eq!(of("fr", ""), Err(NotChosen::Configuration { known: known(&["en"]) }));
    }

    #[test]
    fn other_repositories_are_read_by_their_names() {
        let pushed = [
            "README.md",
            "data/train_sft-00000-of-00002-0a1b.parquet",
            "data/train_sft-00001-of-00002-2c3d.parquet",
            "data/test_sft-00000-of-00001.parquet",
        ];
        assert_eq!(chosen(&pushed, "main", "", "train_sft").unwrap().len(), 2);
        assert!(matches!(chosen(&pushed, "main", "", ""), Err(NotChosen::Split { .. })));
        let own = [
            "train.jsonl",
            "train.csv",
            "dev.jsonl",
            "dataset_infos.json",
            "extra/a.jsonl",
        ];
        assert_eq!(chosen(&own, "main", "", "").unwrap(), ["train.jsonl"]);
        assert_eq!(chosen(&own, "main", "", "validation").unwrap(), ["dev.jsonl"]);
        assert_eq!(chosen(&own, "main", "extra", "").unwrap(), ["extra/a.jsonl"]);
        let plain = ["alpaca_data_cleaned.json", ".hidden.json"];
        assert_eq!(chosen(&plain, "main", "", "").unwrap(), ["alpaca_data_cleaned.json"]);
        let folders = ["data/test/1.jsonl", "data/train/1.jsonl"];
        assert_eq!(chosen(&folders, "main", "", "test").unwrap(), ["data/test/1.jsonl"]);
        let packed = ["rows.jsonl.zst"];
        let example = Some("rows.jsonl.zst".to_owned());
        assert_eq!(chosen(&packed, "main", "", ""), Err(NotChosen::Files { example }));
    }

    #[test]
    fn names_tell_what_is_missing() {
        let complete = |files: &[&str]| are_complete(&files.iter().map(|file| (*file).to_owned()).collect::<Vec<_>>());
        assert!(complete(&["a/train/0000.parquet", "a/train/0001.parquet"]));
        assert!(!complete(&["a/train/0001.parquet"]));
        assert!(complete(&["data/train-00000-of-00001.parquet"]));
        assert!(!complete(&["data/train-00000-of-00002-ab.parquet"]));
        assert!(complete(&["train.jsonl"]));
    }
}
