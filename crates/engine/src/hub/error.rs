//! Why a model's files cannot be had.

use std::fmt;
use std::path::PathBuf;

/// A model's files cannot be had. Every message ends in what to do.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("model directory {path} does not exist; correct the path, or give a hub id such as `Qwen/Qwen2.5-0.5B`")]
    NoSuchDirectory { path: PathBuf },
    #[error("`{model}` is neither a directory nor a hub id; write `owner/name` or `owner/name@revision`")]
    BadName { model: String },
    #[error("model {model}: {folder} lacks {}", list(.files))]
    Missing {
        model: String,
        folder: PathBuf,
        files: Vec<MissingFile>,
    },
    #[error(
        "{folder} holds a PEFT adapter and no base model; give its base model{} and name the adapter as `adapter_init`",
        .base.as_ref().map(|base| format!(" (`{base}`)")).unwrap_or_default()
    )]
    Adapter { folder: PathBuf, base: Option<String> },
    #[error(
        "model {id} (revision {revision}) is not complete in the cache {cache} ({}) and HF_HUB_OFFLINE forbids \
         downloading; unset HF_HUB_OFFLINE once, or give a local model directory",
        list(.files)
    )]
    NotCached {
        id: String,
        revision: String,
        cache: PathBuf,
        files: Vec<MissingFile>,
    },
    #[error(
        "cannot reach the hub for model {id} (revision {revision}), and the cache {cache} lacks {}: {source}; connect \
         to the network, copy the cache from another machine and set HF_HOME, or give a local model directory",
        list(.files)
    )]
    Unreachable {
        id: String,
        revision: String,
        cache: PathBuf,
        files: Vec<MissingFile>,
        source: Box<hf_hub::api::sync::ApiError>,
    },
    #[error("the hub has no model {id} at revision {revision}, or it is private; check the id, or set HF_TOKEN")]
    Unknown { id: String, revision: String },
    #[error(
        "the hub refuses access to model {id} (HTTP status {status}); accept its terms at {endpoint}/{id} and set \
         HF_TOKEN to a token that may read it"
    )]
    Refused { id: String, status: u16, endpoint: String },
    #[error("cannot download {file} of model {id} into {cache}: {source}; run it again, it continues where it stopped")]
    Download {
        id: String,
        file: String,
        cache: PathBuf,
        source: Box<hf_hub::api::sync::ApiError>,
    },
    #[error("{path} is not an index of a model's shards ({reason}); fetch the model again")]
    BadIndex { path: PathBuf, reason: String },
    #[error("cannot read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("no home directory for the hub's cache; set HF_HOME to a folder")]
    NoCacheFolder,
}

/// A file that a model must have and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingFile {
    pub name: String,
    /// Advice on what to do; empty where the name says it all.
    pub advice: &'static str,
}

impl fmt::Display for MissingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if !self.advice.is_empty() {
            write!(f, " ({})", self.advice)?;
        }
        Ok(())
    }
}

/// `a, b and 3 more`.
fn list(files: &[MissingFile]) -> String {
    const SHOWN: usize = 4;
    let mut text = files
        .iter()
        .take(SHOWN)
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ");
    if files.len() > SHOWN {
        text.push_str(&format!(" and {} more", files.len() - SHOWN));
    }
    text
}
