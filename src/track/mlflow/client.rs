//! Requests to an MLflow server: <https://mlflow.org/docs/latest/rest-api.html>.

use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};

use crate::track::TrackError;

/// Until a connection stands, and until an answer is whole.
const CONNECT: Duration = Duration::from_secs(5);
const ANSWER: Duration = Duration::from_secs(30);

/// Characters of a server's message that are told.
const MESSAGE: usize = 300;

/// A server.
pub(super) struct Client {
    agent: ureq::Agent,
    /// Address of the server, without a slash at its end.
    address: String,
    authorization: Option<String>,
}

impl Client {
    /// The server at this address, with the credentials of the environment that MLflow's own client takes.
    pub(super) fn new(address: &str) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let user = variable("MLFLOW_TRACKING_USERNAME").zip(variable("MLFLOW_TRACKING_PASSWORD"));
        let token = variable("MLFLOW_TRACKING_TOKEN");
        let basic = |(user, password): (String, String)| {
            let words = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            format!("Basic {words}")
        };
        Self {
            agent: ureq::Agent::config_builder()
                .timeout_connect(Some(CONNECT))
                .timeout_global(Some(ANSWER))
                .http_status_as_error(false)
                .build()
                .into(),
            address: address.trim_end_matches('/').to_owned(),
            authorization: user.map(basic).or_else(|| token.map(|token| format!("Bearer {token}"))),
        }
    }

    /// The experiment of this name, where there is one.
    pub(super) fn experiment(&self, name: &str) -> Result<Option<Value>, TrackError> {
        let path = format!("mlflow/experiments/get-by-name?experiment_name={}", escaped(name));
        let request = self.agent.get(self.url(&path));
        match self.answer(self.with_credentials(request).call()) {
            Err(TrackError::Refused {
                status: 404, message, ..
            }) if message.contains("RESOURCE_DOES_NOT_EXIST") => Ok(None),
            answer => answer.map(|mut answer| Some(answer["experiment"].take())),
        }
    }

    /// Calls a method of the interface, such as `runs/create`.
    pub(super) fn post(&self, method: &str, body: &Value) -> Result<Value, TrackError> {
        let request = self.agent.post(self.url(&format!("mlflow/{method}")));
        let request = request.header("content-type", "application/json");
        self.answer(self.with_credentials(request).send(body.to_string()))
    }

    /// Stores a file through the server's own artifacts, where those are at `uri`; whether they are.
    pub(super) fn store(&self, uri: &str, name: &str, bytes: &[u8]) -> Result<bool, TrackError> {
        let Some(path) = uri.strip_prefix("mlflow-artifacts:") else {
            return Ok(false);
        };
        let parts: Vec<String> = path.trim_start_matches('/').split('/').map(escaped).collect();
        let url = self.url(&format!("mlflow-artifacts/artifacts/{}/{name}", parts.join("/")));
        let request = self.agent.put(url).header("content-type", "application/octet-stream");
        self.answer(self.with_credentials(request).send(bytes)).map(|_| true)
    }

    fn url(&self, path: &str) -> String {
        format!("{}/api/2.0/{path}", self.address)
    }

    fn with_credentials<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }

    fn answer(&self, response: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> Result<Value, TrackError> {
        let unreachable = |source| TrackError::Unreachable {
            address: self.address.clone(),
            source: Box::new(source),
        };
        let mut response = response.map_err(unreachable)?;
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string().map_err(unreachable)?;
        let answer: Option<Value> = serde_json::from_str(&text).ok();
        match answer {
            Some(answer) if status == 200 => Ok(answer),
            None if status == 200 && text.trim().is_empty() => Ok(json!({})),
            answer => {
                let told = answer.as_ref().and_then(|answer| {
                    let code = answer["error_code"].as_str()?;
                    Some(format!("{code}: {}", answer["message"].as_str().unwrap_or_default()))
                });
                Err(TrackError::Refused {
                    address: self.address.clone(),
                    status,
                    message: told.unwrap_or(text).chars().take(MESSAGE).collect(),
                })
            }
        }
    }
}

/// Escapes a text as a part of an address.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped() {
        assert_eq!(escaped("a b/ü&c"), "a%20b%2F%C3%BC%26c");
    }
}
