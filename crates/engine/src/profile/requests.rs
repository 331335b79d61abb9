//! How fast requests are answered from end to end: from text to text, several at once.
//!
//! | name | unit | meaning |
//! |---|---|---|
//! | first token | s | from the texts of a batch to the first token of every answer; tokenizing counts |
//! | request | s | from the texts of a batch to the text of one answer |
//! | rate | tokens/s | tokens of all answers over the time of all batches |
//! | text share | - | tokenizing and decoding over the time of all batches |
//!
//! Requests arrive in batches: the next batch begins when the last answer of one has ended, so that a short answer waits for nobody
//! and its place stays empty.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::inference::{begin_in_turn, most_likely};
use super::{DeviceMemory, Latency};
use crate::tokenizer::Tokenizer;
use crate::{Generator, PromptError, TrainError};

/// Requests that are measured.
#[derive(Clone, Copy, Debug)]
pub struct RequestLoad<'a> {
    pub prompts: &'a [String],
    /// Requests that are answered at once.
    pub batch: usize,
    /// Most tokens of an answer.
    pub new_tokens: usize,
    /// Time to spend; every prompt is answered once in any case.
    pub budget_s: f64,
    /// Device bytes that were in use before the model.
    pub program_bytes: u64,
}

/// Measurement of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestPoint {
    pub batch: usize,
    /// Requests that were answered.
    pub requests: usize,
    /// Mean tokens of a prompt.
    pub prompt_tokens: f64,
    /// Mean tokens of an answer.
    pub new_tokens: f64,
    pub first_token: Latency,
    pub request: Latency,
    pub tokens_per_s: f64,
    pub requests_per_s: f64,
    pub text_share: f64,
    /// Highest device bytes in use, those that were there before the model left out.
    pub peak_bytes: u64,
}

/// Sums over all batches.
#[derive(Debug, Default)]
struct Totals {
    firsts: Vec<f64>,
    requests: Vec<f64>,
    prompt_tokens: usize,
    new_tokens: usize,
    text_s: f64,
    all_s: f64,
}

/// Answers `load`'s prompts, each token the most likely one, until the model ends the answer.
///
/// # Errors
/// A prompt that the tokenizer does not take, or with no room for an answer among the model's positions; memory.
pub fn measure_requests(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    load: &RequestLoad<'_>,
) -> Result<RequestPoint, TrainError> {
    let memory = DeviceMemory::of(generator.base().device())?;
    let batch = load.batch.clamp(1, load.prompts.len().max(1));
    // The first pass pays for first allocations.
    let warm_up = load.prompts.get(..batch).unwrap_or(load.prompts);
    answer(
        generator,
        tokenizer,
        warm_up,
        load.new_tokens.min(2),
        &mut Totals::default(),
    )?;
    memory.reset_peak();
    let mut totals = Totals::default();
    let started = Instant::now();
    loop {
        for prompts in load.prompts.chunks(batch) {
            answer(generator, tokenizer, prompts, load.new_tokens, &mut totals)?;
        }
        if started.elapsed().as_secs_f64() >= load.budget_s {
            break;
        }
    }
    let requests = totals.requests.len();
    let mean = |sum: usize| sum as f64 / requests.max(1) as f64;
    let rate = |amount: usize| {
        if totals.all_s > 0.0 {
            amount as f64 / totals.all_s
        } else {
            0.0
        }
    };
    Ok(RequestPoint {
        batch,
        requests,
        prompt_tokens: mean(totals.prompt_tokens),
        new_tokens: mean(totals.new_tokens),
        first_token: Latency::of(&totals.firsts),
        request: Latency::of(&totals.requests),
        tokens_per_s: rate(totals.new_tokens),
        requests_per_s: rate(requests),
        text_share: if totals.all_s > 0.0 {
            totals.text_s / totals.all_s
        } else {
            0.0
        },
        peak_bytes: memory.peak_bytes().saturating_sub(load.program_bytes),
    })
}

/// Answers one batch.
fn answer(
    generator: &mut Generator,
    tokenizer: &Tokenizer,
    texts: &[String],
    new_tokens: usize,
    totals: &mut Totals,
) -> Result<(), TrainError> {
    let begun = Instant::now();
    let since = |start: Instant| start.elapsed().as_secs_f64();
    let mut prompts = Vec::with_capacity(texts.len());
    for text in texts {
        prompts.push(tokenizer.encode_open(text)?.ids);
    }
    let stop_ids = tokenizer.stop_ids();
    let mut text_s = since(begun);
    let positions = generator.base().architecture().max_positions;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let room = longest + new_tokens;
    if room > positions {
        return Err(PromptError::NoRoom {
            prompt_tokens: longest,
            new_tokens,
            positions,
        }
        .into());
    }
    let read: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let (mut decoding, logits) = begin_in_turn(generator, &read, room)?;
    let mut next = most_likely(&logits)?;
    let first = since(begun);
    let mut answers: Vec<Option<Vec<u32>>> = vec![Some(Vec::new()); texts.len()];
    loop {
        for (place, token) in next.iter().enumerate() {
            let Some(tokens) = &mut answers[place] else { continue };
            let stops = stop_ids.contains(token);
            if !stops {
                tokens.push(*token);
            }
            if stops || tokens.len() >= new_tokens {
                let decoding = Instant::now();
                tokenizer.decode(tokens, true)?;
                text_s += since(decoding);
                totals.requests.push(since(begun));
                totals.new_tokens += tokens.len();
                answers[place] = None;
            }
        }
        if answers.iter().all(Option::is_none) {
            break;
        }
        next = most_likely(&generator.advance(&mut decoding, &next)?)?;
    }
    totals.firsts.push(first);
    totals.prompt_tokens += prompts.iter().map(Vec::len).sum::<usize>();
    totals.text_s += text_s;
    totals.all_s += since(begun);
    Ok(())
}
