//! AdamW (arXiv:1711.05101) as in `torch.optim.AdamW`.
//!
//! | symbol | meaning |
//! |---|---|
//! | p, g | parameter, gradient |
//! | m, v | running means of g and g^2 |
//! | lr, d, e | learning rate, weight decay, epsilon |
//! | t | number of the step, from 1 |
//!
//! p = p (1 - lr d);  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;
//! p = p - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + e)

use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

use crate::recipe::OptimizerSettings;
use crate::train::{ParameterLayout, Parameters};

use super::flat::{CHUNK, with_f32, with_f32_mut};
use super::group::{Group, merged};
use super::rule::{Step, UpdateRule};

/// Running means in F32, one of each for each parameter element.
pub(super) struct AdamW {
    constants: AdamConstants,
    groups: Vec<Group>,
    mean: Tensor,
    square: Tensor,
}

/// The constants of Adam's rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamConstants {
    pub beta1: f64,
    pub beta2: f64,
    pub epsilon: f64,
}

/// The factors of one update of one group.
#[derive(Clone, Copy, Debug)]
pub(super) struct AdamFactors {
    /// 1 - lr d
    pub keep: f32,
    pub beta2: f32,
    /// 1 - b1
    pub take1: f32,
    /// 1 - b2
    pub take2: f32,
    /// lr / (1 - b1^t)
    pub rate: f32,
    /// sqrt(1 - b2^t)
    pub correction: f32,
    pub epsilon: f32,
}

impl AdamConstants {
    pub fn new(settings: &OptimizerSettings) -> Self {
        Self {
            beta1: settings.beta1,
            beta2: settings.beta2.unwrap_or(0.999),
            epsilon: settings.epsilon,
        }
    }

    pub fn factors(&self, group: &Group, step: Step) -> AdamFactors {
        let rate = step.learning_rate * group.rate_ratio;
        let t = step.number as f64;
        AdamFactors {
            keep: (1.0 - rate * group.weight_decay) as f32,
            beta2: self.beta2 as f32,
            take1: (1.0 - self.beta1) as f32,
            take2: (1.0 - self.beta2) as f32,
            rate: (rate / (1.0 - self.beta1.powf(t))) as f32,
            correction: (1.0 - self.beta2.powf(t)).sqrt() as f32,
            epsilon: self.epsilon as f32,
        }
    }
}

impl AdamFactors {
    /// One element's update.
    #[inline(always)]
    pub fn apply(&self, value: &mut f32, gradient: f32, mean: &mut f32, square: &mut f32) {
        // The form of `lerp`: exact where gradient and mean are equal.
        *mean += self.take1 * (gradient - *mean);
        *square = self.beta2 * *square + self.take2 * gradient * gradient;
        let denominator = square.sqrt() / self.correction + self.epsilon;
        *value = *value * self.keep - self.rate * (*mean / denominator);
    }
}

impl AdamW {
    pub fn new(settings: &OptimizerSettings, layout: &ParameterLayout, device: &Device) -> Result<Self> {
        let elements = layout.elements().max(1);
        Ok(Self {
            constants: AdamConstants::new(settings),
            groups: merged(layout, settings),
            mean: Tensor::zeros(elements, DType::F32, device)?,
            square: Tensor::zeros(elements, DType::F32, device)?,
        })
    }
}

fn update_chunk(factors: AdamFactors, values: &mut [f32], gradients: &[f32], mean: &mut [f32], square: &mut [f32]) {
    let state = mean.iter_mut().zip(square);
    for ((value, gradient), (mean, square)) in values.iter_mut().zip(gradients).zip(state) {
        factors.apply(value, *gradient, mean, square);
    }
}

impl UpdateRule for AdamW {
    fn update_fused(&self, parameters: &Parameters, step: Step) -> Result<()> {
        with_f32(&parameters.gradients, |gradients| {
            with_f32_mut(&parameters.values, |values| {
                with_f32_mut(&self.mean, |mean| {
                    with_f32_mut(&self.square, |square| {
                        for group in &self.groups {
                            let range = group.range.clone();
                            let factors = self.constants.factors(group, step);
                            let state = mean[range.clone()].par_chunks_mut(CHUNK);
                            let state = state.zip(square[range.clone()].par_chunks_mut(CHUNK));
                            let pairs = values[range.clone()].par_chunks_mut(CHUNK);
                            let pairs = pairs.zip(gradients[range].par_chunks(CHUNK));
                            pairs.zip(state).for_each(|((values, gradients), (mean, square))| {
                                update_chunk(factors, values, gradients, mean, square);
                            });
                        }
                        Ok(())
                    })
                })
            })
        })
    }

    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()> {
        for group in &self.groups {
            let factors = self.constants.factors(group, step);
            let (start, length) = (group.range.start, group.range.len());
            let part = |tensor: &Tensor| tensor.narrow(0, start, length);
            let (value, gradient) = (part(&parameters.values)?, part(&parameters.gradients)?);
            let mean = part(&self.mean)?;
            let mean = (&mean + ((&gradient - &mean)? * f64::from(factors.take1))?)?;
            let square = (part(&self.square)? * f64::from(factors.beta2))?;
            let square = (square + (gradient.sqr()? * f64::from(factors.take2))?)?;
            let denominator = square
                .sqrt()?
                .affine(1.0 / f64::from(factors.correction), f64::from(factors.epsilon))?;
            let change = ((&mean / denominator)? * f64::from(factors.rate))?;
            let value = ((value * f64::from(factors.keep))? - change)?;
            self.mean.slice_set(&mean, 0, start)?;
            self.square.slice_set(&square, 0, start)?;
            parameters.values.slice_set(&value, 0, start)?;
        }
        Ok(())
    }

    fn state(&self) -> Vec<(&'static str, Tensor)> {
        vec![("mean", self.mean.clone()), ("square", self.square.clone())]
    }
}
