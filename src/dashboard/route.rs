//! What the dashboard answers.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tokio::sync::Semaphore;

use super::DashboardError;
use super::copy::CopyRequest;
use super::guard::{Hosts, guard};
use super::shared::Shared;
use super::stream::events;
use crate::report::html::{ICON, asset, live_document};
use crate::store::{StoreError, StudyId};
use peft_tune_core::study::StudyRequest;

/// Largest request body, in bytes: a setting is a few hundred.
const LARGEST_BODY: usize = 64 * 1024;

/// Kind of a request for a copy of a trial with changes.
const COPY: &str = "clone";

const JSON: &str = "application/json";

/// `?study=NAME`; the dashboard's own study, or the latest one, where absent.
#[derive(Debug, Deserialize)]
struct Which {
    study: Option<String>,
}

/// What the handlers work with.
#[derive(Clone)]
struct Served {
    shared: Arc<Shared>,
    listeners: Arc<Semaphore>,
}

type Answer = Result<Response, Refusal>;

/// Everything that the dashboard answers, behind its guard.
pub(super) fn router(shared: Arc<Shared>, hosts: Hosts, listeners: usize) -> Router {
    let served = Served {
        shared,
        listeners: Arc::new(Semaphore::new(listeners)),
    };
    Router::new()
        .route("/", get(page))
        .route("/assets/{name}", get(asset_file))
        .route("/favicon.ico", get(|| asset_file(Path(ICON.name.to_owned()))))
        .route("/api/view", get(view))
        .route("/api/space", get(space))
        .route("/api/events", get(listen))
        .route("/api/request", post(request))
        .layer(DefaultBodyLimit::max(LARGEST_BODY))
        .layer(from_fn_with_state(hosts, guard))
        .with_state(served)
}

async fn page(State(served): State<Served>, Query(which): Query<Which>) -> Answer {
    let view = served.shared.view(which.study.as_deref()).await?;
    let studies = served
        .shared
        .store
        .studies()
        .all()
        .await
        .map_err(DashboardError::from)?;
    let names: Vec<String> = studies.into_iter().map(|study| study.name).collect();
    let page = live_document(&view, &names).map_err(DashboardError::from)?;
    Ok(([(CONTENT_TYPE, "text/html; charset=utf-8")], page).into_response())
}

async fn asset_file(Path(name): Path<String>) -> Response {
    match asset(&name) {
        Some(asset) => ([(CONTENT_TYPE, asset.content_type)], asset.text).into_response(),
        None => (StatusCode::NOT_FOUND, "no such file\n").into_response(),
    }
}

async fn view(State(served): State<Served>, Query(which): Query<Which>) -> Answer {
    let view = served.shared.view(which.study.as_deref()).await?;
    json(&*view)
}

async fn space(State(served): State<Served>, Query(which): Query<Which>) -> Answer {
    let study = served.shared.study(which.study.as_deref()).await?;
    json(&served.shared.space(study.id).await?)
}

async fn listen(State(served): State<Served>, Query(which): Query<Which>) -> Answer {
    let study = served.shared.study(which.study.as_deref()).await?;
    let Ok(permit) = served.listeners.try_acquire_owned() else {
        return Err(Refusal(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many pages are open: close some\n".to_owned(),
        ));
    };
    let events = events(served.shared, study.name, permit);
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// Takes a request to a study from whoever has the token.
async fn request(State(served): State<Served>, Query(which): Query<Which>, headers: HeaderMap, body: Bytes) -> Answer {
    let Some(token) = &served.shared.token else {
        return Err(Refusal(
            StatusCode::FORBIDDEN,
            "this dashboard is read-only: start it without `--read-only`\n".to_owned(),
        ));
    };
    let header = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    if !header.is_some_and(|header| token.is_in(header)) {
        let text = "the token is missing or from another run: open the address that the dashboard printed\n";
        return Err(Refusal(StatusCode::UNAUTHORIZED, text.to_owned()));
    }
    // A page of another origin cannot send this type without asking first, which is refused.
    let is_json = headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(JSON.as_bytes()));
    if !is_json {
        return Err(Refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send JSON\n".to_owned()));
    }
    let study = served.shared.study(which.study.as_deref()).await?;
    let asked = asked(&served.shared, study.id, &body).await?;
    let id = served
        .shared
        .store
        .requests()
        .add(study.id, &asked)
        .await
        .map_err(DashboardError::from)?;
    served.shared.note_change();
    let mut answer = json(&serde_json::json!({"request": id.0}))?;
    *answer.status_mut() = StatusCode::ACCEPTED;
    Ok(answer)
}

/// The request in a body, its setting as the study's space writes it.
async fn asked(shared: &Shared, study: StudyId, body: &[u8]) -> Result<StudyRequest, Refusal> {
    let unreadable = |error: serde_json::Error| refused(format!("this is not a request: {error}"));
    let body: serde_json::Value = serde_json::from_slice(body).map_err(unreadable)?;
    let setting = if body["kind"] == COPY {
        let copy: CopyRequest = serde_json::from_value(body).map_err(unreadable)?;
        let trials = shared
            .store
            .history()
            .trials(study)
            .await
            .map_err(DashboardError::from)?;
        let Some(trial) = trials.iter().find(|trial| trial.number.0 == copy.trial) else {
            return Err(refused(format!("the study has no trial {}", copy.trial)));
        };
        copy.setting(&trial.params, &shared.space(study).await?)
    } else {
        match serde_json::from_value(body).map_err(unreadable)? {
            StudyRequest::Enqueue(params) => shared.space(study).await?.setting(&params),
            other => return Ok(other),
        }
    };
    setting
        .map(StudyRequest::Enqueue)
        .map_err(|error| refused(error.to_string()))
}

fn refused(why: String) -> Refusal {
    Refusal(StatusCode::UNPROCESSABLE_ENTITY, why + "\n")
}

fn json<T: serde::Serialize>(value: &T) -> Answer {
    let text = serde_json::to_string(value).map_err(DashboardError::from)?;
    Ok(([(CONTENT_TYPE, JSON)], text).into_response())
}

/// A request that is not answered as asked: status and plain text.
struct Refusal(StatusCode, String);

impl From<DashboardError> for Refusal {
    fn from(error: DashboardError) -> Self {
        let status = match &error {
            DashboardError::Store(StoreError::NoStudy { .. } | StoreError::Empty { .. }) => StatusCode::NOT_FOUND,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, format!("{error}\n"))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, self.1).into_response()
    }
}
