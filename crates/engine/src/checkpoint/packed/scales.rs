//! Scales (and zero points) of the parts of a weight.

use half::{bf16, f16};
use rayon::prelude::*;

/// The dtype to which a reader rounds code·scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rounding {
    F32,
    F16,
    Bf16,
}

impl Rounding {
    pub(super) fn of(self, value: f32) -> f32 {
        match self {
            Self::F32 => value,
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
        }
    }
}

/// Division of a weight (out, in) into parts.
#[derive(Clone, Debug)]
pub(super) struct Tiling {
    /// Rows of one part.
    pub rows: usize,
    /// The part of each column.
    pub groups: Vec<usize>,
    /// Parts in a row.
    pub columns: usize,
}

impl Tiling {
    /// Parts of `rows` by `columns` elements, the last ones smaller where the weight does not divide.
    pub(super) fn tiles(inputs: usize, (rows, columns): (usize, usize)) -> Self {
        Self {
            rows: rows.max(1),
            groups: (0..inputs).map(|column| column / columns.max(1)).collect(),
            columns: inputs.div_ceil(columns.max(1)),
        }
    }

    /// The part of an element.
    fn at(&self, row: usize, column: usize) -> usize {
        row / self.rows * self.columns + self.groups[column]
    }
}

/// Values of a weight, (code - zero)·scale, made row by row on all threads.
pub(super) struct Widening<'a> {
    pub tiling: &'a Tiling,
    pub scales: &'a [f32],
    /// Zero points by part; empty where all are zero.
    pub zeros: &'a [f32],
    pub rounding: Rounding,
}

impl Widening<'_> {
    /// All values, row after row; `code` gives the number that stands at a row and a column.
    pub(super) fn values(
        &self,
        (outputs, inputs): (usize, usize),
        code: impl Fn(usize, usize) -> f32 + Sync,
    ) -> Vec<f32> {
        let mut values = vec![0.0; outputs * inputs];
        values
            .par_chunks_mut(inputs.max(1))
            .enumerate()
            .for_each(|(row, values)| {
                for (column, value) in values.iter_mut().enumerate() {
                    let part = self.tiling.at(row, column);
                    let zero = self.zeros.get(part).copied().unwrap_or_default();
                    *value = self.rounding.of((code(row, column) - zero) * self.scales[part]);
                }
            });
        values
    }
}
