//! The operands of a product and where its result goes, as both engines take them.

use super::order::Order;
use super::quantized_source::QuantizedSource;
use crate::ops::element::Element;
use half::{bf16, f16};
use std::ops::Range;

/// A right operand of elements `T`, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a, T> {
    pub values: &'a [T],
    pub order: Order,
    /// Columns of the result.
    pub columns: usize,
    /// Length of the summed dimension.
    pub depth: usize,
    /// Values from one row in memory to the next.
    pub stride: usize,
    /// Factor on every value.
    pub scale: f32,
}

/// A right operand of any float dtype, or of codes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Right<'a> {
    F32(Source<'a, f32>),
    Bf16(Source<'a, bf16>),
    F16(Source<'a, f16>),
    QuantizedMatrix(QuantizedSource<'a>),
}

impl Right<'_> {
    /// Length of the summed dimension.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::F32(source) => source.depth,
            Self::Bf16(source) => source.depth,
            Self::F16(source) => source.depth,
            Self::QuantizedMatrix(source) => source.depth,
        }
    }
}

/// A left operand, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left<'a, T> {
    pub values: &'a [T],
    pub side: Side,
    /// Values from one row in memory to the next.
    pub stride: usize,
}

/// Orientation of a left operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// (rows of the result, summed).
    Straight,
    /// (summed, rows of the result).
    Transposed,
}

/// Values of any float dtype.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl<'a> Values<'a> {
    /// The values, where they are F32.
    pub(crate) fn f32(self) -> Option<&'a [f32]> {
        match self {
            Self::F32(values) => Some(values),
            Self::Bf16(_) | Self::F16(_) => None,
        }
    }

    /// The values, where they are BF16.
    pub(crate) fn bf16(self) -> Option<&'a [bf16]> {
        match self {
            Self::Bf16(values) => Some(values),
            Self::F32(_) | Self::F16(_) => None,
        }
    }

    /// The values, where they are F16.
    pub(crate) fn f16(self) -> Option<&'a [f16]> {
        match self {
            Self::F16(values) => Some(values),
            Self::F32(_) | Self::Bf16(_) => None,
        }
    }

    /// The values at `places`, or so many of them as there are: a product widens all that it is given.
    pub(crate) fn at(self, places: Range<usize>) -> Self {
        fn at<T>(values: &[T], places: Range<usize>) -> &[T] {
            let end = places.end.min(values.len());
            values.get(places.start..end).unwrap_or_default()
        }
        match self {
            Self::F32(values) => Self::F32(at(values, places)),
            Self::Bf16(values) => Self::Bf16(at(values, places)),
            Self::F16(values) => Self::F16(at(values, places)),
        }
    }

    /// A right operand of these values, with rows that are `stride` values apart.
    pub(crate) fn right(self, order: Order, (columns, depth): (usize, usize), stride: usize, scale: f32) -> Right<'a> {
        fn source<T>(values: &[T], order: Order, size: (usize, usize), stride: usize, scale: f32) -> Source<'_, T> {
            Source {
                values,
                order,
                columns: size.0,
                depth: size.1,
                stride,
                scale,
            }
        }
        let size = (columns, depth);
        match self {
            Self::F32(values) => Right::F32(source(values, order, size, stride, scale)),
            Self::Bf16(values) => Right::Bf16(source(values, order, size, stride, scale)),
            Self::F16(values) => Right::F16(source(values, order, size, stride, scale)),
        }
    }
}

/// One product of a sum of products, with a left operand of any float dtype.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product<'a> {
    pub left: Values<'a>,
    pub side: Side,
    /// Values from one row of the left operand to the next.
    pub stride: usize,
    pub right: Right<'a>,
}

impl<'a> Product<'a> {
    /// Returns the product of some rows of a straight left operand.
    pub(crate) fn at_rows(&self, rows: &Range<usize>) -> Self {
        Self {
            left: self.left.at(rows.start * self.stride..rows.end * self.stride),
            ..*self
        }
    }
}

/// One product of a sum of products, as an engine takes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term<'a, T> {
    pub left: Left<'a, T>,
    pub right: Right<'a>,
}

/// Destination of the result, row-major.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Result<O> {
    pub start: *mut O,
    /// Values from one row to the next.
    pub stride: usize,
    pub old: Old<O>,
}

/// Values that the product is added to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Old<O> {
    /// No values; the result may be uninitialised.
    Nothing,
    /// Values of another matrix of the same size and stride.
    Other(*const O),
    /// Values that the result has, to which the factor times the product is added.
    Itself(f32),
}

impl<O> Result<O> {
    /// Every element is overwritten.
    pub(crate) fn store(start: *mut O, stride: usize) -> Self {
        let old = Old::Nothing;
        Self { start, stride, old }
    }

    /// The result from a row on.
    pub(crate) fn at_row(&self, row: usize) -> Self
    where
        O: Copy,
    {
        let elements = row * self.stride;
        Self {
            start: self.at(elements),
            stride: self.stride,
            old: match self.old {
                Old::Other(other) => Old::Other(other.wrapping_add(elements)),
                old => old,
            },
        }
    }

    /// The element so many behind the first one. Reaching it is as unsafe as the pointer is.
    pub(crate) fn at(&self, element: usize) -> *mut O {
        self.start.wrapping_add(element)
    }
}

// SAFETY: the engines write disjoint parts of the result from different threads.
unsafe impl<O: Element> Sync for Result<O> {}
