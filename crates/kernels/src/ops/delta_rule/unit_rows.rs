//! Queries and keys of length 1.

use super::gates::Gate;
use super::inputs::Heads;
use super::step::Step;
use crate::ops::simd::{multiversion, sum2};

/// Number that is added to the square of a query's or key's length.
pub(super) const EPSILON: f32 = 1e-6;

/// Queries and keys of a head of a document, of length 1, queries divided by sqrt(dk) too.
pub(super) struct UnitRows {
    pub q: Vec<f32>,
    pub k: Vec<f32>,
    /// Factors that gave each row its length, and the part of them beside the length.
    pub q_factors: (Vec<f32>, f32),
    pub k_factors: (Vec<f32>, f32),
}

impl UnitRows {
    /// Step of a token, with its values and gate.
    pub(super) fn step<'a>(&'a self, token: usize, v: &'a [f32], heads: Heads, gate: Gate) -> Step<'a> {
        let of = |rows: &'a [f32], width: usize| &rows[token * width..][..width];
        Step {
            q: of(&self.q, heads.key_width),
            k: of(&self.k, heads.key_width),
            v: of(v, heads.value_width),
            gate,
        }
    }
}

multiversion! {
    /// Brings rows of `width` to length 1 times `scale`; returns what each was multiplied with.
    pub(super) fn to_unit(rows: &mut [f32], width: usize, scale: f32) -> Vec<f32> {
        let of_row = |row: &mut [f32]| {
            let factor = scale / (sum2(row, row, |a: f32, b: f32| a * b) + EPSILON).sqrt();
            for value in row.iter_mut() {
                *value *= factor;
            }
            factor
        };
        rows.chunks_exact_mut(width).map(of_row).collect()
    }
}

/// The gradient with respect to rows from that of their form of length 1: f (d - u <u, d> / s^2), f the factor of [`to_unit`], u what it
/// gave and s its scale.
pub(super) fn through_lengths(d: &mut [f32], unit: &[f32], (factors, scale): &(Vec<f32>, f32), width: usize) {
    let rows = d.chunks_exact_mut(width).zip(unit.chunks_exact(width));
    for ((d, unit), factor) in rows.zip(factors) {
        let along = sum2(d, unit, |d: f32, unit: f32| d * unit) / (scale * scale);
        for (d, unit) in d.iter_mut().zip(unit) {
            *d = factor * (*d - along * unit);
        }
    }
}
