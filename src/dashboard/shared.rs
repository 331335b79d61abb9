//! What the handlers of one dashboard share: its store, the last view of each study, and who may ask.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::machine::Machine;
use super::token::Token;
use super::{DashboardError, Gatherer};
use crate::report::html::StudyView;
use crate::store::{Store, StoreError, StudyId, StudyOverview};
use peft_tune_core::space::SearchSpace;

/// Share of the time that making views for pages that listen takes at most: thousands of trials take half a second of a processor
/// that the search is measured on.
const SHARE: f64 = 0.1;

/// Longest time that such pages wait for the next one.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// What the handlers share.
pub(super) struct Shared {
    pub(super) store: Store,
    pub(super) machine: Machine,
    /// Absent where the dashboard only shows.
    pub(super) token: Option<Token>,
    study: Option<String>,
    views: Mutex<Views>,
    /// Changes of this process, which the database does not tell its own connection.
    changes: AtomicI64,
}

/// Studies as pages show them.
#[derive(Default)]
struct Views {
    gatherer: Gatherer,
    /// Each study's last view: all pages share it.
    latest: HashMap<StudyId, Latest>,
}

/// The last view of a study.
#[derive(Clone)]
pub(super) struct Latest {
    pub view: Arc<StudyView>,
    /// The mark of the database that it is of.
    pub mark: i64,
    made_at: Instant,
    took: Duration,
}

impl Latest {
    /// Whether a page that listens has to wait for the next one.
    fn is_recent(&self) -> bool {
        self.made_at.elapsed() < self.took.mul_f64(1.0 / SHARE - 1.0).min(LONGEST_WAIT)
    }
}

impl Shared {
    /// What handlers share of a store; `study` is shown where none is named.
    pub(super) fn new(store: Store, token: Option<Token>, study: Option<String>) -> Self {
        Self {
            store,
            machine: Machine::default(),
            token,
            study,
            views: Mutex::default(),
            changes: AtomicI64::new(0),
        }
    }

    /// The study of this name, else the dashboard's own, else the latest.
    pub(super) async fn study(&self, name: Option<&str>) -> Result<StudyOverview, DashboardError> {
        Ok(self.store.studies().find(name.or(self.study.as_deref())).await?)
    }

    /// A study as a page that listens shows it: perhaps as it was a short time ago.
    pub(super) async fn recent_view(&self, name: &str) -> Result<Latest, DashboardError> {
        let study = self.study(Some(name)).await?;
        self.latest(&study, true).await
    }

    /// A study as a page shows it.
    pub(super) async fn view(&self, name: Option<&str>) -> Result<Arc<StudyView>, DashboardError> {
        let study = self.study(name).await?;
        Ok(self.latest(&study, false).await?.view)
    }

    async fn latest(&self, study: &StudyOverview, may_be_recent: bool) -> Result<Latest, DashboardError> {
        let mut views = self.views.lock().await;
        // Before anything is read: what is written meanwhile makes another view.
        let mark = self.change_mark().await?;
        if let Some(latest) = views.latest.get(&study.id)
            && (latest.mark == mark || (may_be_recent && latest.is_recent()))
        {
            return Ok(latest.clone());
        }
        let began = Instant::now();
        let input = views.gatherer.gather(&self.store, study).await?;
        let latest = Latest {
            view: Arc::new(StudyView::new(&input)),
            mark,
            made_at: Instant::now(),
            took: began.elapsed(),
        };
        views.latest.retain(|_, other| other.mark == mark || other.is_recent());
        views.latest.insert(study.id, latest.clone());
        Ok(latest)
    }

    /// The space that a study samples, with the ranges that were widened.
    pub(super) async fn space(&self, study: StudyId) -> Result<SearchSpace, DashboardError> {
        let mut settings = self.store.definitions().settings(study).await?;
        let mut space: SearchSpace = serde_json::from_value(settings["space"].take())?;
        space.widen(&self.store.widenings().of(study).await?);
        Ok(space)
    }

    /// A number that changes when anybody wrote to the database.
    pub(super) async fn change_mark(&self) -> Result<i64, StoreError> {
        Ok(self.store.change_mark().await?.wrapping_add(self.changes.load(Relaxed)))
    }

    /// Notes a change of this process.
    pub(super) fn note_change(&self) {
        self.changes.fetch_add(1 << 32, Relaxed);
    }
}
