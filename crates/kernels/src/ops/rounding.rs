//! F32 values in another dtype, in place.

use super::cuda;
use super::shape;
use crate::gpu;
use candle_core::{DType, Result, Tensor};

/// Rounds `values` (F32) to nearest even into `copy`, of the same shape and any float dtype; both are contiguous.
pub fn round(values: &Tensor, copy: &Tensor) -> Result<()> {
    shape::expect(copy, values.dims(), "rounding: copy")?;
    if values.dtype() != DType::F32 {
        candle_core::bail!("rounding: values are F32, not {:?}", values.dtype());
    }
    if gpu::takes(copy) {
        return cuda::elementwise::round(values, copy);
    }
    copy.slice_set(&values.to_dtype(copy.dtype())?, 0, 0)
}

#[cfg(test)]
mod tests {
    use super::super::oracle::random;
    use super::*;
    use crate::gpu::emulated;
    use candle_core::Device;

    #[test]
    fn the_kernel_rounds_as_the_cpu_does() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            // In packs, and with a rest.
            for count in [4096, 1001] {
                let values = random(&[count], 3).to_dtype(DType::F32).unwrap();
                let copies = [(); 2].map(|()| Tensor::zeros(count, dtype, &Device::Cpu).unwrap());
                round(&values, &copies[0]).unwrap();
                emulated(|| round(&values, &copies[1])).unwrap();
                let wide = |copy: &Tensor| copy.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
                assert_eq!(wide(&copies[0]), wide(&copies[1]));
            }
        }
    }
}
