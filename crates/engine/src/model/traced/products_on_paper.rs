//! Products on paper: what they allocate, and what the ledger is told of them.

use candle_core::{DType, Result};

use super::Tensor;
use super::product_call::{Order, in_bytes, plain_call, sum_call};
use super::terms::{RowTerms, Term};
use crate::tensor::{Ledger, PaperTensor};
use peft_tune_core::plan::products::{Call, adapted_product};
use peft_tune_core::plan::{Form, Memory};
use peft_tune_core::predict::{self, MemoryCategory, Module, Product, Right};
use peft_tune_kernels::ops::matmul::{Adapted, Factor};

/// First operand, where a sum is on paper.
pub(super) fn of_terms<'a>(terms: &[Term<'a>]) -> Option<&'a PaperTensor> {
    terms.first().and_then(|term| term.x.paper())
}

pub(super) fn sum_on_paper(paper: &PaperTensor, terms: &[Term<'_>], order: Order, base: usize) -> Result<Tensor> {
    let call = sum_call(terms, order, base)?;
    let result = paper.fresh((call.rows, call.columns), terms[0].x.dtype());
    take_on_paper(paper.ledger(), &call);
    let module = match base {
        0 => Module::Adapters,
        _ => paper.ledger().module()?,
    };
    let product = Product {
        kernels: terms.len() as f64,
        weights: terms.len().min(base) as f64,
        ..Product::new(&call, module, terms[0].right)
    };
    run(paper.ledger(), product);
    Ok(result.into())
}

/// A sum that each range of rows has by itself, but where a portable product widens operands of all of them, or a GPU the shared ones.
pub(super) fn by_rows_on_paper(
    paper: &PaperTensor,
    shared: &[Term<'_>],
    own: &[RowTerms<'_>],
    order: Order,
) -> Result<Tensor> {
    let whole = sum_call(shared, order, shared.len())?;
    let result = paper.fresh((whole.rows, whole.columns), shared[0].x.dtype());
    let of_part = |part: &RowTerms<'_>| -> Result<Call> {
        let terms: Vec<Term<'_>> = shared.iter().chain(&part.terms).copied().collect();
        Ok(Call {
            rows: part.rows.len(),
            ..sum_call(&terms, order, shared.len())?
        })
    };
    let parts: Vec<Call> = own.iter().map(of_part).collect::<Result<_>>()?;
    let ledger = paper.ledger();
    let module = ledger.module()?;
    if ledger.host().memory() == Memory::Device {
        // The shared products are made of all rows at once, on top of those of adapters and of what is there.
        let of_adapters: f64 = parts.iter().map(|part| (part.rows * part.adapter_depth) as f64).sum();
        let kernels = 1 + shared.len() + own.iter().map(|part| part.terms.len()).sum::<usize>();
        let product = Product {
            adapter_depth: of_adapters / whole.rows.max(1) as f64,
            kernels: kernels as f64,
            weights: shared.len() as f64,
            ..Product::new(&whole, module, shared[0].right)
        };
        run(ledger, product);
    } else {
        for part in &parts {
            run(ledger, Product::new(part, module, shared[0].right));
        }
    }
    if ledger.host().vectors.tiling().is_some() {
        parts.iter().for_each(|part| take_on_paper(ledger, part));
        return Ok(result.into());
    }
    let longest = parts.into_iter().max_by_key(|part| part.adapter_depth);
    let call = Call {
        rows: whole.rows,
        ..longest.unwrap_or(whole)
    };
    take_on_paper(ledger, &call);
    Ok(result.into())
}

pub(super) fn beside_on_paper(paper: &PaperTensor, sums: &[Vec<Term<'_>>]) -> Result<Tensor> {
    let calls = sums.iter().map(|terms| sum_call(terms, Order::Straight, 0));
    let calls: Vec<Call> = calls.collect::<Result<_>>()?;
    let (rows, columns) = (calls[0].rows, calls.iter().map(|call| call.columns).sum::<usize>());
    let result = paper.fresh((rows, columns), sums[0][0].x.dtype());
    for call in &calls {
        take_on_paper(paper.ledger(), call);
        run(paper.ledger(), Product::new(call, Module::Adapters, Right::Adapter));
    }
    Ok(result.into())
}

/// Outputs of projections with their adapters by one product each, with a copy of x that has room for u beside it.
pub(super) fn adapted_on_paper(x: &PaperTensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<Option<Vec<Tensor>>> {
    let ((tokens, depth), ranks) = (x.shape().dims2()?, u.dims2()?.1);
    let columns = all.iter().map(|one| one.w.dims2().0).sum();
    let are_widened = all
        .iter()
        .all(|one| !in_bytes(&Factor::QuantizedMatrix(one.w), Order::Transposed));
    if !are_widened || !takes_longer(x, [tokens, columns, depth], ranks) {
        return Ok(None);
    }
    let row = adapted_product::row(depth, ranks);
    let outputs = holding_rows(x, row, || {
        let output = |(place, one): (usize, &Adapted<'_>)| -> Result<Tensor> {
            let columns = one.w.dims2().0;
            let y = x.fresh((tokens, columns), x.dtype());
            keep_longer(x, columns * row);
            let call = Call {
                adapter_depth: one.b.dims2()?.1,
                ..plain_call(x, Form::Nt, [tokens, columns, depth])
            };
            // B is put beside W, and u beside x before the first.
            let copies = if place == 0 { 2.0 } else { 1.0 };
            run_with_copies(x.ledger(), &call, copies)?;
            Ok(y.into())
        };
        all.iter().enumerate().map(output).collect::<Result<_>>()
    });
    outputs.map(Some)
}

/// dx of a projection with its adapter by one product, with a copy of dy that has room for d_xa beside it.
pub(super) fn gradient_on_paper(dy: &PaperTensor, w: Factor<'_>, d_xa: &Tensor) -> Result<Option<Tensor>> {
    let ((tokens, depth), columns, ranks) = (dy.shape().dims2()?, w.dims2()?.1, d_xa.dims2()?.1);
    let is_widened = matches!(w, Factor::QuantizedMatrix(_)) && !in_bytes(&w, Order::Straight);
    if !is_widened || !takes_longer(dy, [tokens, columns, depth], ranks) {
        return Ok(None);
    }
    let dx = dy.fresh((tokens, columns), dy.dtype());
    holding_rows(dy, adapted_product::row(depth, ranks), || {
        keep_longer(dy, adapted_product::depth(depth, ranks) * columns);
    });
    let call = Call {
        adapter_depth: ranks,
        ..plain_call(dy, Form::Nn, [tokens, columns, depth])
    };
    // d_xa is put beside dy, and A below W.
    run_with_copies(dy.ledger(), &call, 2.0)?;
    Ok(Some(dx.into()))
}

/// Whether a GPU makes one product of a weight's and its adapter's.
fn takes_longer(x: &PaperTensor, sizes: [usize; 3], ranks: usize) -> bool {
    let on_gpu = x.ledger().host().memory() == Memory::Device;
    on_gpu && x.dtype() != DType::F32 && adapted_product::takes(sizes, ranks)
}

/// Holds rows of so many elements, one for each row of x.
fn holding_rows<T>(x: &PaperTensor, row: usize, during: impl FnOnce() -> T) -> T {
    let elements = x.shape().dims().first().copied().unwrap_or(0) * row;
    let bytes = (elements * x.dtype().size_in_bytes()) as u64;
    x.ledger().holding(MemoryCategory::Scratch, bytes, during)
}

/// Keeps room for a weight of so many elements, with its adapter.
fn keep_longer(x: &PaperTensor, elements: usize) {
    x.ledger()
        .threads(|kept| kept.dequantize(elements, x.dtype().size_in_bytes() as u64));
}

/// Tells the ledger of a product in the module that is under way.
pub(super) fn run_on_paper(ledger: &Ledger, call: &Call, right: Right) -> Result<()> {
    run(ledger, Product::new(call, ledger.module()?, right));
    Ok(())
}

/// Tells the ledger of a product of a weight and its adapter, for which some operands are copied.
fn run_with_copies(ledger: &Ledger, call: &Call, copies: f64) -> Result<()> {
    let product = Product::new(call, ledger.module()?, Right::Weight);
    run(
        ledger,
        Product {
            kernels: 1.0 + copies,
            ..product
        },
    );
    Ok(())
}

fn run(ledger: &Ledger, product: Product) {
    ledger.run(predict::Work::Product(product), 1.0);
}

/// Tells the ledger of an adapter's product that is made inside another op.
pub(super) fn product_on_paper(paper: &PaperTensor, sizes: [usize; 3]) {
    let call = plain_call(paper, Form::Nn, sizes);
    run(paper.ledger(), Product::new(&call, Module::Adapters, Right::Adapter));
}

/// Takes what a product takes besides its result.
pub(super) fn take_on_paper(ledger: &Ledger, call: &Call) {
    let host = ledger.host();
    ledger.threads(|kept| match host.memory() {
        Memory::Host => call.keep(kept, host.vectors, host.threads),
        Memory::Device => call.keep_on_gpu(kept),
    });
    ledger.spike(MemoryCategory::Scratch, call.spike(host.vectors));
}
