//! A data set of the hub, as it is written wherever a file of rows can be.
//!
//! ```text
//! hf://datasets/OWNER/NAME[@REVISION][:CONFIGURATION][/SPLIT]
//! hf://datasets/OWNER/NAME[@REVISION]/FOLDER/FILE.jsonl
//! ```
//!
//! It is the address that `huggingface_hub` gives to files, which no path begins with.

use std::fmt;
use std::path::{Component, Path};

/// Scheme that every address of the hub begins with.
const SCHEME: &str = "hf://";
const DATA_SETS: &str = "hf://datasets/";
/// The branch that holds what the hub itself made of a data set, in Parquet.
pub const PARQUET_BRANCH: &str = "refs/convert/parquet";

/// A data set of the hub, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubDataSet {
    /// `owner/name`.
    pub id: String,
    /// A branch, a tag or a commit.
    pub revision: Option<String>,
    pub part: HubPart,
}

/// Rows of a data set that are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubPart {
    /// Rows of a split of a configuration.
    Split {
        configuration: Option<String>,
        split: Option<String>,
    },
    /// Rows of one file.
    File(String),
}

/// An address of the hub that names no data set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{address}` is no data set of the hub ({reason}); write hf://datasets/OWNER/NAME, and behind it, where they are \
     needed, @REVISION, :CONFIGURATION and /SPLIT or /FILE"
)]
pub struct BadHubDataSet {
    address: String,
    reason: &'static str,
}

impl HubDataSet {
    /// The data set that is written in the place of a file; `None` where it is a path.
    ///
    /// # Errors
    /// An address of the hub that names no data set, or names it in another way.
    pub fn of(path: &Path) -> Option<Result<Self, BadHubDataSet>> {
        let address = path.to_str().filter(|text| text.starts_with(SCHEME))?;
        Some(parse(address).map_err(|reason| BadHubDataSet {
            address: address.to_owned(),
            reason,
        }))
    }

    /// Whether an address of the hub, right or wrong, is written in the place of a file.
    pub fn is_written(path: &Path) -> bool {
        path.to_str().is_some_and(|text| text.starts_with(SCHEME))
    }

    /// The configuration, where one is named.
    pub fn configuration(&self) -> Option<&str> {
        match &self.part {
            HubPart::Split { configuration, .. } => configuration.as_deref(),
            HubPart::File(_) => None,
        }
    }

    /// The split, where one is named.
    pub fn split(&self) -> Option<&str> {
        match &self.part {
            HubPart::Split { split, .. } => split.as_deref(),
            HubPart::File(_) => None,
        }
    }
}

impl fmt::Display for HubDataSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{DATA_SETS}{}", self.id)?;
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        match &self.part {
            HubPart::Split { configuration, split } => {
                configuration.iter().try_for_each(|name| write!(f, ":{name}"))?;
                split.iter().try_for_each(|name| write!(f, "/{name}"))
            }
            HubPart::File(file) => write!(f, "/{file}"),
        }
    }
}

fn parse(address: &str) -> Result<HubDataSet, &'static str> {
    let rest = address
        .strip_prefix(DATA_SETS)
        .ok_or("only data sets are read from there")?;
    let (owner, rest) = rest.split_once('/').ok_or("it has no owner and name")?;
    let (name, rest) = until(rest, &['@', ':', '/']);
    if ![owner, name].iter().all(|part| is_name(part)) {
        return Err("the owner or the name is not one that the hub gives");
    }
    let (revision, rest) = match rest.strip_prefix('@') {
        Some(rest) => revision_of(rest),
        None => (None, rest),
    };
    if revision.as_deref().is_some_and(|revision| !is_inside(revision)) {
        return Err("the revision is not one");
    }
    let (configuration, rest) = match rest.strip_prefix(':') {
        Some(rest) => {
            let (configuration, rest) = until(rest, &['/']);
            (Some(configuration.to_owned()), rest)
        }
        None => (None, rest),
    };
    if configuration.as_deref().is_some_and(|name| !is_word(name)) {
        return Err("the configuration is not one");
    }
    let part = match rest.strip_prefix('/').map(|rest| rest.trim_end_matches('/')) {
        None | Some("") => HubPart::Split {
            configuration,
            split: None,
        },
        Some(rest) if names_file(rest) => match is_inside(rest) {
            _ if rest.contains(['*', '?']) => return Err("patterns of files are not read"),
            _ if configuration.is_some() => return Err("a file has no configuration"),
            true => HubPart::File(rest.to_owned()),
            false => return Err("the file is not one of the data set"),
        },
        Some(split) if is_word(split) => HubPart::Split {
            configuration,
            split: Some(split.to_owned()),
        },
        Some(split) if split.contains('[') => return Err("a part of a split is `data.max_rows`"),
        Some(_) => return Err("the split is not one"),
    };
    Ok(HubDataSet {
        id: format!("{owner}/{name}"),
        revision,
        part,
    })
}

