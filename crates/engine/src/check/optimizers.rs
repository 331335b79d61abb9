//! Each optimizer, three steps against the CPU's plain form, and the norm with its clipping.

use candle_core::{DType, Device, Result, Tensor};

use crate::optimizer;
use crate::optimizer::Optimizer;
use crate::{ParameterKind, ParameterLayout, Parameters};
use peft_tune_core::recipe::{OptimizerKind, OptimizerSettings, UpdateOrder};
use peft_tune_kernels::compare::{Check, error, on_cpu};

pub(super) fn run(device: &Device, push: &mut dyn FnMut(Check)) {
    for kind in OptimizerKind::ALL {
        // Orthogonal matrices are rounded to BF16 between products; a code of an 8-bit state may fall to a neighbour.
        let is_exact = !kind.has_8bit_states() && kind.row().update.order != UpdateOrder::Orthogonalised;
        let allowed = if is_exact { 2e-6 } else { 2e-3 };
        push(Check::new(format!("optimizer {kind:?}"), allowed, check(kind, device)));
    }
    push(Check::new("gradient norm and clipping", 1e-6, check_clip(device)));
}

fn check(kind: OptimizerKind, device: &Device) -> Result<f64> {
    let settings = OptimizerSettings {
        kind,
        momentum: 0.9,
        weight_decay: 0.1,
        loraplus_ratio: Some(4.0),
        ..Default::default()
    };
    error(
        &trained(&settings, device)?,
        &on_cpu(|| trained(&settings, &Device::Cpu))?,
    )
}

/// Values behind three steps.
fn trained(settings: &OptimizerSettings, device: &Device) -> Result<Tensor> {
    let parameters = parameters(device)?;
    let mut optimizer = Optimizer::new(settings, &parameters.layout, device)?;
    for _ in 0..3 {
        optimizer.step(&parameters, 0.01)?;
    }
    Ok(parameters.values)
}

fn parameters(device: &Device) -> Result<Parameters> {
    let mut layout = ParameterLayout::default();
    layout.push("a", &[40, 130], ParameterKind::LoraA);
    layout.push("b", &[17, 3], ParameterKind::LoraB);
    layout.push("c", &[64, 80], ParameterKind::LoraB);
    layout.push("bias", &[5], ParameterKind::Bias);
    let parameters = Parameters::zeros(layout, device)?;
    let elements = parameters.layout.elements();
    let wave = |factor: f64| {
        let values: Vec<f32> = (0..elements)
            .map(|index| (index as f64 * factor).sin() as f32)
            .collect();
        Tensor::from_vec(values, elements, device)
    };
    parameters.values.slice_set(&wave(0.37)?, 0, 0)?;
    parameters.gradients.slice_set(&wave(1.7)?, 0, 0)?;
    Ok(parameters)
}

fn check_clip(device: &Device) -> Result<f64> {
    let (ours, expected) = (parameters(device)?.gradients, parameters(&Device::Cpu)?.gradients);
    let norm = optimizer::clip(&ours, 0.5)?;
    let squares = expected.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    let scaled = (expected * (0.5 / (squares.sqrt() + 1e-6)))?;
    Ok(error(&ours, &scaled)?.max((norm - squares.sqrt()).abs() / norm))
}
