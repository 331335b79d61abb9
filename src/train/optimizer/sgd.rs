//! Stochastic gradient descent with momentum, as in `torch.optim.SGD`.
//!
//! g = g + d p;  b = mu b + g;  p = p - lr b, or with Nesterov's form p = p - lr (g + mu b). Without momentum there is
//! no state and p = p - lr g.

use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

use crate::recipe::OptimizerSettings;
use crate::train::{ParameterLayout, Parameters};

use super::flat::{CHUNK, with_f32, with_f32_mut};
use super::group::{Group, merged};
use super::rule::{Step, UpdateRule};

/// Momentum in F32, one for each parameter element; none where mu is 0.
pub(super) struct Sgd {
    momentum: f64,
    nesterov: bool,
    groups: Vec<Group>,
    buffer: Option<Tensor>,
}

/// The factors of one update of one group.
#[derive(Clone, Copy)]
struct SgdFactors {
    rate: f32,
    weight_decay: f32,
    momentum: f32,
    nesterov: bool,
}

impl Sgd {
    pub fn new(settings: &OptimizerSettings, layout: &ParameterLayout, device: &Device) -> Result<Self> {
        let elements = layout.elements().max(1);
        let has_momentum = settings.momentum != 0.0;
        let buffer = has_momentum
            .then(|| Tensor::zeros(elements, DType::F32, device))
            .transpose()?;
        Ok(Self {
            momentum: settings.momentum,
            nesterov: settings.nesterov,
            groups: merged(layout, settings),
            buffer,
        })
    }

    fn factors(&self, group: &Group, step: Step) -> SgdFactors {
        SgdFactors {
            rate: (step.learning_rate * group.rate_ratio) as f32,
            weight_decay: group.weight_decay as f32,
            momentum: self.momentum as f32,
            nesterov: self.nesterov,
        }
    }
}

impl SgdFactors {
    fn with_momentum(self, values: &mut [f32], gradients: &[f32], buffer: &mut [f32]) {
        for ((value, gradient), buffer) in values.iter_mut().zip(gradients).zip(buffer) {
            let gradient = gradient + self.weight_decay * *value;
            *buffer = self.momentum * *buffer + gradient;
            let change = if self.nesterov {
                gradient + self.momentum * *buffer
            } else {
                *buffer
            };
            *value -= self.rate * change;
        }
    }

    fn without_momentum(self, values: &mut [f32], gradients: &[f32]) {
        for (value, gradient) in values.iter_mut().zip(gradients) {
            *value -= self.rate * (gradient + self.weight_decay * *value);
        }
    }
}

impl UpdateRule for Sgd {
    fn update_fused(&self, parameters: &Parameters, step: Step) -> Result<()> {
        with_f32(&parameters.gradients, |gradients| {
            with_f32_mut(&parameters.values, |values| match &self.buffer {
                Some(buffer) => with_f32_mut(buffer, |buffer| {
                    for group in &self.groups {
                        let (factors, range) = (self.factors(group, step), group.range.clone());
                        let pairs = values[range.clone()].par_chunks_mut(CHUNK);
                        let pairs = pairs.zip(gradients[range.clone()].par_chunks(CHUNK));
                        pairs
                            .zip(buffer[range].par_chunks_mut(CHUNK))
                            .for_each(|((values, gradients), buffer)| {
                                factors.with_momentum(values, gradients, buffer);
                            });
                    }
                    Ok(())
                }),
                None => {
                    for group in &self.groups {
                        let (factors, range) = (self.factors(group, step), group.range.clone());
                        let pairs = values[range.clone()].par_chunks_mut(CHUNK);
                        let pairs = pairs.zip(gradients[range].par_chunks(CHUNK));
                        pairs.for_each(|(values, gradients)| factors.without_momentum(values, gradients));
                    }
                    Ok(())
                }
            })
        })
    }

    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()> {
        for group in &self.groups {
            let factors = self.factors(group, step);
            let (start, length) = (group.range.start, group.range.len());
            let part = |tensor: &Tensor| tensor.narrow(0, start, length);
            let value = part(&parameters.values)?;
            let mut change = (part(&parameters.gradients)? + (&value * f64::from(factors.weight_decay))?)?;
            if let Some(buffer) = &self.buffer {
                let momentum = f64::from(factors.momentum);
                let updated = ((part(buffer)? * momentum)? + &change)?;
                buffer.slice_set(&updated, 0, start)?;
                change = if self.nesterov {
                    (change + (updated * momentum)?)?
                } else {
                    updated
                };
            }
            let value = (value - (change * f64::from(factors.rate))?)?;
            parameters.values.slice_set(&value, 0, start)?;
        }
        Ok(())
    }

    fn state(&self) -> Vec<(&'static str, Tensor)> {
        self.buffer.iter().map(|buffer| ("momentum", buffer.clone())).collect()
    }
}
