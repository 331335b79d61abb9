//! Products of groups of rows, as spans see them: one product whose rows are those of all groups.

use candle_core::{DType, Result};

use super::expert_offsets::Offsets;
use super::matmul;
use super::product_call::{Order, in_bytes, plain_call};
use super::product_work;
use super::{Parameter, Tensor, bytes, storage};
use crate::span::{Shape, Work, op};
use crate::tensor::PaperTensor;
use peft_tune_core::plan::Form;
use peft_tune_core::plan::products::Call;
use peft_tune_core::predict::{self, ExpertRows, MemoryCategory, Module, Right};
use peft_tune_kernels::ops::matmul::{Factor, grouped};

/// The matrices of all groups; see [`grouped::GroupFactors`].
#[derive(Clone, Debug)]
pub(in crate::model) enum GroupFactors<'a> {
    /// (G, N, K), contiguous.
    Stacked(&'a Tensor),
    Each(Vec<Factor<'a>>),
}

/// One product of a sum; see [`grouped::GroupTerm`].
#[derive(Clone, Debug)]
pub(in crate::model) struct GroupTerm<'a> {
    pub x: &'a Tensor,
    pub w: GroupFactors<'a>,
    pub scale: f64,
}

impl<'a> GroupFactors<'a> {
    fn kernel(&self) -> Result<grouped::GroupFactors<'a>> {
        Ok(match self {
            Self::Stacked(tensor) => grouped::GroupFactors::Stacked(tensor.real()?),
            Self::Each(factors) => grouped::GroupFactors::Each(factors.clone()),
        })
    }

    /// Rows and columns of one matrix.
    fn dims2(&self) -> Result<(usize, usize)> {
        match self {
            Self::Stacked(tensor) => tensor.dims3().map(|(_, rows, columns)| (rows, columns)),
            Self::Each(factors) => match factors.first() {
                Some(factor) => factor.dims2(),
                None => candle_core::bail!("grouped products: no matrices"),
            },
        }
    }

    /// Elements of one matrix where each lies by itself in another dtype than `dtype`; 0 elsewhere.
    fn converted(&self, dtype: DType) -> usize {
        match self.first() {
            Some(Factor::Dense(w)) if w.dtype() != dtype => w.elem_count(),
            _ => 0,
        }
    }

    /// First matrix, where each lies by itself.
    fn first(&self) -> Option<&Factor<'a>> {
        match self {
            Self::Stacked(_) => None,
            Self::Each(factors) => factors.first(),
        }
    }
}

fn kernels<'a>(terms: &[GroupTerm<'a>]) -> Result<Vec<grouped::GroupTerm<'a>>> {
    let terms = terms.iter().map(|term| {
        Ok(grouped::GroupTerm {
            x: term.x.real()?,
            w: term.w.kernel()?,
            scale: term.scale,
        })
    });
    terms.collect()
}

