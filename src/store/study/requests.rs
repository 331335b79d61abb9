//! Requests of people to a running study: the way from a page to the study loop, which may be another process.

use crate::store::row::to_i64;
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::StudyRequest;

/// `request.id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestId(pub i64);

/// Outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The request was done; an enqueued setting ran as this trial.
    Done { trial: Option<u64> },
    /// The request cannot be done.
    Refused { why: String },
    /// The search ended before it took the request.
    Expired,
}

/// A request as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRequest {
    pub id: RequestId,
    pub request: StudyRequest,
    /// Moment of the request in UTC, ISO 8601.
    pub made_at: String,
}

/// Requests of people to running studies.
#[derive(Clone, Copy, Debug)]
pub struct Requests<'a> {
    pub(in crate::store) store: &'a Store,
}

#[derive(sqlx::FromRow)]
struct RequestRow {
    id: i64,
    kind: String,
    params: Option<String>,
    made_at: String,
}

impl Requests<'_> {
    /// Adds a request to a study.
    pub async fn add(self, study: StudyId, request: &StudyRequest) -> Result<RequestId, StoreError> {
        let params = request.params().map(serde_json::to_string).transpose();
        let params = params.map_err(|source| StoreError::Unwritable {
            what: "request",
            source,
        })?;
        let id = sqlx::query_scalar("insert into request (study_id, kind, params) values (?, ?, ?) returning id")
            .bind(study.0)
            .bind(request.kind())
            .bind(params)
            .fetch_one(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(RequestId(id))
    }

    /// Requests to a study that wait, the oldest first.
    pub async fn waiting(self, study: StudyId) -> Result<Vec<StoredRequest>, StoreError> {
        let rows: Vec<RequestRow> = sqlx::query_as(
            "select id, kind, params, made_at from request where study_id = ? and outcome is null order by id",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        rows.into_iter().map(|row| self.stored_request(row)).collect()
    }

    /// Records the outcome of a request.
    pub async fn settle(self, id: RequestId, outcome: &RequestOutcome) -> Result<(), StoreError> {
        let (name, detail) = match outcome {
            RequestOutcome::Done { trial } => ("done", trial.map(|number| number.to_string())),
            RequestOutcome::Refused { why } => ("refused", Some(why.clone())),
            RequestOutcome::Expired => ("expired", None),
        };
        sqlx::query("update request set outcome = ?, detail = ? where id = ?")
            .bind(name)
            .bind(detail)
            .bind(id.0)
            .execute(&self.store.pool)
            .await
            .map(drop)
            .map_err(|error| self.store.error(error))
    }

    /// Ends the requests that an earlier search did not get to. Settings to run still wait for the next search.
    pub async fn expire(self, study: StudyId) -> Result<(), StoreError> {
        sqlx::query(
            "update request set outcome = 'expired'
             where study_id = ? and ((outcome is null and kind <> 'enqueue') or (outcome = 'done' and kind = 'pause'))",
        )
        .bind(study.0)
        .execute(&self.store.pool)
        .await
        .map(drop)
        .map_err(|error| self.store.error(error))
    }

    /// Whether the search of a study was asked to pause and has not been asked to continue.
    pub async fn is_paused(self, study: StudyId) -> Result<bool, StoreError> {
        let last: Option<String> = sqlx::query_scalar(
            "select kind from request
             where study_id = ? and outcome = 'done' and kind in ('pause', 'resume') order by id desc limit 1",
        )
        .bind(study.0)
        .fetch_optional(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        Ok(last.as_deref() == Some("pause"))
    }

    /// Reasons why settings that people asked for in the last ten minutes were refused, the latest first.
    pub async fn refusals(self, study: StudyId, most: u64) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar(
            "select coalesce(detail, '') from request where study_id = ? and outcome = 'refused'
               and made_at > strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-10 minutes')
             order by id desc limit ?",
        )
        .bind(study.0)
        .bind(to_i64(most)?)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }

    fn stored_request(self, row: RequestRow) -> Result<StoredRequest, StoreError> {
        let request = match row.kind.as_str() {
            "pause" => StudyRequest::Pause,
            "resume" => StudyRequest::Resume,
            "stop" => StudyRequest::Stop,
            // The table's check leaves only `enqueue`, with params.
            _ => StudyRequest::Enqueue(self.store.read_json(row.params.as_deref().unwrap_or("{}"), || {
                format!("the setting of request {}", row.id)
            })?),
        };
        Ok(StoredRequest {
            id: RequestId(row.id),
            request,
            made_at: row.made_at,
        })
    }
}
