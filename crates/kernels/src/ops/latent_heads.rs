//! Keys and values of latent attention: their second projection, and the rotated part of keys that all heads share.
//!
//! | name | shape | meaning |
//! |---|---|---|
//! | `expanded` | (T, H (n + dv)) | for each head n dimensions of its key, then its value |
//! | `shared` p | (T, 1, r) | behind the n dimensions of every head's key |
//! | `k`, `v` | (T, H, n + r), (T, H, dv) | what attention reads |
//!
//! Backward: the gradient of p is the sum over the heads, in F32 and rounded once.

use super::element::{Element, with_element};
use super::shape;
use super::simd::multiversion;
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// (k, v) with so many dimensions of each key in `expanded`.
///
/// # Errors
/// Shapes that do not fit.
pub fn forward(expanded: &Tensor, shared: &Tensor, heads: usize, plain: usize) -> Result<(Tensor, Tensor)> {
    let dims = Dims::of(expanded, shared, [heads, plain])?;
    if !is_fused(expanded) || expanded.dtype() != shared.dtype() || dims.tokens == 0 {
        return reference::forward(expanded, shared, dims);
    }
    let (expanded, shared) = (expanded.contiguous()?, shared.contiguous()?);
    with_element!(expanded.dtype(), T => {
        let (from, of_all) = (Elements::<T>::new(&expanded)?, Elements::<T>::new(&shared)?);
        let (from, of_all) = (&*from, &*of_all);
        let (mut k, mut v) = (Unwritten::<T>::new(dims.tokens * dims.keys()), Unwritten::<T>::new(dims.tokens * dims.values()));
        let task = rows_per_task(dims.keys() + dims.values());
        thread_pool::for_chunks2(
            (&mut k.slots()[..dims.tokens * dims.keys()], task * dims.keys()),
            (&mut v.slots()[..dims.tokens * dims.values()], task * dims.values()),
            |number, k, v| {
                let from = from[number * task * dims.expanded()..].chunks_exact(dims.expanded());
                let of_all = of_all[number * task * dims.turning..].chunks_exact(dims.turning);
                let tokens = k.chunks_exact_mut(dims.keys()).zip(v.chunks_exact_mut(dims.values()));
                for ((k, v), (from, of_all)) in tokens.zip(from.zip(of_all)) {
                    join(from, of_all, [dims.plain, dims.value], k, v);
                }
            },
        );
        // SAFETY: every token is written.
        unsafe {
            Ok((
                k.into_tensor(&[dims.tokens, dims.heads, dims.plain + dims.turning])?,
                v.into_tensor(&[dims.tokens, dims.heads, dims.value])?,
            ))
        }
    })
}

/// The gradients of (`expanded`, `shared`) from those of k and v.
///
/// # Errors
/// Shapes that do not fit.
pub fn backward(d_k: &Tensor, d_v: &Tensor, plain: usize) -> Result<(Tensor, Tensor)> {
    let ((tokens, heads, key), (_, _, value)) = (d_k.dims3()?, d_v.dims3()?);
    shape::expect(d_v, &[tokens, heads, value], "latent heads: d_v")?;
    if key <= plain {
        candle_core::bail!("latent heads: {plain} of a key's {key} dimensions are of one head");
    }
    let dims = Dims {
        tokens,
        heads,
        plain,
        turning: key - plain,
        value,
    };
    if !is_fused(d_k) || d_k.dtype() != d_v.dtype() || tokens == 0 {
        return reference::backward(d_k, d_v, dims);
    }
    let (d_k, d_v) = (d_k.contiguous()?, d_v.contiguous()?);
    with_element!(d_k.dtype(), T => {
        let (of_keys, of_values) = (Elements::<T>::new(&d_k)?, Elements::<T>::new(&d_v)?);
        let (of_keys, of_values) = (&*of_keys, &*of_values);
        let (mut expanded, mut shared) = (Unwritten::<T>::new(tokens * dims.expanded()), Unwritten::<T>::new(tokens * dims.turning));
        let task = rows_per_task(dims.keys() + dims.values());
        thread_pool::for_chunks2(
            (&mut expanded.slots()[..tokens * dims.expanded()], task * dims.expanded()),
            (&mut shared.slots()[..tokens * dims.turning], task * dims.turning),
            |number, expanded, shared| {
                let mut sums = vec![0f32; dims.turning];
                let of_keys = of_keys[number * task * dims.keys()..].chunks_exact(dims.keys());
                let of_values = of_values[number * task * dims.values()..].chunks_exact(dims.values());
                let to = expanded.chunks_exact_mut(dims.expanded()).zip(shared.chunks_exact_mut(dims.turning));
                for ((expanded, shared), (d_k, d_v)) in to.zip(of_keys.zip(of_values)) {
                    split(d_k, d_v, [dims.plain, dims.value], &mut sums, expanded, shared);
                }
            },
        );
        // SAFETY: every token is written.
        unsafe {
            Ok((
                expanded.into_tensor(&[tokens, dims.expanded()])?,
                shared.into_tensor(&[tokens, 1, dims.turning])?,
            ))
        }
    })
}

