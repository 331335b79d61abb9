//! Routing: which experts each token goes through, and with which weights.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `logits` | (T, E) F32 | the router's output |
//! | `scores` p | (T, E) F32 | softmax over the experts, or sigmoid of each |
//! | `correction` | (E,) F32 | added to the scores to choose by |
//! | R | | T k rows, sorted by expert; those of one expert in the order of their tokens |
//! | `weights` w | (R,) F32 | s p_c, or s p_c / sum of p over the token's chosen experts |
//! | `tokens` | (R,) U32 | the token of each row |
//! | `rows` | (T, k) U32 | the rows of each token, its best expert first |
//!
//! Of equal scores the expert with the lower number is taken. A score that is not a number counts as the lowest: the token then has
//! weights that are not numbers, and so has the loss, which ends a training as diverged.
//!
//! Backward, with u = dw s / n and n the sum that weights are divided by (1 where they are not): dp_c = u_c - sum of u_i w_i / s over
//! the chosen i (the second part only where weights are divided); then dl = p (dp - sum of p dp) for softmax, p (1 - p) dp for sigmoid.

use super::cuda;
use super::offsets::Offsets;
use super::shape;
use super::storage::{Elements, small};
use crate::gpu;
use crate::thread_pool;
use candle_core::{DType, Device, Result, Tensor};

/// Function that makes scores of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Softmax over all experts.
    Softmax,
    Sigmoid,
    /// Sigmoids, chosen by the logits: those of large ones are alike.
    SigmoidOfChosen,
}

/// How experts are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub scores: Scores,
    /// k
    pub chosen: usize,
    /// Whether weights are divided by their sum.
    pub normalised: bool,
    /// s
    pub scale: f32,
    /// (groups, groups that are chosen from): neighbours that are chosen or left out together. A group is as good as its two best
    /// experts together where scores are sigmoids, as its best one where they are a softmax.
    pub groups: Option<(usize, usize)>,
}

/// Experts that every token goes to.
#[derive(Clone, Debug)]
pub struct Routing {
    pub scores: Tensor,
    pub weights: Tensor,
    pub tokens: Tensor,
    pub rows: Tensor,
    /// First row of each expert, and the number of rows.
    pub offsets: Offsets,
}

/// Tokens of a task.
const TASK: usize = 64;

/// Routes every token.
///
/// # Errors
/// Logits that are not (T, E) F32, more chosen experts than there are.
pub fn forward(logits: &Tensor, correction: Option<&Tensor>, settings: &Settings) -> Result<Routing> {
    let (tokens, experts) = logits.dims2()?;
    let chosen = settings.chosen;
    check(experts, settings)?;
    if let Some(correction) = correction {
        shape::expect(correction, &[experts], "routing: correction")?;
    }
    if tokens > 0 && logits.dtype() == DType::F32 && gpu::takes(logits) && cuda::routing::takes(experts) {
        return cuda::routing::forward(logits, correction, settings);
    }
    if !logits.device().is_cpu() {
        return on_cpu(logits, correction, settings);
    }
    let correction = correction.map_or_else(|| Ok(vec![0.0; experts]), small)?;
    let mut scores: Vec<f32> = logits.contiguous()?.flatten_all()?.to_vec1()?;
    let mut choices = vec![0u32; tokens * chosen];
    thread_pool::for_chunks2(
        (&mut scores, TASK * experts),
        (&mut choices, TASK * chosen),
        |_, scores, choices| {
            let mut best = Vec::with_capacity(experts);
            for (scores, choices) in scores.chunks_exact_mut(experts).zip(choices.chunks_exact_mut(chosen)) {
                if settings.scores == Scores::SigmoidOfChosen {
                    choose(scores, &correction, settings, &mut best);
                    score(scores, settings.scores);
                } else {
                    score(scores, settings.scores);
                    choose(scores, &correction, settings, &mut best);
                }
                choices
                    .iter_mut()
                    .zip(&best)
                    .for_each(|(choice, (_, expert))| *choice = *expert);
            }
        },
    );
    let sorted = Sorted::new(&choices, experts, chosen);
    let mut weights = vec![0.0; tokens * chosen];
    for (token, scores) in scores.chunks_exact(experts).enumerate() {
        let part = token * chosen..(token + 1) * chosen;
        let factor = settings.scale / divisor(scores, &choices[part.clone()], settings);
        for (expert, row) in choices[part.clone()].iter().zip(&sorted.rows[part]) {
            weights[*row as usize] = factor * scores[*expert as usize];
        }
    }
    let cpu = &Device::Cpu;
    Ok(Routing {
        scores: Tensor::from_vec(scores, (tokens, experts), cpu)?,
        weights: Tensor::from_vec(weights, tokens * chosen, cpu)?,
        tokens: Tensor::from_vec(sorted.tokens, tokens * chosen, cpu)?,
        rows: Tensor::from_vec(sorted.rows, (tokens, chosen), cpu)?,
        offsets: sorted.offsets.into(),
    })
}

