//! Sums of products that all rows share, with more products for some of the rows: the linear layers of several trainings on one base.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | shared | x (T, K), w (N, K) | the frozen weights, which all rows are multiplied with |
//! | own | x (rows, r), w (N, r) | for each range of rows its own adapter |
//!
//! A row has the bits that its range would have alone, as [`nt_sum`](super::nt_sum) of the shared products and its own. The engine of
//! processors without AVX2 packs and widens a shared operand once for all rows. The others take each range by itself. On a GPU the
//! shared operand is widened once, and the library that multiplies may choose another kernel for another number of rows.

use std::ops::Range;

use candle_core::{Result, Tensor};
use peft_tune_core::plan::products::MAX_TERMS;

use super::engine;
use super::linear::{check, fresh, guards, hold, products, size};
use super::order::Order;
use super::reference;
use super::segments::segments;
use super::term::Term;
use crate::gpu;
use crate::ops::cuda;
use crate::ops::element::with_element;
use crate::ops::shape;
use crate::ops::storage::is_fused;

/// Products that some rows of a sum have beside the shared ones.
#[derive(Clone, Debug)]
pub struct RowTerms<'a> {
    pub rows: Range<usize>,
    /// x has a row for each of `rows`; none where these rows have the shared products alone.
    pub terms: Vec<Term<'a>>,
}

/// The sum of scale x w^T over the `shared` terms, and for each range of `own` over its terms too; onto y (T, N) where there is one.
/// Summed in F32 and rounded once.
///
/// # Errors
/// Shapes that do not fit; ranges that overlap or do not ascend; more than four terms for a row.
pub fn nt_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>], onto: Option<&Tensor>) -> Result<Tensor> {
    sum(shared, own, Order::Transposed, onto)
}

/// Sums as [`nt_by_rows`] does, with scale x w.
///
/// # Errors
/// Errors of [`nt_by_rows`].
pub fn nn_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>]) -> Result<Tensor> {
    sum(shared, own, Order::Straight, None)
}

fn sum(shared: &[Term<'_>], own: &[RowTerms<'_>], order: Order, onto: Option<&Tensor>) -> Result<Tensor> {
    check(shared, order)?;
    let (rows, columns) = size(&shared[0], order)?;
    check_own(shared, own, order)?;
    if let Some(onto) = onto {
        shape::expect(onto, &[rows, columns], "matmul: y")?;
    }
    let dtype = shared[0].x.dtype();
    let mut all = shared.iter().chain(own.iter().flat_map(|part| &part.terms));
    if all.clone().all(|term| gpu::takes(term.x)) {
        return cuda::matmul::sum_by_rows(shared, own, (rows, columns), order == Order::Transposed, onto);
    }
    let same = onto.is_none_or(|onto| onto.dtype() == dtype && is_fused(onto));
    if !same || all.any(|term| !term.is_fused()) {
        let sum = plain(shared, own, order, rows)?;
        return onto.map_or(Ok(sum.clone()), |onto| onto + sum);
    }
    let held_shared = hold(shared)?;
    let held_own = own.iter().map(|part| hold(&part.terms)).collect::<Result<Vec<_>>>()?;
    let guards_shared = guards(&held_shared)?;
    let guards_own = held_own.iter().map(|held| guards(held)).collect::<Result<Vec<_>>>()?;
    let shared = products(&guards_shared, shared, order)?;
    let each = guards_own.iter().zip(own);
    let own = each
        .map(|(guards, part)| Ok((part.rows.clone(), products(guards, &part.terms, order)?)))
        .collect::<Result<Vec<_>>>()?;
    with_element!(dtype, T => {
        // SAFETY: the target has (rows, columns), as has what it is added to; every element of it is written.
        unsafe {
            fresh::<T>([rows, columns], onto, |target| {
                engine::multiply_by_rows(&shared, &own, (rows, columns), target);
                Ok(())
            })
        }
    })
}

