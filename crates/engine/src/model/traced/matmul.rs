//! Products, with the part of each that belongs to an adapter.

use std::ops::Range;

use candle_core::{DType, Result};

use super::kernel::Measured;
use super::{Parameter, Tensor, bytes, storage};
use crate::span::{Shape, Work, op};
use crate::tensor::{Ledger, PaperTensor};
use peft_tune_core::plan::products::{Call, adapted_product};
use peft_tune_core::plan::{Form, Memory};
use peft_tune_core::predict::{self, MemoryCategory, Module, Product, Right};
use peft_tune_kernels::ops::matmul;
pub(in crate::model) use peft_tune_kernels::ops::matmul::{Adapted, Factor, MAX_TERMS};

/// One product of a sum: `scale` times x times w; see [`matmul::Term`].
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Term<'a> {
    pub x: &'a Tensor,
    pub w: Factor<'a>,
    /// Storage of w as prediction tells storages apart.
    right: Right,
    pub scale: f64,
}

/// See [`matmul::AdapterGradients`].
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct AdapterGradients<'a> {
    pub dy: &'a Tensor,
    pub xa: &'a Tensor,
    pub b: &'a Parameter,
    pub d_b: &'a Parameter,
    pub scale: f64,
}

/// Products that some rows of a sum have beside the shared ones; see [`matmul::RowTerms`].
#[derive(Clone, Debug)]
pub(in crate::model) struct RowTerms<'a> {
    pub rows: Range<usize>,
    pub terms: Vec<Term<'a>>,
}

impl<'a> Term<'a> {
    /// `scale` times x times w, a weight of the base model in the storage of linear weights.
    pub(in crate::model) fn new(x: &'a Tensor, w: impl Into<Factor<'a>>, scale: f64) -> Self {
        Self {
            x,
            w: w.into(),
            right: Right::Weight,
            scale,
        }
    }

    /// `scale` times x times w, a factor of an adapter.
    pub(in crate::model) fn of_adapter(x: &'a Tensor, w: &'a Parameter, scale: f64) -> Self {
        Self {
            right: Right::Adapter,
            ..Self::new(x, w, scale)
        }
    }

    /// The product of a weight that is stored so.
    pub(in crate::model) fn stored(self, right: Right) -> Self {
        Self { right, ..self }
    }

    fn kernel(&self) -> Result<matmul::Term<'a>> {
        Ok(matmul::Term {
            x: self.x.real()?,
            w: self.w,
            scale: self.scale,
        })
    }
}

impl<'a> AdapterGradients<'a> {
    fn kernel(&self) -> Result<matmul::AdapterGradients<'a>> {
        Ok(matmul::AdapterGradients {
            dy: self.dy.real()?,
            xa: self.xa.real()?,
            b: self.b,
            d_b: self.d_b,
            scale: self.scale,
        })
    }
}

fn kernels<'a>(terms: &[Term<'a>]) -> Result<Vec<matmul::Term<'a>>> {
    terms.iter().map(Term::kernel).collect()
}

fn own_kernels<'a>(own: &[RowTerms<'a>]) -> Result<Vec<matmul::RowTerms<'a>>> {
    let own = own.iter().map(|part| {
        Ok(matmul::RowTerms {
            rows: part.rows.clone(),
            terms: kernels(&part.terms)?,
        })
    });
    own.collect()
}

/// x w^T of a factor of an adapter; see [`matmul::nt`].
pub(in crate::model) fn nt(x: &Tensor, w: &Parameter) -> Result<Tensor> {
    nt_sum(&[Term::of_adapter(x, w, 1.0)], usize::MAX)
}

/// x w of a factor of an adapter; see [`matmul::nn`].
pub(in crate::model) fn nn(x: &Tensor, w: &Parameter) -> Result<Tensor> {
    nn_sum(&[Term::of_adapter(x, w, 1.0)], usize::MAX)
}

/// The sum of x w^T; the terms behind the first `base` are an adapter's. See [`matmul::nt_sum`].
pub(in crate::model) fn nt_sum(terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nt", || sum(terms, Order::Transposed, base));
    if let Some(paper) = of_terms(terms) {
        return sum_on_paper(paper, terms, Order::Transposed, base);
    }
    Ok(matmul::nt_sum(&kernels(terms)?)?.into())
}

/// The sum of x w; the terms behind the first `base` are an adapter's. See [`matmul::nn_sum`].
pub(in crate::model) fn nn_sum(terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nn", || sum(terms, Order::Straight, base));
    if let Some(paper) = of_terms(terms) {
        return sum_on_paper(paper, terms, Order::Straight, base);
    }
    Ok(matmul::nn_sum(&kernels(terms)?)?.into())
}