/// The gradient of the logits, (T, E) F32, from that of the weights, (R,) F32.
///
/// # Errors
/// Shapes that do not fit.
pub fn backward(routing: &Routing, d_weights: &Tensor, settings: &Settings) -> Result<Tensor> {
    let ((tokens, experts), (_, chosen)) = (routing.scores.dims2()?, routing.rows.dims2()?);
    shape::expect(d_weights, &[tokens * chosen], "routing: d_weights")?;
    if tokens > 0 && gpu::takes(&routing.scores) && cuda::routing::takes(experts) {
        return cuda::routing::backward(routing, d_weights, settings);
    }
    if !routing.scores.device().is_cpu() {
        let device = routing.scores.device();
        return backward(
            &routing.to(&Device::Cpu)?,
            &d_weights.to_device(&Device::Cpu)?,
            settings,
        )?
        .to_device(device);
    }
    let offsets = routing.offsets.host()?;
    let (scores, rows) = (
        Elements::<f32>::new(&routing.scores)?,
        Elements::<u32>::new(&routing.rows)?,
    );
    let (weights, d_weights) = (
        Elements::<f32>::new(&routing.weights)?,
        Elements::<f32>::new(d_weights)?,
    );
    let (scores, rows, weights, d_weights) = (&*scores, &*rows, &*weights, &*d_weights);
    let mut d_logits = vec![0f32; tokens * experts];
    thread_pool::for_chunks(&mut d_logits, TASK * experts, |task, d_logits| {
        for (index, d_logits) in d_logits.chunks_exact_mut(experts).enumerate() {
            let token = task * TASK + index;
            let scores = &scores[token * experts..][..experts];
            let rows = &rows[token * chosen..][..chosen];
            let expert = |row: &u32| offsets.partition_point(|first| *first <= *row as usize) - 1;
            let choices: Vec<u32> = rows.iter().map(|row| expert(row) as u32).collect();
            let factor = settings.scale / divisor(scores, &choices, settings);
            let shared: f32 = match settings.normalised {
                true => {
                    rows.iter()
                        .map(|row| d_weights[*row as usize] * weights[*row as usize])
                        .sum::<f32>()
                        / settings.scale
                }
                false => 0.0,
            };
            for (expert, row) in choices.iter().zip(rows) {
                d_logits[*expert as usize] = factor * (d_weights[*row as usize] - shared);
            }
            score_backward(scores, d_logits, settings.scores);
        }
    });
    Tensor::from_vec(d_logits, (tokens, experts), &Device::Cpu)
}

/// Routes tokens of another device on the CPU: the plain form.
fn on_cpu(logits: &Tensor, correction: Option<&Tensor>, settings: &Settings) -> Result<Routing> {
    gpu::refuse_capture("routing in plain tensor ops")?;
    let correction = correction
        .map(|correction| correction.to_device(&Device::Cpu))
        .transpose()?;
    forward(&logits.to_device(&Device::Cpu)?, correction.as_ref(), settings)?.to(logits.device())
}

impl Routing {
    /// Moves the routing to another device.
    fn to(&self, device: &Device) -> Result<Self> {
        Ok(Self {
            scores: self.scores.to_device(device)?,
            weights: self.weights.to_device(device)?,
            tokens: self.tokens.to_device(device)?,
            rows: self.rows.to_device(device)?,
            offsets: self.offsets.host()?.to_vec().into(),
        })
    }
}

