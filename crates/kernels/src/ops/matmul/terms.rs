//! Products as the terms that an engine takes: with left operands of one type.

#[cfg(target_arch = "x86_64")]
use super::operand::Side;
use super::operand::{Left, Product, Term, Values};
#[cfg(target_arch = "x86_64")]
use super::unit_operand::Operand;
use super::widened;
use crate::ops::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::ops::simd::{Level, level};
#[cfg(target_arch = "x86_64")]
use half::bf16;
use std::borrow::Cow;

/// Whether products of BF16 run on pairs.
pub(crate) fn multiplies_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    return level() == Level::Avx512 && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// The left operands in F32.
pub(super) fn wide<'a>(products: &[Product<'a>]) -> Vec<Cow<'a, [f32]>> {
    products.iter().map(|product| widened(product.left)).collect()
}

/// Products with their left operands in F32.
pub(super) fn wide_terms<'a>(products: &[Product<'a>], wide: &'a [Cow<'_, [f32]>]) -> Vec<Term<'a, f32>> {
    let both = products.iter().zip(wide);
    let term = |(product, values): (&Product<'a>, &'a Cow<'_, [f32]>)| Term {
        left: left(product, values),
        right: product.right,
    };
    both.map(term).collect()
}

/// The terms as products of pairs, where all left operands are BF16 with rows of whole pairs and the processor multiplies
/// them.
#[cfg(target_arch = "x86_64")]
pub(super) fn pairs<'a>(products: &[Product<'a>]) -> Option<Vec<Term<'a, bf16>>> {
    if !multiplies_pairs() {
        return None;
    }
    let term = |product: &Product<'a>| {
        let whole = product.right.depth().is_multiple_of(2) && product.stride.is_multiple_of(2);
        match product.left {
            Values::Bf16(values) if product.side == Side::Transposed || whole => Some(Term {
                left: left(product, values),
                right: product.right,
            }),
            _ => None,
        }
    };
    products.iter().map(term).collect()
}

/// The terms, where `values` has the left operands of all products.
#[cfg(target_arch = "x86_64")]
pub(super) fn terms_of<'a, T: Operand>(
    products: &[Product<'a>],
    values: impl Fn(Values<'a>) -> Option<&'a [T]>,
) -> Option<Vec<Term<'a, T>>> {
    let term = |product: &Product<'a>| {
        Some(Term {
            left: left(product, values(product.left)?),
            right: product.right,
        })
    };
    products.iter().map(term).collect()
}

fn left<'a, T>(product: &Product<'_>, values: &'a [T]) -> Left<'a, T> {
    Left {
        values,
        side: product.side,
        stride: product.stride,
    }
}

/// The values in F32.
fn widened(values: Values<'_>) -> Cow<'_, [f32]> {
    fn wide<T: Element>(values: &[T]) -> Cow<'_, [f32]> {
        let mut wide = vec![0.0; values.len()];
        widened::widen_slice(values, &mut wide);
        wide.into()
    }
    match values {
        Values::F32(values) => values.into(),
        Values::Bf16(values) => wide(values),
        Values::F16(values) => wide(values),
    }
}
