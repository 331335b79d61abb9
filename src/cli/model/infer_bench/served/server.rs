//! Requests to an OpenAI-compatible server: the models that it has, and one streamed completion.

use std::io::{self, BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::answer_stream::{AnswerStream, Answered, StreamFault, told};
use crate::cli::secrets::hidden;

/// Longest wait until a connection stands.
const CONNECT: Duration = Duration::from_secs(5);
/// Bytes of one answer that are read at most.
const MOST_BYTES: u64 = 64 << 20;
/// Characters of a server's message that are told.
const MESSAGE: usize = 300;
/// End of the scheme of an address.
const SCHEME_END: &str = "://";
/// The variable that holds the key of a server which asks for one.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";

/// A server.
pub(super) struct Server {
    agent: ureq::Agent,
    /// Address of the server, without a slash or `/v1` at its end.
    address: String,
    /// Address as messages and drawings have it: without a name and a password in it.
    shown: String,
    authorization: Option<String>,
    timeout: Duration,
}

/// Why a server cannot be measured.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerError {
    #[error("`--url {address}` is no address of a server; write one such as http://127.0.0.1:8000")]
    Address { address: String },
    #[error("`--timeout` leaves no time for an answer; write one such as 60s")]
    NoTime,
    #[error("cannot reach {address}: {source}; start the server, or name its address with `--url`")]
    Unreachable { address: String, source: Box<ureq::Error> },
    #[error(
        "{address} did not answer within {seconds} s; raise `--timeout`, or lower `--batch-sizes` or `--new-tokens`"
    )]
    TimedOut { address: String, seconds: f64 },
    #[error("{address} answers {status}: {message}")]
    Refused {
        address: String,
        status: u16,
        message: String,
    },
    #[error("{address} has no model `{model}`; name one that it has: {}", known.join(", "))]
    UnknownModel {
        address: String,
        model: String,
        known: Vec<String>,
    },
    #[error("{address} is no OpenAI-compatible server: its answer is no JSON as it should be: {begins}")]
    NotJson { address: String, begins: String },
    #[error("{address} answers in one piece, and not as a stream, so that no token can be timed: {begins}")]
    NotStreamed { address: String, begins: String },
    #[error("{address} broke off an answer: {reason}")]
    Broken { address: String, reason: String },
    #[error("{address} answers with no text to any prompt as `{model}`; write other prompts")]
    NoText { address: String, model: String },
}

impl Server {
    /// The server at this address, which has so many seconds for an answer.
    ///
    /// # Errors
    /// No address of a server, and no time.
    pub(super) fn new(address: &str, timeout_s: f64) -> Result<Self, ServerError> {
        let trimmed = address.trim().trim_end_matches('/');
        let trimmed = trimmed.strip_suffix("/v1").unwrap_or(trimmed);
        let mut schemes = ["http://", "https://"].into_iter();
        let has_host = schemes.any(|scheme| trimmed.strip_prefix(scheme).is_some_and(|host| !host.is_empty()));
        if !has_host {
            let address = shown(address);
            return Err(ServerError::Address { address });
        }
        let timeout = Duration::try_from_secs_f64(timeout_s).unwrap_or(Duration::MAX);
        if timeout.is_zero() {
            return Err(ServerError::NoTime);
        }
        let key = std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
        Ok(Self {
            agent: ureq::Agent::config_builder()
                .timeout_connect(Some(CONNECT.min(timeout)))
                .timeout_global(Some(timeout))
                .http_status_as_error(false)
                .build()
                .into(),
            address: trimmed.to_owned(),
            shown: shown(trimmed),
            authorization: key.map(|key| format!("Bearer {key}")),
            timeout,
        })
    }

    /// The address as everybody may read it.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Names of the models that the server has, adapters among them; `None` where it lists none.
    ///
    /// # Errors
    /// A server that cannot be reached, or that is none.
    pub(super) fn models(&self) -> Result<Option<Vec<String>>, ServerError> {
        let request = self.with_key(self.agent.get(self.path("models")));
        let mut response = request.call().map_err(|error| self.unreachable(error))?;
        let status = response.status().as_u16();
        let text = response.body_mut().read_to_string();
        let text = text.map_err(|error| self.unreachable(error))?;
        match status {
            200 => {}
            404 | 405 | 501 => return Ok(None),
            _ => return Err(self.refused(status, &text)),
        }
        let answer: Option<Value> = serde_json::from_str(&text).ok();
        let Some(models) = answer.as_ref().and_then(|answer| answer["data"].as_array()) else {
            return Err(self.not_json(&text));
        };
        let names = models.iter().filter_map(|model| model["id"].as_str());
        Ok(Some(names.map(str::to_owned).collect()))
    }

    /// Refuses a model that is not among `known` ones.
    ///
    /// # Errors
    /// Such a model.
    pub(super) fn check_model(&self, model: &str, known: &[String]) -> Result<(), ServerError> {
        if known.iter().any(|name| name == model) {
            return Ok(());
        }
        Err(ServerError::UnknownModel {
            address: self.shown.clone(),
            model: model.to_owned(),
            known: match known {
                [] => vec!["it lists none".to_owned()],
                known => known.to_vec(),
            },
        })
    }

