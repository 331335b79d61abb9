//! Ops that pass over memory, by elements.

use std::collections::BTreeMap;

use candle_core::{DType, Device, Result, Tensor};

use super::clock::{Effort, seconds};
use super::operand;
use crate::optimizer::{Optimizer, clip};
use crate::{ParameterKind, ParameterLayout, Parameters};
use peft_tune_core::predict::{Grid, Pass};
use peft_tune_core::recipe::{OptimizerKind, OptimizerSettings};
use peft_tune_kernels::ops::{bias, dropout, embedding, glu, loss_head, residual, rms_norm, rope};

/// Elements that are measured.
const ELEMENTS: [usize; 3] = [8 << 10, 128 << 10, 1 << 20];
/// Elements of a row.
const WIDTH: usize = 256;
/// Tokens of the vocabulary of the loss that is measured.
const VOCABULARY: usize = 2048;

pub(super) type Pair = (Pass, fn(usize, DType, Effort) -> Result<f64>);

/// Passes over activations.
const ACTIVATIONS: [Pair; 12] = [
    (Pass::NormForward, norm_forward),
    (Pass::NormBackward, norm_backward),
    (Pass::Rope, rotate),
    (Pass::GluForward, glu_forward),
    (Pass::GluBackward, glu_backward),
    (Pass::Add, add),
    (Pass::Bias, add_bias),
    (Pass::Dropout, drop_out),
    (Pass::CrossEntropy, cross_entropy),
    (Pass::Gather, gather),
    (Pass::Copy, copy),
    (Pass::Step, begin_step),
];

pub(super) fn activations(dtype: DType, effort: Effort) -> Result<BTreeMap<Pass, Grid>> {
    grids(&ACTIVATIONS, dtype, effort)
}

pub(super) fn updates(effort: Effort) -> Result<BTreeMap<Pass, Grid>> {
    let mut grids = grids(&[(Pass::Clip, clip_gradients)], DType::F32, effort)?;
    for kind in Pass::updates() {
        let grid = grid(effort, |elements| update(kind, elements, effort))?;
        grids.insert(Pass::Update(kind), grid);
    }
    Ok(grids)
}

fn grids(pairs: &[Pair], dtype: DType, effort: Effort) -> Result<BTreeMap<Pass, Grid>> {
    let mut grids = BTreeMap::new();
    for (pass, time) in pairs {
        grids.insert(*pass, grid(effort, |elements| time(elements, dtype, effort))?);
    }
    Ok(grids)
}

/// Seconds by elements.
fn grid(effort: Effort, time: impl Fn(usize) -> Result<f64>) -> Result<Grid> {
    let elements = effort.points(&ELEMENTS);
    let grid = super::grid([&elements, &[1], &[1]], |[elements, ..]| time(elements))?;
    Ok(grid.with_axes(1))
}

fn rows(elements: usize, dtype: DType) -> Result<Tensor> {
    operand(&[elements / WIDTH, WIDTH], dtype)
}

fn norm_forward(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let (x, weight) = (rows(elements, dtype)?, operand(&[WIDTH], dtype)?);
    seconds(effort, || rms_norm::forward(&x, &weight, 1e-6, 0.0).map(drop))
}

fn norm_backward(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let (x, weight) = (rows(elements, dtype)?, operand(&[WIDTH], dtype)?);
    let (_, rstd) = rms_norm::forward(&x, &weight, 1e-6, 0.0)?;
    seconds(effort, || rms_norm::backward(&x, &weight, &rstd, &x, 0.0).map(drop))
}

fn rotate(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let tokens = elements / WIDTH;
    let x = rows(elements, dtype)?.reshape((tokens, WIDTH / 64, 64))?;
    let frequencies: Vec<f32> = (0..32).map(|index| 1.0 / (1.0 + index as f32)).collect();
    let table = rope::RopeTable::new(&frequencies, 1.0, 256, &Device::Cpu)?;
    let positions: Vec<u32> = (0..tokens as u32).map(|token| token % 256).collect();
    let positions = Tensor::from_vec(positions, tokens, &Device::Cpu)?;
    seconds(effort, || rope::forward(&x, &table, &positions).map(drop))
}

