//! How fast a model answers: reading prompts (prefill), then one token at a time (decode), for several sequences side by
//! side.
//!
//! | name | unit | meaning |
//! |---|---|---|
//! | first token | s | from the prompts to the first token of every sequence |
//! | token | s | from one token of every sequence to the next |
//! | prefill rate | tokens/s | prompt tokens of all sequences over the time of the first token |
//! | decode rate | tokens/s | sequences over the median time of a token |

use std::time::Instant;

use candle_core::{D, Tensor};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::{Deserialize, Serialize};

use super::DeviceMemory;
use crate::generation::Decoding;
use crate::{Generator, TrainError};

/// Fewest repetitions of a point: percentiles of the first token mean nothing below.
const FEWEST_REPETITIONS: usize = 3;

/// One point to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InferenceLoad {
    /// Sequences that are answered at once.
    pub batch: usize,
    /// Length of each prompt.
    pub prompt_tokens: usize,
    /// Tokens that are generated for each.
    pub new_tokens: usize,
}

/// Median and the tails of measured seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    pub p50_s: f64,
    pub p95_s: f64,
    pub p99_s: f64,
}

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct InferencePoint {
    pub batch: usize,
    pub prompt_tokens: usize,
    pub new_tokens: usize,
    pub first_token: Latency,
    pub token: Latency,
    pub prefill_tokens_per_s: f64,
    pub decode_tokens_per_s: f64,
    /// Highest device bytes in use, those that were there before the model left out.
    pub peak_bytes: u64,
    /// Keys and values.
    pub cache_bytes: u64,
    pub repetitions: usize,
}

impl Latency {
    /// Percentiles of `seconds`, by the nearest rank; zero without any.
    pub fn of(seconds: &[f64]) -> Self {
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let percentile = |percent: f64| {
            let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
        };
        Self {
            p50_s: percentile(50.0),
            p95_s: percentile(95.0),
            p99_s: percentile(99.0),
        }
    }
}

/// Measures one point with random prompts and the most likely tokens, again and again for `budget_s` seconds and at least
/// three times. `program_bytes` were in use before the model.
///
/// # Errors
/// Prompts longer than the model's positions, memory.
pub fn measure_inference(
    generator: &mut Generator,
    load: InferenceLoad,
    budget_s: f64,
    program_bytes: u64,
) -> Result<InferencePoint, TrainError> {
    let memory = DeviceMemory::of(generator.base().device())?;
    let prompts = random_prompts(generator.base().architecture().vocabulary, load);
    let prompts: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    // The first pass pays for first allocations.
    answer(generator, &prompts, load.new_tokens.min(2), &mut Vec::new())?;
    memory.reset_peak();
    let (mut firsts, mut tokens, mut cache_bytes) = (Vec::new(), Vec::new(), 0);
    let started = Instant::now();
    while firsts.len() < FEWEST_REPETITIONS || started.elapsed().as_secs_f64() < budget_s {
        let (first, bytes) = answer(generator, &prompts, load.new_tokens, &mut tokens)?;
        firsts.push(first);
        cache_bytes = bytes;
    }
    let (first_token, token) = (Latency::of(&firsts), Latency::of(&tokens));
    let rate = |amount: usize, seconds: f64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
    Ok(InferencePoint {
        batch: load.batch,
        prompt_tokens: load.prompt_tokens,
        new_tokens: load.new_tokens,
        first_token,
        token,
        prefill_tokens_per_s: rate(load.batch * load.prompt_tokens, first_token.p50_s),
        decode_tokens_per_s: rate(load.batch, token.p50_s),
        peak_bytes: memory.peak_bytes().saturating_sub(program_bytes),
        cache_bytes: cache_bytes as u64,
        repetitions: firsts.len(),
    })
}

/// Answers all prompts once: the seconds of the first token, and the bytes of the cache. The seconds of each further token
/// are added to `each`.
fn answer(
    generator: &mut Generator,
    prompts: &[&[u32]],
    new_tokens: usize,
    each: &mut Vec<f64>,
) -> Result<(f64, usize), TrainError> {
    let room = prompts.iter().map(|prompt| prompt.len()).max().unwrap_or(0) + new_tokens;
    let begun = Instant::now();
    let (mut decoding, logits) = begin_in_turn(generator, prompts, room)?;
    let mut tokens = most_likely(&logits)?;
    let first = begun.elapsed().as_secs_f64();
    for _ in 1..new_tokens {
        let begun = Instant::now();
        let logits = generator.advance(&mut decoding, &tokens)?;
        tokens = most_likely(&logits)?;
        each.push(begun.elapsed().as_secs_f64());
    }
    Ok((first, decoding.cache_bytes()))
}

/// Reads `prompts`, each with the next of the model's adapters where it has several; see [`Generator::begin`].
pub(super) fn begin_in_turn(
    generator: &mut Generator,
    prompts: &[&[u32]],
    room: usize,
) -> Result<(Decoding, Tensor), TrainError> {
    match generator.adapters() {
        0 => generator.begin(prompts, room),
        adapters => {
            let owners: Vec<usize> = (0..prompts.len()).map(|place| place % adapters).collect();
            generator.begin_each(prompts, &owners, room)
        }
    }
}

/// The most likely token of each row; waits for the device.
pub(super) fn most_likely(logits: &Tensor) -> Result<Vec<u32>, TrainError> {
    Ok(logits.argmax(D::Minus1)?.to_vec1()?)
}

fn random_prompts(vocabulary: usize, load: InferenceLoad) -> Vec<Vec<u32>> {
    let mut random = Pcg64::seed_from_u64(0);
    let mut prompt = || {
        (0..load.prompt_tokens)
            .map(|_| random.random_range(0..vocabulary as u32))
            .collect()
    };
    (0..load.batch).map(|_| prompt()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let seconds: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let latency = Latency::of(&seconds);
        assert_eq!((latency.p50_s, latency.p95_s, latency.p99_s), (50.0, 95.0, 99.0));
        let one = Latency::of(&[2.0]);
        assert_eq!((one.p50_s, one.p99_s), (2.0, 2.0));
        assert_eq!(Latency::of(&[]), Latency::default());
    }
}
