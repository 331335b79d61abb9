//! How fast a server answers so many requests at once.
//!
//! | name | unit | meaning |
//! |---|---|---|
//! | first token | s | from a request to the first text of its answer |
//! | token | s | from one token of an answer to the next, the mean of the answer |
//! | request | s | from a request to the end of its answer |
//! | rate | tokens/s | tokens of all answers over the time of all requests |
//!
//! Requests are under way as many at once as asked for, all the time: where one ends, the next prompt is sent.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use serde::Serialize;

use super::answer_stream::Answered;
use super::server::{Server, ServerError};
use peft_tune_engine::profile::Latency;

/// Requests that are measured.
pub(super) struct ServedLoad<'a> {
    pub server: &'a Server,
    pub prompts: &'a [String],
    /// Most tokens of an answer.
    pub new_tokens: u32,
    /// Seconds to spend on a point; every prompt is answered once in any case.
    pub budget_s: f64,
}

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct ServedPoint {
    /// Requests that were under way at once.
    pub batch: usize,
    /// Requests that were answered.
    pub requests: usize,
    /// Mean tokens of a prompt, where the server counts them.
    pub prompt_tokens: Option<f64>,
    /// Mean tokens of an answer.
    pub new_tokens: f64,
    pub first_token: Latency,
    /// `None` where no answer has a token behind its first.
    pub token: Option<Latency>,
    pub request: Latency,
    pub tokens_per_s: f64,
    pub requests_per_s: f64,
}

/// A model of a server with its points.
pub(super) struct ServedModel {
    /// `base` or `adapter`.
    pub form: &'static str,
    /// Name that the server has for it.
    pub name: String,
    pub points: Vec<ServedPoint>,
}

impl ServedLoad<'_> {
    /// Answers the prompts, so many at once, again and again for the time that there is, and each at least once.
    ///
    /// # Errors
    /// The first error of a request; a model that says nothing to any prompt.
    pub(super) fn measure(&self, model: &str, batch: usize) -> Result<ServedPoint, ServerError> {
        let fewest = self.prompts.len().max(batch);
        let (next, has_failed, begun) = (AtomicUsize::new(0), AtomicBool::new(false), Instant::now());
        let is_over = |number: usize| {
            let is_late = number >= fewest && begun.elapsed().as_secs_f64() >= self.budget_s;
            is_late || has_failed.load(Ordering::Relaxed)
        };
        let ask = || {
            let mut answers = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if is_over(number) {
                    return Ok(answers);
                }
                let prompt = &self.prompts[number % self.prompts.len()];
                match self.server.answer(model, prompt, self.new_tokens) {
                    Ok(answered) => answers.push(answered),
                    Err(error) => {
                        // The others end with the answer that they are at.
                        has_failed.store(true, Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
        };
        let told: Vec<Result<Vec<Answered>, ServerError>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..batch).map(|_| scope.spawn(ask)).collect();
            let joined = threads.into_iter().map(|thread| thread.join());
            joined
                .map(|answers| answers.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let seconds = begun.elapsed().as_secs_f64();
        let mut answers = Vec::new();
        for one in told {
            answers.extend(one?);
        }
        let point = ServedPoint::of(batch, &answers, seconds);
        point.ok_or_else(|| self.server.no_text(model))
    }
}

impl ServedPoint {
    /// The point of answers that took so many seconds in all; `None` where none of them has text.
    fn of(batch: usize, answers: &[Answered], seconds: f64) -> Option<Self> {
        let firsts: Vec<f64> = answers.iter().filter_map(|one| one.first_s).collect();
        if firsts.is_empty() {
            return None;
        }
        let tokens: Vec<f64> = answers.iter().filter_map(|one| one.token_s).collect();
        let requests: Vec<f64> = answers.iter().map(|one| one.request_s).collect();
        let new_tokens = answers.iter().map(|one| one.new_tokens).sum::<u64>() as f64;
        let prompt_tokens: Option<Vec<u64>> = answers.iter().map(|one| one.prompt_tokens).collect();
        let count = answers.len() as f64;
        let seconds = seconds.max(f64::MIN_POSITIVE);
        Some(Self {
            batch,
            requests: answers.len(),
            prompt_tokens: prompt_tokens.map(|all| all.iter().sum::<u64>() as f64 / count),
            new_tokens: new_tokens / count,
            first_token: Latency::of(&firsts),
            token: (!tokens.is_empty()).then(|| Latency::of(&tokens)),
            request: Latency::of(&requests),
            tokens_per_s: new_tokens / seconds,
            requests_per_s: count / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(first_s: Option<f64>, token_s: Option<f64>, request_s: f64, new_tokens: u64) -> Answered {
        Answered {
            first_s,
            token_s,
            request_s,
            prompt_tokens: Some(new_tokens + 1),
            new_tokens,
        }
    }

    #[test]
    fn a_point_is_of_all_answers() {
        let answers = [
            answered(Some(0.25), Some(0.5), 1.25, 3),
            answered(Some(0.75), Some(0.25), 1.75, 5),
            answered(None, None, 0.5, 1),
        ];
        let point = ServedPoint::of(2, &answers, 3.0).unwrap();
        assert_eq!(
            (point.requests, point.prompt_tokens, point.new_tokens),
            (3, Some(4.0), 3.0)
        );
        assert_eq!((point.first_token.p50_s, point.first_token.p95_s), (0.25, 0.75));
        let token = point.token.unwrap();
        assert_eq!((token.p50_s, token.p95_s, point.request.p50_s), (0.25, 0.5, 1.25));
        assert_eq!((point.tokens_per_s, point.requests_per_s), (3.0, 1.0));
        assert_eq!(ServedPoint::of(1, &[answered(None, None, 0.5, 0)], 1.0), None);
    }

    #[test]
    fn answers_of_one_token_have_no_time_of_a_token() {
        let point = ServedPoint::of(1, &[answered(Some(0.25), None, 0.5, 1)], 1.0).unwrap();
        assert_eq!((point.token, point.first_token.p50_s), (None, 0.25));
        let json = serde_json::to_value(point).unwrap();
        assert_eq!(json["token"], serde_json::Value::Null);
    }
}
