//! Each op, forward and backward, against its F64 form on the CPU.

use candle_core::{DType, Device, Result, Tensor};

use peft_tune_kernels::compare::{Check, error, pair, tolerance, worst};
use peft_tune_kernels::ops::attention::{Form, Settings, both_passes, reference};
use peft_tune_kernels::ops::dropout::MaskKey;
use peft_tune_kernels::ops::loss_head::IGNORE;
use peft_tune_kernels::ops::rope::{PairOrder, RopeTable};
use peft_tune_kernels::ops::{
    bias, cached_attention, centre, dropout, embedding, gain, glu, loss_head, residual, rms_norm, rope, rounding, xielu,
};

use super::mixtures::{
    check_clamped_glu, check_expert_factors, check_expert_rows, check_grouped, check_routing, check_sinks,
};
use super::on::On;
use super::products::{
    check_adapted_matmul, check_adapter_gradients, check_byte_matmul, check_long_matmul, check_matmul,
};

type Push<'a> = &'a mut dyn FnMut(Check);

pub(super) fn run(device: &Device, push: Push<'_>) {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let on = On { device, dtype };
        for (name, times, check) in CHECKS {
            push(Check::new(
                format!("{name} {dtype:?}"),
                times * tolerance(dtype),
                check(&on),
            ));
        }
        for case in CASES {
            let allowed = if dtype == DType::F32 {
                2e-5
            } else {
                3.0 * tolerance(dtype)
            };
            // The form that training takes; where there are several, each.
            let forms = match Form::all(case.head_dim, device) {
                forms if forms.len() > 1 && dtype != DType::F32 && case.is_tiled() => {
                    forms.into_iter().map(Some).collect()
                }
                _ => vec![None],
            };
            for form in forms {
                let name = form.map_or_else(String::new, |form| format!(" {}", form.name()));
                push(Check::new(
                    format!("attention {}{name} {dtype:?}", case.name),
                    allowed,
                    case.check(&on, form),
                ));
            }
        }
    }
}

