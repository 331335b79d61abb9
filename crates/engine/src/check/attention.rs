//! How fast attention is, by the form of its kernels.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor};

use peft_tune_kernels::ops::attention::{Form, Saved, Settings, backward_by, forward_by};

/// Calls that are not timed, and those that are.
const CALLS: (usize, usize) = (3, 10);

/// Rows of one length, and the layer's heads.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Layer {
    pub rows: usize,
    /// Tokens of a row.
    pub length: usize,
    pub query_heads: usize,
    pub key_heads: usize,
    pub head_dim: usize,
}

/// How long one form takes.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FormTimes {
    pub form: &'static str,
    /// Mean of a call.
    pub forward_s: f64,
    pub backward_s: f64,
    /// Rate by the operations that the gradients need at least: two products forward, five backward, of the pairs that
    /// are seen.
    pub forward_flops_per_s: f64,
    pub backward_flops_per_s: f64,
}

/// Times every form of the BF16 kernels that `device` has for `layer`, on random values; the CPU has none.
///
/// # Errors
/// What the device says.
pub fn attention_times(layer: &Layer, device: &Device) -> Result<Vec<FormTimes>> {
    let Layer {
        rows,
        length,
        query_heads,
        key_heads,
        head_dim,
    } = *layer;
    if device.is_cpu() {
        return Ok(Vec::new());
    }
    let offsets: Vec<u32> = (0..=rows).map(|row| (row * length) as u32).collect();
    let settings = Settings {
        scale: 1.0 / (head_dim as f64).sqrt(),
        window: None,
        soft_cap: None,
    };
    let random =
        |heads: usize| Tensor::randn(0f32, 1.0, (rows * length, heads, head_dim), device)?.to_dtype(DType::BF16);
    let (q, k, v, d_o) = (
        random(query_heads)?,
        random(key_heads)?,
        random(key_heads)?,
        random(query_heads)?,
    );
    // Two operations for each of the two products' terms.
    let forward_flops = 4.0 * (rows * query_heads * head_dim) as f64 * (length * (length + 1) / 2) as f64;
    let mut times = Vec::new();
    for form in Form::all(head_dim, device) {
        let forward = || forward_by(form, [&q, &k, &v], offsets[..].into(), &settings);
        let forward_s = seconds(device, || forward().map(drop))?;
        let (o, lse) = forward()?;
        let saved = Saved {
            q: &q,
            k: &k,
            v: &v,
            o: &o,
            lse: &lse,
        };
        let backward_s = seconds(device, || {
            backward_by(form, saved, &d_o, offsets[..].into(), &settings).map(drop)
        })?;
        times.push(FormTimes {
            form: form.name(),
            forward_s,
            backward_s,
            forward_flops_per_s: forward_flops / forward_s,
            backward_flops_per_s: 2.5 * forward_flops / backward_s,
        });
    }
    Ok(times)
}

/// Mean of a call, all of them waited for at once.
fn seconds(device: &Device, call: impl Fn() -> Result<()>) -> Result<f64> {
    let (unmeasured, measured) = CALLS;
    for _ in 0..unmeasured {
        call()?;
    }
    device.synchronize()?;
    let began = Instant::now();
    for _ in 0..measured {
        call()?;
    }
    device.synchronize()?;
    Ok(began.elapsed().as_secs_f64() / measured as f64)
}
