//! The ceilings of this machine: how long the engine's own ops take, by dtype and size.
//!
//! Each op runs through the same functions as in training, on operands of its own, at the points of a small grid. The
//! whole takes a few seconds; what is measured is kept as [`Ceilings`]. Of a GPU only large products and copies are measured, as
//! [`DeviceCeilings`](peft_tune_core::predict::DeviceCeilings).

mod attention;
mod clock;
mod device;
mod host;
mod passes;
mod products;
mod whole_step;

use std::collections::btree_map::Entry;

use candle_core::{DType, Device, Result};

pub use self::clock::Effort;
pub use self::device::{add_device, measure_device};
pub use self::host::{host, warm_threads};
use crate::TrainError;
use crate::base::compute_dtype;
use peft_tune_core::predict::{Ceilings, Pass};
use peft_tune_core::recipe::Precision;

/// Measures this machine's CPU for settings of `precisions`, on the threads of this process.
///
/// # Errors
/// Those of the ops: memory.
pub fn measure(precisions: &[Precision], effort: Effort) -> std::result::Result<Ceilings, TrainError> {
    let mut ceilings = Ceilings {
        host: host::host(),
        memory_bytes_per_s: host::memory_bytes_per_s(effort),
        wake_s: host::wake_s(effort),
        host_to_device_bytes_per_s: None,
        products: Default::default(),
        byte_products: Default::default(),
        sparse_products: Default::default(),
        ops: Default::default(),
        updates: passes::updates(effort)?,
        whole_steps: Default::default(),
    };
    add(&mut ceilings, precisions, effort)?;
    Ok(ceilings)
}

/// Bytes a second that this process's threads read and write in the host's memory.
pub fn host_memory_bytes_per_s() -> f64 {
    host::memory_bytes_per_s(Effort::Full)
}

/// Measures what `ceilings` lack for settings of `precisions`.
///
/// # Errors
/// Errors of [`measure`].
pub fn add(ceilings: &mut Ceilings, precisions: &[Precision], effort: Effort) -> std::result::Result<(), TrainError> {
    if ceilings.updates.len() < 1 + Pass::updates().count() {
        ceilings.updates = passes::updates(effort)?;
    }
    for precision in precisions {
        // Adapters' F32 products and the dense head count in every precision.
        for storage in [*precision, precision.compute()] {
            if let Entry::Vacant(place) = ceilings.products.entry(storage) {
                place.insert(products::weights(storage, products::Form::AsStored, effort)?);
            }
        }
        if precision.is_quantized()
            && let Entry::Vacant(place) = ceilings.byte_products.entry(*precision)
        {
            place.insert(products::weights(*precision, products::Form::InBytes, effort)?);
        }
        if !precision.is_quantized()
            && let Entry::Vacant(place) = ceilings.sparse_products.entry(*precision)
        {
            place.insert(products::weights(*precision, products::Form::Sparse, effort)?);
        }
        let dtype = precision.compute();
        if let Entry::Vacant(place) = ceilings.ops.entry(dtype) {
            place.insert(ops(dtype, effort)?);
        }
    }
    for precision in precisions {
        if !ceilings.whole_steps.contains_key(precision) {
            let factor = whole_step::factor(ceilings, *precision, effort)?;
            ceilings.whole_steps.insert(*precision, factor);
        }
    }
    Ok(())
}

fn ops(precision: Precision, effort: Effort) -> Result<peft_tune_core::predict::OpTimes> {
    let dtype = compute_dtype(precision);
    let [adapter_nt, adapter_nn, gradient_a, gradient_b] = products::adapters(dtype, effort)?;
    Ok(peft_tune_core::predict::OpTimes {
        adapter_nt,
        adapter_nn,
        gradient_a,
        gradient_b,
        passes: passes::activations(dtype, effort)?,
        attention_forward: attention::forward(dtype, effort)?,
        attention_backward: attention::backward(dtype, effort)?,
    })
}

/// Reproducible operands: what is multiplied changes no time, as long as it is finite and not denormal.
fn operand(shape: &[usize], dtype: DType) -> Result<candle_core::Tensor> {
    let count = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|index| ((index % 251) as f32 - 125.0) / 500.0).collect();
    candle_core::Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// A grid of `time` at the points of `axes`; the first error ends it.
fn grid(axes: [&[usize]; 3], mut time: impl FnMut([usize; 3]) -> Result<f64>) -> Result<peft_tune_core::predict::Grid> {
    let mut failed = None;
    let points = axes.map(|axis| axis.iter().map(|value| *value as f64).collect());
    let grid = peft_tune_core::predict::Grid::measured(points.into(), |point| {
        let sizes = [point[0] as usize, point[1] as usize, point[2] as usize];
        time(sizes).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            1.0
        })
    });
    match failed {
        Some(error) => Err(error),
        None => Ok(grid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coarse_measurement_covers_what_was_asked_and_grows_by_what_is_added() {
        let mut ceilings = measure(&[Precision::Fp32], Effort::Coarse).unwrap();
        assert!(ceilings.covers(Precision::Fp32) && !ceilings.covers(Precision::Nf4));
        add(&mut ceilings, &[Precision::Nf4], Effort::Coarse).unwrap();
        assert!(ceilings.covers(Precision::Nf4) && ceilings.covers(Precision::Fp32));
        assert!(ceilings.memory_bytes_per_s > 1e8 && ceilings.wake_s > 0.0);
        let headlines = ceilings.headlines();
        assert!(
            headlines.iter().all(|one| one.value > 0.0 && one.value.is_finite()),
            "{headlines:?}"
        );
        let text = serde_json::to_string(&ceilings).unwrap();
        assert_eq!(serde_json::from_str::<Ceilings>(&text).unwrap(), ceilings);
    }
}
