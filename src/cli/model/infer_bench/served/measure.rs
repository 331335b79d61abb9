//! How fast a server answers so many requests at once.
//!
//! | name | unit | meaning |
//! |---|---|---|
//! | first token | s | from a request to the first text of its answer |
//! | token | s | from one token of an answer to the next |
//! | request | s | from a request to the end of its answer |
//! | rate | tokens/s | tokens of all answers over the time of all requests |
//!
//! As many requests as asked for are under way all the time: where one ends, the next prompt is sent.

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
    pub token: Latency,
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
        let tokens: Vec<f64> = answers.iter().flat_map(|one| one.tokens_s.iter().copied()).collect();
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
            token: Latency::of(&tokens),
            request: Latency::of(&requests),
            tokens_per_s: new_tokens / seconds,
            requests_per_s: count / seconds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_is_of_all_answers() {
        let answered = |first_s: Option<f64>, request_s: f64, new_tokens: u64| Answered {
            first_s,
            tokens_s: vec![0.5; new_tokens.saturating_sub(1) as usize],
            request_s,
            prompt_tokens: Some(new_tokens + 1),
            new_tokens,
        };
        let answers = [
            answered(Some(0.25), 1.25, 3),
            answered(Some(0.75), 1.75, 5),
            answered(None, 0.5, 1),
        ];
        let point = ServedPoint::of(2, &answers, 3.0).unwrap();
        assert_eq!(
            (point.requests, point.prompt_tokens, point.new_tokens),
            (3, Some(4.0), 3.0)
        );
        assert_eq!((point.first_token.p50_s, point.first_token.p95_s), (0.25, 0.75));
        assert_eq!((point.token.p50_s, point.request.p50_s), (0.5, 1.25));
        assert_eq!((point.tokens_per_s, point.requests_per_s), (3.0, 1.0));
        assert_eq!(ServedPoint::of(1, &[answered(None, 0.5, 0)], 1.0), None);
    }
}
