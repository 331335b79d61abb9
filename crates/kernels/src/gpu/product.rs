//! Matrix products on the GPU, with F32 accumulation whatever the dtype.

use candle_core::{DType, Result, Tensor};

use super::gemm::{Gemm, row_stride};

impl Gemm<'_> {
    /// Puts the product at the end of the device's queue. `c` has contiguous rows, and the operands' dtype or F32.
    ///
    /// # Errors
    /// Sizes or dtypes that do not fit, a device that has failed.
    pub fn run(&self, c: &Tensor) -> Result<()> {
        let ((rows, depth), (depth_b, columns)) = (self.a.size(), self.b.size());
        let is_alike = |onto: &Tensor| {
            onto.dims() == c.dims() && onto.dtype() == c.dtype() && onto.is_contiguous() && c.is_contiguous()
        };
        let fits = depth == depth_b
            && c.dims() == [rows, columns]
            && row_stride(c)?.is_some()
            && self.onto.is_none_or(is_alike);
        if !fits || self.a.dtype != self.b.dtype || (c.dtype() != self.a.dtype && c.dtype() != DType::F32) {
            candle_core::bail!(
                "product of ({rows}, {depth}) {:?} and ({depth_b}, {columns}) {:?} into {:?} {:?}",
                self.a.dtype,
                self.b.dtype,
                c.dims(),
                c.dtype()
            );
        }
        if rows * columns == 0 {
            return Ok(());
        }
        match c.device() {
            #[cfg(feature = "cuda")]
            candle_core::Device::Cuda(device) => super::cublas::multiply(device, self, c),
            #[cfg(any(test, feature = "emulator"))]
            candle_core::Device::Cpu => super::emulator::multiply(self, c),
            device => candle_core::bail!("no product of own on {device:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Matrix, emulated};
    use candle_core::Device;

    #[test]
    fn sizes_transposes_and_sums_are_those_of_candles_product() {
        let random = |rows, columns| Tensor::randn(0f32, 1.0, (rows, columns), &Device::Cpu).unwrap();
        let (a, b, c) = (random(3, 5), random(4, 5), random(3, 4));
        let expected = ((a.matmul(&b.t().unwrap()).unwrap() * 0.5).unwrap() + (&c * 2.0).unwrap()).unwrap();
        let at = a.t().unwrap().contiguous().unwrap();
        for a in [Matrix::new(&a).unwrap(), Matrix::new(&at).unwrap().t()] {
            let result = c.copy().unwrap();
            let product = Gemm {
                alpha: 0.5,
                beta: 2.0,
                ..Gemm::new(a, Matrix::new(&b).unwrap().t())
            };
            emulated(|| product.run(&result)).unwrap();
            let difference = (result - &expected).unwrap().abs().unwrap().max_all().unwrap();
            assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
        }
        let narrow = Matrix::new(&a).unwrap();
        assert!(Gemm::new(narrow, narrow).run(&c).is_err());
    }

    #[test]
    fn columns_of_wider_tensors_are_operands_and_results() {
        let random = |rows, columns| Tensor::randn(0f32, 1.0, (rows, columns), &Device::Cpu).unwrap();
        let (wide, b, old) = (random(3, 9), random(4, 5), random(3, 4));
        let a = wide.narrow(1, 2, 5).unwrap();
        let expected = a.contiguous().unwrap().matmul(&b.t().unwrap()).unwrap();
        let apart = |x: &Tensor, y: &Tensor| -> f32 {
            let difference = (x - y).unwrap().abs().unwrap().max_all().unwrap();
            difference.to_scalar().unwrap()
        };
        let product = Gemm {
            beta: 1.0,
            ..Gemm::new(Matrix::new(&a).unwrap(), Matrix::new(&b).unwrap().t())
        };
        let (around, columns) = (
            Tensor::ones((3, 6), DType::F32, &Device::Cpu).unwrap(),
            |tensor: &Tensor| tensor.narrow(1, 1, 4).unwrap(),
        );
        emulated(|| product.run(&columns(&around))).unwrap();
        assert!(apart(&columns(&around), &(&expected + 1.0).unwrap()) < 1e-5);
        let sides = [0, 5].map(|column| around.narrow(1, column, 1).unwrap().flatten_all().unwrap());
        assert_eq!(sides.map(|side| side.to_vec1::<f32>().unwrap()), [[1.0; 3], [1.0; 3]]);
        // What is added may lie elsewhere, and stays as it is.
        let product = Gemm {
            onto: Some(&old),
            ..product
        };
        let (place, before) = (
            Tensor::ones((3, 4), DType::F32, &Device::Cpu).unwrap(),
            old.copy().unwrap(),
        );
        emulated(|| product.run(&place)).unwrap();
        assert!(apart(&place, &(&expected + &old).unwrap()) < 1e-5);
        assert_eq!(apart(&old, &before), 0.0);
        assert!(emulated(|| product.run(&columns(&around))).is_err());
        assert!(Matrix::new(&wide.t().unwrap()).is_err());
    }
}
