//! Products, with the part of each that belongs to an adapter.

use candle_core::{Result, Tensor};

use super::{bytes, storage};
use crate::span::{Shape, Work, op};
use peft_tune_kernels::ops::matmul;
pub(in crate::model) use peft_tune_kernels::ops::matmul::{
    Adapted, AdapterGradients, Factor, MAX_TERMS, RowTerms, Term,
};

/// x w^T; see [`matmul::nt`].
pub(in crate::model) fn nt(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let _span = op("matmul_nt", || {
        sum(&[Term::new(x, w, 1.0)], Order::Transposed, usize::MAX)
    });
    matmul::nt(x, w)
}

/// x w; see [`matmul::nn`].
pub(in crate::model) fn nn(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let _span = op("matmul_nn", || {
        sum(&[Term::new(x, w, 1.0)], Order::Straight, usize::MAX)
    });
    matmul::nn(x, w)
}

/// The sum of x w^T; the terms behind the first `base` are an adapter's. See [`matmul::nt_sum`].
pub(in crate::model) fn nt_sum(terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nt", || sum(terms, Order::Transposed, base));
    matmul::nt_sum(terms)
}

/// The sum of x w; the terms behind the first `base` are an adapter's. See [`matmul::nn_sum`].
pub(in crate::model) fn nn_sum(terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nn", || sum(terms, Order::Straight, base));
    matmul::nn_sum(terms)
}

/// y plus the sum of x w^T; see [`nt_sum`] and [`matmul::nt_onto`].
pub(in crate::model) fn nt_onto(y: &Tensor, terms: &[Term<'_>], base: usize) -> Result<Tensor> {
    let _span = op("matmul_nt", || Work {
        bytes: bytes(y) + sum(terms, Order::Transposed, base).bytes,
        ..sum(terms, Order::Transposed, base)
    });
    matmul::nt_onto(y, terms)
}

/// As [`nt_sum`] of `shared` products of the base, with those of an adapter for each range of rows; see [`matmul::nt_by_rows`].
pub(in crate::model) fn nt_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>], onto: Option<&Tensor>) -> Result<Tensor> {
    let _span = op("matmul_nt", || by_rows(shared, own, Order::Transposed));
    matmul::nt_by_rows(shared, own, onto)
}

/// As [`nn_sum`].
pub(in crate::model) fn nn_by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>]) -> Result<Tensor> {
    let _span = op("matmul_nn", || by_rows(shared, own, Order::Straight));
    matmul::nn_by_rows(shared, own)
}

/// The outputs of projections with their adapters, where one product may make each; see [`matmul::nt_adapted`].
pub(in crate::model) fn nt_adapted(x: &Tensor, u: &Tensor, all: &[Adapted<'_>]) -> Result<Option<Vec<Tensor>>> {
    if !matmul::takes_adapters(x, u, all)? {
        return Ok(None);
    }
    let _span = op("matmul_nt", || {
        let each = all.iter().filter_map(|one| {
            let u = u.narrow(1, one.column, one.b.dims2().ok()?.1).ok()?;
            let terms = [
                Term::new(x, Factor::QuantizedMatrix(one.w), 1.0),
                Term::new(&u, one.b, one.scale),
            ];
            Some(sum(&terms, Order::Transposed, 1))
        });
        each.reduce(add).unwrap_or_default()
    });
    matmul::nt_adapted(x, u, all).map(Some)
}

/// dx of a projection with its adapter, where one product may make it; see [`matmul::nn_adapted`].
pub(in crate::model) fn nn_adapted(dy: &Tensor, w: Factor<'_>, d_xa: &Tensor, a: &Tensor) -> Result<Option<Tensor>> {
    if !matmul::takes_adapter(dy, &w, d_xa, a)? {
        return Ok(None);
    }
    let _span = op("matmul_nn", || {
        sum(&[Term::new(dy, w, 1.0), Term::new(d_xa, a, 1.0)], Order::Straight, 1)
    });
    matmul::nn_adapted(dy, w, d_xa, a).map(Some)
}

/// The sums of x w side by side, all of adapters; see [`matmul::nn_beside`].
pub(in crate::model) fn nn_beside(sums: &[Vec<Term<'_>>]) -> Result<Tensor> {
    let _span = op("matmul_nn", || {
        let each = sums.iter().map(|terms| sum(terms, Order::Straight, 0));
        each.reduce(add).unwrap_or_default()
    });
    matmul::nn_beside(sums)
}

/// into += alpha a^T b; see [`matmul::tn_add`].
pub(in crate::model) fn tn_add(a: &Tensor, b: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let _span = op("matmul_tn", || weight_gradient(a, b, into));
    matmul::tn_add(a, b, alpha, into)
}

/// Both gradients of adapters' output sides from one reading of each dy, where that is better than two products; see
/// [`matmul::adapter_gradients`].
pub(in crate::model) fn adapter_gradients(all: &[AdapterGradients<'_>]) -> Result<Option<Tensor>> {
    if !matmul::reads_once(all)? {
        return Ok(None);
    }
    let _span = op("adapter_gradients", || {
        let each = all.iter().map(both_gradients);
        each.reduce(add).unwrap_or_default()
    });
    matmul::adapter_gradients(all).map(Some)
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
    let mut total = Work::default();
    for (place, term) in terms.iter().enumerate() {
        let (Ok((tokens, depth)), Ok((rows, columns))) = (term.x.dims2(), term.w.dims2()) else {
            // The op itself says what is wrong with the shapes.
            return total;
        };
        let flops = 2 * (tokens * rows * columns) as u64;
        let width = match order {
            Order::Transposed => rows,
            Order::Straight => columns,
        };
        let (weight_bytes, kind) = weight(&term.w, order);
        total.flops += flops;
        total.bytes += bytes(term.x) + weight_bytes;
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

fn weight_gradient(a: &Tensor, b: &Tensor, into: &Tensor) -> Work {
    let (Ok((tokens, rows)), Ok((_, columns))) = (a.dims2(), b.dims2()) else {
        return Work::default();
    };
    Work {
        flops: 2 * (tokens * rows * columns) as u64,
        // `into` is read and written.
        bytes: bytes(a) + bytes(b) + 2 * bytes(into),
        storage: storage(a.dtype()),
        shape: Shape::with_tokens(&[rows, columns, tokens], 2),
        ..Work::default()
    }
}

/// Bytes and name of a weight's storage, with that of the activations where they are bytes too.
pub(super) fn weight(factor: &Factor<'_>, order: Order) -> (u64, &'static str) {
    match factor {
        Factor::Dense(tensor) => (bytes(tensor), storage(tensor.dtype())),
        Factor::QuantizedMatrix(quantized) => {
            let row = quantized.activations().row();
            let in_bytes = match order {
                Order::Transposed => row.forward,
                Order::Straight => row.backward,
            };
            let name = match (in_bytes, quantized.storage()) {
                (true, "int8") => "w8a8",
                (true, _) => "w4a8",
                (false, storage) => storage,
            };
            (quantized.bytes() as u64, name)
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn a_layer_with_its_adapter_counts_both_and_tells_them_apart() {
        let zeros = |rows, columns| Tensor::zeros((rows, columns), DType::F32, &Device::Cpu).unwrap();
        let (x, w, xa, b) = (zeros(5, 7), zeros(11, 7), zeros(5, 2), zeros(11, 2));
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
