//! Small products of F32 matrices on one thread, for ops that are parallel already.

use super::terms::multiplies_pairs;
use super::view::{Old, View};
#[cfg(target_arch = "x86_64")]
use super::{amx, pairs};
use candle_core::DType;
#[cfg(target_arch = "x86_64")]
use peft_tune_core::plan::products;

/// How exact the products of two values are; sums are in F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exactness {
    Full,
    /// Products of values that are rounded to BF16 first, which the processor multiplies in pairs.
    Bf16,
}

impl Exactness {
    /// Exactness that serves operands which came from `dtype`.
    pub(crate) fn of(dtype: DType) -> Self {
        match dtype {
            DType::BF16 if multiplies_pairs() => Self::Bf16,
            _ => Self::Full,
        }
    }
}

/// left times right, into `result` (row-major).
///
/// [`Exactness::Bf16`] is a permission: a processor without such products does better.
pub(crate) fn multiply(left: View<'_>, right: View<'_>, result: &mut [f32], old: Old, exactness: Exactness) {
    assert_eq!(left.columns, right.rows, "the inner dimensions agree");
    assert!(left.rows * right.columns <= result.len(), "the result has room");
    #[cfg(target_arch = "x86_64")]
    let form = match exactness {
        Exactness::Bf16 => Some(amx::Form::Pairs),
        // Smaller ones fill no step, or pay more for laying out than they save.
        Exactness::Full if left.columns.min(right.columns) >= products::amx::FEWEST_DIGITS => Some(amx::Form::Digits),
        Exactness::Full => None,
    };
    #[cfg(target_arch = "x86_64")]
    if let Some(form) = form.filter(|_| left.rows >= products::amx::FEWEST_SMALL_ROWS && amx::is_available()) {
        // SAFETY: the unit is there; views lie within their values, and the result has room.
        return unsafe { amx::multiply_small(form, left, right, result, old) };
    }
    #[cfg(target_arch = "x86_64")]
    if exactness == Exactness::Bf16 && multiplies_pairs() {
        // SAFETY: the processor was checked; views lie within their values, and the result has room.
        return unsafe { pairs::multiply(left, right, result, old) };
    }
    // SAFETY: views lie within their values, and the result has room for (rows, columns).
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            result.as_mut_ptr(),
            1,
            right.columns as isize,
            old == Old::Add,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::element::Element;
    use half::bf16;
    use proptest::prelude::*;

    /// Values that BF16 holds exactly.
    fn values(count: usize, seed: usize) -> Vec<f32> {
        let value = |i: usize| ((i * 37 + seed * 11) % 23) as f32 / 8.0 - 1.25;
        (0..count)
            .map(|i| <bf16 as Element>::narrow(value(i)).widen())
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn every_layout_matches_plain_loops(
            rows in 1usize..40, columns in 1usize..120, depth in 1usize..70, turned: [bool; 2], add: bool, pairs: bool,
        ) {
            let (left_values, right_values) = (values(rows * depth, 1), values(depth * columns, 2));
            let left = match turned[0] {
                false => View::new(&left_values, rows, depth),
                true => View::new(&left_values, depth, rows).t(),
            };
            let right = match turned[1] {
                false => View::new(&right_values, depth, columns),
                true => View::new(&right_values, columns, depth).t(),
            };
            let at = |view: &View<'_>, row: usize, column: usize| view.values[row * view.row_stride + column * view.column_stride];
            let (old, exactness) = (
                if add { Old::Add } else { Old::Overwrite },
                if pairs { Exactness::of(DType::BF16) } else { Exactness::Full },
            );
            let mut result = vec![1.0; rows * columns];
            multiply(left, right, &mut result, old, exactness);
            for row in 0..rows {
                for column in 0..columns {
                    let product: f32 = (0..depth).map(|unit| at(&left, row, unit) * at(&right, unit, column)).sum();
                    let expected = if add { 1.0 + product } else { product };
                    let got = result[row * columns + column];
                    prop_assert!((got - expected).abs() < 1e-3, "({row}, {column}): {got} instead of {expected}");
                }
            }
        }
    }
}