fn check(experts: usize, settings: &Settings) -> Result<()> {
    let Settings { chosen, groups, .. } = *settings;
    if chosen == 0 || chosen > experts {
        candle_core::bail!("routing: {chosen} of {experts} experts");
    }
    if let Some((count, best)) = groups
        && (count == 0 || !experts.is_multiple_of(count) || best > count || best * (experts / count) < chosen)
    {
        candle_core::bail!("routing: {chosen} of {experts} experts in {best} of {count} groups");
    }
    Ok(())
}

/// Logits to scores.
fn score(values: &mut [f32], scores: Scores) {
    match scores {
        Scores::Sigmoid | Scores::SigmoidOfChosen => values
            .iter_mut()
            .for_each(|value| *value = 1.0 / (1.0 + (-*value).exp())),
        Scores::Softmax => {
            let highest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            values.iter_mut().for_each(|value| *value = (*value - highest).exp());
            let sum: f32 = values.iter().sum();
            values.iter_mut().for_each(|value| *value /= sum);
        }
    }
}

/// Turns the gradient of the scores into that of the logits, in place.
fn score_backward(scores: &[f32], gradient: &mut [f32], kind: Scores) {
    let pairs = || scores.iter();
    match kind {
        Scores::Sigmoid | Scores::SigmoidOfChosen => {
            gradient.iter_mut().zip(pairs()).for_each(|(d, p)| *d *= p * (1.0 - p))
        }
        Scores::Softmax => {
            let sum: f32 = gradient.iter().zip(pairs()).map(|(d, p)| d * p).sum();
            gradient.iter_mut().zip(pairs()).for_each(|(d, p)| *d = p * (*d - sum));
        }
    }
}

/// Number that the chosen scores are divided by.
fn divisor(scores: &[f32], choices: &[u32], settings: &Settings) -> f32 {
    match settings.normalised {
        true => choices.iter().map(|expert| scores[*expert as usize]).sum(),
        false => 1.0,
    }
}

/// The best experts by their corrected scores into `best`, best first.
fn choose(scores: &[f32], correction: &[f32], settings: &Settings, best: &mut Vec<(f32, u32)>) {
    let corrected = |expert: usize| lowest_if_nan(scores[expert] + correction[expert]);
    let mut allowed = vec![true; 0];
    if let Some((count, chosen)) = settings.groups {
        let size = scores.len() / count;
        let mut groups = Vec::with_capacity(count);
        take_best(
            &mut groups,
            chosen,
            (0..count).map(|group| {
                let mut first = [f32::NEG_INFINITY; 2];
                for value in (group * size..(group + 1) * size).map(corrected) {
                    let [one, two] = first;
                    first = [one.max(value), two.max(one.min(value))];
                }
                (
                    if settings.scores == Scores::Sigmoid {
                        first[0] + first[1]
                    } else {
                        first[0]
                    },
                    group as u32,
                )
            }),
        );
        allowed = vec![false; scores.len()];
        for (_, group) in groups {
            allowed[group as usize * size..][..size].fill(true);
        }
    }
    let experts = (0..scores.len()).filter(|expert| allowed.get(*expert).copied().unwrap_or(true));
    best.clear();
    take_best(
        best,
        settings.chosen,
        experts.map(|expert| (corrected(expert), expert as u32)),
    );
}

/// The `count` highest of `values` into `best`, the highest first; of equal ones the first.
fn take_best(best: &mut Vec<(f32, u32)>, count: usize, values: impl Iterator<Item = (f32, u32)>) {
    for (value, number) in values {
        if best.len() == count {
            match best.last() {
                Some((worst, _)) if value > *worst => drop(best.pop()),
                _ => continue,
            }
        }
        let place = best.partition_point(|(other, _)| *other >= value);
        best.insert(place, (value, number));
    }
}

fn lowest_if_nan(value: f32) -> f32 {
    if value.is_nan() { f32::NEG_INFINITY } else { value }
}

