//! What has to hold before Hopper's form of attention is used on a device: on a small problem, it gives what the tiled form gives.
//!
//! Both forms round differently, but by little; a fault of an instruction's operands gives other numbers altogether. A GPU on which the
//! two differ, or on which Hopper's form does not start, uses the tiled one and says so.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::{DType, Device, DeviceLocation, Result};

use super::Form;
use crate::compare::{error, pair, worst};
use crate::ops::attention::{Settings, both_passes};

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
    let tensor = |heads: usize, seed| {
        let shape = [OFFSETS[2] as usize, heads, head_dim];
        pair(&shape, seed, 1.0, dtype, device).map(|(tensor, _)| tensor)
    };
    let (q, k, v, d_o) = (tensor(2, 1)?, tensor(1, 2)?, tensor(1, 3)?, tensor(2, 4)?);
    let settings = Settings {
        scale: 4.0 / (head_dim as f64).sqrt(),
        window: None,
        soft_cap: None,
    };
    let run = |form| both_passes(Some(form), [&q, &k, &v, &d_o], &OFFSETS, &settings);
    let (own, other) = (run(form)?, run(tiled)?);
    let errors: Result<Vec<f64>> = own.iter().zip(&other).map(|(one, other)| error(one, other)).collect();
    Ok(worst(&errors?))
}
