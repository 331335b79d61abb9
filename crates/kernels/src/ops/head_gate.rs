//! Gates on the heads of attention: each query comes with a gate that its head's result is multiplied with (Qwen3.5).
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `both` | (T, H 2 d) | each head's query, and its gate behind it; compute dtype |
//! | `q`, `gate`, `o` | (T, H d) | queries, gates, result of attention; compute dtype |
//!
//! y = o s(gate), s the logistic function. d_o = dy s, d_gate = dy o s (1 - s).

use std::mem::MaybeUninit;

use super::element::{Element, with_element};
use super::exponential::logistic;
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::thread_pool;
use candle_core::{Result, Tensor};

/// (q, gate) of heads of width `head_dim`.
///
/// # Errors
/// A width that is not that of whole heads.
pub fn split(both: &Tensor, head_dim: usize) -> Result<(Tensor, Tensor)> {
    let (tokens, width) = both.dims2()?;
    if head_dim == 0 || !width.is_multiple_of(2 * head_dim) {
        candle_core::bail!("gates of heads: {width} values for heads of {head_dim} with a gate each");
    }
    let heads = both.reshape((tokens, width / (2 * head_dim), 2, head_dim))?;
    let part = |place: usize| heads.narrow(2, place, 1)?.contiguous()?.reshape((tokens, width / 2));
    Ok((part(0)?, part(1)?))
}

/// The gradient of `both` from those of q and of the gates.
///
/// # Errors
/// Shapes that differ.
pub fn join(d_q: &Tensor, d_gate: &Tensor, head_dim: usize) -> Result<Tensor> {
    let (tokens, width) = d_q.dims2()?;
    shape::expect(d_gate, d_q.dims(), "gates of heads: d_gate")?;
    if head_dim == 0 || !width.is_multiple_of(head_dim) {
        candle_core::bail!("gates of heads: {width} values for heads of {head_dim}");
    }
    let heads = |part: &Tensor| part.reshape((tokens, width / head_dim, head_dim));
    Tensor::cat(&[heads(d_q)?, heads(d_gate)?], 2)?.reshape((tokens, 2 * width))
}

/// y, (T, H d).
///
/// # Errors
/// Shapes that differ.
pub fn forward(o: &Tensor, gate: &Tensor) -> Result<Tensor> {
    shape::expect(gate, o.dims(), "gates of heads: gate")?;
    if !is_fused(o) {
        return reference::forward(o, gate);
    }
    let (o, gate) = (o.contiguous()?, gate.contiguous()?);
    with_element!(o.dtype(), T => {
        let (values, gates) = (Elements::<T>::new(&o)?, Elements::<T>::new(&gate)?);
        let (values, gates, task) = (&*values, &*gates, rows_per_task(1));
        let mut y = Unwritten::<T>::new(values.len());
        thread_pool::for_chunks(&mut y.slots()[..values.len()], task, |index, y| {
            forward_chunk(&values[index * task..], &gates[index * task..], y);
        });
        // SAFETY: every element is written.
        unsafe { y.into_tensor(o.dims()) }
    })
}

/// (d_o, d_gate).
///
/// # Errors
/// Shapes that differ.
pub fn backward(o: &Tensor, gate: &Tensor, dy: &Tensor) -> Result<(Tensor, Tensor)> {
    shape::expect(gate, o.dims(), "gates of heads: gate")?;
    shape::expect(dy, o.dims(), "gates of heads: dy")?;
    if !is_fused(o) {
        return reference::backward(o, gate, dy);
    }
    let (o, gate, dy) = (o.contiguous()?, gate.contiguous()?, dy.contiguous()?);
    with_element!(o.dtype(), T => {
        let (values, gates, dys) = (Elements::<T>::new(&o)?, Elements::<T>::new(&gate)?, Elements::<T>::new(&dy)?);
        let (values, gates, dys, task) = (&*values, &*gates, &*dys, rows_per_task(1));
        let (mut d_o, mut d_gate) = (Unwritten::<T>::new(values.len()), Unwritten::<T>::new(values.len()));
        let outputs = (&mut d_o.slots()[..values.len()], &mut d_gate.slots()[..values.len()]);
        thread_pool::for_chunks2((outputs.0, task), (outputs.1, task), |index, d_o, d_gate| {
            let first = index * task;
            backward_chunk((&values[first..], &gates[first..], &dys[first..]), d_o, d_gate);
        });
        // SAFETY: every element of both is written.
        unsafe { Ok((d_o.into_tensor(o.dims())?, d_gate.into_tensor(o.dims())?)) }
    })
}

