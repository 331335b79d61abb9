//! News of a study as server-sent events: `view` when trials changed, `now` every second.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::Event;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::DashboardError;
use super::news::News;
use super::now::Now;
use super::shared::{Latest, Shared};
use crate::report::html::StudyView;

/// How often the database is asked whether it changed.
const LOOK: Duration = Duration::from_millis(500);
/// How often the moment is told.
const MOMENT: Duration = Duration::from_secs(1);
/// How many times as long as it takes to read it, at least: with thousands of trials that is some hundredths of a second.
const REST: u32 = 19;

/// One page that listens.
struct Listener {
    shared: Arc<Shared>,
    study: String,
    ticks: Interval,
    /// What the page has.
    sent: Option<Arc<StudyView>>,
    mark: Option<i64>,
    /// Time at which the moment was told, and how long reading it took.
    told: Option<(Instant, Duration)>,
    waiting: VecDeque<Event>,
    /// Pages that may listen at once are counted.
    _permit: OwnedSemaphorePermit,
}

/// The events of a study, from everything that there is now.
pub(super) fn events(
    shared: Arc<Shared>,
    study: String,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<Event, Infallible>> {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let listener = Listener {
        shared,
        study,
        ticks,
        sent: None,
        mark: None,
        told: None,
        waiting: VecDeque::new(),
        _permit: permit,
    };
    unfold(listener, |mut listener| async move {
        loop {
            if let Some(event) = listener.waiting.pop_front() {
                return Some((Ok(event), listener));
            }
            listener.ticks.tick().await;
            if let Err(error) = listener.look().await {
                // The page says what is wrong and keeps what it has; the next look may go well.
                let line = error.to_string().replace(['\n', '\r'], " ");
                listener.waiting.push_back(Event::default().event("fault").data(line));
            }
        }
    })
}

impl Listener {
    async fn look(&mut self) -> Result<(), DashboardError> {
        let mark = self.shared.change_mark().await?;
        if self.mark != Some(mark) {
            let Latest { view, mark, .. } = self.shared.recent_view(&self.study).await?;
            if let Some(news) = News::between(self.sent.as_deref(), &view) {
                let data = serde_json::to_string(&news)?;
                self.waiting.push_back(Event::default().event("view").data(data));
            }
            self.sent = Some(view);
            self.mark = Some(mark);
        }
        let is_due = |(told, took): (Instant, Duration)| told.elapsed() + LOOK / 2 >= MOMENT.max(took * REST);
        if self.told.is_none_or(is_due) {
            let began = Instant::now();
            let study = self.shared.store.studies().find(Some(&self.study)).await?;
            let now = Now::read(&self.shared.store, study.id, &self.shared.machine).await?;
            let data = serde_json::to_string(&now)?;
            self.waiting.push_back(Event::default().event("now").data(data));
            self.told = Some((Instant::now(), began.elapsed()));
        }
        Ok(())
    }
}