type OpCheck = fn(&On<'_>) -> Result<f64>;

/// Name, factor on the tolerance (sums are rounded once for each term), check.
const CHECKS: [(&str, f64, OpCheck); 24] = [
    ("rounding", 0.0, check_rounding),
    ("residual", 1.0, check_residual),
    ("bias", 1.0, check_bias),
    ("cached_attention", 3.0, check_cached_attention),
    ("gain", 1.0, check_gain),
    ("glu", 1.0, check_glu),
    ("xielu", 1.0, check_xielu),
    ("rms_norm", 1.0, check_rms_norm),
    ("centre", 1.0, check_centre),
    ("rope", 1.0, check_rope),
    ("dropout", 0.0, check_dropout),
    ("embedding", 1.0, check_embedding),
    ("matmul", 2.0, check_matmul),
    ("matmul of 14336", 0.5, check_long_matmul),
    ("matmul with adapters", 1.0, check_adapted_matmul),
    ("matmul in bytes", 10.0, check_byte_matmul),
    ("adapter_gradients", 1.0, check_adapter_gradients),
    ("loss_head", 2.0, check_loss_head),
    ("grouped products", 2.0, check_grouped),
    ("routing", 1.0, check_routing),
    ("rows of experts", 1.0, check_expert_rows),
    ("factors of experts", 1.0, check_expert_factors),
    ("sinks", 1.0, check_sinks),
    ("clamped_glu", 1.0, check_clamped_glu),
];

/// Checks that values are rounded exactly as on the CPU.
fn check_rounding(on: &On<'_>) -> Result<f64> {
    let (values, _) = pair(&[1001], 1, 2.0, DType::F32, on.device)?;
    let copy = Tensor::zeros(1001, on.dtype, on.device)?;
    rounding::round(&values, &copy)?;
    error(&copy, &values.to_device(&Device::Cpu)?.to_dtype(on.dtype)?)
}

fn check_residual(on: &On<'_>) -> Result<f64> {
    let ((x, x64), (y, y64)) = (on.pair(&[70, 136], 1)?, on.pair(&[70, 136], 2)?);
    let scaled64 = (&y64 * 0.3)?;
    Ok(worst(&[
        error(&residual::add(&x, &y)?, &(&x64 + &y64)?)?,
        error(&residual::add_scaled(&x, &y, 0.3)?, &(x64 + &scaled64)?)?,
        error(&residual::scale(&y, 0.3)?, &scaled64)?,
    ]))
}

fn check_bias(on: &On<'_>) -> Result<f64> {
    let ((y, y64), (b, b64)) = (on.pair(&[70, 136], 1)?, pair(&[136], 2, 1.0, DType::F32, on.device)?);
    let y = y.copy()?;
    bias::add(&y, &b, 0.5)?;
    error(&y, &y64.broadcast_add(&(b64 * 0.5)?)?)
}

fn check_cached_attention(on: &On<'_>) -> Result<f64> {
    let (q, keys) = (on.pair(&[3, 8, 64], 1)?, on.pair(&[300, 2, 64], 2)?);
    let values = on.pair(&[300, 2, 64], 3)?;
    let places = [0..7, 20..300, 299..300];
    let settings = Settings {
        scale: 0.125,
        window: None,
        soft_cap: Some(20.0),
    };
    let o = cached_attention::forward(&q.0, &keys.0, &values.0, &places, &settings)?;
    let expected = cached_attention::reference::forward((&q.1, &keys.1, &values.1), &places, &settings, None)?;
    error(&o, &expected)
}

fn check_gain(on: &On<'_>) -> Result<f64> {
    let ((y, y64), (dz, dz64)) = (on.pair(&[300, 136], 1)?, on.pair(&[300, 136], 2)?);
    let vector = |seed| pair(&[136], seed, 1.0, DType::F32, on.device);
    let ((factor, factor64), (norm, norm64)) = (vector(3)?, vector(4)?);
    let (norm, norm64) = ((norm.sqr()? + 1.0)?, (norm64.sqr()? + 1.0)?);
    let scaled = y.copy()?;
    gain::scale(&scaled, &factor, -1.0)?;
    let (dy, gradient) = (y.copy()?, Tensor::ones(136, DType::F32, on.device)?);
    gain::backward(&dz, &dy, &factor, &norm, &gradient)?;
    let sums = ((&dz64 * &y64)?.sum(0)? / norm64)?;
    Ok(worst(&[
        error(&scaled, &y64.broadcast_mul(&(&factor64 - 1.0)?)?)?,
        error(&dy, &dz64.broadcast_mul(&factor64)?)?,
        error(&gradient, &(sums + 1.0)?)?,
    ]))
}

fn check_glu(on: &On<'_>) -> Result<f64> {
    let shape = [70, 136];
    let ((gate, gate64), (up, up64), (dy, dy64)) = (on.pair(&shape, 1)?, on.pair(&shape, 2)?, on.pair(&shape, 3)?);
    let mut errors = Vec::new();
    for activation in [glu::Activation::Silu, glu::Activation::GeluTanh] {
        let y = glu::forward(&gate, &up, activation)?;
        errors.push(error(&y, &glu::reference::forward(&gate64, &up64, activation)?)?);
        let (d_gate, d_up) = glu::backward(gate.copy()?, &up, dy.copy()?, activation)?;
        let expected = glu::reference::backward(&gate64, &up64, &dy64, activation)?;
        errors.extend([error(&d_gate, &expected.0)?, error(&d_up, &expected.1)?]);
    }
    Ok(worst(&errors))
}

fn check_xielu(on: &On<'_>) -> Result<f64> {
    let ((x, x64), (dy, dy64)) = (on.pair(&[70, 136], 1)?, on.pair(&[70, 136], 2)?);
    let curve = xielu::Curve {
        positive: 0.9,
        negative: 1.4,
        beta: 0.5,
        epsilon: -1e-6,
    };
    Ok(worst(&[
        error(&xielu::forward(&x, curve)?, &xielu::reference::forward(&x64, curve)?)?,
        error(
            &xielu::backward(&x, &dy, curve)?,
            &xielu::reference::backward(&x64, &dy64, curve)?,
        )?,
    ]))
}

fn check_centre(on: &On<'_>) -> Result<f64> {
    let mut errors = Vec::new();
    for shape in [[33, 64], [5, 1160], [3, 37]] {
        let (x, x64) = on.pair(&shape, 1)?;
        errors.push(error(&centre::rows(&x)?, &centre::reference::rows(&x64)?)?);
    }
    Ok(worst(&errors))
}

fn check_rms_norm(on: &On<'_>) -> Result<f64> {
    let mut errors = Vec::new();
    for shape in [[33, 64], [5, 1160], [3, 37]] {
        let ((x, x64), (dy, dy64), (w, w64)) = (on.pair(&shape, 1)?, on.pair(&shape, 2)?, on.pair(&shape[1..], 3)?);
        let (y, rstd) = rms_norm::forward(&x, &w, 1e-5, 1.0)?;
        let (y64, rstd64) = rms_norm::reference::forward(&x64, &w64, 1e-5, 1.0)?;
        let dx = rms_norm::backward(&x, &w, &rstd, &dy, 1.0)?;
        let dw = rms_norm::weight_gradient(&x, &rstd, &dy)?;
        errors.extend([
            error(&y, &y64)?,
            error(&dx, &rms_norm::reference::backward(&x64, &w64, &rstd64, &dy64, 1.0)?)?,
            error(&dw, &rms_norm::reference::weight_gradient(&x64, &rstd64, &dy64)?)?,
        ]);
    }
    Ok(worst(&errors))
}

fn check_rope(on: &On<'_>) -> Result<f64> {
    let mut errors = Vec::new();
    for (heads, head_dim, half) in [(4, 64, 32), (5, 96, 24), (2, 6, 2)] {
        let frequencies: Vec<f32> = (0..half).map(|i| 100f32.powf(-(i as f32) / half as f32)).collect();
        let table = |device: &Device| RopeTable::new(&frequencies, 1.0, 40, device);
        let positions = Tensor::arange(0u32, 40, &Device::Cpu)?;
        let (x, x64) = on.pair(&[40, heads, head_dim], 1)?;
        let y = rope::forward(&x, &table(on.device)?, &positions.to_device(on.device)?)?;
        errors.push(error(
            &y,
            &rope::reference::forward(&x64, &table(&Device::Cpu)?, &positions)?,
        )?);
        let dx = rope::backward(&x, &table(on.device)?, &positions.to_device(on.device)?)?;
        errors.push(error(
            &dx,
            &rope::reference::backward(&x64, &table(&Device::Cpu)?, &positions)?,
        )?);
        let neighbours = |table: RopeTable| table.in_order(PairOrder::Neighbours);
        let turned = rope::forward(&x, &neighbours(table(on.device)?), &positions.to_device(on.device)?)?;
        let expected = rope::reference::forward(&x64, &neighbours(table(&Device::Cpu)?), &positions)?;
        errors.push(error(&turned, &expected)?);
        let (k, k64) = on.pair(&[40, 1, head_dim], 2)?;
        let both = [x.copy()?, k.copy()?];
        let turned = rope::forward_both(both, &table(on.device)?, &positions.to_device(on.device)?)?;
        for (turned, before) in turned.iter().zip([&x64, &k64]) {
            let expected = rope::reference::forward(before, &table(&Device::Cpu)?, &positions)?;
            errors.push(error(turned, &expected)?);
        }
        let ((w, w64), (v, v64)) = (on.pair(&[head_dim], 3)?, on.pair(&[head_dim], 4)?);
        let norms = |weights| rope::HeadNorms {
            weights,
            epsilon: 1e-5,
            offset: 1.0,
        };
        let here = (table(on.device)?, positions.to_device(on.device)?);
        let normed = rope::forward_normed([x.clone(), k.clone()], &norms([&w, &v]), &here.0, &here.1)?;
        let there = [x64.clone(), k64.clone()];
        let expected = rope::forward_normed(there, &norms([&w64, &v64]), &table(&Device::Cpu)?, &positions)?;
        for ((y, rstd), (y64, rstd64)) in normed.iter().zip(&expected) {
            // Rounded twice.
            errors.extend([error(y, y64)? / 2.0, error(rstd, rstd64)?]);
        }
    }
    Ok(worst(&errors))
}

/// The mask is a matter of integers: exactly the CPU's.
fn check_dropout(on: &On<'_>) -> Result<f64> {
    let (x, _) = on.pair(&[3001], 1)?;
    let key = MaskKey::new(9 << 33, 77);
    let expected = dropout::reference::apply(&x.to_device(&Device::Cpu)?, &key, 3, 0.5)?;
    error(&dropout::apply(&x, &key, 3, 0.5)?, &expected)
}

fn check_embedding(on: &On<'_>) -> Result<f64> {
    let ids = Tensor::new(&[2u32, 0, 2, 4], &Device::Cpu)?;
    let (dy, dy64) = on.pair(&[4, 300], 1)?;
    let (table, table64) = on.pair(&[5, 300], 2)?;
    let into = Tensor::ones((5, 300), DType::F32, on.device)?;
    let expected = Tensor::ones((5, 300), DType::F64, &Device::Cpu)?;
    embedding::backward_add(&dy, &ids.to_device(on.device)?, &into)?;
    embedding::reference::backward_add(&dy64, &ids, &expected)?;
    let rows = embedding::forward(&table, &ids.to_device(on.device)?)?;
    let gathered = error(&rows, &embedding::forward(&table64, &ids)?)?;
    Ok(worst(&[error(&into, &expected)?, gathered]))
}

fn check_loss_head(on: &On<'_>) -> Result<f64> {
    let mut errors = Vec::new();
    for (targets, soft_cap) in [
        ([3, IGNORE, 0, 36, IGNORE, 3, 5], Some(0.8)),
        ([3, 1, 0, 36, 2, 3, 5], None),
    ] {
        let ((hidden, hidden64), (weight, weight64)) = (on.pair(&[7, 16], 1)?, on.pair(&[37, 16], 2)?);
        let settings = loss_head::Settings {
            soft_cap,
            chunk_tokens: 3,
            gradient_scale: Some(0.25),
        };
        let into = Tensor::ones((37, 16), DType::F32, on.device)?;
        let into64 = Tensor::ones((37, 16), DType::F64, &Device::Cpu)?;
        let output = loss_head::forward_with_weight_gradient(&hidden, &weight, &targets, &settings, &into)?;
        let expected = loss_head::reference::forward(&hidden64, &weight64, &targets, &settings, Some(&into64))?;
        let (Some(d_hidden), Some(expected_d)) = (output.d_hidden, expected.d_hidden) else {
            candle_core::bail!("no gradient of the hidden states");
        };
        let ((loss, correct), (expected_loss, expected_correct)) = (output.sums.read()?, expected.sums.read()?);
        errors.extend([
            (loss - expected_loss).abs() / expected_loss / 10.0,
            f64::from(u8::from(correct != expected_correct)),
            error(&d_hidden, &expected_d)?,
            error(&into, &into64)?,
        ]);
    }
    Ok(worst(&errors))
}

/// Documents, heads and constants of one attention layer.
struct Case {
    name: &'static str,
    offsets: &'static [u32],
    heads: (usize, usize),
    head_dim: usize,
    window: Option<usize>,
    soft_cap: Option<f64>,
}

const fn case(name: &'static str, offsets: &'static [u32], heads: (usize, usize), head_dim: usize) -> Case {
    Case {
        name,
        offsets,
        heads,
        head_dim,
        window: None,
        soft_cap: None,
    }
}

const CASES: [Case; 8] = [
    case("64, one document", &[0, 150], (2, 1), 64),
    case("128, long documents", &[0, 300, 700], (4, 2), 128),
    case("32, packed", &[0, 3, 70, 70, 71, 140], (3, 3), 32),
    case("96", &[0, 20, 70], (2, 1), 96),
    case("128", &[0, 20, 70], (2, 1), 128),
    case("256", &[0, 20, 70], (2, 1), 256),
    case("20, no tiles", &[0, 20, 70], (4, 2), 20),
    Case {
        window: Some(20),
        soft_cap: Some(2.0),
        ..case("16, window and soft-cap", &[0, 90, 160], (2, 1), 16)
    },
];

impl Case {
    /// Whether tensor cores take it.
    fn is_tiled(&self) -> bool {
        self.head_dim.is_multiple_of(8)
    }

    /// Checks attention in `form`, or in the one that training takes.
    fn check(&self, on: &On<'_>, form: Option<Form>) -> Result<f64> {
        let tokens = self.offsets.last().map_or(0, |last| *last as usize);
        let settings = Settings {
            scale: 1.5 / (self.head_dim as f64).sqrt(),
            window: self.window,
            soft_cap: self.soft_cap,
        };
        let (queries, keys) = (
            [tokens, self.heads.0, self.head_dim],
            [tokens, self.heads.1, self.head_dim],
        );
        let ((q, q64), (d_o, d_o64)) = (on.pair(&queries, 1)?, on.pair(&queries, 4)?);
        let ((k, k64), (v, v64)) = (on.pair(&keys, 2)?, on.pair(&keys, 3)?);
        let actual = both_passes(form, [&q, &k, &v, &d_o], self.offsets, &settings)?;
        let expected = reference::both_passes([&q64, &k64, &v64, &d_o64], self.offsets, &settings)?;
        let errors: Result<Vec<f64>> = actual
            .iter()
            .zip(&expected)
            .map(|(one, other)| error(one, other))
            .collect();
        Ok(worst(&errors?))
    }
}
