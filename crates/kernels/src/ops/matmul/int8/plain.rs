//! Plain loops over rows of codes: for processors without AVX-512 VNNI, and the form that the tiles are tested against.

use super::ByteTerm;
use super::codes::{Block, MOST_COLUMNS};
use super::left::BIAS;
use crate::ops::element::Element;
use crate::ops::matmul::operand::{Old, Result};
use crate::ops::simd::multiversion;
use crate::thread_pool;
use peft_tune_core::plan::BLOCK;
use std::ops::Range;

/// Rows that a task sums up at a time.
const ROWS: usize = 32;

/// Computes the sum of `terms`, (rows, columns), into `result`.
///
/// # Safety
/// `result` is valid for (rows, columns).
pub(super) unsafe fn multiply<O: Element>(terms: &[ByteTerm<'_>], (rows, columns): (usize, usize), result: Result<O>) {
    let result = &result;
    thread_pool::for_each(columns.div_ceil(MOST_COLUMNS), |group| {
        let columns = group * MOST_COLUMNS..((group + 1) * MOST_COLUMNS).min(columns);
        for row in (0..rows).step_by(ROWS) {
            let rows = row..(row + ROWS).min(rows);
            let mut sums = [[0f32; MOST_COLUMNS]; ROWS];
            for term in terms {
                add(term, rows.clone(), columns.clone(), &mut sums);
            }
            // SAFETY: the caller's promise; every column is written by one task.
            unsafe { store(&sums, result, rows, columns.clone()) };
        }
    });
}

fn add(term: &ByteTerm<'_>, rows: Range<usize>, columns: Range<usize>, sums: &mut [[f32; MOST_COLUMNS]; ROWS]) {
    let mut of_term = [[0f32; MOST_COLUMNS]; ROWS];
    let mut block = Block::ZERO;
    for number in 0..term.blocks() {
        block.fill(&term.right, columns.clone(), number);
        for (row, sums) in rows.clone().zip(&mut of_term) {
            let start = row * term.left.stride + number * BLOCK;
            let Some(left) = term.left.codes[start..].first_chunk::<BLOCK>() else {
                continue;
            };
            for (column, sum) in sums[..columns.len()].iter_mut().enumerate() {
                *sum += dot(left, &block.codes[column]) as f32 * block.factors[column];
            }
        }
    }
    for (row, (sums, of_term)) in rows.zip(sums.iter_mut().zip(&of_term)) {
        let scale = term.left.scales[row];
        for (sum, of_term) in sums.iter_mut().zip(of_term) {
            *sum += scale * of_term;
        }
    }
}

/// The sum of the products of both codes; the left ones have 128 added.
#[inline]
fn dot(left: &[u8; BLOCK], right: &[i8; BLOCK]) -> i32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avxvnni") && is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the features that the function is compiled for.
        return unsafe { dot_vnni(left, right) };
    }
    dot_plain(left, right)
}

multiversion! {
    /// Multiplies as [`dot`] does, in plain whole numbers.
    fn dot_plain(left: &[u8; 64], right: &[i8; 64]) -> i32 {
        let mut sum = 0;
        for (left, right) in left.iter().zip(right) {
            sum += (i32::from(*left) - BIAS) * i32::from(*right);
        }
        sum
    }
}

/// Multiplies as [`dot`] does, 32 codes at a time.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,avxvnni")]
fn dot_vnni(left: &[u8; BLOCK], right: &[i8; BLOCK]) -> i32 {
    use core::arch::x86_64::*;
    let (mut sum, mut codes) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let ones = _mm256_set1_epi8(1);
    for (left, right) in left.as_chunks::<32>().0.iter().zip(right.as_chunks::<32>().0) {
        // SAFETY: both arrays have 32 bytes.
        let (left, right) = unsafe {
            (
                _mm256_loadu_si256(left.as_ptr().cast()),
                _mm256_loadu_si256(right.as_ptr().cast()),
            )
        };
        sum = _mm256_dpbusd_avx_epi32(sum, left, right);
        codes = _mm256_dpbusd_avx_epi32(codes, ones, right);
    }
    // What 128 too much in each left code has added.
    let sum = _mm256_sub_epi32(sum, _mm256_slli_epi32::<7>(codes));
    let half = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let quarter = _mm_add_epi32(half, _mm_shuffle_epi32::<0b01_00_11_10>(half));
    let whole = _mm_add_epi32(quarter, _mm_shuffle_epi32::<0b10_11_00_01>(quarter));
    _mm_cvtsi128_si32(whole)
}

/// Writes the sums of some rows and columns.
///
/// # Safety
/// `result` is valid there, and no one else writes there.
unsafe fn store<O: Element>(
    sums: &[[f32; MOST_COLUMNS]; ROWS],
    result: &Result<O>,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    for (row, sums) in rows.zip(sums) {
        for (column, sum) in columns.clone().zip(sums) {
            let place = row * result.stride + column;
            // SAFETY: the caller's promise.
            unsafe {
                let sum = match result.old {
                    Old::Nothing => *sum,
                    Old::Other(other) => other.add(place).read().widen() + sum,
                    Old::Itself(alpha) => result.start.add(place).read().widen() + alpha * sum,
                };
                result.at(place).write(O::narrow(sum));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_form_sums_whole_numbers_exactly(
            left in prop::collection::vec(1u8..=255, BLOCK),
            right in prop::collection::vec(-127i8..=127, BLOCK),
        ) {
            let (left, right) = (left.first_chunk().unwrap(), right.first_chunk().unwrap());
            let exact: i64 = left.iter().zip(right).map(|(l, r)| (i64::from(*l) - 128) * i64::from(*r)).sum();
            prop_assert_eq!(i64::from(dot_plain(left, right)), exact);
            prop_assert_eq!(i64::from(dot(left, right)), exact);
        }
    }
}