fn glu_forward(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let x = rows(elements, dtype)?;
    seconds(effort, || glu::forward(&x, &x, glu::Activation::Silu).map(drop))
}

fn glu_backward(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let x = rows(elements, dtype)?;
    seconds(effort, || {
        glu::backward(x.clone(), &x, x.clone(), glu::Activation::Silu).map(drop)
    })
}

fn add(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let x = rows(elements, dtype)?;
    seconds(effort, || residual::add(&x, &x).map(drop))
}

fn add_bias(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let (y, values) = (rows(elements, dtype)?, Tensor::zeros(WIDTH, dtype, &Device::Cpu)?);
    seconds(effort, || bias::add(&y, &values, 1.0))
}

fn drop_out(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let x = rows(elements, dtype)?;
    seconds(effort, || {
        dropout::apply(&x, &dropout::MaskKey::new(1, 0), 0, 0.1).map(drop)
    })
}

/// The loss head on hidden states of two elements, so that its products cost next to nothing.
fn cross_entropy(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let tokens = (elements / VOCABULARY).max(1);
    let (hidden, weight) = (operand(&[tokens, 2], dtype)?, operand(&[VOCABULARY, 2], dtype)?);
    let targets: Vec<i64> = (0..tokens as i64).map(|token| token % VOCABULARY as i64).collect();
    let settings = loss_head::Settings {
        soft_cap: None,
        chunk_tokens: tokens,
        gradient_scale: Some(1.0),
    };
    seconds(effort, || {
        loss_head::forward(&hidden, &weight, &targets, &settings).map(drop)
    })
}

fn gather(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let (table, tokens) = (operand(&[1024, WIDTH], dtype)?, elements / WIDTH);
    let ids: Vec<u32> = (0..tokens as u32).map(|token| token * 37 % 1024).collect();
    let ids = Tensor::from_vec(ids, tokens, &Device::Cpu)?;
    seconds(effort, || embedding::forward(&table, &ids).map(drop))
}

fn copy(elements: usize, dtype: DType, effort: Effort) -> Result<f64> {
    let x = operand(&[elements / WIDTH, 2 * WIDTH], dtype)?;
    seconds(effort, || x.narrow(1, 0, WIDTH)?.contiguous().map(drop))
}

/// The tensors of a micro-batch of so many tokens.
fn begin_step(tokens: usize, _: DType, effort: Effort) -> Result<f64> {
    let ids: Vec<u32> = (0..tokens as u32).collect();
    seconds(effort, || {
        let first = Tensor::from_slice(&ids, tokens, &Device::Cpu)?;
        let second = Tensor::from_slice(&ids, tokens, &Device::Cpu)?;
        drop((first, second));
        Ok(())
    })
}

fn parameters(elements: usize) -> Result<Parameters> {
    let mut layout = ParameterLayout::default();
    layout.push("ceiling", &[elements / WIDTH, WIDTH], ParameterKind::LoraA);
    let parameters = Parameters::zeros(layout, &Device::Cpu)?;
    parameters
        .gradients
        .slice_set(&operand(&[elements], DType::F32)?, 0, 0)?;
    Ok(parameters)
}

fn clip_gradients(elements: usize, _: DType, effort: Effort) -> Result<f64> {
    let parameters = parameters(elements)?;
    let start = operand(&[elements], DType::F32)?;
    seconds(effort, || {
        parameters.gradients.zero_set()?;
        parameters.gradients.slice_set(&start, 0, 0)?;
        clip(&parameters.gradients, 1e-3).map(drop)
    })
}

fn update(kind: OptimizerKind, elements: usize, effort: Effort) -> Result<f64> {
    let parameters = parameters(elements)?;
    let settings = OptimizerSettings {
        kind,
        ..OptimizerSettings::default()
    };
    let mut optimizer = Optimizer::new(&settings, &parameters.layout, &Device::Cpu)?;
    seconds(effort, || optimizer.step(&parameters, 1e-3))
}
