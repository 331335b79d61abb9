//! The loss head in plain candle ops.

use super::settings::target_positions;
use super::{Output, Settings, Sums};
use crate::kernel_form::{wide, widen};
use candle_core::{D, DType, Result, Tensor};

/// See [`super::forward`] and [`super::forward_with_weight_gradient`].
pub fn forward(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &[i64],
    settings: &Settings,
    weight_gradient: Option<&Tensor>,
) -> Result<Output> {
    let wide_weight = widen(weight)?.to_dtype(wide(hidden.dtype()))?;
    let positions = target_positions(targets);
    let (mut loss, mut correct, mut each) = (0.0, 0, Vec::new());
    let mut d_hidden = hidden.zeros_like()?;
    for chunk in positions.chunks(settings.chunk_tokens.max(1)) {
        let ids: Vec<i64> = chunk.iter().map(|position| targets[*position as usize]).collect();
        let rows = Tensor::from_slice(chunk, chunk.len(), hidden.device())?;
        let inputs = widen(&hidden.index_select(&rows, 0)?)?;
        let chunk = Chunk::new(&inputs, &wide_weight, &ids, settings.soft_cap)?;
        loss += chunk.loss_sum()?;
        correct += chunk.correct()?;
        let Some(scale) = settings.gradient_scale else {
            each.extend(chunk.losses()?.flatten_all()?.to_vec1::<f64>()?);
            continue;
        };
        let d_logits = (chunk.gradient(settings.soft_cap)? * f64::from(scale))?;
        let d_inputs = d_logits.matmul(&wide_weight)?.to_dtype(hidden.dtype())?;
        d_hidden = d_hidden.index_add(&rows, &d_inputs, 0)?;
        if let Some(into) = weight_gradient {
            let sum = (into + d_logits.t()?.matmul(&inputs)?.to_dtype(into.dtype())?)?;
            into.slice_set(&sum, 0, 0)?;
        }
    }
    Ok(Output {
        sums: Sums::Known { loss, correct, each },
        target_tokens: positions.len() as u64,
        d_hidden: settings.gradient_scale.map(|_| d_hidden),
    })
}

/// Logits of some target positions.
struct Chunk {
    /// (n, V), soft-capped.
    logits: Tensor,
    /// (n, 1).
    lse: Tensor,
    /// (n, 1) U32.
    targets: Tensor,
}

impl Chunk {
    fn new(inputs: &Tensor, weight: &Tensor, targets: &[i64], soft_cap: Option<f64>) -> Result<Self> {
        let mut logits = inputs.matmul(&weight.t()?)?;
        if let Some(cap) = soft_cap {
            logits = ((logits / cap)?.tanh()? * cap)?;
        }
        let lse = logits.log_sum_exp(D::Minus1)?.unsqueeze(1)?;
        let ids: Vec<u32> = targets.iter().map(|target| *target as u32).collect();
        let targets = Tensor::from_vec(ids, (targets.len(), 1), inputs.device())?;
        Ok(Self { logits, lse, targets })
    }

    /// (n, 1) F64.
    fn losses(&self) -> Result<Tensor> {
        let losses = (&self.lse - self.logits.gather(&self.targets, 1)?)?;
        losses.to_dtype(DType::F64)
    }

    fn loss_sum(&self) -> Result<f64> {
        self.losses()?.sum_all()?.to_scalar()
    }

    fn correct(&self) -> Result<u64> {
        let best = self.logits.argmax_keepdim(D::Minus1)?;
        let equal = best.eq(&self.targets)?.to_dtype(DType::F32)?;
        Ok(equal.sum_all()?.to_scalar::<f32>()? as u64)
    }

    /// d loss / d logits before the soft-cap, (n, V).
    fn gradient(&self, soft_cap: Option<f64>) -> Result<Tensor> {
        let softmax = self.logits.broadcast_sub(&self.lse)?.exp()?;
        let minus_one = (self.lse.zeros_like()? - 1.0)?;
        let gradient = softmax.scatter_add(&self.targets, &minus_one, 1)?;
        match soft_cap {
            Some(cap) => gradient * (1.0 - (&self.logits / cap)?.sqr()?)?,
            None => Ok(gradient),
        }
    }
}