/// Fails unless the ranges ascend within the rows, and their terms fit the shared ones.
fn check_own(shared: &[Term<'_>], own: &[RowTerms<'_>], order: Order) -> Result<()> {
    let ((rows, columns), mut end) = (size(&shared[0], order)?, 0);
    for part in own {
        if part.rows.start < end || part.rows.end < part.rows.start || part.rows.end > rows {
            candle_core::bail!("matmul: rows {:?} of {rows}, behind {end} others", part.rows);
        }
        end = part.rows.end;
        if shared.len() + part.terms.len() > MAX_TERMS {
            candle_core::bail!(
                "matmul: a sum takes {MAX_TERMS} products at most, got {}",
                shared.len() + part.terms.len()
            );
        }
        let Some(first) = part.terms.first() else { continue };
        check(&part.terms, order)?;
        if size(first, order)? != (part.rows.len(), columns) || first.x.dtype() != shared[0].x.dtype() {
            candle_core::bail!(
                "matmul: products of {:?} {:?} for {} rows of {columns} columns",
                size(first, order)?,
                first.x.dtype(),
                part.rows.len()
            );
        }
    }
    Ok(())
}

/// One range after the other, in plain candle ops.
fn plain(shared: &[Term<'_>], own: &[RowTerms<'_>], order: Order, rows: usize) -> Result<Tensor> {
    let mut parts = Vec::new();
    for (number, range) in segments(own.iter().map(|part| &part.rows), rows) {
        let narrow = |term: &Term<'_>| term.x.narrow(0, range.start, range.len());
        let xs = shared.iter().map(narrow).collect::<Result<Vec<_>>>()?;
        let of_range = xs.iter().zip(shared);
        let mut terms: Vec<Term<'_>> = of_range.map(|(x, term)| Term { x, ..*term }).collect();
        if let Some(number) = number {
            terms.extend(own[number].terms.iter().copied());
        }
        parts.push(reference::sum(&terms, order)?);
    }
    Tensor::cat(&parts, 0)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};
    use proptest::prelude::*;

    use super::*;
    use crate::gpu::{emulated, has_compiler};
    use crate::ops::matmul::int8::oracle::{Coded, Storage};
    use crate::ops::matmul::{Factor, nn_sum, nt_onto, nt_sum};
    use crate::ops::oracle::{random, rounded};
    use peft_tune_core::recipe::ActivationQuantization;

    /// Random matrix in `dtype`.
    fn matrix(rows: usize, columns: usize, seed: u64, dtype: DType) -> Tensor {
        rounded(&random(&[rows, columns], seed), dtype).0
    }

    fn bits(tensor: &Tensor) -> Vec<u32> {
        let values: Vec<f32> = tensor
            .to_dtype(DType::F32)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        values.into_iter().map(f32::to_bits).collect()
    }

    /// Part of a sum that a range of rows has, computed alone.
    fn alone(shared: &[Term<'_>], part: &RowTerms<'_>, order: Order, onto: Option<&Tensor>) -> Vec<u32> {
        let narrow = |tensor: &Tensor| tensor.narrow(0, part.rows.start, part.rows.len()).unwrap();
        let xs: Vec<Tensor> = shared.iter().map(|term| narrow(term.x)).collect();
        let mut terms: Vec<Term<'_>> = xs.iter().zip(shared).map(|(x, term)| Term { x, ..*term }).collect();
        terms.extend(&part.terms);
        bits(&match (order, onto) {
            (Order::Straight, _) => nn_sum(&terms).unwrap(),
            (Order::Transposed, Some(onto)) => nt_onto(&narrow(onto), &terms).unwrap(),
            (Order::Transposed, None) => nt_sum(&terms).unwrap(),
        })
    }

    /// Compares in both orders, on 31 rows of the first range, 64 of the second, which has no adapter, and the rest.
    fn compare(weight: Factor<'_>, sizes: [usize; 3], ranks: [usize; 2], dtype: DType) {
        let [last, outputs, inputs] = sizes;
        let ranges = [0..31, 31..95, 95..95 + last];
        let (rows, mut seed) = (95 + last, 10);
        let mut next = |rows, columns| {
            seed += 1;
            matrix(rows, columns, seed, dtype)
        };
        for (order, depth, width) in [(Order::Transposed, inputs, outputs), (Order::Straight, outputs, inputs)] {
            let (x, onto) = (next(rows, depth), next(rows, width));
            let us = [next(31, ranks[0]), next(last, ranks[1])];
            // Adapters are kept in F32.
            let factor = |rank: usize, seed| match order {
                Order::Transposed => matrix(width, rank, seed, DType::F32),
                Order::Straight => matrix(rank, width, seed, DType::F32),
            };
            let factors = [factor(ranks[0], 1), factor(ranks[1], 2)];
            let shared = [Term {
                x: &x,
                w: weight,
                scale: 1.0,
            }];
            let own = [
                vec![Term::new(&us[0], &factors[0], 2.0)],
                vec![],
                vec![Term::new(&us[1], &factors[1], 0.25)],
            ];
            let own: Vec<RowTerms<'_>> = ranges
                .iter()
                .zip(own)
                .map(|(rows, terms)| RowTerms {
                    rows: rows.clone(),
                    terms,
                })
                .collect();
            let ontos = match order {
                Order::Transposed => vec![None, Some(&onto)],
                Order::Straight => vec![None],
            };
            for onto in ontos {
                let sum = match order {
                    Order::Transposed => nt_by_rows(&shared, &own, onto),
                    Order::Straight => nn_by_rows(&shared, &own),
                };
                let expected: Vec<u32> = own.iter().flat_map(|part| alone(&shared, part, order, onto)).collect();
                assert!(
                    bits(&sum.unwrap()) == expected,
                    "{order:?} {sizes:?} {ranks:?} {dtype:?}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn rows_have_the_bits_that_they_have_alone(
            last in 1usize..200, outputs in 1usize..700, inputs in 1usize..700, ranks in [1usize..20, 1usize..20],
            narrow: bool, narrow_weight: bool,
        ) {
            let dtype = if narrow { DType::BF16 } else { DType::F32 };
            let weight = matrix(outputs, inputs, 3, if narrow_weight { DType::BF16 } else { DType::F32 });
            compare((&weight).into(), [last, outputs, inputs], ranks, dtype);
        }
    }

    #[test]
    fn codes_are_widened_for_all_rows_to_the_same_bits() {
        let weight = random(&[96, 640], 5);
        let weight = weight.to_dtype(DType::F32).unwrap();
        let codes = Coded::new(&weight, Storage::Nf4, ActivationQuantization::None);
        compare(Factor::QuantizedMatrix(&codes), [40, 96, 640], [3, 8], DType::F32);
        compare(Factor::QuantizedMatrix(&codes), [40, 96, 640], [3, 8], DType::BF16);
    }

    #[test]
    fn a_gpu_gives_what_its_own_sums_give() {
        if !has_compiler() {
            return;
        }
        emulated(|| {
            let weight = matrix(40, 24, 3, DType::F32);
            compare((&weight).into(), [9, 40, 24], [2, 5], DType::F32);
        });
    }

    #[test]
    fn ranges_that_do_not_fit_are_refused() {
        let zeros = |rows, columns| Tensor::zeros((rows, columns), DType::F32, &Device::Cpu).unwrap();
        let (x, w, u, b) = (zeros(6, 4), zeros(5, 4), zeros(2, 3), zeros(5, 3));
        let shared = [Term::new(&x, &w, 1.0)];
        let run = |ranges: &[Range<usize>]| {
            let part = |rows: &Range<usize>| RowTerms {
                rows: rows.clone(),
                terms: vec![Term::new(&u, &b, 1.0)],
            };
            nt_by_rows(&shared, &ranges.iter().map(part).collect::<Vec<_>>(), None)
        };
        assert_eq!(run(&[1..3, 4..6]).unwrap().dims(), [6, 5]);
        for wrong in [[0..2, 3..6], [0..2, 5..7], [2..4, 3..5], [2..4, 0..2]] {
            assert!(run(&wrong).is_err(), "{wrong:?}");
        }
        let many = RowTerms {
            rows: 0..2,
            terms: vec![Term::new(&u, &b, 1.0); MAX_TERMS],
        };
        assert!(nt_by_rows(&shared, &[many], None).is_err());
        assert!(nt_by_rows(&[], &[], None).is_err());
    }
}
