//! Products through cuBLAS: F32, and what cuBLASLt has no algorithm for.

use candle_core::cuda_backend::{CudaDevice, WrapErr};
use candle_core::{DType, Result, Tensor};
use cudarc::cublas::{result, sys};

use super::gemm::{Gemm, Matrix};
use super::runtime::address;

/// See [`Gemm::run`]; sizes and dtypes have been checked.
pub(super) fn multiply(device: &CudaDevice, gemm: &Gemm<'_>, c: &Tensor) -> Result<()> {
    if super::cublaslt::multiply(device, gemm, c)? {
        return Ok(());
    }
    let ((rows, depth), (_, columns)) = (gemm.a.size(), gemm.b.size());
    let handle = device.cublas_handle();
    device.cuda_stream().context().bind_to_thread().w()?;
    let (a, b) = (address(device, gemm.a.tensor)?, address(device, gemm.b.tensor)?);
    if let Some(onto) = gemm.onto {
        c.slice_set(onto, 0, 0)?;
    }
    let (place, c_address) = (Matrix::new(c)?, address(device, c)?);
    // cuBLAS thinks in columns: a row-major matrix is its transpose there, so that c^T = b^T a^T is asked for.
    // SAFETY: the addresses hold matrices of these sizes; the result belongs to the caller.
    let product = unsafe {
        result::gemm_ex(
            *handle.handle(),
            operation(&gemm.b),
            operation(&gemm.a),
            columns as i32,
            rows as i32,
            depth as i32,
            (&raw const gemm.alpha).cast(),
            b as *const _,
            data_type(gemm.b.dtype)?,
            gemm.b.stride as i32,
            a as *const _,
            data_type(gemm.a.dtype)?,
            gemm.a.stride as i32,
            (&raw const gemm.beta).cast(),
            c_address as *mut _,
            data_type(c.dtype())?,
            place.stride as i32,
            compute_type(gemm.a.dtype),
            sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
        )
    };
    product.w()
}

fn operation(matrix: &Matrix<'_>) -> sys::cublasOperation_t {
    match matrix.transposed {
        true => sys::cublasOperation_t::CUBLAS_OP_T,
        false => sys::cublasOperation_t::CUBLAS_OP_N,
    }
}

fn data_type(dtype: DType) -> Result<sys::cudaDataType> {
    Ok(match dtype {
        DType::F32 => sys::cudaDataType::CUDA_R_32F,
        DType::BF16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        other => candle_core::bail!("no product of {other:?} on the GPU"),
    })
}

/// Sums are F32 in all cases; TF32 only where candle's switch asks for it.
fn compute_type(dtype: DType) -> sys::cublasComputeType_t {
    match dtype {
        DType::F32 if candle_core::cuda_backend::gemm_reduced_precision_f32() => {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        }
        _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
    }
}