/// The sum of x w^T; the terms behind the first `base` are an adapter's. See [`grouped::nt`].
pub(in crate::model) fn nt(terms: &[GroupTerm<'_>], offsets: &Offsets, base: usize) -> Result<Tensor> {
    let _span = op("grouped_nt", || sum(terms, offsets, base, Order::Transposed));
    if let Offsets::Paper(paper) = offsets {
        return sum_on_paper(terms, &paper.of_experts, base, Order::Transposed);
    }
    Ok(grouped::nt(&kernels(terms)?, offsets.real()?)?.into())
}

/// The sum of x w; see [`nt`] and [`grouped::nn`].
pub(in crate::model) fn nn(terms: &[GroupTerm<'_>], offsets: &Offsets, base: usize) -> Result<Tensor> {
    let _span = op("grouped_nn", || sum(terms, offsets, base, Order::Straight));
    if let Offsets::Paper(paper) = offsets {
        return sum_on_paper(terms, &paper.of_experts, base, Order::Straight);
    }
    Ok(grouped::nn(&kernels(terms)?, offsets.real()?)?.into())
}

/// into += alpha a^T b of each group; see [`grouped::tn_add`].
pub(in crate::model) fn tn_add(a: &Tensor, b: &Tensor, offsets: &Offsets, alpha: f64, into: &Tensor) -> Result<()> {
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
    if let (Some(paper), Offsets::Paper(offsets)) = (a.paper(), offsets) {
        let ((tokens, rows), (_, columns)) = (a.dims2()?, b.dims2()?);
        let call = plain_call(a, Form::Tn, [rows, columns, tokens]);
        run_on_paper(paper, &offsets.of_experts, &call, Module::Adapters, Right::Adapter);
        return Ok(());
    }
    grouped::tn_add(a.real()?, b.real()?, offsets.real()?, alpha, into.real()?)
}

/// into += a^T b of the rows of each group, one behind the other; see [`matmul::tn_add`]. Groups without a gradient or rows are left out.
pub(in crate::model) fn tn_add_each(
    a: &Tensor,
    b: &Tensor,
    offsets: &Offsets,
    into: &[Option<&Parameter>],
) -> Result<()> {
    if let (Some(paper), Offsets::Paper(offsets)) = (a.paper(), offsets) {
        let ((tokens, rows), (_, columns)) = (a.dims2()?, b.dims2()?);
        let call = plain_call(a, Form::Tn, [rows, columns, tokens]);
        let (ledger, rows, mut spike) = (paper.ledger(), &offsets.of_experts, 0);
        ledger.threads(|kept| spike = rows.keep_one_by_one(&call, kept, ledger.host()));
        ledger.spike(MemoryCategory::Scratch, spike);
        for (product, times) in rows.products_one_by_one(&call, ledger.module()?, Right::Dense) {
            ledger.run(predict::Work::Product(product), times);
        }
        return Ok(());
    }
    for (into, rows) in into.iter().zip(offsets.parts()?) {
        if let Some(into) = into.filter(|_| !rows.is_empty()) {
            let of_group = |tensor: &Tensor| tensor.narrow(0, rows.start, rows.len());
            matmul::tn_add(&of_group(a)?, &of_group(b)?, 1.0, into)?;
        }
    }
    Ok(())
}

fn sum_on_paper(terms: &[GroupTerm<'_>], offsets: &ExpertRows, base: usize, order: Order) -> Result<Tensor> {
    let Some((first, x)) = terms.first().and_then(|first| Some((first, first.x.paper()?))) else {
        candle_core::bail!("grouped products: on paper only x tells what is allocated");
    };
    let depths: Vec<usize> = terms.iter().map(|term| Ok(term.x.dims2()?.1)).collect::<Result<_>>()?;
    let module = match base {
        0 => Module::Adapters,
        _ => x.ledger().module()?,
    };
    // Without a weight's product those of adapters are the sum.
    let base = if base == 0 { terms.len() } else { base.min(terms.len()) };
    let (of_weights, of_adapters) = depths.split_at(base);
    let (rows, columns) = first.w.dims2()?;
    let (form, columns) = match order {
        Order::Transposed => (Form::Nt, rows),
        Order::Straight => (Form::Nn, columns),
    };
    let weight = first.w.first();
    let call = Call {
        adapter_depth: of_adapters.iter().sum(),
        longest_term: of_weights.iter().copied().max().unwrap_or(0),
        quantized: matches!(weight, Some(Factor::QuantizedMatrix(_))),
        in_bytes: weight.is_some_and(|weight| in_bytes(weight, order)),
        converted: terms.iter().map(|term| term.w.converted(x.dtype())).sum(),
        ..plain_call(first.x, form, [offsets.rows, columns, of_weights.iter().sum()])
    };
    let result = x.fresh((offsets.rows, columns), x.dtype());
    let right = if weight.is_some() {
        Right::Weight
    } else {
        Right::Adapter
    };
    run_on_paper(x, offsets, &call, module, right);
    Ok(result.into())
}

/// Tells the ledger of a product of each group, and takes what that takes besides its result.
fn run_on_paper(x: &PaperTensor, offsets: &ExpertRows, call: &Call, module: Module, right: Right) {
    let (ledger, mut spike) = (x.ledger(), 0);
    ledger.threads(|kept| spike = offsets.keep(call, kept, ledger.host()));
    ledger.spike(MemoryCategory::Scratch, spike);
    for (product, times) in offsets.products(call, module, right) {
        ledger.run(predict::Work::Product(product), times);
    }
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
    let (rows, columns) = factors.dims2().ok()?;
    let (bytes, kind) = match factors {
        GroupFactors::Stacked(tensor) => (
            (rows * columns * tensor.dtype().size_in_bytes()) as u64,
            storage(tensor.dtype()),
        ),
        GroupFactors::Each(factors) => product_work::weight(factors.first()?, order),
    };
    Some((rows, columns, offsets.used() * bytes, kind))
}
