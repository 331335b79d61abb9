//! Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon>) as in `torch.optim.Muon`.
//!
//! b = mu b + (1 - mu) g;  u = (1 - mu) g + mu b;  p = p (1 - lr d) - lr sqrt(max(1, out / in)) O(u), where O(u) has
//! the singular vectors of u and singular values near 1: X = u / |u|, then five times X = a X + (b A + c A^2) X with
//! A = X X^T. As in torch, X is rounded to BF16 after each product; here the products themselves are F32. Parameters that
//! are no matrices take AdamW with the same learning rate.

use candle_core::{DType, Device, Result, Tensor};

use crate::recipe::OptimizerSettings;
use crate::train::{ParameterLayout, Parameters};

use super::adamw::AdamW;
use super::group::{Group, of_slots};
use super::rule::{Step, UpdateRule};
use super::states_f32::StatesF32;

/// Coefficients of the quintic iteration.
const QUINTIC: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
const ITERATIONS: usize = 5;
const SMALLEST_NORM: f64 = 1e-7;

/// Momentum of the matrices, AdamW's states of the rest.
pub(super) struct Muon {
    momentum: f64,
    matrices: Vec<Matrix>,
    buffer: Tensor,
    vectors: StatesF32<AdamW, 2>,
}

/// One matrix.
struct Matrix {
    group: Group,
    rows: usize,
    columns: usize,
    /// First element of its momentum.
    start: usize,
}

impl Muon {
    pub fn new(settings: &OptimizerSettings, layout: &ParameterLayout, device: &Device) -> Result<Self> {
        let (mut matrices, mut vectors, mut elements) = (Vec::new(), Vec::new(), 0);
        for (slot, group) in layout.slots().iter().zip(of_slots(layout, settings)) {
            let &[rows, columns] = slot.shape.as_slice() else {
                vectors.push(group);
                continue;
            };
            matrices.push(Matrix {
                group,
                rows,
                columns,
                start: elements,
            });
            elements += rows * columns;
        }
        Ok(Self {
            momentum: settings.momentum,
            matrices,
            buffer: Tensor::zeros(elements.max(1), DType::F32, device)?,
            vectors: StatesF32::new(AdamW::new(settings), vectors, device)?,
        })
    }

    fn update_matrix(&self, parameters: &Parameters, step: Step, matrix: &Matrix) -> Result<()> {
        let (start, length) = (matrix.group.range.start, matrix.group.range.len());
        let rate = step.rate(&matrix.group);
        let gradient = parameters.gradients.narrow(0, start, length)?;
        let buffer = self.buffer.narrow(0, matrix.start, length)?;
        let buffer = (&buffer + ((&gradient - &buffer)? * (1.0 - self.momentum))?)?;
        self.buffer.slice_set(&buffer, 0, matrix.start)?;
        let update = (&gradient + ((buffer - &gradient)? * self.momentum)?)?;
        let update = orthogonal(&update.reshape((matrix.rows, matrix.columns))?)?.flatten_all()?;
        let spread = (matrix.rows as f64 / matrix.columns as f64).max(1.0).sqrt();
        let value = parameters.values.narrow(0, start, length)?;
        let value = (value * (1.0 - rate * matrix.group.weight_decay))?;
        parameters
            .values
            .slice_set(&(value - (update * (rate * spread))?)?, 0, start)
    }

    fn update_matrices(&self, parameters: &Parameters, step: Step) -> Result<()> {
        let mut matrices = self.matrices.iter();
        matrices.try_for_each(|matrix| self.update_matrix(parameters, step, matrix))
    }
}

impl UpdateRule for Muon {
    /// The products are where the time goes: the plain form is as good.
    fn update_fused(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.vectors.update_fused(parameters, step)?;
        self.update_matrices(parameters, step)
    }

    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.vectors.update_plain(parameters, step)?;
        self.update_matrices(parameters, step)
    }

    fn update_gpu(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.vectors.update_gpu(parameters, step)?;
        self.update_matrices(parameters, step)
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let mut state = self.vectors.state();
        state.push(("momentum".to_owned(), self.buffer.clone()));
        state
    }
}

/// The matrix with the same singular vectors and singular values near 1.
fn orthogonal(update: &Tensor) -> Result<Tensor> {
    let (rows, columns) = update.dims2()?;
    let is_tall = rows > columns;
    let wide = if is_tall {
        update.t()?.contiguous()?
    } else {
        update.clone()
    };
    let mut wide = round(&wide)?;
    let norm = wide.sqr()?.sum_all()?.sqrt()?;
    let norm = round(&norm)?.clamp(SMALLEST_NORM, f64::MAX)?;
    wide = round(&wide.broadcast_div(&norm)?)?;
    let (a, b, c) = QUINTIC;
    for _ in 0..ITERATIONS {
        let gram = round(&wide.matmul(&wide.t()?)?)?;
        let polynomial = round(&((&gram * b)? + (gram.matmul(&gram)? * c)?)?)?;
        wide = round(&((&wide * a)? + polynomial.matmul(&wide)?)?)?;
    }
    if is_tall { wide.t()?.contiguous() } else { Ok(wide) }
}

/// Rounds F32 values to those of BF16.
fn round(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(DType::BF16)?.to_dtype(DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_values_come_near_one() {
        for (rows, columns) in [(6, 20), (20, 6)] {
            let values: Vec<f32> = (0..rows * columns)
                .map(|index| ((index * index) as f32 * 1.7).sin())
                .collect();
            let update = Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap();
            let found = orthogonal(&update).unwrap().to_vec2::<f32>().unwrap();
            let matrix = faer::Mat::from_fn(rows, columns, |row, column| f64::from(found[row][column]));
            let singular = matrix.singular_values().unwrap();
            // The iteration ends between 0.7 and 1.2 for all but the smallest, by its authors' analysis.
            assert!(singular.iter().all(|value| (0.6..1.3).contains(value)), "{singular:?}");
        }
    }
}