/// y plus the sum of x w^T; see [`nt_sum`] and [`matmul::nt_onto`].
pub(in crate::model) fn nt_onto(y: &Tensor, terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nt", || Work {
        bytes: bytes(y) + sum(terms, Order::Transposed, base).bytes,
        ..sum(terms, Order::Transposed, base)
    });
    if let Some(paper) = of_terms(terms) {
        return sum_on_paper(paper, terms, Order::Transposed, base);
    }
    Ok(matmul::nt_onto(y.real()?, &kernels(terms)?)?.into())
}

/// Sum like [`nt_sum`]'s of `shared` products of the base and, for each range of rows, those of an adapter; see
/// [`matmul::nt_by_rows`].
pub(in crate::model) fn nt_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>], onto: Option<&Tensor>) -> Result<Tensor> {
    let _span = op("matmul_nt", || by_rows(shared, own, Order::Transposed));
    if let Some(paper) = of_terms(shared) {
        return by_rows_on_paper(paper, shared, own, Order::Transposed);
    }
    let onto = onto.map(Tensor::real).transpose()?;
    Ok(matmul::nt_by_rows(&kernels(shared)?, &own_kernels(own)?, onto)?.into())
}

/// Sum like [`nn_sum`]'s of `shared` products of the base and, for each range of rows, those of an adapter.
pub(in crate::model) fn nn_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>]) -> Result<Tensor> {
    let _span = op("matmul_nn", || by_rows(shared, own, Order::Straight));
    if let Some(paper) = of_terms(shared) {
        return by_rows_on_paper(paper, shared, own, Order::Straight);
    }
    Ok(matmul::nn_by_rows(&kernels(shared)?, &own_kernels(own)?)?.into())
}

/// The outputs of projections with their adapters, where one product may make each; see [`matmul::nt_adapted`].
pub(in crate::model) fn nt_adapted(x: &Tensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<Option<Vec<Tensor>>> {
    if let Some(paper) = x.paper() {
        return adapted_on_paper(paper, u, all);
    }
    let (of_x, of_u) = (x.real()?, u.real()?);
    if !matmul::takes_adapters(of_x, of_u, all)? {
        return Ok(None);
    }
    let _span = op("matmul_nt", || {
        let each = all.iter().filter_map(|one| {
            let u = u.narrow(1, one.column, one.b.dims2().ok()?.1).ok()?;
            let terms = [
                Term::new(x, Factor::QuantizedMatrix(one.w), 1.0),
                Term::of_adapter(&u, one.b, one.scale),
            ];
            Some(sum(&terms, Order::Transposed, 1))
        });
        each.reduce(add).unwrap_or_default()
    });
    let outputs = matmul::nt_adapted(of_x, of_u, all)?;
    Ok(Some(outputs.into_iter().map(Tensor::from).collect()))
}

/// dx of a projection with its adapter, where one product may make it; see [`matmul::nn_adapted`].
pub(in crate::model) fn nn_adapted(dy: &Tensor, w: Factor<'_>, d_xa: &Tensor, a: &Parameter) -> Result<Option<Tensor>> {
    if let Some(paper) = dy.paper() {
        return gradient_on_paper(paper, w, d_xa);
    }
    let (of_dy, of_d_xa) = (dy.real()?, d_xa.real()?);
    if !matmul::takes_adapter(of_dy, &w, of_d_xa, a)? {
        return Ok(None);
    }
    let _span = op("matmul_nn", || {
        let terms = [Term::new(dy, w, 1.0), Term::of_adapter(d_xa, a, 1.0)];
        sum(&terms, Order::Straight, 1)
    });
    Ok(Some(matmul::nn_adapted(of_dy, w, of_d_xa, a)?.into()))
}

/// The sums of x w side by side, all of adapters; see [`matmul::nn_beside`].
pub(in crate::model) fn nn_beside(sums: &[Vec<Term<'_>>]) -> Result<Tensor> {
    let _span = op("matmul_nn", || {
        let each = sums.iter().map(|terms| sum(terms, Order::Straight, 0));
        each.reduce(add).unwrap_or_default()
    });
    if let Some(paper) = sums.first().and_then(|terms| of_terms(terms)) {
        return beside_on_paper(paper, sums);
    }
    let each: Vec<Vec<_>> = sums.iter().map(|terms| kernels(terms)).collect::<Result<_>>()?;
    Ok(matmul::nn_beside(&each)?.into())
}

/// into += alpha a^T b; see [`matmul::tn_add`].
pub(in crate::model) fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Parameter) -> Result<()> {
    let _span = op("matmul_tn", || weight_gradient(a, b, into));
    if let Some(paper) = a.paper() {
        let ((tokens, rows), (_, columns)) = (a.dims2()?, b.dims2()?);
        let call = plain_call(a, Form::Tn, [rows, columns, tokens]);
        take_on_paper(paper.ledger(), &call);
        return run_on_paper(paper.ledger(), &call, Right::Dense);
    }
    matmul::tn_add(a.real()?, b.real()?, alpha, into)
}

/// Gradients of adapters' output sides, of B and of xa, from one reading of each dy, where that is better than two
/// products; see [`matmul::adapter_gradients`].
pub(in crate::model) fn adapter_gradients(all: &[AdapterGradients<'_>]) -> Result<Option<Tensor>> {
    // A GPU that makes both at once takes the same memory.
    if all.iter().any(|one| one.dy.paper().is_some()) {
        return Ok(None);
    }
    let of_kernels: Vec<_> = all.iter().map(AdapterGradients::kernel).collect::<Result<_>>()?;
    if !matmul::reads_once(&of_kernels)? {
        return Ok(None);
    }
    let _span = op("adapter_gradients", || {
        let each = all.iter().map(both_gradients);
        each.reduce(add).unwrap_or_default()
    });
    Ok(Some(matmul::adapter_gradients(&of_kernels)?.into()))
}

/// First operand, where a sum is on paper.
fn of_terms<'a>(terms: &[Term<'a>]) -> Option<&'a PaperTensor> {
    terms.first().and_then(|term| term.x.paper())
}

