//! Products of groups of rows, each with a matrix of its own: the experts of a mixture.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `offsets` | (G + 1,) | first row of each group, and behind the last one the number of rows R |
//! | `x` | (R, K) | the rows of each group beside each other |
//! | `w` | G of (N, K) | one matrix for each group |
//!
//! Nothing is padded: a group has as many rows as it has, and one without rows costs nothing. Groups run beside each other, the
//! largest first. One that has more than a thread's share of the rows would hold the others up, and runs on all threads by itself.

use super::engine;
use super::factor::Factor;
use super::linear::{Guard, rows_of};
use super::operand::{Old, Product, Result as Target, Right, Side};
use super::order::Order;
use super::quantized_source::QuantizedSource;
use super::reference;
use super::term::Term;
use crate::gpu;
use crate::ops::cuda;
use crate::ops::element::with_element;
use crate::ops::offsets::{self, Offsets};
use crate::ops::shape;
use crate::ops::storage::{Unwritten, is_fused, update};
use crate::thread_pool;
use candle_core::{DType, Result, Tensor};
use peft_tune_core::plan::products::MAX_TERMS;
use std::ops::Range;

/// The matrices of all groups.
#[derive(Clone, Debug)]
pub enum GroupFactors<'a> {
    /// (G, N, K), contiguous.
    Stacked(&'a Tensor),
    Each(Vec<Factor<'a>>),
}

/// One product of a sum: `scale` times the rows of each group times its matrix.
#[derive(Clone, Debug)]
pub struct GroupTerm<'a> {
    /// (R, K) for [`nt`], (R, N) for [`nn`].
    pub x: &'a Tensor,
    pub w: GroupFactors<'a>,
    pub scale: f64,
}

