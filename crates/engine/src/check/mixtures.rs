//! The ops of mixtures of experts: against F64, and where rows go against the CPU.

use candle_core::{DType, Device, Result, Tensor};

use super::on::On;
use peft_tune_kernels::compare::{error, pair, worst};
use peft_tune_kernels::ops::matmul::grouped::{self, GroupFactors, GroupTerm};
use peft_tune_kernels::ops::offsets::Offsets;
use peft_tune_kernels::ops::routing::{self, Scores, Settings};
use peft_tune_kernels::ops::{clamped_glu, expert_parts, rows, sinks};

/// Rows of the experts: more than a tile, few, none.
const OFFSETS: [usize; 5] = [0, 140, 140, 143, 300];

fn term<'a>(x: &'a Tensor, w: &'a Tensor, scale: f64) -> GroupTerm<'a> {
    let w = GroupFactors::Stacked(w);
    GroupTerm { x, w, scale }
}

pub(super) fn check_grouped(on: &On<'_>) -> Result<f64> {
    let offsets = Offsets::new(OFFSETS.to_vec());
    let ((x, x64), (u, u64)) = (on.pair(&[300, 64], 1)?, on.pair(&[300, 16], 2)?);
    let ((w, w64), (b, b64)) = (on.pair(&[4, 136, 64], 3)?, on.pair(&[4, 136, 16], 4)?);
    let y = grouped::nt(&[term(&x, &w, 1.0), term(&u, &b, 0.5)], &offsets)?;
    let expected = grouped::nt(&[term(&x64, &w64, 1.0), term(&u64, &b64, 0.5)], &offsets)?;
    let (dy, dy64) = on.pair(&[300, 136], 5)?;
    let dx = grouped::nn(&[term(&dy, &w, 1.0)], &offsets)?;
    let d_xa = grouped::nn(&[term(&dy, &b, 0.5)], &offsets)?;
    let sums = Tensor::ones((4 * 136, 16), DType::F32, on.device)?;
    grouped::tn_add(&dy, &u, &offsets, 0.5, &sums)?;
    let gradient = Tensor::ones((4 * 136, 16), DType::F64, &Device::Cpu)?;
    for (group, part) in OFFSETS.windows(2).enumerate().filter(|(_, part)| part[0] < part[1]) {
        let of = |tensor: &Tensor| tensor.narrow(0, part[0], part[1] - part[0])?.contiguous();
        let product = (of(&dy64)?.t()?.contiguous()?.matmul(&of(&u64)?)? * 0.5)?;
        gradient.slice_set(&(product + 1.0)?, 0, group * 136)?;
    }
    Ok(worst(&[
        error(&y, &expected)?,
        error(&dx, &grouped::nn(&[term(&dy64, &w64, 1.0)], &offsets)?)?,
        error(&d_xa, &grouped::nn(&[term(&dy64, &b64, 0.5)], &offsets)?)?,
        error(&sums, &gradient)?,
    ]))
}

/// Checks routing in F32, whatever dtype the other ops have.
pub(super) fn check_routing(on: &On<'_>) -> Result<f64> {
    let (logits, _) = pair(&[300, 40], 1, 3.0, DType::F32, on.device)?;
    let (d_weights, _) = pair(&[900], 2, 1.0, DType::F32, on.device)?;
    let cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu);
    let mut errors = Vec::new();
    for (scores, groups) in [(Scores::Softmax, None), (Scores::Sigmoid, Some((4, 2)))] {
        let settings = Settings {
            scores,
            chosen: 3,
            normalised: true,
            scale: 1.5,
            groups,
        };
        let got = routing::forward(&logits, None, &settings)?;
        let expected = routing::forward(&cpu(&logits)?, None, &settings)?;
        let places = |routing: &routing::Routing| {
            let (tokens, rows) = (routing.tokens.to_vec1::<u32>()?, routing.rows.to_vec2::<u32>()?);
            Ok::<_, candle_core::Error>((tokens, rows, routing.offsets.host()?.to_vec()))
        };
        if places(&got)? != places(&expected)? {
            candle_core::bail!("rows are sorted otherwise than on the CPU");
        }
        let d_logits = routing::backward(&got, &d_weights, &settings)?;
        let expected_d = routing::backward(&expected, &cpu(&d_weights)?, &settings)?;
        errors.push(error(&got.weights, &expected.weights)?);
        errors.push(error(&d_logits, &expected_d)?);
    }
    Ok(worst(&errors))
}

