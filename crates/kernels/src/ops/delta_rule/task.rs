//! Tasks of the rule: a key head of a document, with the value heads that read it.

use super::inputs::{Heads, Inputs};
use super::unit_rows::{UnitRows, to_unit};
use crate::ops::attention::{Rows, gather};
use crate::ops::element::Element;

/// A key head of a document.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub document: usize,
    /// First token in the stream.
    pub start: usize,
    pub length: usize,
    pub key_head: usize,
}

impl Task {
    /// The key heads of all documents.
    pub(super) fn all(inputs: &Inputs<'_>) -> Vec<Self> {
        let of_document = |(document, pair): (usize, &[u32])| {
            let (start, length) = (pair[0] as usize, (pair[1] - pair[0]) as usize);
            let task = move |key_head| Self {
                document,
                start,
                length,
                key_head,
            };
            (0..inputs.heads.keys).map(task)
        };
        inputs.offsets.windows(2).enumerate().flat_map(of_document).collect()
    }

    /// Rows of the task in a tensor of rows of `stride` values.
    pub(super) fn rows(&self, stride: usize, offset: usize, width: usize) -> Rows {
        Rows {
            token: self.start,
            stride,
            offset,
            width,
        }
    }

    /// Values of the task's rows, one behind the other.
    pub(super) fn gathered<T: Element>(&self, values: &[T], stride: usize, offset: usize, width: usize) -> Vec<f32> {
        let mut block = vec![0f32; self.length * width];
        if !block.is_empty() {
            gather(values, self.rows(stride, offset, width), 1.0, &mut block);
        }
        block
    }

    /// Queries and keys of the task.
    pub(super) fn gather<T: Element>(&self, values: &[T], heads: Heads) -> UnitRows {
        let (stride, width) = (heads.input_width(), heads.key_width);
        let of = |column: usize| self.gathered(values, stride, column + self.key_head * width, width);
        let (mut q, mut k) = (of(0), of(heads.keys * width));
        let scale = (width as f32).sqrt().recip();
        UnitRows {
            q_factors: (to_unit(&mut q, width, scale), scale),
            k_factors: (to_unit(&mut k, width, 1.0), 1.0),
            q,
            k,
        }
    }

    /// Values of a value head.
    pub(super) fn gather_values<T: Element>(&self, values: &[T], heads: Heads, head: usize) -> Vec<f32> {
        let column = 2 * heads.keys * heads.key_width + head * heads.value_width;
        self.gathered(values, heads.input_width(), column, heads.value_width)
    }

    /// Value heads that read the key head.
    pub(super) fn value_heads(&self, heads: Heads) -> std::ops::Range<usize> {
        self.key_head * heads.group()..(self.key_head + 1) * heads.group()
    }
}
