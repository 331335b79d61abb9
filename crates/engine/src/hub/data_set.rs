//! The files of a data set on the hub: from the standard cache, or downloaded into it.
//!
//! Without a revision, the hub's own conversion to Parquet is preferred and the data set's own files come next. Files of a
//! commit are fetched last one first, so that a download that was interrupted is noticed by what it lacks.

use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiError};
use hf_hub::{Cache, Repo, RepoType};

use super::data_files::{NotChosen, are_complete, choose};
use super::data_set_error::DataSetError;
use super::download::{DownloadObserver, Forward, api, http_status};
use super::settings::{HubSettings, RepoKind};
use peft_tune_core::recipe::{HubDataSet, HubPart, PARQUET_BRANCH};

/// Folders below a snapshot that are looked through.
const DEEPEST: usize = 8;

/// The files that a path of the settings means: itself, or those of the data set on the hub that is written there, in the
/// order of their rows. `observer` watches what is downloaded.
///
/// # Errors
/// See [`DataSetError`].
pub fn data_files(path: &Path, observer: &mut dyn DownloadObserver) -> Result<Vec<PathBuf>, DataSetError> {
    data_files_with(path, HubSettings::from_env, observer)
}

/// [`data_files`] of what is in the cache already.
///
/// # Errors
/// See [`DataSetError`].
pub fn cached_data_files(path: &Path) -> Result<Vec<PathBuf>, DataSetError> {
    let settings = || {
        let settings = HubSettings::from_env()?;
        Ok(HubSettings {
            offline: true,
            ..settings
        })
    };
    data_files_with(path, settings, &mut ())
}

fn data_files_with(
    path: &Path,
    settings: impl FnOnce() -> Result<HubSettings, super::HubError>,
    observer: &mut dyn DownloadObserver,
) -> Result<Vec<PathBuf>, DataSetError> {
    let Some(set) = HubDataSet::of(path) else {
        return Ok(vec![path.to_owned()]);
    };
    let (set, settings) = (set?, settings()?);
    let on_hub = OnHub {
        set: &set,
        settings: &settings,
    };
    match on_hub.cached() {
        Some(files) => Ok(files),
        None if settings.offline => Err(on_hub.not_cached()),
        None => on_hub.download(observer),
    }
}

/// A data set on the hub.
struct OnHub<'a> {
    set: &'a HubDataSet,
    settings: &'a HubSettings,
}

impl OnHub<'_> {
    /// The revisions that are looked at, in order.
    fn revisions(&self) -> Vec<&str> {
        match (&self.set.revision, &self.set.part) {
            (Some(revision), _) => vec![revision],
            (None, HubPart::File(_)) => vec!["main"],
            (None, HubPart::Split { .. }) => vec![PARQUET_BRANCH, "main"],
        }
    }

    /// The files, where all are in the cache.
    fn cached(&self) -> Option<Vec<PathBuf>> {
        self.revisions().into_iter().find_map(|revision| {
            let folder = self.settings.snapshot(RepoKind::DataSet, &self.set.id, revision)?;
            let mut files = Vec::new();
            names_in(&folder, "", DEEPEST, &mut files);
            let chosen = choose(&files, revision, &self.set.part).ok()?;
            let are_there = are_complete(&chosen);
            are_there.then(|| chosen.iter().map(|file| folder.join(file)).collect())
        })
    }

    fn download(&self, observer: &mut dyn DownloadObserver) -> Result<Vec<PathBuf>, DataSetError> {
        let api = api(self.settings).map_err(|source| self.unreachable(source))?;
        let mut reason = None;
        for revision in self.revisions() {
            let info = match api.repo(self.repo(revision)).info() {
                Ok(info) => info,
                // Not every data set was converted, and the hub says the same of one that is not there.
                Err(error) if revision == PARQUET_BRANCH && http_status(&error) == Some(404) => continue,
                Err(error) => return Err(self.refused(error)),
            };
            let files: Vec<String> = info.siblings.into_iter().map(|file| file.rfilename).collect();
            match choose(&files, revision, &self.set.part) {
                Ok(chosen) => return self.fetch(&api, revision, &info.sha, &chosen, observer),
                // The conversion lacks what was converted in part, and what it is told first of names most.
                Err(why) => reason = Some(reason.unwrap_or(why)),
            }
        }
        let why = reason.unwrap_or(NotChosen::Files { example: None });
        Err(DataSetError::not_chosen(self.set, why))
    }

    /// Fetches files of one commit, those that are there already left out.
    fn fetch(
        &self,
        api: &Api,
        revision: &str,
        commit: &str,
        files: &[String],
        observer: &mut dyn DownloadObserver,
    ) -> Result<Vec<PathBuf>, DataSetError> {
        if !is_commit(commit) {
            return Err(DataSetError::BadCommit {
                set: self.set.to_string(),
                commit: commit.to_owned(),
            });
        }
        let folder = self.settings.snapshot_folder(RepoKind::DataSet, &self.set.id, commit);
        let repo = api.repo(self.repo(commit));
        for file in files.iter().rev().filter(|file| !folder.join(file).is_file()) {
            tracing::info!(data_set = %self.set, file, "downloading");
            let fetched = repo.download_with_progress(file, Forward::to(observer));
            fetched.map_err(|source| match http_status(&source) {
                Some(401 | 403) => self.refused(source),
                _ => DataSetError::Download {
                    set: self.set.to_string(),
                    file: file.clone(),
                    cache: self.settings.cache.clone(),
                    source: Box::new(source),
                },
            })?;
        }
        let cache = Cache::new(self.settings.cache.clone()).repo(self.repo(revision));
        cache.create_ref(commit).map_err(|source| DataSetError::NotWritten {
            cache: self.settings.cache.clone(),
            source,
        })?;
        Ok(files.iter().map(|file| folder.join(file)).collect())
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.set.id.clone(), RepoType::Dataset, revision.to_owned())
    }

    fn not_cached(&self) -> DataSetError {
        DataSetError::NotCached {
            set: self.set.to_string(),
            cache: self.settings.cache.clone(),
        }
    }

    fn unreachable(&self, source: ApiError) -> DataSetError {
        DataSetError::Unreachable {
            set: self.set.to_string(),
            cache: self.settings.cache.clone(),
            source: Box::new(source),
        }
    }

    fn refused(&self, source: ApiError) -> DataSetError {
        let set = self.set.to_string();
        let (id, endpoint) = (self.set.id.clone(), self.settings.endpoint.clone());
        match http_status(&source) {
            Some(404) => DataSetError::Unknown { set },
            // The hub answers 401 for what does not exist, too, unless a token says who asks.
            Some(401) if self.settings.token.is_none() => DataSetError::Unknown { set },
            Some(status @ (401 | 403)) => DataSetError::Refused {
                set,
                id,
                status,
                endpoint,
            },
            _ => self.unreachable(source),
        }
    }
}

/// Whether the hub's name of a commit is one, and so names no place outside of the cache.
fn is_commit(commit: &str) -> bool {
    !commit.is_empty() && commit.chars().all(|c| c.is_ascii_alphanumeric())
}

/// Adds the names of the files below a folder, with `/` between folders.
fn names_in(folder: &Path, before: &str, deepest: usize, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let (path, name) = (entry.path(), format!("{before}{name}"));
        if path.is_file() {
            names.push(name);
        } else if path.is_dir() && deepest > 0 {
            names_in(&path, &format!("{name}/"), deepest - 1, names);
        }
    }
}