#[derive(Clone, Copy, Debug)]
struct Dims {
    tokens: usize,
    heads: usize,
    /// n
    plain: usize,
    /// r
    turning: usize,
    /// dv
    value: usize,
}

impl Dims {
    fn of(expanded: &Tensor, shared: &Tensor, [heads, plain]: [usize; 2]) -> Result<Self> {
        let ((tokens, width), (_, _, turning)) = (expanded.dims2()?, shared.dims3()?);
        shape::expect(shared, &[tokens, 1, turning], "latent heads: shared")?;
        if heads == 0 || !width.is_multiple_of(heads) || width / heads <= plain || turning == 0 {
            candle_core::bail!("latent heads: {width} dimensions of {heads} heads with {plain} of a key each");
        }
        Ok(Self {
            tokens,
            heads,
            plain,
            turning,
            value: width / heads - plain,
        })
    }

    /// Widths of a token's tensors.
    fn expanded(&self) -> usize {
        self.heads * (self.plain + self.value)
    }

    fn keys(&self) -> usize {
        self.heads * (self.plain + self.turning)
    }

    fn values(&self) -> usize {
        self.heads * self.value
    }
}

multiversion! {
    /// One token; `widths` are those of a head's part in `from`, of its key and of its value.
    fn join<T: Element>(
        from: &[T],
        of_all: &[T],
        widths: [usize; 2],
        k: &mut [MaybeUninit<T>],
        v: &mut [MaybeUninit<T>],
    ) {
        let [plain, value] = widths;
        let heads = k.chunks_exact_mut(plain + of_all.len()).zip(v.chunks_exact_mut(value));
        for ((k, v), from) in heads.zip(from.chunks_exact(plain + value)) {
            let ((own, shared), (of_key, of_value)) = (k.split_at_mut(plain), from.split_at(plain));
            own.iter_mut().zip(of_key).for_each(|(to, from)| { to.write(*from); });
            shared.iter_mut().zip(of_all).for_each(|(to, from)| { to.write(*from); });
            v.iter_mut().zip(of_value).for_each(|(to, from)| { to.write(*from); });
        }
    }
}

multiversion! {
    /// Splits what [`join`] joined.
    fn split<T: Element>(
        d_k: &[T],
        d_v: &[T],
        widths: [usize; 2],
        sums: &mut [f32],
        expanded: &mut [MaybeUninit<T>],
        shared: &mut [MaybeUninit<T>],
    ) {
        let [plain, value] = widths;
        sums.fill(0.0);
        let heads = d_k.chunks_exact(plain + sums.len()).zip(d_v.chunks_exact(value));
        for ((d_k, d_v), to) in heads.zip(expanded.chunks_exact_mut(plain + value)) {
            let ((own, of_all), (of_key, of_value)) = (d_k.split_at(plain), to.split_at_mut(plain));
            of_key.iter_mut().zip(own).for_each(|(to, from)| { to.write(*from); });
            of_value.iter_mut().zip(d_v).for_each(|(to, from)| { to.write(*from); });
            sums.iter_mut().zip(of_all).for_each(|(sum, value)| *sum += value.widen());
        }
        shared.iter_mut().zip(&*sums).for_each(|(to, sum)| { to.write(T::narrow(*sum)); });
    }
}

