//! Why the files of a data set on the hub cannot be had.

use std::path::PathBuf;

use super::HubError;
use super::data_files::NotChosen;
use peft_tune_core::recipe::{BadHubDataSet, HubDataSet, HubPart};

/// The files of a data set cannot be had. Every message ends in what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataSetError {
    #[error(transparent)]
    BadAddress(#[from] BadHubDataSet),
    #[error(transparent)]
    Settings(#[from] HubError),
    #[error(
        "data set {set} is not complete in the cache {cache}, and nothing is downloaded here (HF_HUB_OFFLINE, or a command \
         that only looks); unset HF_HUB_OFFLINE and run `peft-tune search` or `train` once, or name files in `data`"
    )]
    NotCached { set: String, cache: PathBuf },
    #[error(
        "cannot reach the hub for data set {set}, and the cache {cache} does not hold it: {source}; connect to the \
         network, copy the cache from another machine and set HF_HOME, or name files in `data`"
    )]
    Unreachable {
        set: String,
        cache: PathBuf,
        source: Box<hf_hub::api::sync::ApiError>,
    },
    #[error("the hub has no data set {set}, or it is private; check the id and the revision, or set HF_TOKEN")]
    Unknown { set: String },
    #[error(
        "the hub refuses access to data set {set} (HTTP status {status}); accept its terms at {endpoint}/datasets/{id} \
         and set HF_TOKEN to a token that may read it"
    )]
    Refused {
        set: String,
        id: String,
        status: u16,
        endpoint: String,
    },
    #[error("data set {set} has no configuration {}; it has {}: write {example}", named(.asked), list(.known))]
    NoConfiguration {
        set: String,
        asked: Option<String>,
        known: Vec<String>,
        example: String,
    },
    #[error("data set {set} has no split {}; it has {}: write {example}", named(.asked), list(.known))]
    NoSplit {
        set: String,
        asked: Option<String>,
        known: Vec<String>,
        example: String,
    },
    #[error("data set {set}: its repository has no such file; correct the path behind the name")]
    NoFile { set: String },
    #[error(
        "data set {set} holds no Parquet, JSONL, JSON, CSV or text files{}; load it with the `datasets` library, write it \
         with `to_json(\"train.jsonl\")` and name that file",
        .example.as_ref().map(|file| format!(" (but `{file}`)")).unwrap_or_default()
    )]
    NoFiles { set: String, example: Option<String> },
    #[error(
        "cannot download {file} of data set {set} into {cache}: {source}; run it again, it continues where it stopped"
    )]
    Download {
        set: String,
        file: String,
        cache: PathBuf,
        source: Box<hf_hub::api::sync::ApiError>,
    },
    #[error("the hub names `{commit}` as the commit of data set {set}, which is none; check HF_ENDPOINT")]
    BadCommit { set: String, commit: String },
    #[error("cannot write to the cache {cache}: {source}; set HF_HOME to a folder that can be written")]
    NotWritten { cache: PathBuf, source: std::io::Error },
}

impl DataSetError {
    pub(super) fn not_chosen(set: &HubDataSet, why: NotChosen) -> Self {
        let (text, first) = (set.to_string(), |known: &[String]| known.first().cloned());
        match why {
            NotChosen::File => Self::NoFile { set: text },
            NotChosen::Files { example } => Self::NoFiles { set: text, example },
            NotChosen::Configuration { known } => Self::NoConfiguration {
                set: text,
                asked: set.configuration().map(str::to_owned),
                example: example(set, first(&known), set.split().map(str::to_owned)),
                known,
            },
            NotChosen::Split { known } => Self::NoSplit {
                set: text,
                asked: set.split().map(str::to_owned),
                example: example(set, set.configuration().map(str::to_owned), first(&known)),
                known,
            },
        }
    }
}

/// The address with another configuration and split.
fn example(set: &HubDataSet, configuration: Option<String>, split: Option<String>) -> String {
    let part = HubPart::Split { configuration, split };
    HubDataSet { part, ..set.clone() }.to_string()
}

fn named(asked: &Option<String>) -> String {
    match asked {
        Some(name) => format!("`{name}`"),
        None => "that is meant where none is named".to_owned(),
    }
}

/// `a`, `b` and 3 more.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 12;
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(SHOWN);
    let shown = shown.join(", ");
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
