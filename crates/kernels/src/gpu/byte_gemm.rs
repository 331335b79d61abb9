//! Products of signed bytes on the GPU, with whole numbers for sums.

use candle_core::{DType, Result, Tensor};
use peft_tune_core::plan::products::device_int8::LONGEST;

/// a b^T into c (rows, columns): a (rows, depth) and b (columns, depth) hold signed bytes in U8, c signed sums in U32. All lie without gaps.
///
/// # Errors
/// Sizes, dtypes or layouts that do not fit; sums so long that they may overflow; a device whose library has no such product, or that has
/// failed.
pub fn multiply_bytes(a: &Tensor, b: &Tensor, c: &Tensor) -> Result<()> {
    let ((rows, depth), (columns, depth_b)) = (a.dims2()?, b.dims2()?);
    let dtypes = [a.dtype(), b.dtype(), c.dtype()] == [DType::U8, DType::U8, DType::U32];
    let contiguous = [a, b, c].iter().all(|tensor| tensor.is_contiguous());
    if depth > LONGEST {
        candle_core::bail!("sums of {depth} products of bytes may overflow: {LONGEST} are the most");
    }
    if depth != depth_b || c.dims() != [rows, columns] || !dtypes || !contiguous {
        candle_core::bail!(
            "product of bytes ({rows}, {depth}) {:?} and ({columns}, {depth_b}) {:?} into {:?} {:?}",
            a.dtype(),
            b.dtype(),
            c.dims(),
            c.dtype()
        );
    }
    if rows * columns == 0 {
        return Ok(());
    }
    match c.device() {
        #[cfg(feature = "cuda")]
        candle_core::Device::Cuda(device) => super::cublaslt::multiply_bytes(device, [a, b, c]),
        #[cfg(any(test, feature = "emulator"))]
        candle_core::Device::Cpu => super::emulator::multiply_bytes([a, b, c]),
        device => candle_core::bail!("no product of bytes on {device:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::emulated;
    use candle_core::Device;

    #[test]
    fn sums_of_signed_bytes_are_exact() {
        let codes = |rows: usize, columns: usize, seed: usize| {
            let values = (0..rows * columns).map(|index| ((index * 89 + seed) % 256) as u8);
            Tensor::from_vec(values.collect::<Vec<_>>(), (rows, columns), &Device::Cpu).unwrap()
        };
        let (a, b) = (codes(5, 32, 3), codes(7, 32, 11));
        let c = Tensor::full(9u32, (5, 7), &Device::Cpu).unwrap();
        emulated(|| multiply_bytes(&a, &b, &c)).unwrap();
        let (left, right) = (a.to_vec2::<u8>().unwrap(), b.to_vec2::<u8>().unwrap());
        for (row, sums) in left.iter().zip(c.to_vec2::<u32>().unwrap()) {
            for (column, sum) in right.iter().zip(sums) {
                let terms = row.iter().zip(column);
                let exact: i32 = terms
                    .map(|(a, b)| i32::from(a.cast_signed()) * i32::from(b.cast_signed()))
                    .sum();
                assert_eq!(sum.cast_signed(), exact);
            }
        }
        let error = emulated(|| multiply_bytes(&a, &codes(7, 16, 1), &c)).unwrap_err();
        assert!(error.to_string().starts_with("product of bytes (5, 32)"), "{error}");
    }
}