/// The op in plain candle ops.
mod reference {
    use super::{Dims, Result, Tensor};
    use crate::kernel_form::widen;

    pub(super) fn forward(expanded: &Tensor, shared: &Tensor, dims: Dims) -> Result<(Tensor, Tensor)> {
        let heads = expanded.reshape((dims.tokens, dims.heads, dims.plain + dims.value))?;
        let of_all = shared.broadcast_as((dims.tokens, dims.heads, dims.turning))?;
        let k = Tensor::cat(&[heads.narrow(2, 0, dims.plain)?, of_all], 2)?;
        Ok((k, heads.narrow(2, dims.plain, dims.value)?.contiguous()?))
    }

    pub(super) fn backward(d_k: &Tensor, d_v: &Tensor, dims: Dims) -> Result<(Tensor, Tensor)> {
        let own = d_k.narrow(2, 0, dims.plain)?;
        let of_all = widen(&d_k.narrow(2, dims.plain, dims.turning)?)?.sum_keepdim(1)?;
        let expanded = Tensor::cat(&[&own, d_v], 2)?.reshape((dims.tokens, dims.expanded()))?;
        Ok((expanded, of_all.to_dtype(d_k.dtype())?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::oracle::{assert_close, autograd, random, rounded};
    use super::*;
    use candle_core::DType;

    #[test]
    fn every_head_has_its_own_part_and_the_shared_one() {
        let (expanded, shared) = (random(&[3, 2 * 5], 1), random(&[3, 1, 4], 2));
        let (k, v) = forward(&expanded, &shared, 2, 3).unwrap();
        let (from, of_all) = (expanded.to_vec2::<f64>().unwrap(), shared.to_vec3::<f64>().unwrap());
        let (k, v) = (k.to_vec3::<f64>().unwrap(), v.to_vec3::<f64>().unwrap());
        for (token, head) in (0..3).flat_map(|token| [(token, 0), (token, 1)]) {
            assert_eq!(k[token][head][..3], from[token][5 * head..5 * head + 3]);
            assert_eq!(k[token][head][3..], of_all[token][0]);
            assert_eq!(v[token][head], from[token][5 * head + 3..5 * head + 5]);
        }
    }

    #[test]
    fn fused_form_and_gradients_match_f64() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            for (tokens, heads, plain, turning, value) in [(7, 4, 16, 8, 12), (300, 2, 5, 2, 9), (1, 1, 3, 4, 1)] {
                let (expanded, expanded64) = rounded(&random(&[tokens, heads * (plain + value)], 1), dtype);
                let (shared, shared64) = rounded(&random(&[tokens, 1, turning], 2), dtype);
                let (k, v) = forward(&expanded, &shared, heads, plain).unwrap();
                let (k64, v64) = forward(&expanded64, &shared64, heads, plain).unwrap();
                assert_close(&k, &k64, "k");
                assert_close(&v, &v64, "v");
                let (d_k, d_k64) = rounded(&random(&[tokens, heads, plain + turning], 3), dtype);
                let (d_v, d_v64) = rounded(&random(&[tokens, heads, value], 4), dtype);
                let (d_expanded, d_shared) = backward(&d_k, &d_v, plain).unwrap();
                let both = Tensor::cat(&[&d_k64, &d_v64], 2).unwrap();
                let expected = autograd(&[&expanded64, &shared64], &both, |inputs| {
                    let (k, v) = forward(&inputs[0], &inputs[1], heads, plain)?;
                    Tensor::cat(&[&k, &v], 2)
                });
                assert_close(&d_expanded, &expected[0], "d_expanded");
                assert_close(&d_shared, &expected[1], "d_shared");
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let (expanded, shared) = (random(&[3, 10], 1), random(&[3, 1, 4], 2));
        assert!(forward(&expanded, &shared, 3, 2).is_err());
        assert!(forward(&expanded, &shared, 2, 5).is_err());
        assert!(forward(&expanded, &random(&[2, 1, 4], 2), 2, 3).is_err());
        assert!(backward(&random(&[3, 2, 4], 1), &random(&[3, 1, 4], 2), 2).is_err());
        assert!(backward(&random(&[3, 2, 4], 1), &random(&[3, 2, 4], 2), 4).is_err());
    }
}
