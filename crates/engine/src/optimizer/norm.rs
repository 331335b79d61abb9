//! Global gradient norm and clipping, as `torch.nn.utils.clip_grad_norm_`.

use candle_core::{DType, Result, Tensor};

use peft_tune_kernels::gpu;

use super::cuda::Clipping;
use crate::tensor;
use peft_tune_kernels::flat::{CHUNK, with_f32, with_f32_mut};
use peft_tune_kernels::thread_pool;

/// Elements that are added up in F32 where F64 is not at hand.
const ROW: usize = 1024;

/// Euclidean norm of a flat F32 tensor. Squares are added up in F64 in a fixed order, so that the result does not
/// depend on the number of threads; off the CPU, rows of 1024 are added up in F32 first.
pub fn global_norm(gradients: &Tensor) -> Result<f64> {
    if gpu::takes(gradients) {
        return norm_and_clip(gradients, None)?.read();
    }
    if gradients.device().is_cpu() {
        return with_f32(gradients, |gradients| {
            let mut sums = vec![0.0; gradients.len().div_ceil(CHUNK)];
            thread_pool::for_chunks(&mut sums, 1, |index, sum| {
                let chunk = &gradients[index * CHUNK..];
                sum.fill(sum_of_squares(&chunk[..chunk.len().min(CHUNK)]));
            });
            Ok(sums.iter().sum::<f64>().sqrt())
        });
    }
    let elements = gradients.elem_count();
    let whole = elements / ROW * ROW;
    let mut sum = 0.0;
    for (start, length, row) in [(0, whole, ROW), (whole, elements - whole, elements - whole)] {
        if length > 0 {
            let rows = gradients.narrow(0, start, length)?.reshape((length / row, row))?;
            let sums = rows.sqr()?.sum(1)?.to_dtype(DType::F64)?;
            sum += sums.sum_all()?.to_scalar::<f64>()?;
        }
    }
    Ok(sum.sqrt())
}

/// The product of two flat F32 tensors of one length, added up as [`global_norm`] adds squares.
pub fn dot(a: &Tensor, b: &Tensor) -> Result<f64> {
    if a.device().is_cpu() {
        return with_f32(a, |a| {
            with_f32(b, |b| {
                let mut sums = vec![0.0; a.len().div_ceil(CHUNK)];
                thread_pool::for_chunks(&mut sums, 1, |index, sum| {
                    let pairs = a[index * CHUNK..].iter().zip(&b[index * CHUNK..]).take(CHUNK);
                    sum.fill(pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum());
                });
                Ok(sums.iter().sum::<f64>())
            })
        });
    }
    let elements = a.elem_count();
    let whole = elements / ROW * ROW;
    let mut sum = 0.0;
    for (start, length, row) in [(0, whole, ROW), (whole, elements - whole, elements - whole)] {
        if length > 0 {
            let shape = (length / row, row);
            let (a, b) = (
                a.narrow(0, start, length)?.reshape(shape)?,
                b.narrow(0, start, length)?.reshape(shape)?,
            );
            let sums = (a * b)?.sum(1)?.to_dtype(DType::F64)?;
            sum += sums.sum_all()?.to_scalar::<f64>()?;
        }
    }
    Ok(sum)
}

/// A norm that may still be on its way from the device.
#[derive(Clone, Debug)]
pub enum Norm {
    Known(f64),
    /// (2,) F64 on the device: the norm, and the factor that the values were scaled by. The next step overwrites it.
    OnDevice(Tensor),
}

impl Norm {
    /// The norm; waits for the device.
    pub fn read(&self) -> Result<f64> {
        match self {
            Self::Known(norm) => Ok(*norm),
            Self::OnDevice(tensor) => Ok(tensor.to_vec1::<f64>()?[0]),
        }
    }
}

/// Takes the factor of the loss out of `gradients`, in place.
pub(crate) fn unscale(gradients: &tensor::Tensor, loss_scale: f32) -> Result<()> {
    gradients.slice_set(&gradients.affine(1.0 / f64::from(loss_scale), 0.0)?, 0, 0)
}

/// Scales `gradients` in place so that their norm is at most `max_norm`, and returns the norm before it: the factor is
/// min(1, max_norm / (norm + 1e-6)). A norm that is not finite changes nothing: the caller decides what it means.
pub fn clip(gradients: &Tensor, max_norm: f64) -> Result<f64> {
    norm_and_clip(gradients, Some(max_norm))?.read()
}

/// Finds the norm and clips to it as [`clip`] does, or finds the norm alone; on a GPU nothing waits for it: the device
/// finds the factor by itself.
pub fn norm_and_clip(gradients: &Tensor, max_norm: Option<f64>) -> Result<Norm> {
    if gpu::takes(gradients) {
        let clipping = Clipping::new(max_norm, gradients.device())?;
        clipping.launch(gradients)?;
        return Ok(Norm::OnDevice(clipping.result));
    }
    let norm = global_norm(gradients)?;
    let factor = max_norm.map_or(1.0, |max_norm| max_norm / (norm + 1e-6));
    if !norm.is_finite() || factor >= 1.0 {
        return Ok(Norm::Known(norm));
    }
    if gradients.device().is_cpu() {
        with_f32_mut(gradients, |gradients| {
            let scale = |_, chunk: &mut [f32]| chunk.iter_mut().for_each(|value| *value *= factor as f32);
            thread_pool::for_chunks(gradients, CHUNK, scale);
            Ok(())
        })?;
    } else {
        gradients.slice_set(&(gradients * factor)?, 0, 0)?;
    }
    Ok(Norm::Known(norm))
}

/// Eight running sums keep the additions independent of each other.
fn sum_of_squares(values: &[f32]) -> f64 {
    let (lanes, rest) = values.as_chunks::<8>();
    let mut sums = [0.0f64; 8];
    for lane in lanes {
        for (sum, value) in sums.iter_mut().zip(lane) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    let rest: f64 = rest.iter().map(|value| f64::from(*value).powi(2)).sum();
    sums.iter().sum::<f64>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn gradients(elements: usize) -> Tensor {
        let values: Vec<f32> = (0..elements).map(|index| (index as f32 * 0.37).sin()).collect();
        Tensor::from_vec(values, elements, &Device::Cpu).unwrap()
    }

    #[test]
    fn the_norm_is_that_of_all_elements() {
        let tensor = gradients(40_003);
        let expected = tensor
            .to_vec1::<f32>()
            .unwrap()
            .iter()
            .map(|v| f64::from(*v).powi(2))
            .sum::<f64>()
            .sqrt();
        assert!((global_norm(&tensor).unwrap() - expected).abs() < 1e-12 * expected);
    }

    #[test]
    fn clipping_scales_down_to_the_maximum_only() {
        let tensor = gradients(1000);
        let before = tensor.to_vec1::<f32>().unwrap();
        let norm = clip(&tensor, 1e3).unwrap();
        assert_eq!(tensor.to_vec1::<f32>().unwrap(), before);
        assert_eq!(clip(&tensor, 0.5).unwrap(), norm);
        assert!((global_norm(&tensor).unwrap() - 0.5).abs() < 1e-6);
    }

    #[test]
    fn a_norm_that_is_not_finite_is_returned_and_changes_nothing() {
        let tensor = Tensor::new(&[1.0f32, f32::INFINITY], &Device::Cpu).unwrap();
        assert_eq!(clip(&tensor, 1.0).unwrap(), f64::INFINITY);
        assert_eq!(tensor.to_vec1::<f32>().unwrap()[0], 1.0);
    }
}