/// Choices sorted by expert.
struct Sorted {
    tokens: Vec<u32>,
    rows: Vec<u32>,
    offsets: Vec<usize>,
}

impl Sorted {
    fn new(choices: &[u32], experts: usize, chosen: usize) -> Self {
        let mut offsets = vec![0; experts + 1];
        for expert in choices {
            offsets[*expert as usize + 1] += 1;
        }
        for expert in 0..experts {
            offsets[expert + 1] += offsets[expert];
        }
        let (mut next, mut tokens, mut rows) = (offsets.clone(), vec![0; choices.len()], vec![0; choices.len()]);
        for (index, expert) in choices.iter().enumerate() {
            let row = &mut next[*expert as usize];
            tokens[*row] = (index / chosen) as u32;
            rows[index] = *row as u32;
            *row += 1;
        }
        Self { tokens, rows, offsets }
    }
}

/// Fails unless `tensor` is what a vector of rows has to be.
pub(super) fn expect_rows(tensor: &Tensor, rows: usize, what: &str) -> Result<()> {
    shape::expect(tensor, &[rows], what)?;
    match tensor.dtype() {
        DType::F32 | DType::U32 => Ok(()),
        other => candle_core::bail!("{what}: {other:?} is neither F32 nor U32"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, random};
    use super::*;

    fn settings(scores: Scores, normalised: bool) -> Settings {
        Settings {
            scores,
            chosen: 3,
            normalised,
            scale: 1.5,
            groups: None,
        }
    }

    fn logits(tokens: usize, experts: usize) -> Tensor {
        (random(&[tokens, experts], 7) * 3.0).unwrap()
    }

    /// Experts of each token, best first.
    fn choices(routing: &Routing) -> Vec<Vec<usize>> {
        let rows: Vec<Vec<u32>> = routing.rows.to_vec2().unwrap();
        let expert = |row: &u32| {
            routing
                .offsets
                .host()
                .unwrap()
                .partition_point(|first| *first <= *row as usize)
                - 1
        };
        rows.iter().map(|rows| rows.iter().map(expert).collect()).collect()
    }

    #[test]
    fn rows_are_sorted_by_expert_and_lead_back_to_their_tokens() {
        let logits = logits(40, 6).to_dtype(DType::F32).unwrap();
        let routing = forward(&logits, None, &settings(Scores::Softmax, true)).unwrap();
        let tokens: Vec<u32> = routing.tokens.to_vec1().unwrap();
        let rows: Vec<Vec<u32>> = routing.rows.to_vec2().unwrap();
        for (token, rows) in rows.iter().enumerate() {
            assert!(rows.iter().all(|row| tokens[*row as usize] == token as u32));
        }
        let values: Vec<Vec<f32>> = logits.to_vec2().unwrap();
        for (values, choices) in values.iter().zip(choices(&routing)) {
            let mut order: Vec<usize> = (0..6).collect();
            order.sort_by(|one, other| values[*other].total_cmp(&values[*one]));
            assert_eq!(order[..3], choices);
        }
        for part in routing.offsets.host().unwrap().windows(2) {
            assert!(tokens[part[0]..part[1]].is_sorted());
        }
    }

    #[test]
    fn weights_and_gradients_match_autograd() {
        for scores in [Scores::Softmax, Scores::Sigmoid, Scores::SigmoidOfChosen] {
            for normalised in [false, true] {
                let settings = settings(scores, normalised);
                let logits64 = logits(9, 5);
                let routing = forward(&logits64.to_dtype(DType::F32).unwrap(), None, &settings).unwrap();
                let chosen: Vec<u32> = choices(&routing).concat().iter().map(|expert| *expert as u32).collect();
                let chosen = Tensor::from_vec(chosen, (9, 3), &Device::Cpu).unwrap();
                let weigh = |logits: &Tensor| {
                    let p = match scores {
                        Scores::Softmax => {
                            let exp = logits.exp()?;
                            exp.broadcast_div(&exp.sum_keepdim(1)?)?
                        }
                        Scores::Sigmoid | Scores::SigmoidOfChosen => (logits.neg()?.exp()? + 1.0)?.recip()?,
                    };
                    let best = p.gather(&chosen, 1)?;
                    let best = if normalised {
                        best.broadcast_div(&best.sum_keepdim(1)?)?
                    } else {
                        best
                    };
                    best * 1.5
                };
                let rows = routing.rows.flatten_all().unwrap();
                let of_tokens = |by_row: &Tensor| by_row.index_select(&rows, 0).unwrap().reshape((9, 3)).unwrap();
                assert_close(&of_tokens(&routing.weights), &weigh(&logits64).unwrap(), "weights");
                let by_row = random(&[27], 3);
                let expected = autograd(&[&logits64], &of_tokens(&by_row), |inputs| weigh(&inputs[0]));
                let got = backward(&routing, &by_row.to_dtype(DType::F32).unwrap(), &settings).unwrap();
                assert_close(&got, &expected[0], "d_logits");
            }
        }
    }

    #[test]
    fn a_correction_decides_the_choice_and_not_the_weight() {
        let logits = Tensor::new(&[[0f32, 1.0, 2.0, 3.0]], &Device::Cpu).unwrap();
        let correction = Tensor::new(&[5f32, 0.0, 0.0, -5.0], &Device::Cpu).unwrap();
        let settings = Settings {
            chosen: 2,
            scale: 1.0,
            ..settings(Scores::Sigmoid, false)
        };
        let routing = forward(&logits, Some(&correction), &settings).unwrap();
        assert_eq!(choices(&routing), [[0, 2]]);
        let weights: Vec<f32> = routing.weights.to_vec1().unwrap();
        assert!((weights[0] - 0.5).abs() < 1e-6, "{weights:?}");
    }

    #[test]
    fn sigmoids_that_are_alike_are_told_apart_by_their_logits() {
        let logits = Tensor::new(&[[30f32, 40.0, -1.0], [2.0, 1.0, 3.0]], &Device::Cpu).unwrap();
        let settings = Settings {
            chosen: 1,
            scale: 1.0,
            ..settings(Scores::SigmoidOfChosen, false)
        };
        let routing = forward(&logits, None, &settings).unwrap();
        assert_eq!(choices(&routing), [[1], [2]]);
        let weights: Vec<f32> = routing.weights.to_vec1().unwrap();
        assert!(
            weights[0] == 1.0 && (weights[1] - 1.0 / (1.0 + (-3f32).exp())).abs() < 1e-6,
            "{weights:?}"
        );
    }

    #[test]
    fn only_the_best_groups_are_chosen_from() {
        // Groups of two: sums 3, 4.5, 4; the highest score is in the group that is left out.
        let logits = Tensor::new(&[[3f32, -3.0, 1.0, 1.1, 0.9, 1.0]], &Device::Cpu).unwrap();
        let settings = Settings {
            chosen: 3,
            groups: Some((3, 2)),
            ..settings(Scores::Sigmoid, true)
        };
        let mut chosen = choices(&forward(&logits, None, &settings).unwrap()).concat();
        chosen.sort_unstable();
        assert_eq!(chosen, [2, 3, 5]);
    }

    #[test]
    fn logits_that_are_no_numbers_choose_as_many_experts() {
        let nan = Tensor::full(f32::NAN, (2, 4), &Device::Cpu).unwrap();
        for scores in [Scores::Softmax, Scores::Sigmoid] {
            let routing = forward(&nan, None, &settings(scores, true)).unwrap();
            assert_eq!(choices(&routing), [[0, 1, 2], [0, 1, 2]]);
            let weights: Vec<f32> = routing.weights.to_vec1().unwrap();
            assert!(weights.iter().all(|weight| weight.is_nan()));
        }
    }

    #[test]
    fn an_expert_that_nobody_chooses_has_no_rows() {
        let logits = Tensor::new(&[[3f32, 2.0, 1.0, -9.0], [1.0, 2.0, 3.0, -9.0]], &Device::Cpu).unwrap();
        let routing = forward(&logits, None, &settings(Scores::Softmax, true)).unwrap();
        assert_eq!(routing.offsets.host().unwrap(), [0, 2, 4, 6, 6]);
    }
}
