//! Brings a model's files from the hub into its cache, through the `hf-hub` crate.

use std::path::PathBuf;

use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};

use super::HubError;
use super::index::shards_of;
use super::needed_files::{NeededFiles, WeightReader, is_index};
use super::settings::{HubSettings, RepoKind};

/// Watches downloads. The defaults watch nothing.
pub trait DownloadObserver {
    /// A file of `bytes` begins.
    fn started(&mut self, _file: &str, _bytes: u64) {}
    /// Further bytes of the file have arrived.
    fn received(&mut self, _bytes: u64) {}
    /// The file is complete.
    fn finished(&mut self) {}
}

/// The observer that watches nothing.
impl DownloadObserver for () {}

/// One commit of a model on the hub, and the folder of the cache that its files go to.
struct Commit {
    repo: ApiRepo,
    folder: PathBuf,
}

/// A model on the hub.
pub(super) struct HubModel<'a> {
    pub id: &'a str,
    pub revision: &'a str,
    pub settings: &'a HubSettings,
}

impl HubModel<'_> {
    /// Downloads what `part` needs and the model has, and returns the snapshot folder. Files are taken from the one
    /// commit that `revision` names now, so that a push in between cannot mix two versions.
    pub(super) fn download(&self, part: NeededFiles, observer: &mut dyn DownloadObserver) -> Result<PathBuf, HubError> {
        let api = api(self.settings).map_err(|source| self.error("config.json", source))?;
        let info = api
            .repo(self.repo(self.revision))
            .info()
            .map_err(|source| self.error("config.json", source))?;
        let commit = Commit {
            repo: api.repo(self.repo(&info.sha)),
            folder: self.settings.snapshot_folder(RepoKind::Model, self.id, &info.sha),
        };
        let present: Vec<&str> = info.siblings.iter().map(|file| file.rfilename.as_str()).collect();
        for file in part.wanted().iter().filter(|file| present.contains(*file)) {
            self.fetch(&commit, file, observer)?;
        }
        if let Some(reader) = part.weight_reader() {
            for file in self.weight_files(&commit, &present, reader, observer)? {
                self.fetch(&commit, &file, observer)?;
            }
        }
        let cache = Cache::new(self.settings.cache.clone()).repo(self.repo(self.revision));
        cache.create_ref(&info.sha).map_err(|source| HubError::Read {
            path: self.settings.cache.clone(),
            source,
        })?;
        Ok(commit.folder)
    }

    fn weight_files(
        &self,
        commit: &Commit,
        present: &[&str],
        reader: WeightReader,
        observer: &mut dyn DownloadObserver,
    ) -> Result<Vec<String>, HubError> {
        match reader.forms().iter().find(|name| present.contains(*name)) {
            Some(index) if is_index(index) => {
                self.fetch(commit, index, observer)?;
                shards_of(&commit.folder.join(index))
            }
            single => Ok(single.into_iter().map(|name| (*name).to_owned()).collect()),
        }
    }

    /// Fetches one file unless it is cached.
    fn fetch(&self, commit: &Commit, file: &str, observer: &mut dyn DownloadObserver) -> Result<(), HubError> {
        if commit.folder.join(file).is_file() {
            return Ok(());
        }
        tracing::info!(id = self.id, file, "downloading");
        commit
            .repo
            .download_with_progress(file, Forward::to(observer))
            .map_err(|source| self.error(file, source))?;
        Ok(())
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(self.id.to_owned(), RepoType::Model, revision.to_owned())
    }

    fn error(&self, file: &str, source: ApiError) -> HubError {
        let (id, revision) = (self.id.to_owned(), self.revision.to_owned());
        match http_status(&source) {
            Some(404) => HubError::Unknown { id, revision },
            // The hub answers 401 for a model that does not exist, too, unless a token says who asks.
            Some(401) if self.settings.token.is_none() => HubError::Unknown { id, revision },
            Some(status @ (401 | 403)) => HubError::Refused {
                id,
                status,
                endpoint: self.settings.endpoint.clone(),
            },
            _ => HubError::Download {
                id,
                file: file.to_owned(),
                cache: self.settings.cache.clone(),
                source: Box::new(source),
            },
        }
    }
}

/// The hub, as `settings` reach it.
pub(super) fn api(settings: &HubSettings) -> Result<Api, ApiError> {
    ApiBuilder::from_cache(Cache::new(settings.cache.clone()))
        .with_endpoint(settings.endpoint.clone())
        .with_token(settings.token.clone())
        .with_progress(false)
        .with_retries(3)
        .build()
}

/// Design note: the HTTP client's error type belongs to a crate that is not ours to name, so its status is read from
/// the message (`http status: 404`).
pub(super) fn http_status(error: &ApiError) -> Option<u16> {
    let message = error.to_string();
    let status = message.split("http status: ").nth(1)?;
    status.get(..3)?.parse().ok()
}

/// Hands `hf-hub`'s progress on. It announces a file once more whenever the transfer begins or continues.
pub(super) struct Forward<'a> {
    observer: &'a mut dyn DownloadObserver,
    has_started: bool,
}

impl<'a> Forward<'a> {
    pub(super) fn to(observer: &'a mut dyn DownloadObserver) -> Self {
        Self {
            observer,
            has_started: false,
        }
    }
}

impl Progress for Forward<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        if !std::mem::replace(&mut self.has_started, true) {
            self.observer.started(filename, size as u64);
        }
    }

    fn update(&mut self, size: usize) {
        self.observer.received(size as u64);
    }

    fn finish(&mut self) {
        self.observer.finished();
    }
}
