//! Products that are added to a result that exists: an adapter's update costs no pass over memory of its own.

use candle_core::{CpuStorage, DType, InplaceOp3, Layout, Result, Tensor};
use gemm::Parallelism;

use super::super::kernels::{Kernels, kernels};
use super::super::shape;

/// Adds alpha times x (T, K) times the transpose of w (N, K) to `into` (T, N), in place (`+=`).
///
/// `into` is contiguous and in the dtype of x; w may be of any float dtype.
pub fn nt_add(x: &Tensor, w: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let (rows, columns) = (x.dims2()?.0, w.dims2()?.0);
    shape::expect(w, &[columns, x.dims2()?.1], "matmul nt_add: w")?;
    shape::expect(into, &[rows, columns], "matmul nt_add: into")?;
    match is_fused(&[x, w, into]) {
        true => into.inplace_op3(x, &w.t()?, &AddProduct { alpha: alpha as f32 }),
        false => add(into, super::nt(x, w)?, alpha),
    }
}

/// Adds alpha times x (T, N) times w (N, K) to `into` (T, K), in place (`+=`); else as [`nt_add`].
pub fn nn_add(x: &Tensor, w: &Tensor, alpha: f64, into: &Tensor) -> Result<()> {
    let (rows, columns) = (x.dims2()?.0, w.dims2()?.1);
    shape::expect(w, &[x.dims2()?.1, columns], "matmul nn_add: w")?;
    shape::expect(into, &[rows, columns], "matmul nn_add: into")?;
    match is_fused(&[x, w, into]) {
        true => into.inplace_op3(x, w, &AddProduct { alpha: alpha as f32 }),
        false => add(into, super::nn(x, w)?, alpha),
    }
}

fn is_fused(tensors: &[&Tensor]) -> bool {
    let plain = |tensor: &&Tensor| tensor.device().is_cpu() && tensor.dtype() == DType::F32;
    kernels() == Kernels::Fused && tensors.iter().all(plain)
}

/// The plain form: into += alpha product.
fn add(into: &Tensor, product: Tensor, alpha: f64) -> Result<()> {
    let product = if alpha == 1.0 { product } else { (product * alpha)? };
    into.slice_set(&(into + product)?, 0, 0)
}

/// into += alpha x w for F32 matrices of any strides.
struct AddProduct {
    alpha: f32,
}

impl InplaceOp3 for AddProduct {
    fn name(&self) -> &'static str {
        "matmul-add"
    }

    fn cpu_fwd(
        &self,
        into: &mut CpuStorage,
        into_layout: &Layout,
        x: &CpuStorage,
        x_layout: &Layout,
        w: &CpuStorage,
        w_layout: &Layout,
    ) -> Result<()> {
        let (m, k) = x_layout.shape().dims2()?;
        let (_, n) = w_layout.shape().dims2()?;
        let x = &x.as_slice::<f32>()?[x_layout.start_offset()..];
        let w = &w.as_slice::<f32>()?[w_layout.start_offset()..];
        let Some((start, end)) = into_layout.contiguous_offsets() else {
            candle_core::bail!("matmul-add: the result must be contiguous");
        };
        let CpuStorage::F32(values) = into else {
            candle_core::bail!("matmul-add: the result must be F32");
        };
        let into = &mut values[start..end];
        let threads = match rayon::current_num_threads() {
            1 => Parallelism::None,
            threads => Parallelism::Rayon(threads),
        };
        let stride = |layout: &Layout, dim: usize| layout.stride()[dim] as isize;
        // SAFETY: candle's layouts keep every index of an (m, k) and a (k, n) view inside its storage; `into` holds
        // m x n elements, row after row, and is not aliased, since it is borrowed mutably.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                into.as_mut_ptr(),
                1,
                n as isize,
                true,
                x.as_ptr(),
                stride(x_layout, 1),
                stride(x_layout, 0),
                w.as_ptr(),
                stride(w_layout, 1),
                stride(w_layout, 0),
                1.0,
                self.alpha,
                false,
                false,
                false,
                threads,
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::oracle::{assert_close, random, rounded};
    use super::*;

    #[test]
    fn products_are_added_to_what_is_there() {
        let (x, w, y) = (random(&[13, 24], 1), random(&[9, 24], 2), random(&[13, 9], 3));
        for dtype in [DType::F32, DType::BF16] {
            let ((x, x64), (w, w64), (y, y64)) = (rounded(&x, dtype), rounded(&w, dtype), rounded(&y, dtype));
            let into = y.copy().unwrap();
            nt_add(&x, &w, 0.5, &into).unwrap();
            let product = x64.matmul(&w64.t().unwrap()).unwrap();
            assert_close(&into, &(&y64 + (product * 0.5).unwrap()).unwrap(), "nt_add");
            let into = x.copy().unwrap();
            nn_add(&y, &w, -2.0, &into).unwrap();
            let product = y64.matmul(&w64).unwrap();
            assert_close(&into, &(&x64 - (product * 2.0).unwrap()).unwrap(), "nn_add");
        }
    }

    #[test]
    fn a_result_of_another_shape_is_refused() {
        let (x, w) = (random(&[3, 4], 1), random(&[5, 4], 2));
        assert!(nt_add(&x, &w, 1.0, &random(&[5, 3], 3)).is_err());
    }
}