/// The text up to one of `ends`, and the rest from there.
fn until<'a>(text: &'a str, ends: &[char]) -> (&'a str, &'a str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

/// The revision that a text begins with, and the rest. `~parquet` is the branch of the conversion, and references may be written
/// with or without `%2F` for their slashes.
fn revision_of(text: &str) -> (Option<String>, &str) {
    let parts: Vec<&str> = text.splitn(4, '/').collect();
    let (revision, rest) = match parts[..] {
        ["refs", kind, last, ..] => until_from(text, kind.len() + last.len() + "refs//".len()),
        ["refs", ..] => (text, ""),
        _ => until(text, &[':', '/']),
    };
    let revision = match revision {
        "~parquet" => PARQUET_BRANCH.to_owned(),
        other => other.replace("%2F", "/").replace("%2f", "/"),
    };
    (Some(revision), rest)
}

/// The first `at` bytes of a text, or less where a configuration begins, and the rest.
fn until_from(text: &str, at: usize) -> (&str, &str) {
    let at = text.find(':').map_or(at, |colon| colon.min(at));
    text.split_at(at)
}

/// A part of an id, as the hub gives them.
fn is_name(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        && !part.contains("..")
}

/// The name of a configuration or of a split.
fn is_word(text: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || "-_.+ ".contains(c);
    !text.is_empty() && text.chars().all(is_letter) && !text.starts_with('.')
}

/// Whether a text is the path of a file, and no split: what ends `mix_1.2M` is a number.
fn names_file(text: &str) -> bool {
    let ending = Path::new(text).extension().and_then(|ending| ending.to_str());
    text.contains('/') || ending.is_some_and(|ending| ending.starts_with(|first: char| first.is_alphabetic()))
}

/// Whether a text with slashes leads nowhere outside.
fn is_inside(text: &str) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    !text.is_empty() && !text.contains('\\') && Path::new(text).components().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Result<HubDataSet, String> {
        let found = HubDataSet::of(Path::new(address)).expect("an address of the hub");
        found.map_err(|error| error.to_string())
    }

    fn parts(address: &str) -> [Option<String>; 3] {
        let set = of(address).unwrap();
        assert_eq!(set.id, "owner/na.me");
        match set.part {
            HubPart::Split { configuration, split } => [set.revision, configuration, split],
            HubPart::File(file) => [set.revision, Some("FILE".to_owned()), Some(file)],
        }
    }

    #[test]
    fn an_address_says_revision_configuration_and_split_or_a_file() {
        let some = |text: &str| Some(text.to_owned());
        for (address, expected) in [
            ("", [None, None, None]),
            ("/", [None, None, None]),
            ("/test_sft", [None, None, some("test_sft")]),
            (":en/test", [None, some("en"), some("test")]),
            ("@v1:en.20", [some("v1"), some("en.20"), None]),
            ("@refs/pr/3/test", [some("refs/pr/3"), None, some("test")]),
            ("@refs/convert/parquet:en", [some(PARQUET_BRANCH), some("en"), None]),
            ("@refs%2Fpr%2F3:en", [some("refs/pr/3"), some("en"), None]),
            ("@~parquet:en/test", [some(PARQUET_BRANCH), some("en"), some("test")]),
            ("/data/a.jsonl", [None, some("FILE"), some("data/a.jsonl")]),
            ("@main/a.csv", [some("main"), some("FILE"), some("a.csv")]),
        ] {
            let address = format!("hf://datasets/owner/na.me{address}");
            assert_eq!(parts(&address), expected, "{address}");
            let again = of(&of(&address).unwrap().to_string()).unwrap();
            assert_eq!(again, of(&address).unwrap(), "{address}");
        }
    }

    #[test]
    fn paths_are_none_and_other_addresses_are_refused() {
        for path in ["owner/name", "./hf:/x", "/data/hf://datasets/a/b", "datasets/a/b"] {
            assert!(HubDataSet::of(Path::new(path)).is_none(), "{path}");
        }
        for (address, part) in [
            ("hf://owner/name", "only data sets"),
            ("hf://datasets/name", "no owner"),
            ("hf://datasets/../name", "the owner or the name"),
            ("hf://datasets/owner/", "the owner or the name"),
            ("hf://datasets/owner/na me", "the owner or the name"),
            ("hf://datasets/o/n@../x", "no data set"),
            ("hf://datasets/o/n/../../x.jsonl", "the file"),
            ("hf://datasets/o/n/data/*.jsonl", "patterns"),
            ("hf://datasets/o/n/train[:100]", "max_rows"),
            ("hf://datasets/o/n:", "the configuration"),
            ("hf://datasets/o/n:en/a.jsonl", "no configuration"),
        ] {
            let error = of(address).unwrap_err();
            assert!(
                error.contains(part) && error.contains("OWNER/NAME"),
                "{address}: {error}"
            );
        }
    }
}