fn sum_on_paper(paper: &PaperTensor, terms: &[Term<'_>], order: Order, base: usize) -> Result<Tensor> {
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
fn by_rows_on_paper(paper: &PaperTensor, shared: &[Term<'_>], own: &[RowTerms<'_>], order: Order) -> Result<Tensor> {
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

fn beside_on_paper(paper: &PaperTensor, sums: &[Vec<Term<'_>>]) -> Result<Tensor> {
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

/// [`nt_adapted`], with a copy of x that has room for u beside it.
fn adapted_on_paper(x: &PaperTensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<Option<Vec<Tensor>>> {
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

/// [`nn_adapted`], with a copy of dy that has room for d_xa beside it.
fn gradient_on_paper(dy: &PaperTensor, w: Factor<'_>, d_xa: &Tensor) -> Result<Option<Tensor>> {
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
fn run_on_paper(ledger: &Ledger, call: &Call, right: Right) -> Result<()> {
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
fn take_on_paper(ledger: &Ledger, call: &Call) {
    let host = ledger.host();
    ledger.threads(|kept| match host.memory() {
        Memory::Host => call.keep(kept, host.vectors, host.threads),
        Memory::Device => call.keep_on_gpu(kept),
    });
    ledger.spike(MemoryCategory::Scratch, call.spike(host.vectors));
}

/// A sum as far as its scratch depends on it.
fn sum_call(terms: &[Term<'_>], order: Order, base: usize) -> Result<Call> {
    let (mut depths, mut longest) = ([0; 2], 0);
    for (place, term) in terms.iter().enumerate() {
        let depth = term.x.dims2()?.1;
        // Without a weight's product those of adapters are the sum.
        let of_adapter = usize::from(base > 0 && place >= base);
        depths[of_adapter] += depth;
        if of_adapter == 0 {
            longest = longest.max(depth);
        }
    }
    let Some(first) = terms.first() else {
        candle_core::bail!("a sum of no products");
    };
    let (rows, columns) = first.w.dims2()?;
    let (form, columns) = match order {
        Order::Transposed => (Form::Nt, rows),
        Order::Straight => (Form::Nn, columns),
    };
    let converted = terms.iter().map(|term| match term.w {
        Factor::Dense(w) if w.dtype() != term.x.dtype() => w.elem_count(),
        Factor::Dense(_) | Factor::QuantizedMatrix(_) => 0,
    });
    let beside = terms.iter().filter_map(|term| term.x.paper()).map(PaperTensor::beside);
    Ok(Call {
        adapter_depth: depths[1],
        longest_term: longest,
        beside: beside.max().unwrap_or(0),
        quantized: matches!(first.w, Factor::QuantizedMatrix(_)),
        in_bytes: in_bytes(&first.w, order),
        converted: converted.max().unwrap_or(0),
        ..plain_call(first.x, form, [first.x.dims2()?.0, columns, depths[0]])
    })
}

/// A product of dense operands, x the left one.
pub(super) fn plain_call(x: &impl Measured, form: Form, sizes: [usize; 3]) -> Call {
    let dtype = x.element();
    Call::dense(form, sizes, dtype.size_in_bytes() as u64, dtype == DType::BF16)
}

fn by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>], order: Order) -> Work {
    let adapters = own.iter().map(|part| sum(&part.terms, order, 0));
    adapters.fold(sum(shared, order, shared.len()), add)
}

#[derive(Clone, Copy)]
pub(super) enum Order {
    /// w is (N, K), the result (T, N).
    Transposed,
    /// w is (N, K), the result (T, K).
    Straight,
}

fn sum(terms: &[Term<'_>], order: Order, base: usize) -> Work {
    let (Ok(call), Some(first)) = (sum_call(terms, order, base), terms.first()) else {
        // The op itself says what is wrong with the shapes.
        return Work::default();
    };
    let depth = first.x.dims().last().copied().unwrap_or(0);
    let result = call.rows * call.columns * first.x.dtype().size_in_bytes();
    let operands = terms.iter().map(|term| bytes(term.x) + weight(&term.w, order).0);
    Work {
        bytes: result as u64 + operands.sum::<u64>(),
        storage: weight(&first.w, order).1,
        shape: Shape::with_tokens(&[call.rows, call.columns, depth], 0),
        ..multiplied(&call, base)
    }
}

/// FLOPs of a product whose terms behind the first `base` are an adapter's.
fn multiplied(call: &Call, base: usize) -> Work {
    let product = Product::new(call, Module::Adapters, Right::Dense);
    let (own, of_adapter) = (product.flops() as u64, product.adapter_flops() as u64);
    Work {
        flops: own + of_adapter,
        adapter_flops: if base == 0 { own + of_adapter } else { of_adapter },
        ..Work::default()
    }
}

fn add(total: Work, next: Work) -> Work {
    Work {
        flops: total.flops + next.flops,
        adapter_flops: total.adapter_flops + next.adapter_flops,
        bytes: total.bytes + next.bytes,
        ..total
    }
}

fn both_gradients(of: &AdapterGradients<'_>) -> Work {
    let one = sum(&[Term::new(of.dy, of.b, of.scale)], Order::Straight, 0);
    let other = weight_gradient(of.dy, of.xa, of.d_b);
    Work {
        flops: one.flops + other.flops,
        adapter_flops: one.flops,
        bytes: one.bytes + other.bytes - bytes(of.dy),
        ..one
    }
}

fn weight_gradient(a: &Tensor, b: &Tensor, into: &Parameter) -> Work {
    let (Ok((tokens, rows)), Ok((_, columns))) = (a.dims2(), b.dims2()) else {
        return Work::default();
    };
    Work {
        // `into` is read and written.
        bytes: bytes(a) + bytes(b) + 2 * bytes(into),
        storage: storage(a.dtype()),
        shape: Shape::with_tokens(&[rows, columns, tokens], 2),
        ..multiplied(&plain_call(a, Form::Tn, [rows, columns, tokens]), usize::MAX)
    }
}

/// Bytes and name of a weight's storage, with that of the activations where they are bytes too.
pub(super) fn weight(factor: &Factor<'_>, order: Order) -> (u64, &'static str) {
    match factor {
        Factor::Dense(tensor) => (bytes(*tensor), storage(tensor.dtype())),
        Factor::QuantizedMatrix(quantized) => {
            let name = match (in_bytes(factor, order), quantized.storage()) {
                (true, "int8") => "w8a8",
                (true, _) => "w4a8",
                (false, storage) => storage,
            };
            (quantized.bytes() as u64, name)
        }
    }
}

/// Whether products of a weight take their activations in 8 bits.
pub(super) fn in_bytes(factor: &Factor<'_>, order: Order) -> bool {
    let Factor::QuantizedMatrix(quantized) = factor else {
        return false;
    };
    let row = quantized.activations().row();
    match order {
        Order::Transposed => row.forward,
        Order::Straight => row.backward,
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn a_layer_with_its_adapter_counts_both_and_tells_them_apart() {
        let parameter = |rows, columns| Parameter::zeros((rows, columns), DType::F32, &Device::Cpu).unwrap();
        let zeros = |rows, columns| Tensor::from(parameter(rows, columns));
        let (x, w, xa, b) = (zeros(5, 7), parameter(11, 7), zeros(5, 2), parameter(11, 2));
        let terms = [Term::new(&x, &w, 1.0), Term::new(&xa, &b, 2.0)];
        let work = sum(&terms, Order::Transposed, 1);
        assert_eq!((work.flops, work.adapter_flops), (2 * 5 * 11 * (7 + 2), 2 * 5 * 11 * 2));
        assert_eq!(work.bytes, 4 * (5 * 7 + 11 * 7 + 5 * 2 + 11 * 2 + 5 * 11));
        assert_eq!((work.shape.to_string().as_str(), work.storage), ("5x11x7", "f32"));
        let dy = zeros(5, 11);
        let straight = sum(&[Term::new(&dy, &w, 1.0)], Order::Straight, usize::MAX);
        assert_eq!(
            (straight.shape.to_string().as_str(), straight.adapter_flops),
            ("5x7x11", 0)
        );
        let gradient = weight_gradient(&dy, &xa, &b);
        assert_eq!((gradient.flops, gradient.bytes), (2 * 5 * 11 * 2, 4 * (55 + 10 + 44)));
    }
}
