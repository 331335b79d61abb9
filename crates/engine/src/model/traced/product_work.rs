//! FLOPs and bytes of products, as spans show them.

use super::product_call::{Order, in_bytes, plain_call, sum_call};
use super::terms::{AdapterGradients, RowTerms, Term};
use super::{Parameter, Tensor, bytes, storage};
use crate::span::{Shape, Work};
use peft_tune_core::plan::Form;
use peft_tune_core::plan::products::Call;
use peft_tune_core::predict::{Module, Product, Right};
use peft_tune_kernels::ops::matmul::Factor;

/// Work of a sum whose rows have more products in some ranges.
pub(super) fn by_rows(shared: &[Term<'_>], own: &[RowTerms<'_>], order: Order) -> Work {
    let adapters = own.iter().map(|part| sum(&part.terms, order, 0));
    adapters.fold(sum(shared, order, shared.len()), add)
}

/// Work of a sum; the terms behind the first `base` are an adapter's.
pub(super) fn sum(terms: &[Term<'_>], order: Order, base: usize) -> Work {
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

/// Work of two calls together, with the shape of the first.
pub(super) fn add(total: Work, next: Work) -> Work {
    Work {
        flops: total.flops + next.flops,
        adapter_flops: total.adapter_flops + next.adapter_flops,
        bytes: total.bytes + next.bytes,
        ..total
    }
}

/// Work of both gradients of an adapter's output side, from one reading of dy.
pub(super) fn both_gradients(of: &AdapterGradients<'_>) -> Work {
    let one = sum(&[Term::new(of.dy, of.b, of.scale)], Order::Straight, 0);
    let other = weight_gradient(of.dy, of.xa, of.d_b);
    Work {
        flops: one.flops + other.flops,
        adapter_flops: one.flops,
        bytes: one.bytes + other.bytes - bytes(of.dy),
        ..one
    }
}

/// Work of a weight's gradient, which is added to what is there.
pub(super) fn weight_gradient(a: &Tensor, b: &Tensor, into: &Parameter) -> Work {
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