pub(super) fn check_expert_rows(on: &On<'_>) -> Result<f64> {
    let offsets = Offsets::new(OFFSETS.to_vec());
    let ((x, x64), (y, y64)) = (on.pair(&[150, 72], 1)?, on.pair(&[300, 72], 2)?);
    let index: Vec<u32> = (0..300).map(|row| row * 7 % 150).collect();
    let of_tokens: Vec<u32> = (0..300).map(|row| row * 11 % 300).collect();
    let on_both = |values: &[u32], shape: &[usize]| {
        let there = Tensor::from_slice(values, shape, on.device)?;
        Ok::<_, candle_core::Error>((there, Tensor::from_slice(values, shape, &Device::Cpu)?))
    };
    let ((index, index64), (of_tokens, of_tokens64)) = (on_both(&index, &[300])?, on_both(&of_tokens, &[150, 2])?);
    let (weights, weights64) = pair(&[300], 3, 1.0, DType::F32, on.device)?;
    let ((biases, biases64), scaled) = (on.pair(&[4, 72], 4)?, y.copy()?);
    rows::scale(&scaled, &weights)?;
    let (biased, biased64) = (y.copy()?, y64.copy()?);
    expert_parts::add_of_experts(&biased, &biases, &offsets, Some(&weights))?;
    let weights_there = weights.to_device(&Device::Cpu)?;
    expert_parts::add_of_experts(&biased64, &biases64, &offsets, Some(&weights_there))?;
    let dots = expert_parts::dot_of_experts(&y, &biases, &offsets)?;
    Ok(worst(&[
        error(&rows::gather(&x, &index)?, &rows::gather(&x64, &index64)?)?,
        error(
            &rows::sum(Some(&x), &y, &of_tokens)?,
            &rows::sum(Some(&x64), &y64, &of_tokens64)?,
        )?,
        error(&scaled, &y64.broadcast_mul(&weights64.unsqueeze(1)?)?)?,
        error(&rows::dot(&y, &y)?, &rows::dot(&y64, &y64)?)?,
        error(&biased, &biased64)?,
        error(&dots, &expert_parts::dot_of_experts(&y64, &biases64, &offsets)?)?,
    ]))
}

pub(super) fn check_expert_factors(on: &On<'_>) -> Result<f64> {
    let (b, b64) = on.pair(&[45, 64], 1)?;
    let (parts, parts64) = pair(&[8, 45, 8], 2, 1.0, DType::F32, on.device)?;
    let into = Tensor::ones((45, 64), DType::F32, on.device)?;
    expert_parts::join_experts_add(&parts, &into)?;
    let into64 = Tensor::ones((45, 64), DType::F64, &Device::Cpu)?;
    expert_parts::join_experts_add(&parts64, &into64)?;
    Ok(worst(&[
        error(
            &expert_parts::split_experts(&b, 8)?,
            &expert_parts::split_experts(&b64, 8)?,
        )?,
        error(&into, &into64)?,
    ]))
}

pub(super) fn check_sinks(on: &On<'_>) -> Result<f64> {
    let ((o, o64), (z, z64)) = (on.pair(&[30, 4, 64], 1)?, on.pair(&[4], 2)?);
    let (lse, lse64) = pair(&[30, 4], 3, 3.0, DType::F32, on.device)?;
    let (o, lse) = (o.copy()?, lse.copy()?);
    let (o64, lse64) = (o64.copy()?, lse64.copy()?);
    sinks::apply(&o, &lse, &z)?;
    sinks::apply(&o64, &lse64, &z64)?;
    Ok(worst(&[error(&o, &o64)?, error(&lse, &lse64)?]))
}

pub(super) fn check_clamped_glu(on: &On<'_>) -> Result<f64> {
    let ((gate, gate64), (up, up64)) = (on.pair(&[70, 136], 1)?, on.pair(&[70, 136], 2)?);
    let (dy, dy64) = on.pair(&[70, 136], 3)?;
    let y = clamped_glu::forward(&gate, &up, 1.5)?;
    let (d_gate, d_up) = clamped_glu::backward(&gate, &up, &dy, 1.5)?;
    let expected = clamped_glu::reference::backward(&gate64, &up64, &dy64, 1.5)?;
    Ok(worst(&[
        error(&y, &clamped_glu::reference::forward(&gate64, &up64, 1.5)?)?,
        error(&d_gate, &expected.0)?,
        error(&d_up, &expected.1)?,
    ]))
}