/// The sum of scale x w^T over the terms, (R, N), in the dtype of x; summed in F32 and rounded once.
///
/// # Errors
/// Shapes that do not fit, rows that `offsets` does not divide.
pub fn nt(terms: &[GroupTerm<'_>], offsets: &Offsets) -> Result<Tensor> {
    sum(terms, offsets, Order::Transposed)
}

/// The sum of scale x w over the terms, (R, K); else as [`nt`].
///
/// # Errors
/// Errors of [`nt`].
pub fn nn(terms: &[GroupTerm<'_>], offsets: &Offsets) -> Result<Tensor> {
    sum(terms, offsets, Order::Straight)
}

/// Adds alpha a^T b of each group's rows of a (R, M) and b (R, N) to its part of `into` (G M, N) F32, in place (`+=`).
///
/// # Errors
/// Errors of [`nt`].
pub fn tn_add(a: &Tensor, b: &Tensor, offsets: &Offsets, alpha: f64, into: &Tensor) -> Result<()> {
    let ((total, rows), (_, columns)) = (a.dims2()?, b.dims2()?);
    check_offsets(offsets, total)?;
    let groups = offsets.groups();
    shape::expect(b, &[total, columns], "grouped tn_add: b")?;
    shape::expect(into, &[groups * rows, columns], "grouped tn_add: into")?;
    if into.dtype() == DType::F32 && gpu::takes(a) && gpu::takes(b) {
        return cuda::grouped::tn_add(a, b, offsets, alpha, into);
    }
    let offsets = offsets.host()?;
    offsets::check(offsets, total)?;
    if !is_fused(a) || !is_fused(b) {
        for (group, part) in ranges(offsets).enumerate().filter(|(_, part)| !part.is_empty()) {
            let of_group = |tensor: &Tensor| tensor.narrow(0, part.start, part.len());
            let into = into.narrow(0, group * rows, rows)?;
            reference::tn_add(&of_group(a)?, &of_group(b)?, alpha, &into)?;
        }
        return Ok(());
    }
    let (a, b) = (rows_of(a)?, rows_of(b)?);
    let ((left, left_stride), (right, right_stride)) = (Guard::rows(&a)?, Guard::rows(&b)?);
    let (left, right) = (left.values(), right.values());
    update(into, "grouped tn_add", |into| {
        let whole = Target::store(into.as_mut_ptr(), columns);
        for_each_group(offsets, |group, part| {
            let tokens = part.len();
            let of_group = |stride: usize| part.start * stride..part.end * stride;
            let (left, right) = (left.at(of_group(left_stride)), right.at(of_group(right_stride)));
            let sides = ((left, left_stride), (right, right_stride));
            // SAFETY: the parts of the groups are disjoint and lie within the result.
            let into = unsafe { std::slice::from_raw_parts_mut(whole.at(group * rows * columns), rows * columns) };
            if engine::multiply_thin(sides.0, sides.1, [tokens, rows, columns], alpha as f32, into) {
                return;
            }
            let product = Product {
                left,
                side: Side::Transposed,
                stride: left_stride,
                right: right.right(Order::Straight, (columns, tokens), right_stride, 1.0),
            };
            let target = Target {
                start: into.as_mut_ptr(),
                stride: columns,
                old: Old::Itself(alpha as f32),
            };
            // SAFETY: the target has (rows, columns).
            unsafe { engine::multiply(&[product], (rows, columns), target) };
        });
        Ok(())
    })
}

fn sum(terms: &[GroupTerm<'_>], offsets: &Offsets, order: Order) -> Result<Tensor> {
    let (total, columns) = check(terms, offsets, order)?;
    let dtype = terms[0].x.dtype();
    if terms.iter().all(|term| gpu::takes(term.x)) {
        return cuda::grouped::sum(terms, offsets, (total, columns), order == Order::Transposed);
    }
    let offsets = offsets.host()?;
    offsets::check(offsets, total)?;
    if terms.iter().any(|term| !is_fused(term.x) || !term.w.is_fused()) {
        return plain(terms, offsets, (total, columns), order);
    }
    let held: Vec<Held> = terms.iter().map(Held::new).collect::<Result<_>>()?;
    let guards: Vec<Guards<'_>> = held.iter().map(Held::guards).collect::<Result<_>>()?;
    // All operands are there before threads look at them: a guard belongs to the thread that made it.
    let of_group = |(group, part): (usize, Range<usize>)| {
        let each = guards.iter().zip(terms);
        each.map(|(guards, term)| guards.product(term, group, &part, order))
            .collect()
    };
    let products: Vec<Vec<Product<'_>>> = ranges(offsets).enumerate().map(of_group).collect::<Result<_>>()?;
    with_element!(dtype, T => {
        let mut result = Unwritten::<T>::new(total * columns);
        let whole = Target::store(result.slots().as_mut_ptr().cast::<T>(), columns);
        for_each_group(offsets, |group, part| {
            let target = Target::store(whole.at(part.start * columns), columns);
            // SAFETY: the rows of the groups are disjoint, and each target has its rows and all columns.
            unsafe { engine::multiply(&products[group], (part.len(), columns), target) };
        });
        // SAFETY: the groups have all rows between them, and every one was written.
        unsafe { result.into_tensor(&[total, columns]) }
    })
}

/// Calls `run` with every group that has rows, and with these rows.
fn for_each_group(offsets: &[usize], run: impl Fn(usize, Range<usize>) + Sync) {
    let mut groups: Vec<(usize, Range<usize>)> = ranges(offsets).enumerate().collect();
    groups.retain(|(_, part)| !part.is_empty());
    groups.sort_by_key(|(_, part)| std::cmp::Reverse(part.len()));
    let share = offsets.last().copied().unwrap_or(0) / thread_pool::threads();
    let alone = groups.partition_point(|(_, part)| part.len() > share);
    let (alone, beside) = groups.split_at(alone);
    for (group, part) in alone {
        run(*group, part.clone());
    }
    thread_pool::for_each(beside.len(), |index| {
        let (group, part) = &beside[index];
        run(*group, part.clone());
    });
}

fn ranges(offsets: &[usize]) -> impl Iterator<Item = Range<usize>> {
    offsets.windows(2).map(|pair| pair[0]..pair[1])
}

/// Fails unless the offsets divide `total` rows. What a kernel has made is not asked for its values.
fn check_offsets(offsets: &Offsets, total: usize) -> Result<()> {
    if offsets.rows() != total {
        candle_core::bail!("grouped products: offsets of {} rows for {total}", offsets.rows());
    }
    Ok(())
}

/// (rows, columns) of the result, once all shapes have been checked.
fn check(terms: &[GroupTerm<'_>], offsets: &Offsets, order: Order) -> Result<(usize, usize)> {
    let Some(first) = terms.first() else {
        candle_core::bail!("grouped products: a sum needs at least one product");
    };
    if terms.len() > MAX_TERMS {
        candle_core::bail!(
            "grouped products: a sum takes {MAX_TERMS} products at most, got {}",
            terms.len()
        );
    }
    let total = first.x.dims2()?.0;
    check_offsets(offsets, total)?;
    let mut columns = None;
    for term in terms {
        let depth = term.x.dims2()?.1;
        shape::expect(term.x, &[total, depth], "grouped products: x")?;
        if term.x.dtype() != first.x.dtype() {
            candle_core::bail!("grouped products: a sum takes x of one dtype");
        }
        for group in 0..offsets.groups() {
            let (rows, inner) = term.w.dims2(group)?;
            let (wide, summed) = if order == Order::Transposed {
                (rows, inner)
            } else {
                (inner, rows)
            };
            if summed != depth || *columns.get_or_insert(wide) != wide {
                candle_core::bail!(
                    "grouped products: the matrix of group {group} is ({rows}, {inner}), for x of {depth} columns"
                );
            }
        }
    }
    Ok((total, columns.unwrap_or(0)))
}

/// One product after the other, in plain candle ops.
fn plain(terms: &[GroupTerm<'_>], offsets: &[usize], (total, columns): (usize, usize), order: Order) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(offsets.len());
    for (group, part) in ranges(offsets).enumerate().filter(|(_, part)| !part.is_empty()) {
        let xs: Vec<Tensor> = terms
            .iter()
            .map(|term| term.x.narrow(0, part.start, part.len()))
            .collect::<Result<_>>()?;
        let ws: Vec<Tensor> = terms
            .iter()
            .map(|term| term.w.dense(group, term.x.dtype()))
            .collect::<Result<_>>()?;
        let of_group = xs.iter().zip(&ws).zip(terms);
        let of_group: Vec<Term<'_>> = of_group.map(|((x, w), term)| Term::new(x, w, term.scale)).collect();
        parts.push(reference::sum(&of_group, order)?);
    }
    match parts.is_empty() {
        true => Tensor::zeros((total, columns), terms[0].x.dtype(), terms[0].x.device()),
        false => Tensor::cat(&parts, 0),
    }
}

impl GroupFactors<'_> {
    pub(in crate::ops) fn dims2(&self, group: usize) -> Result<(usize, usize)> {
        match self {
            Self::Stacked(tensor) => {
                let (groups, rows, columns) = tensor.dims3()?;
                if group >= groups {
                    candle_core::bail!("grouped products: {groups} matrices for more groups");
                }
                Ok((rows, columns))
            }
            Self::Each(factors) => match factors.get(group) {
                Some(factor) => factor.dims2(),
                None => candle_core::bail!("grouped products: {} matrices for more groups", factors.len()),
            },
        }
    }

    fn is_fused(&self) -> bool {
        match self {
            Self::Stacked(tensor) => is_fused(tensor),
            Self::Each(factors) => factors.iter().all(Factor::is_fused),
        }
    }

    fn dense(&self, group: usize, dtype: DType) -> Result<Tensor> {
        match self {
            Self::Stacked(tensor) => tensor.get(group)?.to_dtype(dtype),
            Self::Each(factors) => factors[group].to_dtype(dtype),
        }
    }
}

/// The tensors of a term as the engines read them.
struct Held {
    x: Tensor,
    /// Matrix for all groups where they are stacked, else one for each; `None` for codes.
    w: Vec<Option<Tensor>>,
}

/// Read access to the tensors of a term.
struct Guards<'a> {
    x: (Guard<'a>, usize),
    w: Vec<Option<Guard<'a>>>,
}

impl Held {
    fn new(term: &GroupTerm<'_>) -> Result<Self> {
        let w = match &term.w {
            GroupFactors::Stacked(tensor) => vec![Some(tensor.contiguous()?)],
            GroupFactors::Each(factors) => factors.iter().map(Factor::contiguous).collect::<Result<_>>()?,
        };
        Ok(Self { x: rows_of(term.x)?, w })
    }

    fn guards(&self) -> Result<Guards<'_>> {
        Ok(Guards {
            x: Guard::rows(&self.x)?,
            w: self
                .w
                .iter()
                .map(|tensor| match tensor {
                    Some(tensor) => Guard::new(tensor).map(Some),
                    None => Ok(None),
                })
                .collect::<Result<_>>()?,
        })
    }
}

impl Guards<'_> {
    /// The rows of `part` times the matrix of `group`.
    fn product<'a>(
        &'a self,
        term: &GroupTerm<'a>,
        group: usize,
        part: &Range<usize>,
        order: Order,
    ) -> Result<Product<'a>> {
        let ((rows, inner), (x, stride)) = (term.w.dims2(group)?, &self.x);
        let size = match order {
            Order::Transposed => (rows, inner),
            Order::Straight => (inner, rows),
        };
        let scale = term.scale as f32;
        let right = match &term.w {
            GroupFactors::Stacked(_) => {
                let values = self.w.first().and_then(Option::as_ref).map(Guard::values);
                let values = values.map(|values| values.at(group * rows * inner..(group + 1) * rows * inner));
                values.map(|values| values.right(order, size, inner, scale))
            }
            GroupFactors::Each(factors) => match (&self.w[group], factors[group]) {
                (Some(w), _) => Some(w.values().right(order, size, inner, scale)),
                (None, Factor::QuantizedMatrix(values)) => Some(Right::QuantizedMatrix(QuantizedSource {
                    values,
                    order,
                    columns: size.0,
                    depth: size.1,
                    scale,
                })),
                (None, Factor::Dense(_)) => None,
            },
        };
        let Some(right) = right else {
            candle_core::bail!("grouped products: a dense operand is not held");
        };
        Ok(Product {
            left: x.values().at(part.start * stride..part.end * stride),
            side: Side::Straight,
            stride: *stride,
            right,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::oracle::{assert_close, random, rounded};
    use candle_core::Device;
    use proptest::prelude::*;

    fn offsets(sizes: &[usize]) -> Offsets {
        let mut offsets = vec![0];
        offsets.extend(sizes.iter().scan(0, |sum, size| {
            *sum += size;
            Some(*sum)
        }));
        offsets.into()
    }

    /// x of some rows, stacked matrices and adapter factors; in `dtype`, and the same values in F64.
    fn operand(shape: &[usize], seed: u64, dtype: DType) -> (Tensor, Tensor) {
        rounded(&random(shape, seed), dtype)
    }

    fn each(stacked: &Tensor) -> Vec<Tensor> {
        (0..stacked.dims()[0])
            .map(|group| stacked.get(group).unwrap())
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn sums_match_f64_whatever_the_sizes(
            sizes in prop::collection::vec(0usize..40, 1..7), depth in 1usize..70, width in 1usize..90,
            rank in 1usize..9, dtype in 0usize..3,
        ) {
            let dtype = [DType::F32, DType::BF16, DType::F16][dtype];
            let (offsets, groups) = (offsets(&sizes), sizes.len());
            let rows = offsets.rows();
            prop_assume!(rows > 0);
            let (x, x64) = operand(&[rows, depth], 1, dtype);
            let (u, u64) = operand(&[rows, rank], 2, dtype);
            let (w, w64) = operand(&[groups, width, depth], 3, dtype);
            let (b, b64) = operand(&[groups, width, rank], 4, DType::F32);
            let separate = each(&w);
            let factors = |tensors: &'_ [Tensor]| tensors.len();
            prop_assert_eq!(factors(&separate), groups);
            let terms = [
                GroupTerm { x: &x, w: GroupFactors::Each(separate.iter().map(Factor::from).collect()), scale: 1.0 },
                GroupTerm { x: &u, w: GroupFactors::Stacked(&b), scale: 0.5 },
            ];
            let wide = [
                GroupTerm { x: &x64, w: GroupFactors::Stacked(&w64), scale: 1.0 },
                GroupTerm { x: &u64, w: GroupFactors::Stacked(&b64), scale: 0.5 },
            ];
            assert_close(&nt(&terms, &offsets).unwrap(), &nt(&wide, &offsets).unwrap(), "nt");
            let (y, y64) = operand(&[rows, width], 5, dtype);
            let backward = |y: &Tensor, w: &Tensor| {
                nn(&[GroupTerm { x: y, w: GroupFactors::Stacked(w), scale: 2.0 }], &offsets).unwrap()
            };
            assert_close(&backward(&y, &w), &backward(&y64, &w64), "nn");
        }

        #[test]
        fn gradients_match_f64_whatever_the_sizes(
            sizes in prop::collection::vec(0usize..300, 1..5), rank in 1usize..20, width in 1usize..70, bf16: bool,
        ) {
            let dtype = if bf16 { DType::BF16 } else { DType::F32 };
            let (offsets, groups) = (offsets(&sizes), sizes.len());
            let rows = offsets.rows();
            prop_assume!(rows > 0);
            let ((a, a64), (b, b64)) = (operand(&[rows, rank], 1, dtype), operand(&[rows, width], 2, dtype));
            let into = Tensor::ones((groups * rank, width), DType::F32, &Device::Cpu).unwrap();
            tn_add(&a, &b, &offsets, 0.5, &into).unwrap();
            for (group, part) in ranges(offsets.host().unwrap()).enumerate() {
                let got = into.narrow(0, group * rank, rank).unwrap();
                let mut expected = Tensor::ones((rank, width), DType::F64, &Device::Cpu).unwrap();
                if !part.is_empty() {
                    let of = |tensor: &Tensor| tensor.narrow(0, part.start, part.len()).unwrap();
                    let product = of(&a64).t().unwrap().matmul(&of(&b64)).unwrap();
                    expected = (expected + (product * 0.5).unwrap()).unwrap();
                }
                assert_close(&got, &expected, "gradient");
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let tensor = |shape: &[usize]| random(shape, 1).to_dtype(DType::F32).unwrap();
        let (x, w) = (tensor(&[5, 3]), tensor(&[2, 4, 3]));
        let product = |offsets: &[usize], w: &Tensor| {
            let offsets = &offsets.to_vec().into();
            nt(
                &[GroupTerm {
                    x: &x,
                    w: GroupFactors::Stacked(w),
                    scale: 1.0,
                }],
                offsets,
            )
        };
        assert!(product(&[0, 2, 5], &w).is_ok());
        for offsets in [&[0, 2, 4][..], &[0, 6, 5], &[1, 2, 5], &[0, 1, 2, 5]] {
            assert!(product(offsets, &w).is_err(), "{offsets:?}");
        }
        assert!(product(&[0, 2, 5], &tensor(&[2, 4, 2])).is_err());
    }
}
