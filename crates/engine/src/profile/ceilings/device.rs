//! The ceilings of a GPU: products that fill it, and copies beyond its caches.

use std::collections::btree_map::Entry;
use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};

use crate::TrainError;
use crate::base::{Weight, WeightKind, compute_dtype};
use crate::profile::median;
use peft_tune_core::predict::DeviceCeilings;
use peft_tune_core::recipe::Precision;
use peft_tune_kernels::device;
use peft_tune_kernels::ops::matmul;
use peft_tune_kernels::ops::matmul::Term;

/// Widths of the square products: the first that takes [`LONG_S`] is measured, or the last.
const WIDTHS: [usize; 6] = [256, 512, 1024, 2048, 4096, 8192];
/// Bytes that are copied: beyond every cache of a GPU, where there is room.
const COPIED: [usize; 5] = [1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];
/// Seconds after which launching a kernel and waiting for it no longer count.
const LONG_S: f64 = 5e-3;
/// Seconds of work before a measurement: an idle GPU has lowered its clock.
const WARM_S: f64 = 0.1;
/// Measured times, of so many calls each.
const SAMPLES: usize = 5;
const CALLS: usize = 2;
/// Part of the GPU's memory that the operands may take.
const MEMORY_SHARE: u64 = 8;

/// Measures a GPU in the compute dtypes of `precisions`: less than a second for each of them.
///
/// # Errors
/// Those of the ops: memory.
pub fn measure_device(device: &Device, precisions: &[Precision]) -> std::result::Result<DeviceCeilings, TrainError> {
    let mut ceilings = DeviceCeilings {
        products: Default::default(),
        memory_bytes_per_s: copy_rate(device)?,
    };
    add_device(&mut ceilings, device, precisions)?;
    Ok(ceilings)
}

/// Measures what `ceilings` lack for `precisions`.
///
/// # Errors
/// Errors of [`measure_device`].
pub fn add_device(
    ceilings: &mut DeviceCeilings,
    device: &Device,
    precisions: &[Precision],
) -> std::result::Result<(), TrainError> {
    for precision in precisions {
        if let Entry::Vacant(place) = ceilings.products.entry(precision.compute()) {
            place.insert(product_rate(device, precision.compute())?);
        }
    }
    Ok(())
}

/// FLOP/s of a product that is large enough for this GPU.
fn product_rate(device: &Device, precision: Precision) -> std::result::Result<f64, TrainError> {
    let dtype = compute_dtype(precision);
    // The weight's F32 values beside x, the weight and the result.
    let bytes = |width: usize| width * width * (3 * dtype.size_in_bytes() + 4);
    let widths = fitting(&WIDTHS, device, bytes);
    longest(&widths, device, |width| {
        let x = random(width, dtype, device)?;
        let weight = Weight::store(
            random(width, DType::F32, device)?,
            "ceiling",
            WeightKind::Linear,
            precision,
            device,
        )?;
        let multiply = move || matmul::nt_sum(&[Term::new(&x, weight.factor(), 1.0)]).map(drop);
        Ok((Box::new(multiply) as Run, 2.0 * (width as f64).powi(3)))
    })
}

/// Bytes a second that a copy reads and writes.
fn copy_rate(device: &Device) -> std::result::Result<f64, TrainError> {
    let sizes = fitting(&COPIED, device, |bytes| 2 * bytes);
    longest(&sizes, device, |bytes| {
        let x = Tensor::zeros(bytes / 4, DType::F32, device)?;
        let copy = move || x.copy().map(drop);
        Ok((Box::new(copy) as Run, 2.0 * bytes as f64))
    })
}

/// An op under measurement.
type Run = Box<dyn Fn() -> Result<()>>;

/// The sizes whose operands fit; the smallest in any case.
fn fitting(sizes: &[usize], device: &Device, bytes: impl Fn(usize) -> usize) -> Vec<usize> {
    let room = device::facts(device).map_or(u64::MAX, |facts| facts.memory_bytes / MEMORY_SHARE);
    let fit = sizes.iter().take_while(|size| bytes(**size) as u64 <= room).count();
    sizes[..fit.max(1)].to_vec()
}

/// Work a second of the op that `make` gives for the first size that takes [`LONG_S`], or for the last one.
fn longest(
    sizes: &[usize],
    device: &Device,
    make: impl Fn(usize) -> std::result::Result<(Run, f64), TrainError>,
) -> std::result::Result<f64, TrainError> {
    let mut rate = f64::NAN;
    for (index, size) in sizes.iter().enumerate() {
        let (run, work) = make(*size)?;
        // The first call chooses an algorithm and makes room.
        timed(device, 1, &run)?;
        let is_last = index + 1 == sizes.len();
        if is_last || timed(device, 1, &run)? >= LONG_S {
            rate = work / settled(device, &run)?;
            break;
        }
    }
    Ok(rate)
}

/// Seconds of one call on a warm GPU, in the median.
fn settled(device: &Device, run: &Run) -> Result<f64> {
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < WARM_S {
        timed(device, 1, run)?;
    }
    let samples: Vec<f64> = (0..SAMPLES).map(|_| timed(device, CALLS, run)).collect::<Result<_>>()?;
    // Never zero: rates are made of it.
    Ok(median(samples).unwrap_or(0.0).max(1e-9))
}

/// Seconds of one of `calls` calls that the device is given at once.
fn timed(device: &Device, calls: usize, run: &Run) -> Result<f64> {
    device.synchronize()?;
    let begun = Instant::now();
    for _ in 0..calls {
        run()?;
    }
    device.synchronize()?;
    Ok(begun.elapsed().as_secs_f64() / calls as f64)
}

/// Values as activations have them: products of zeros take less power, and a GPU makes them at a higher clock.
fn random(width: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    Tensor::randn(0f32, 0.5, (width, width), device)?.to_dtype(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dtypes_that_are_asked_for_are_measured_once() {
        // The CPU stands for a device: what is measured and what is kept.
        let cpu = Device::Cpu;
        let mut ceilings = DeviceCeilings {
            products: [(Precision::Bf16, 7.0)].into(),
            memory_bytes_per_s: 1.0,
        };
        add_device(&mut ceilings, &cpu, &[Precision::Nf4, Precision::Fp32]).unwrap();
        assert_eq!(ceilings.flops_per_s(Precision::Bf16), Some(7.0));
        assert!(
            ceilings
                .flops_per_s(Precision::Fp32)
                .is_some_and(|rate| rate > 1e6 && rate < 1e15)
        );
        assert!(!ceilings.cover(&[Precision::Fp16]));
    }

    #[test]
    fn the_first_size_that_takes_long_counts_or_the_last() {
        let after = |milliseconds: &'static [u64]| {
            longest(&[0, 1, 2], &Device::Cpu, |size| {
                let pause = std::time::Duration::from_millis(milliseconds[size]);
                let run = move || {
                    std::thread::sleep(pause);
                    Ok(())
                };
                Ok((Box::new(run) as Run, 10f64.powi(size as i32)))
            })
            .unwrap()
        };
        let near = |rate: f64, expected: f64| (0.5..1.01).contains(&(rate / expected));
        assert!(near(after(&[1, 8, 8]), 10.0 / 8e-3));
        assert!(near(after(&[1, 1, 4]), 100.0 / 4e-3));
    }
}