    /// Has a model continue a prompt, each token the most likely one, and times what comes.
    ///
    /// # Errors
    /// A server that cannot be reached, that refuses, that does not stream, or that takes too long.
    pub(super) fn answer(&self, model: &str, prompt: &str, new_tokens: u32) -> Result<Answered, ServerError> {
        let body = json!({
            "model": model,
            "prompt": prompt,
            "max_tokens": new_tokens,
            "temperature": 0,
            "stream": true,
            "stream_options": {"include_usage": true},
        });
        let request = self.agent.post(self.path("completions"));
        let request = self.with_key(request.header("content-type", "application/json"));
        let body = body.to_string();
        let begun = Instant::now();
        let mut response = request.send(body).map_err(|error| self.unreachable(error))?;
        let status = response.status().as_u16();
        let is_stream = response.body().mime_type() == Some("text/event-stream");
        if status != 200 || !is_stream {
            let text = response.body_mut().read_to_string();
            let text = text.map_err(|error| self.unreachable(error))?;
            return Err(match status {
                200 => self.not_streamed(&text),
                _ => self.refused(status, &text),
            });
        }
        let mut lines = BufReader::new(response.body_mut().as_reader().take(MOST_BYTES));
        let (mut stream, mut line) = (AnswerStream::default(), String::new());
        loop {
            line.clear();
            if lines.read_line(&mut line).map_err(|error| self.broken(error))? == 0 {
                break;
            }
            let taken = stream.take(&line, begun.elapsed().as_secs_f64());
            taken.map_err(|fault| match fault {
                StreamFault::NotJson(text) => self.not_json(&text),
                StreamFault::Told(text) => self.refused(status, &text),
            })?;
        }
        stream.end().ok_or_else(|| ServerError::Broken {
            address: self.shown.clone(),
            reason: "the stream ended before the text did".to_owned(),
        })
    }

    /// The error of a model that says nothing.
    pub(super) fn no_text(&self, model: &str) -> ServerError {
        ServerError::NoText {
            address: self.shown.clone(),
            model: model.to_owned(),
        }
    }

    fn path(&self, path: &str) -> String {
        format!("{}/v1/{path}", self.address)
    }

    fn with_key<B>(&self, request: ureq::RequestBuilder<B>) -> ureq::RequestBuilder<B> {
        match &self.authorization {
            Some(authorization) => request.header("authorization", authorization),
            None => request,
        }
    }

    fn unreachable(&self, error: ureq::Error) -> ServerError {
        match error {
            ureq::Error::Timeout(_) => self.timed_out(),
            // Its text has the whole address.
            ureq::Error::BadUri(_) => ServerError::Address {
                address: self.shown.clone(),
            },
            error => ServerError::Unreachable {
                address: self.shown.clone(),
                source: Box::new(error),
            },
        }
    }

    fn timed_out(&self) -> ServerError {
        ServerError::TimedOut {
            address: self.shown.clone(),
            seconds: self.timeout.as_secs_f64(),
        }
    }

    fn broken(&self, error: io::Error) -> ServerError {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
        match inner {
            Some(ureq::Error::Timeout(_)) => self.timed_out(),
            _ => ServerError::Broken {
                address: self.shown.clone(),
                reason: error.to_string(),
            },
        }
    }

    /// The refusal in an answer: its message where it is JSON, else its text.
    fn refused(&self, status: u16, text: &str) -> ServerError {
        let answer: Option<Value> = serde_json::from_str(text).ok();
        let message = answer.as_ref().and_then(told);
        ServerError::Refused {
            address: self.shown.clone(),
            status,
            message: beginning(message.as_deref().unwrap_or(text)),
        }
    }

    fn not_json(&self, text: &str) -> ServerError {
        ServerError::NotJson {
            address: self.shown.clone(),
            begins: beginning(text),
        }
    }

    /// The error of an answer in one piece: JSON of a server that cannot stream, or something else altogether.
    fn not_streamed(&self, text: &str) -> ServerError {
        let answer: Result<Value, _> = serde_json::from_str(text);
        match answer {
            Err(_) => self.not_json(text),
            Ok(answer) if told(&answer).is_some() => self.refused(200, text),
            Ok(_) => ServerError::NotStreamed {
                address: self.shown.clone(),
                begins: beginning(text),
            },
        }
    }
}

/// An address without a name and a password in it, whether it has a scheme or not.
fn shown(address: &str) -> String {
    match address.contains(SCHEME_END) {
        true => hidden(address),
        false => hidden(&format!("{SCHEME_END}{address}")).replacen(SCHEME_END, "", 1),
    }
}

/// The beginning of a server's text.
fn beginning(text: &str) -> String {
    match text.trim() {
        "" => "nothing".to_owned(),
        text => text.chars().take(MESSAGE).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_of_addresses_are_not_shown() {
        for (address, expected) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://user:pw@host:8000/v1/", "http://(left out)@host:8000"),
            ("https://user:p@w@host", "https://(left out)@host"),
        ] {
            assert_eq!(Server::new(address, 1.0).unwrap().shown(), expected);
        }
        for address in ["user:pw@host:8000", "htp://user:pw@host:8000"] {
            let error = Server::new(address, 1.0).err().unwrap().to_string();
            assert!(error.contains("(left out)@host:8000` is no address"), "{error}");
            assert!(!error.contains("pw"), "{error}");
        }
    }
}
