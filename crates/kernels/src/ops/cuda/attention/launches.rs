//! Launches of attention's kernels in a given form, and the bounds of the documents that they read.

use candle_core::{DType, Device, Result, Tensor};

use super::forms::{Form, Kernel, PLAIN};
use crate::gpu::{Argument, Launch, arguments, element_name, empty};
use crate::kernel_form::note_attention;
use crate::ops::attention::documents::Documents;
use crate::ops::attention::saved::Saved;
use crate::ops::attention::settings::Settings;

/// One call's sizes.
struct Call<'a> {
    tokens: usize,
    query_heads: usize,
    key_heads: usize,
    head_dim: usize,
    settings: &'a Settings,
    dtype: DType,
    form: Form,
}

impl<'a> Call<'a> {
    fn new(q: &Tensor, k: &Tensor, settings: &'a Settings, form: Form) -> Result<Self> {
        let (tokens, query_heads, head_dim) = q.dims3()?;
        Ok(Self {
            tokens,
            query_heads,
            key_heads: k.dim(1)?,
            head_dim,
            settings,
            dtype: q.dtype(),
            form,
        })
    }

    /// Runs `kernel` for `heads` heads.
    fn run(&self, kernel: Kernel, heads: usize, arguments: &mut Vec<Argument<'_>>, device: &Device) -> Result<()> {
        let block = self.form.block(kernel);
        note_attention(self.form.kernels());
        let name = block.names.join(element_name(self.dtype).unwrap_or_default());
        let launch = Launch {
            source: block.source,
            kernel: &name,
            blocks: [self.tokens.div_ceil(block.rows), heads, 1],
            threads: [block.threads, 1, 1],
            shared_bytes: block.shared_bytes,
        };
        arguments.extend([
            Argument::U32(self.tokens as u32),
            Argument::U32(self.query_heads as u32),
            Argument::U32(self.key_heads as u32),
            Argument::U32(self.head_dim as u32),
            Argument::U32(
                self.settings
                    .window
                    .map_or(0, |window| window.min(u32::MAX as usize) as u32),
            ),
            Argument::F32(self.settings.scale as f32),
            Argument::F32(self.settings.soft_cap.unwrap_or(0.0) as f32),
        ]);
        launch.run(device, arguments)
    }
}

/// (o, lse) in `form`, which takes the tensors; they are contiguous and not empty.
pub fn forward_by(
    form: Form,
    [q, k, v]: [&Tensor; 3],
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    let call = Call::new(q, k, settings, form)?;
    let device = q.device();
    let bounds = bounds(documents, device)?;
    let o = empty(q.shape(), q.dtype(), device)?;
    let lse = empty((call.tokens, call.query_heads), DType::F32, device)?;
    let mut arguments: Vec<Argument<'_>> = [q, k, v, &o, &lse, &bounds].map(Argument::Tensor).to_vec();
    call.run(Kernel::Forward, call.query_heads, &mut arguments, device)?;
    Ok((o, lse))
}

/// Gradients with respect to (q, k, v) in `form`, which takes the tensors; they are contiguous and not empty.
pub fn backward_by(
    form: Form,
    saved: Saved<'_>,
    d_o: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let Saved { q, k, v, o, lse } = saved;
    let call = Call::new(q, k, settings, form)?;
    let device = q.device();
    let bounds = bounds(documents, device)?;
    let dot = dot(&call, o, d_o)?;
    let like = |tensor: &Tensor| empty(tensor.shape(), tensor.dtype(), device);
    let (dq, dk, dv) = (like(q)?, like(k)?, like(v)?);
    let mut arguments: Vec<Argument<'_>> = [q, k, v, d_o, lse, &dot, &dq, &bounds].map(Argument::Tensor).to_vec();
    call.run(Kernel::QueryGradient, call.query_heads, &mut arguments, device)?;
    let mut arguments: Vec<Argument<'_>> = [q, k, v, d_o, lse, &dot, &dk, &dv, &bounds]
        .map(Argument::Tensor)
        .to_vec();
    call.run(Kernel::KeyGradient, call.key_heads, &mut arguments, device)?;
    Ok((dq, dk, dv))
}

/// Results and gradients of a layer in `form`, which takes the tensors: (o, lse, dq, dk, dv) of (q, k, v, d_o).
pub(crate) fn both_passes_by(
    form: Form,
    [q, k, v, d_o]: [&Tensor; 4],
    offsets: &[u32],
    settings: &Settings,
) -> Result<[Tensor; 5]> {
    let (o, lse) = forward_by(form, [q, k, v], offsets.into(), settings)?;
    let saved = Saved {
        q,
        k,
        v,
        o: &o,
        lse: &lse,
    };
    let (dq, dk, dv) = backward_by(form, saved, d_o, offsets.into(), settings)?;
    Ok([o, lse, dq, dk, dv])
}

/// The sum of o d_o over each head, (T, Hq) F32.
fn dot(call: &Call<'_>, o: &Tensor, d_o: &Tensor) -> Result<Tensor> {
    let rows = call.tokens * call.query_heads;
    let dot = empty((call.tokens, call.query_heads), DType::F32, o.device())?;
    let name = format!("attention_dot_{}", element_name(call.dtype).unwrap_or_default());
    let launch = Launch {
        source: &PLAIN,
        kernel: &name,
        blocks: [rows.div_ceil(8), 1, 1],
        threads: [256, 1, 1],
        shared_bytes: 0,
    };
    let arguments = arguments! { d_o, o, &dot, rows as u32, call.head_dim as u32 };
    launch.run(o.device(), &arguments)?;
    Ok(dot)
}

/// Bounds of each token's document: for each token the first token, then for each the one behind the last, (2, T) U32.
fn bounds(documents: Documents<'_>, device: &Device) -> Result<Tensor> {
    if let Some(bounds) = documents.bounds {
        return Ok(bounds.clone());
    }
    let values: Vec<u32> = Documents::token_bounds(documents.offsets).collect();
    let tokens = values.len() / 2;
    Tensor::from_vec(values, (2, tokens), device)
}
