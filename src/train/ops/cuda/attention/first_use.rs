//! What has to hold before Hopper's form of attention is used on a device: on a small problem, it gives what the tiled form gives.
//!
//! Both forms round differently, but by little; a fault of an instruction's operands gives other numbers altogether. A GPU on which the
//! two differ, or on which Hopper's form does not start, uses the tiled one and says so.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::{DType, Device, DeviceLocation, Result, Tensor};

use super::{Form, backward_by, forward_by};
use crate::train::ops::attention::{Saved, Settings};

/// Largest difference, in parts of the largest value. Rounding to BF16 in both makes up to 1%; a wrong operand makes all of it.
const ALLOWED: f64 = 0.1;

/// Two documents; more rows than a block has.
const OFFSETS: [u32; 3] = [0, 60, 150];

/// Device, dtype and size of heads.
type Key = (DeviceLocation, DType, usize);

static VERDICTS: LazyLock<Mutex<HashMap<Key, bool>>> = LazyLock::new(Mutex::default);

/// Whether `form`, which is `hopper`'s for heads of `head_dim`, gives what the tiled form gives. Computed once in a process.
pub(super) fn is_right(form: Form, head_dim: usize, dtype: DType, device: &Device) -> bool {
    let mut verdicts = VERDICTS.lock().unwrap_or_else(PoisonError::into_inner);
    let verdict = verdicts.entry((device.location(), dtype, head_dim));
    *verdict.or_insert_with(|| match difference(form, head_dim, dtype, device) {
        Ok(difference) if difference <= ALLOWED => true,
        Ok(difference) => {
            tracing::warn!(
                head_dim, ?dtype, difference,
                "attention's kernels for Hopper give other values than those for all GPUs, which are used instead; please report it"
            );
            false
        }
        Err(error) => {
            tracing::warn!(head_dim, ?dtype, %error, "attention's kernels for Hopper do not run; those for all GPUs are used");
            false
        }
    })
}

/// The largest difference of results and gradients between `form` and the tiled one, in parts of the largest value.
pub(super) fn difference(form: Form, head_dim: usize, dtype: DType, device: &Device) -> Result<f64> {
    let Some(tiled) = Form::tiled(head_dim) else {
        candle_core::bail!("no tiled form for heads of {head_dim}");
    };
    // Every value from -1 to 1 as often; the device's own generator stays as it is.
    let random = |heads: usize, seed: u32| {
        let count = OFFSETS[2] as usize * heads * head_dim;
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        let values: Vec<f32> = (0..count).map(|_| next()).collect();
        Tensor::from_vec(values, (OFFSETS[2] as usize, heads, head_dim), device)?.to_dtype(dtype)
    };
    let (q, k, v, d_o) = (random(2, 1)?, random(1, 2)?, random(1, 3)?, random(2, 4)?);
    let settings = Settings {
        scale: 4.0 / (head_dim as f64).sqrt(),
        window: None,
        soft_cap: None,
    };
    let run = |form: Form| -> Result<[Tensor; 5]> {
        let documents = || (&OFFSETS).into();
        let (o, lse) = forward_by(form, [&q, &k, &v], documents(), &settings)?;
        let saved = Saved {
            q: &q,
            k: &k,
            v: &v,
            o: &o,
            lse: &lse,
        };
        let (dq, dk, dv) = backward_by(form, saved, &d_o, documents(), &settings)?;
        Ok([o, lse, dq, dk, dv])
    };
    let mut largest = 0f64;
    for (own, other) in run(form)?.iter().zip(&run(tiled)?) {
        let values = |tensor: &Tensor| tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>();
        let (own, other) = (values(own)?, values(other)?);
        let scale = other
            .iter()
            .fold(f32::MIN_POSITIVE, |most, value| most.max(value.abs()));
        for (own, other) in own.iter().zip(&other) {
            let difference = f64::from((own - other).abs() / scale);
            // Not a number is as wrong as can be.
            largest = largest.max(if difference.is_nan() { f64::INFINITY } else { difference });
        }
    }
    Ok(largest)
}
