//! Requests to a study while it runs: pause, continue, stop, or try a setting next.
//!
//! Requests wait in the database, where a dashboard or a script puts them. The study loop looks there a few times a second,
//! so they are taken between trials and while a trial runs, and noted as done as soon as they are.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::Interrupt;
use crate::store::{RequestId, RequestOutcome, Store, StoreError, StudyId};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::{Params, StudyRequest, TrialNumber};

/// Time from one look at the database to the next.
const LOOK: Duration = Duration::from_millis(300);

/// The requests to one study.
#[derive(Debug)]
pub(super) struct Requests {
    paused: bool,
    /// Whether observers were last told of a pause.
    told_paused: bool,
    /// Settings that are to run before the sampler is asked.
    settings: VecDeque<(RequestId, Params)>,
    /// The request whose setting was handed out and has not started yet.
    handed_out: Option<RequestId>,
    looked: Option<Instant>,
}

impl Requests {
    /// Begins with the settings that wait, and drops all else that an earlier search was asked for.
    pub(super) async fn begin(store: &Store, study: StudyId) -> Result<Self, StoreError> {
        store.requests().expire(study).await?;
        Ok(Self {
            paused: false,
            told_paused: false,
            settings: VecDeque::new(),
            handed_out: None,
            looked: None,
        })
    }

    /// Takes the requests that came since the last look.
    pub(super) async fn look(
        &mut self,
        store: &Store,
        study: StudyId,
        space: &SearchSpace,
        interrupt: &Interrupt,
    ) -> Result<(), StoreError> {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        for waiting in store.requests().waiting(study).await? {
            let done = RequestOutcome::Done { trial: None };
            let outcome = match waiting.request {
                StudyRequest::Pause => {
                    self.paused = true;
                    done
                }
                StudyRequest::Resume => {
                    self.paused = false;
                    done
                }
                StudyRequest::Stop => {
                    self.paused = false;
                    interrupt.request();
                    done
                }
                StudyRequest::Enqueue(params) => match self.enqueue(waiting.id, &params, space) {
                    None => continue,
                    Some(why) => RequestOutcome::Refused { why },
                },
            };
            store.requests().settle(waiting.id, &outcome).await?;
        }
        Ok(())
    }

    /// Whether no trial is to start.
    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether no trial is to start, where that has changed since the last call.
    pub(super) fn newly_paused(&mut self) -> Option<bool> {
        let before = std::mem::replace(&mut self.told_paused, self.paused);
        (before != self.paused).then_some(self.paused)
    }

    /// The setting that [`Requests::next_setting`] would return.
    pub(super) fn first_setting(&self) -> Option<&Params> {
        self.settings.front().map(|(_, params)| params)
    }

    /// The setting to run next, where people asked for one.
    pub(super) fn next_setting(&mut self) -> Option<Params> {
        let (id, params) = self.settings.pop_front()?;
        self.handed_out = Some(id);
        Some(params)
    }

    /// Notes that the setting that was handed out runs as this trial.
    pub(super) async fn started(&mut self, store: &Store, trial: TrialNumber) -> Result<(), StoreError> {
        let Some(id) = self.handed_out.take() else {
            return Ok(());
        };
        store
            .requests()
            .settle(id, &RequestOutcome::Done { trial: Some(trial.0) })
            .await
    }

    /// Lines a setting up, unless it waits already; or says why it cannot be run.
    fn enqueue(&mut self, id: RequestId, params: &Params, space: &SearchSpace) -> Option<String> {
        let known = self.handed_out == Some(id) || self.settings.iter().any(|(other, _)| *other == id);
        if known {
            return None;
        }
        match space.setting(params) {
            Ok(setting) => {
                self.settings.push_back((id, setting));
                None
            }
            Err(error) => Some(error.to_string()),
        }
    }
}
