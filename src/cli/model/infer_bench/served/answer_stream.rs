//! An answer of a server, as its events come: <https://platform.openai.com/docs/api-reference/completions>.

use serde_json::Value;

/// Beginning of the line of an event.
const DATA: &str = "data:";
/// Event behind the last one of an answer.
const DONE: &str = "[DONE]";

/// An answer on its way.
#[derive(Debug, Default)]
pub(super) struct AnswerStream {
    /// Seconds behind the request at which each piece of text came.
    pieces_s: Vec<f64>,
    /// Seconds behind the request at which the answer ended.
    ended_s: Option<f64>,
    /// Tokens of the prompt and of the answer, where the server says so.
    usage: Option<[u64; 2]>,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Answered {
    /// Seconds from the request to the first text; `None` where the answer has none.
    pub first_s: Option<f64>,
    /// Mean seconds from one token to the next: from the first piece of text to the last, over the tokens behind the first
    /// one. `None` where the answer has one piece or one token.
    pub token_s: Option<f64>,
    /// Seconds from the request to the end of the answer.
    pub request_s: f64,
    /// Tokens of the prompt, where the server says how many it has.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer; its pieces of text where the server does not say how many it has.
    pub new_tokens: u64,
}

/// A line of an answer that is none.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum StreamFault {
    /// The line is no JSON.
    NotJson(String),
    /// The server tells a mistake in the place of text.
    Told(String),
}

impl AnswerStream {
    /// Takes a line that came so many seconds behind the request.
    pub(super) fn take(&mut self, line: &str, at_s: f64) -> Result<(), StreamFault> {
        // Names of events, comments that keep a connection open, and the empty lines between events.
        let Some(data) = line.trim().strip_prefix(DATA).map(str::trim) else {
            return Ok(());
        };
        if data == DONE {
            self.ended_s.get_or_insert(at_s);
            return Ok(());
        }
        let event: Value = serde_json::from_str(data).map_err(|_| StreamFault::NotJson(data.to_owned()))?;
        if let Some(told) = told(&event) {
            return Err(StreamFault::Told(told));
        }
        if event["choices"][0]["text"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
        {
            self.pieces_s.push(at_s);
        }
        let ended = event["choices"][0]["finish_reason"].as_str();
        if ended.is_some_and(|reason| !reason.is_empty()) {
            self.ended_s.get_or_insert(at_s);
        }
        let count = |name: &str| event["usage"][name].as_u64();
        if let Some(usage) = count("prompt_tokens").zip(count("completion_tokens")) {
            self.usage = Some([usage.0, usage.1]);
        }
        Ok(())
    }

    /// The whole answer; `None` where the stream ended before it.
    pub(super) fn end(self) -> Option<Answered> {
        let pieces = self.pieces_s.len() as u64;
        let new_tokens = self.usage.map_or(pieces, |[_, new]| new);
        // Single gaps say little: pieces that come in one read have none between them.
        let token_s = match self.pieces_s.as_slice() {
            [first, .., last] if new_tokens > 1 => Some((last - first) / (new_tokens - 1) as f64),
            _ => None,
        };
        Some(Answered {
            first_s: self.pieces_s.first().copied(),
            token_s,
            request_s: self.ended_s?,
            prompt_tokens: self.usage.map(|[prompt, _]| prompt),
            new_tokens,
        })
    }
}

/// The mistake that an answer tells, where it is one: servers have it in several places.
pub(super) fn told(answer: &Value) -> Option<String> {
    let error = answer.get("error").filter(|error| !error.is_null());
    let is_error = answer["object"] == "error";
    let text = match error {
        Some(error) => error["message"].as_str().or(error.as_str()),
        None if is_error => answer["message"].as_str(),
        None => answer["detail"].as_str(),
    };
    match (text, error) {
        (Some(text), _) => Some(text.to_owned()),
        (None, Some(error)) => Some(error.to_string()),
        (None, None) => is_error.then(|| answer.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(lines: &[(&str, f64)]) -> Result<AnswerStream, StreamFault> {
        let mut stream = AnswerStream::default();
        for (line, at_s) in lines {
            stream.take(line, *at_s)?;
        }
        Ok(stream)
    }

    #[test]
    fn the_time_of_a_token_is_over_the_tokens_that_the_server_counts() {
        let answered = stream(&[
            (": ping", 0.5),
            (r#"data: {"choices": [{"text": "", "finish_reason": null}]}"#, 0.75),
            (r#"data: {"choices": [{"text": "a b", "finish_reason": null}]}"#, 1.0),
            ("", 1.0),
            (r#"data: {"choices": [{"text": " c d", "finish_reason": null}]}"#, 3.0),
            (r#"data: {"choices": [{"text": "e", "finish_reason": "length"}]}"#, 4.0),
            (
                r#"data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}"#,
                4.5,
            ),
            ("data: [DONE]", 5.0),
        ]);
        let expected = Answered {
            first_s: Some(1.0),
            token_s: Some(0.75),
            request_s: 4.0,
            prompt_tokens: Some(7),
            new_tokens: 5,
        };
        assert_eq!(answered.unwrap().end(), Some(expected));
    }

    #[test]
    fn pieces_are_tokens_where_nobody_counts_them() {
        let piece = r#"data: {"choices": [{"text": "a"}]}"#;
        let answered = stream(&[(piece, 1.0), (piece, 1.5), ("data: [DONE]", 2.0)]);
        let answered = answered.unwrap().end().unwrap();
        assert_eq!((answered.new_tokens, answered.prompt_tokens), (2, None));
        assert_eq!((answered.token_s, answered.request_s), (Some(0.5), 2.0));
        assert_eq!(stream(&[(piece, 1.0)]).unwrap().end(), None, "a stream that breaks off");
    }

    #[test]
    fn pieces_of_one_read_do_not_shorten_the_time_of_a_token() {
        let token_s = |times: &[f64], counted: Option<u64>| {
            let mut answer = AnswerStream::default();
            for at_s in times {
                answer.take(r#"data: {"choices": [{"text": "a"}]}"#, *at_s).unwrap();
            }
            if let Some(new) = counted {
                let usage = format!(r#"data: {{"usage": {{"prompt_tokens": 1, "completion_tokens": {new}}}}}"#);
                answer.take(&usage, 9.0).unwrap();
            }
            answer.take("data: [DONE]", 9.0).unwrap();
            answer.end().unwrap().token_s
        };
        // Three gaps of nothing and one of two seconds.
        assert_eq!(token_s(&[1.0, 1.0, 1.0, 3.0, 3.0], None), Some(0.5));
        assert_eq!(token_s(&[1.0, 3.0], Some(5)), Some(0.5));
        assert_eq!(token_s(&[1.0], Some(5)), None, "one piece");
        assert_eq!(token_s(&[1.0, 3.0], Some(1)), None, "one token");
        assert_eq!(token_s(&[1.0], None), None);
        assert_eq!(token_s(&[], None), None);
    }

    #[test]
    fn mistakes_are_told_wherever_they_stand() {
        let of = |line: &str| stream(&[(line, 0.0)]).unwrap_err();
        let told = |text: &str| StreamFault::Told(text.to_owned());
        assert_eq!(of(r#"data: {"error": {"message": "no room"}}"#), told("no room"));
        assert_eq!(of(r#"data: {"error": "no room"}"#), told("no room"));
        assert_eq!(
            of(r#"data: {"object": "error", "message": "no room"}"#),
            told("no room")
        );
        assert_eq!(of(r#"data: {"detail": "no room"}"#), told("no room"));
        assert_eq!(of("data: <html>"), StreamFault::NotJson("<html>".to_owned()));
    }
}