multiversion! {
    fn forward_chunk<T: Element>(o: &[T], gate: &[T], y: &mut [MaybeUninit<T>]) {
        for ((y, o), gate) in y.iter_mut().zip(o).zip(gate) {
            y.write(T::narrow(o.widen() * logistic::<FMA>(gate.widen()).0));
        }
    }
}

multiversion! {
    fn backward_chunk<T: Element>(
        inputs: (&[T], &[T], &[T]),
        d_o: &mut [MaybeUninit<T>],
        d_gate: &mut [MaybeUninit<T>],
    ) {
        let (o, gate, dy) = inputs;
        for ((d_o, d_gate), ((o, gate), dy)) in d_o.iter_mut().zip(d_gate).zip(o.iter().zip(gate).zip(dy)) {
            let ((s, rest), dy) = (logistic::<FMA>(gate.widen()), dy.widen());
            d_o.write(T::narrow(dy * s));
            d_gate.write(T::narrow(dy * o.widen() * s * rest));
        }
    }
}

/// The op in plain candle ops.
pub mod reference {
    use crate::kernel_form::widen;
    use candle_core::{Result, Tensor};

    /// See [`super::forward`].
    pub fn forward(o: &Tensor, gate: &Tensor) -> Result<Tensor> {
        (widen(o)? * logistic(&widen(gate)?)?)?.to_dtype(o.dtype())
    }

    /// See [`super::backward`].
    pub fn backward(o: &Tensor, gate: &Tensor, dy: &Tensor) -> Result<(Tensor, Tensor)> {
        let (dtype, s, dy) = (o.dtype(), logistic(&widen(gate)?)?, widen(dy)?);
        let d_gate = ((&dy * widen(o)?)? * (&s * (1.0 - &s)?)?)?;
        Ok(((dy * s)?.to_dtype(dtype)?, d_gate.to_dtype(dtype)?))
    }

    fn logistic(gate: &Tensor) -> Result<Tensor> {
        (gate.neg()?.exp()? + 1.0)?.recip()
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, error, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn fused_form_matches_f64() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let input = |seed| rounded(&(random(&[30, 48], seed) * 3.0).unwrap(), dtype);
            let ((o, o64), (gate, gate64), (dy, dy64)) = (input(1), input(2), input(3));
            let expected = reference::forward(&o64, &gate64).unwrap();
            assert_close(&forward(&o, &gate).unwrap(), &expected, "y");
            let (d_o, d_gate) = backward(&o, &gate, &dy).unwrap();
            let (d_o64, d_gate64) = reference::backward(&o64, &gate64, &dy64).unwrap();
            assert_close(&d_o, &d_o64, "d_o");
            assert_close(&d_gate, &d_gate64, "d_gate");
        }
    }

    #[test]
    fn gradients_match_autograd() {
        let (o, gate, dy) = (random(&[5, 8], 1), random(&[5, 8], 2), random(&[5, 8], 3));
        let expected = autograd(&[&o, &gate], &dy, |inputs| {
            &inputs[0] * (inputs[1].neg()?.exp()? + 1.0)?.recip()?
        });
        let (d_o, d_gate) = reference::backward(&o, &gate, &dy).unwrap();
        assert!(error(&d_o, &expected[0]) < 1e-12 && error(&d_gate, &expected[1]) < 1e-12);
    }

    #[test]
    fn a_gate_stands_behind_the_query_of_its_head() {
        let both = random(&[3, 24], 1);
        let (q, gate) = split(&both, 4).unwrap();
        let (rows, q, gate) = (
            both.to_vec2::<f64>().unwrap(),
            q.to_vec2::<f64>().unwrap(),
            gate.to_vec2::<f64>().unwrap(),
        );
        for (token, row) in rows.iter().enumerate() {
            for head in 0..3 {
                assert_eq!(q[token][4 * head..][..4], row[8 * head..][..4]);
                assert_eq!(gate[token][4 * head..][..4], row[8 * head + 4..][..4]);
            }
        }
        let (q, gate) = split(&both, 4).unwrap();
        assert_eq!(join(&q, &gate, 4).unwrap().to_vec2::<f64>().unwrap(), rows);
        assert!(split(&both, 5).is_err() && join(&q, &gate, 5).is_err());
    }
}
