//! Row by row, the element-wise part of attention between its products.
//!
//! A score block is row-major, (rows, keys); its rows are (query, head of the group). `State` keeps the online softmax
//! (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>): m, the largest score so far, and the sum of
//! exp(s - m).

use super::block::visible;
use crate::ops::exponential::{exp, tanh};
use crate::ops::simd::{LANES, multiversion, sum, sum2};
use std::ops::Range;

/// Place of a score block, and what its scores mean.
#[derive(Clone, Debug)]
pub(super) struct ScoreBlock {
    /// Query of the first row.
    pub query: usize,
    /// Rows of a query.
    pub group: usize,
    pub keys: Range<usize>,
    pub window: usize,
    /// Factor on the products of queries and keys.
    pub scale: f32,
    /// Soft-cap, or infinity.
    pub cap: f32,
}

/// Running maximum and sum of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub max: f32,
    pub sum: f32,
}

impl State {
    pub(super) const EMPTY: Self = Self {
        max: f32::NEG_INFINITY,
        sum: 0.0,
    };
}

multiversion! {
    /// Scales the scores and turns them into exp(s - m), zero where a query does not see a key, and brings the rows of
    /// the result so far (`width` values each) to the new maximum.
    pub(super) fn forward(scores: &mut [f32], place: &ScoreBlock, states: &mut [State], result: &mut [f32], width: usize) {
        let rows = scores.chunks_exact_mut(place.keys.len()).zip(states).zip(result.chunks_exact_mut(width));
        for (index, ((row, state), result)) in rows.enumerate() {
            let seen = visible(place.query + index / place.group, &place.keys, place.window);
            row[..seen.start].fill(0.0);
            row[seen.end..].fill(0.0);
            let row = &mut row[seen];
            if row.is_empty() {
                continue;
            }
            scale_and_cap::<FMA>(row, place.scale, place.cap);
            let max = largest(row, state.max);
            for score in row.iter_mut() {
                *score = exp::<FMA>(*score - max);
            }
            let factor = exp::<FMA>(state.max - max);
            *state = State {
                max,
                sum: state.sum * factor + sum(row, |weight| weight),
            };
            if factor != 1.0 {
                result.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }
}

multiversion! {
    /// Scales `scores` and turns them into p, and `d_weights` (dp) into ds; `lse` and `dots` (D) have a value for each row.
    pub(super) fn backward(scores: &mut [f32], d_weights: &mut [f32], place: &ScoreBlock, lse: &[f32], dots: &[f32]) {
        let keys = place.keys.len();
        let rows = scores.chunks_exact_mut(keys).zip(d_weights.chunks_exact_mut(keys)).zip(lse.iter().zip(dots));
        for (index, ((row, d_row), (lse, dot))) in rows.enumerate() {
            let seen = visible(place.query + index / place.group, &place.keys, place.window);
            for part in [0..seen.start, seen.end..keys] {
                row[part.clone()].fill(0.0);
                d_row[part].fill(0.0);
            }
            let (row, d_row) = (&mut row[seen.clone()], &mut d_row[seen]);
            // Copies: behind a reference they might change with every score that is written.
            let (lse, dot, scale) = (*lse, *dot, place.scale);
            if place.cap < f32::INFINITY {
                scale_and_cap::<FMA>(row, place.scale, place.cap);
                for (score, d) in row.iter_mut().zip(d_row) {
                    let (p, ratio) = (exp::<FMA>(*score - lse), *score / place.cap);
                    *d = p * (*d - dot) * (1.0 - ratio * ratio);
                    *score = p;
                }
            } else {
                for (score, d) in row.iter_mut().zip(d_row) {
                    let p = exp::<FMA>(*score * scale - lse);
                    *d = p * (*d - dot);
                    *score = p;
                }
            }
        }
    }
}

multiversion! {
    /// The dot product of each row of `left` with the same row of `right`.
    pub(super) fn dots(left: &[f32], right: &[f32], width: usize, dots: &mut [f32]) {
        let rows = left.chunks_exact(width).zip(right.chunks_exact(width));
        for (dot, (left, right)) in dots.iter_mut().zip(rows) {
            *dot = sum2(left, right, |left, right| left * right);
        }
    }
}

#[inline(always)]
fn scale_and_cap<const FMA: bool>(row: &mut [f32], scale: f32, cap: f32) {
    for score in row.iter_mut() {
        *score *= scale;
    }
    if cap < f32::INFINITY {
        for score in row.iter_mut() {
            *score = cap * tanh::<FMA>(*score / cap);
        }
    }
}

#[inline(always)]
fn largest(row: &[f32], start: f32) -> f32 {
    let (chunks, rest) = row.as_chunks::<LANES>();
    let mut lanes = [start; LANES];
    for chunk in chunks {
        for (lane, score) in lanes.iter_mut().zip(chunk) {
            *lane = if *score > *lane { *score } else { *lane };
        }
    }
    lanes
        .iter()
        .chain(rest)
        .fold(start, |max, score| if *score > max { *score } else { max })
}
