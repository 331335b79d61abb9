//! Attention: the launches of its kernels, and the bounds of the documents that they read.

mod first_use;
mod forms;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Result, Tensor};

pub use self::first_use::{Probe, ProbeError, probe_apart_by};
pub use self::forms::Form;

use self::forms::{Kernel, MAX_HEAD, PLAIN};
use crate::gpu::{Argument, Launch, arguments, element_name, empty};
use crate::kernel_form::note_attention;
use crate::ops::attention::{Documents, Saved, Settings};

/// Whether the kernels take heads of `head_dim`.
pub(crate) fn takes(head_dim: usize) -> bool {
    head_dim <= MAX_HEAD
}

/// Chooses the kernels for heads of `head_dim` elements of `dtype`, which otherwise the first call does.
pub(crate) fn prepare(head_dim: usize, dtype: DType, device: &Device) {
    if dtype != DType::F32 && head_dim.is_multiple_of(8) {
        Form::on_tensor_cores(head_dim, dtype, device);
    }
}

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

/// (o, lse); the tensors are contiguous and not empty.
pub(crate) fn forward(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    forward_by(Form::of(&[q, k, v])?, [q, k, v], documents, settings)
}

/// Attends as `forward` does, in `form`, which takes the tensors.
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

/// Gradients with respect to (q, k, v); all tensors are contiguous and not empty.
pub(crate) fn backward(
    saved: Saved<'_>,
    d_o: &Tensor,
    documents: Documents<'_>,
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    backward_by(
        Form::of(&[saved.q, saved.k, saved.v, d_o])?,
        saved,
        d_o,
        documents,
        settings,
    )
}

/// Computes gradients as `backward` does, in `form`, which takes the tensors.
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
