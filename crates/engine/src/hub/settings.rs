//! The hub's cache folder, token and mode, as `huggingface_hub` reads them from the environment.

use std::path::{Path, PathBuf};

use super::HubError;

/// Content of a repository of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RepoKind {
    Model,
    DataSet,
}

/// How to reach the hub and where its files are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubSettings {
    /// The folder with one `models--owner--name` folder per model and one `datasets--owner--name` per data set.
    pub cache: PathBuf,
    pub token: Option<String>,
    pub endpoint: String,
    /// Whether the network is never used.
    pub offline: bool,
}

impl HubSettings {
    /// Settings that never use the network, with the given cache folder.
    pub fn offline(cache: impl Into<PathBuf>) -> Self {
        Self {
            cache: cache.into(),
            token: None,
            endpoint: DEFAULT_ENDPOINT.to_owned(),
            offline: true,
        }
    }

    /// Reads `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME`, `HF_TOKEN`, `HF_TOKEN_PATH`, `HF_ENDPOINT`,
    /// `HF_HUB_OFFLINE` and `TRANSFORMERS_OFFLINE`.
    ///
    /// # Errors
    /// Fails where neither a variable nor a home directory tells the cache folder.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let home = match variable("HF_HOME") {
            Some(home) => Some(PathBuf::from(home)),
            None => variable("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")))
                .or_else(|| variable("USERPROFILE").map(|home| Path::new(&home).join(".cache")))
                .map(|cache| cache.join("huggingface")),
        };
        let cache = variable("HF_HUB_CACHE")
            .or_else(|| variable("HUGGINGFACE_HUB_CACHE"))
            .map(PathBuf::from)
            .or_else(|| home.as_ref().map(|home| home.join("hub")))
            .ok_or(HubError::NoCacheFolder)?;
        let token_file = variable("HF_TOKEN_PATH")
            .map(PathBuf::from)
            .or_else(|| home.map(|home| home.join("token")));
        let token = variable("HF_TOKEN")
            .or_else(|| token_file.and_then(|path| std::fs::read_to_string(path).ok()))
            .map(|token| token.trim().to_owned())
            .filter(|token| !token.is_empty());
        let is_set = |name| variable(name).is_some_and(|value| is_true(&value));
        Ok(Self {
            cache,
            token,
            endpoint: variable("HF_ENDPOINT").map_or_else(
                || DEFAULT_ENDPOINT.to_owned(),
                |url| url.trim_end_matches('/').to_owned(),
            ),
            offline: is_set("HF_HUB_OFFLINE") || is_set("TRANSFORMERS_OFFLINE"),
        })
    }

    /// The folder that holds a cached revision of a repository; `None` where nothing of it is cached. `revision` is a
    /// branch, a tag or a commit.
    pub(super) fn snapshot(&self, kind: RepoKind, id: &str, revision: &str) -> Option<PathBuf> {
        let reference = self.repo_folder(kind, id).join("refs").join(revision);
        let commit =
            std::fs::read_to_string(reference).map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
        let snapshot = self.snapshot_folder(kind, id, &commit);
        snapshot.is_dir().then_some(snapshot)
    }

    /// The folder of one commit's files, whether or not it exists.
    pub(super) fn snapshot_folder(&self, kind: RepoKind, id: &str, commit: &str) -> PathBuf {
        self.repo_folder(kind, id).join("snapshots").join(commit)
    }

    fn repo_folder(&self, kind: RepoKind, id: &str) -> PathBuf {
        let kind = match kind {
            RepoKind::Model => "models",
            RepoKind::DataSet => "datasets",
        };
        self.cache.join(format!("{kind}--{}", id.replace('/', "--")))
    }
}

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// The values that `huggingface_hub` takes for yes.
fn is_true(value: &str) -> bool {
    ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> HubSettings {
        HubSettings::from_variables(|name| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        })
        .unwrap()
    }

    #[test]
    fn the_most_specific_variable_names_the_cache() {
        assert_eq!(
            settings(&[("HOME", "/h")]).cache,
            Path::new("/h/.cache/huggingface/hub")
        );
        assert_eq!(
            settings(&[("HOME", "/h"), ("HF_HOME", "/x")]).cache,
            Path::new("/x/hub")
        );
        let both = [("HF_HUB_CACHE", "/y"), ("HF_HOME", "/x")];
        assert_eq!(settings(&both).cache, Path::new("/y"));
        assert_eq!(
            settings(&[("XDG_CACHE_HOME", "/c"), ("HOME", "/h")]).cache,
            Path::new("/c/huggingface/hub")
        );
    }

    #[test]
    fn offline_is_said_in_several_ways() {
        assert!(settings(&[("HOME", "/h"), ("HF_HUB_OFFLINE", "1")]).offline);
        assert!(settings(&[("HOME", "/h"), ("TRANSFORMERS_OFFLINE", "True")]).offline);
        assert!(!settings(&[("HOME", "/h"), ("HF_HUB_OFFLINE", "0")]).offline);
    }

    #[test]
    fn without_any_folder_the_cache_is_an_error() {
        assert!(matches!(
            HubSettings::from_variables(|_| None),
            Err(HubError::NoCacheFolder)
        ));
    }
}
