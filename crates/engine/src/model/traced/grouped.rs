//! Products of groups of rows, as spans see them: one product whose rows are those of all groups.

use candle_core::Result;

use super::matmul::{self, Order};
use super::{Tensor, bytes, storage};
use crate::span::{Shape, Work, op};
use peft_tune_kernels::ops::matmul::grouped;
pub(in crate::model) use peft_tune_kernels::ops::matmul::grouped::GroupFactors;
use peft_tune_kernels::ops::offsets::Offsets;

/// One product of a sum; see [`grouped::GroupTerm`].
#[derive(Clone, Debug)]
pub(in crate::model) struct GroupTerm<'a> {
    pub x: &'a Tensor,
    pub w: GroupFactors<'a>,
    pub scale: f64,
}

fn kernels<'a>(terms: &[GroupTerm<'a>]) -> Result<Vec<grouped::GroupTerm<'a>>> {
    let terms = terms.iter().map(|term| {
        Ok(grouped::GroupTerm {
            x: term.x.real()?,
            w: term.w.clone(),
            scale: term.scale,
        })
    });
    terms.collect()
}

/// The sum of x w^T; the terms behind the first `base` are an adapter's. See [`grouped::nt`].
pub(in crate::model) fn nt(terms: &[GroupTerm<'_>], offsets: &Offsets, base: usize) -> Result<Tensor> {
    let _span = op("grouped_nt", || sum(terms, offsets, base, Order::Transposed));
    Ok(grouped::nt(&kernels(terms)?, offsets)?.into())
}

/// The sum of x w; see [`nt`] and [`grouped::nn`].
pub(in crate::model) fn nn(terms: &[GroupTerm<'_>], offsets: &Offsets, base: usize) -> Result<Tensor> {
    let _span = op("grouped_nn", || sum(terms, offsets, base, Order::Straight));
    Ok(grouped::nn(&kernels(terms)?, offsets)?.into())
}

/// into += alpha a^T b of each group; see [`grouped::tn_add`].
pub(in crate::model) fn tn_add(
    a: &Tensor,
    b: &Tensor,
    offsets: &Offsets,
    alpha: f64,
    into: &candle_core::Tensor,
) -> Result<()> {
    let _span = op("grouped_tn", || match (a.dims2(), b.dims2()) {
        (Ok((tokens, rows)), Ok((_, columns))) => Work {
            flops: 2 * (tokens * rows * columns) as u64,
            bytes: bytes(a) + bytes(b) + 2 * bytes(into),
            storage: storage(a.dtype()),
            shape: Shape::with_tokens(&[rows, columns, tokens], 2),
            ..Work::default()
        },
        _ => Work::default(),
    });
    grouped::tn_add(a.real()?, b.real()?, offsets, alpha, into)
}

fn sum(terms: &[GroupTerm<'_>], offsets: &Offsets, base: usize, order: Order) -> Work {
    let mut total = Work::default();
    for (place, term) in terms.iter().enumerate() {
        let (Ok((tokens, depth)), Some((rows, columns, weights, kind))) =
            (term.x.dims2(), weight(&term.w, offsets, order))
        else {
            // The op itself says what is wrong with the shapes.
            return total;
        };
        let (flops, width) = (
            2 * (tokens * rows * columns) as u64,
            match order {
                Order::Transposed => rows,
                Order::Straight => columns,
            },
        );
        total.flops += flops;
        total.bytes += bytes(term.x) + weights;
        if place >= base {
            total.adapter_flops += flops;
        }
        if place == 0 {
            total.shape = Shape::with_tokens(&[tokens, width, depth], 0);
            total.storage = kind;
            total.bytes += (tokens * width * term.x.dtype().size_in_bytes()) as u64;
        }
    }
    total
}

/// Rows and columns of one matrix, bytes of those that are read, and the name of their storage.
fn weight(factors: &GroupFactors<'_>, offsets: &Offsets, order: Order) -> Option<(usize, usize, u64, &'static str)> {
    // All that may be, where the device alone knows.
    let used = match offsets.on_host() {
        Some(offsets) => offsets.windows(2).filter(|pair| pair[0] < pair[1]).count() as u64,
        None => offsets.groups().min(offsets.rows()) as u64,
    };
    match factors {
        GroupFactors::Stacked(tensor) => {
            let (groups, rows, columns) = tensor.dims3().ok()?;
            Some((
                rows,
                columns,
                used * bytes(*tensor) / groups.max(1) as u64,
                storage(tensor.dtype()),
            ))
        }
        GroupFactors::Each(factors) => {
            let (rows, columns) = factors.first()?.dims2().ok()?;
            let (bytes, kind) = matmul::weight(factors.first()?, order);
            Some((rows, columns, used * bytes, kind))
        }
    }
}
