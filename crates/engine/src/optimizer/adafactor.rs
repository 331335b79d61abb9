//! Adafactor (arXiv:1804.04235) as in transformers with `scale_parameter=False, relative_step=False`.
//!
//! | symbol | meaning |
//! |---|---|
//! | g (R, C) | gradient of a matrix |
//! | r (R,), c (C,) | running means of g^2 + 1e-30 over the columns and over the rows |
//! | b = 1 - t^-0.8 | their decay at step t |
//!
//! u_ij = g_ij / sqrt(r_i / mean(r)) / sqrt(c_j);  u = u / max(1, rms(u));  p = p (1 - lr d) - lr u. A vector keeps the
//! running mean v of its own g^2 + 1e-30 instead, and u = g / sqrt(v).
//!
//! A matrix takes three passes over its gradient: sums, root mean square of u, update. Sums are made in F64 over fixed
//! bands of rows, so that they do not depend on the number of threads.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

use crate::{ParameterLayout, Parameters};
use peft_tune_core::recipe::OptimizerSettings;
use peft_tune_kernels::gpu::{Argument, empty};

use super::cuda::{GroupFactors, GroupRange, GroupRanges, Kernel};
use super::group::{Group, is_in, of_slots};
use super::rule::{RepeatedUpdate, StateHome, Step, UpdateRule};
use crate::tensor::Ledger;
use peft_tune_core::plan::{BAND_ELEMENTS, Memory};
use peft_tune_core::predict::MemoryCategory;
use peft_tune_kernels::flat::{with_f32, with_f32_mut};

/// Number that is added to squares.
const TINY: f64 = 1e-30;
/// Exponent of the decay.
const DECAY: f64 = -0.8;
/// Rows of a matrix that one thread takes at a time.
const BAND: usize = 64;

/// Elements of a matrix that one block of threads updates on a GPU. In tests small ones are cut.
const BLOCK_ELEMENTS: usize = if cfg!(test) { 3000 } else { BAND_ELEMENTS };
/// Threads of the kernels' blocks.
const THREADS: usize = 512;

/// Running means of all parameters.
pub(super) struct Adafactor {
    parts: Vec<FactoredMatrix>,
    /// Ranges of the parameters that have one block of threads on a GPU.
    small: GroupRanges,
    large: GroupRanges,
    /// Elements of the room that the large ones' update takes, F64.
    room: usize,
    /// The parts' r and c, or v, one behind the other.
    means: Tensor,
}

/// One parameter.
struct FactoredMatrix {
    group: Group,
    /// A vector has no columns: each element has a mean of its own.
    rows: usize,
    columns: Option<usize>,
    /// First element of its means.
    start: usize,
}

impl FactoredMatrix {
    fn means(&self) -> usize {
        self.rows + self.columns.unwrap_or(0)
    }

    /// Rows of a band that has a block of threads of its own, and the number of bands, where there is more than one.
    fn bands(&self) -> Option<(usize, usize)> {
        let height = (BLOCK_ELEMENTS / self.columns?.max(1)).max(1);
        let bands = self.rows.div_ceil(height);
        (bands > 1).then_some((height, bands))
    }

    /// Range of a parameter that has one block of threads.
    fn small_place(&self) -> Option<GroupRange> {
        let (start, elements) = (self.group.range.start, self.group.range.len());
        let is_small = elements > 0 && self.bands().is_none();
        is_small.then(|| GroupRange::new(start, elements, self.start, 1))
    }

    /// Range of a parameter that has a block of threads for each band; its room lies at the end of `room`, which grows
    /// by it.
    fn large_place(&self, room: &mut usize) -> Option<GroupRange> {
        let ((_, bands), columns) = (self.bands()?, self.columns?);
        let place = GroupRange::new(self.group.range.start, self.group.range.len(), self.start, bands);
        *room += bands * (columns + 1);
        Some(GroupRange {
            room: *room - bands * (columns + 1),
            ..place
        })
    }

    fn update(&self, step: Step) -> Update {
        Update {
            beta: decay(step),
            rate: step.rate(&self.group),
            weight_decay: self.group.weight_decay,
        }
    }

    /// beta, 1 - beta, rate, keep, columns or 0, rows of a band and bands.
    fn for_kernel(&self, step: Step) -> GroupFactors {
        let (update, columns) = (self.update(step), self.columns.unwrap_or(0));
        let (beta, rate) = (update.beta, update.rate as f32);
        let keep = update.keep();
        let (height, bands) = self.bands().unwrap_or_default();
        [
            beta as f32,
            (1.0 - beta) as f32,
            rate,
            keep,
            columns as f32,
            height as f32,
            bands as f32,
            0.0,
        ]
    }
}

impl Adafactor {
    pub(super) fn new(settings: &OptimizerSettings, layout: &ParameterLayout, home: StateHome<'_>) -> Result<Self> {
        let mut parts: Vec<FactoredMatrix> = Vec::new();
        let mut start = 0;
        for (slot, group) in layout.slots().iter().zip(of_slots(layout, settings)) {
            let columns = (slot.shape.len() > 1).then(|| slot.shape[slot.shape.len() - 1]);
            let part = FactoredMatrix {
                rows: slot.elements() / columns.unwrap_or(1).max(1),
                group,
                columns,
                start,
            };
            start += part.means();
            parts.push(part);
        }
        let mut room = 0;
        let large = parts.iter().filter_map(|part| part.large_place(&mut room));
        Ok(Self {
            small: GroupRanges::new(parts.iter().filter_map(FactoredMatrix::small_place)),
            large: GroupRanges::new(large),
            room,
            parts,
            means: home.zeros(start, DType::F32)?,
        })
    }

    /// Updates one parameter in plain tensor ops.
    fn update_part(&self, parameters: &Parameters, step: Step, part: &FactoredMatrix) -> Result<()> {
        let (start, rate, beta) = (part.group.range.start, step.rate(&part.group), decay(step));
        let shape = (part.rows, part.columns.unwrap_or(1));
        let of = |buffer: &Tensor| buffer.narrow(0, start, part.group.range.len())?.reshape(shape);
        let (value, gradient) = (of(&parameters.values)?, of(&parameters.gradients)?);
        let square = gradient.sqr()?.affine(1.0, TINY)?;
        let blend = |start: usize, sample: Tensor| {
            let mean = self.means.narrow(0, start, sample.elem_count())?;
            let mean = ((mean * beta)? + (sample * (1.0 - beta))?)?;
            self.means.slice_set(&mean, 0, start)?;
            Ok::<_, candle_core::Error>(mean)
        };
        let update = match part.columns {
            None => gradient.div(&blend(part.start, square.flatten_all()?)?.sqrt()?.reshape(shape)?)?,
            Some(columns) => {
                let row = blend(part.start, square.mean(1)?)?;
                let column = blend(part.start + part.rows, square.mean(0)?)?;
                let row = row.broadcast_div(&row.mean_all()?)?.sqrt()?.reshape((part.rows, 1))?;
                let column = column.sqrt()?.reshape((1, columns))?;
                gradient.broadcast_div(&row)?.broadcast_div(&column)?
            }
        };
        let mean_square = f64::from(update.sqr()?.mean_all()?.to_scalar::<f32>()?);
        let change = (update * (rate / mean_square.sqrt().max(1.0)))?;
        let value = ((value * (1.0 - rate * part.group.weight_decay))? - change)?;
        parameters.values.slice_set(&value.flatten_all()?, 0, start)
    }
}

impl UpdateRule for Adafactor {
    fn update_fused(&self, parameters: &Parameters, step: Step, elements: Range<usize>) -> Result<()> {
        let [values, gradients] = parameters.part(&elements)?;
        with_f32(&gradients, |gradients| {
            with_f32_mut(&values, |values| {
                with_f32_mut(&self.means, |means| {
                    for part in self.parts.iter().filter(|part| is_in(&part.group.range, &elements)) {
                        let range = part.group.range.start - elements.start..part.group.range.end - elements.start;
                        let means = &mut means[part.start..part.start + part.means()];
                        let update = part.update(step);
                        let (values, gradients) = (&mut values[range.clone()], &gradients[range]);
                        match part.columns {
                            Some(_) => {
                                let (row, column) = means.split_at_mut(part.rows);
                                update.matrix(values, gradients, row, column);
                            }
                            None => update.vector(values, gradients, means),
                        }
                    }
                    Ok(())
                })
            })
        })
    }

    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.parts
            .iter()
            .try_for_each(|part| self.update_part(parameters, step, part))
    }

    fn repeated(&self) -> Option<&dyn RepeatedUpdate> {
        Some(self)
    }

    fn update_on_paper(&self, ledger: &Ledger) -> Result<()> {
        if ledger.host().memory() == Memory::Device {
            ledger.spike(MemoryCategory::Scratch, (DType::F64.size_in_bytes() * self.room) as u64);
        }
        Ok(())
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        vec![("means".to_owned(), self.means.clone())]
    }
}

impl RepeatedUpdate for Adafactor {
    fn prepare(&self, step: Step, device: &Device) -> Result<()> {
        let factors = |part: &FactoredMatrix| part.for_kernel(step);
        let small = self.parts.iter().filter(|part| part.small_place().is_some());
        self.small.prepare(small.map(factors), device)?;
        let large = self.parts.iter().filter(|part| part.bands().is_some());
        self.large.prepare(large.map(factors), device)
    }

    fn launch(&self, parameters: &Parameters, norm: Option<&Tensor>) -> Result<()> {
        let device = parameters.values.device();
        let tensors = [&parameters.values, &parameters.gradients, &self.means].map(Argument::Tensor);
        self.small
            .run(Kernel::new("adafactor", THREADS), &tensors, norm, device)?;
        if self.large.is_empty() {
            return Ok(());
        }
        let room = empty(self.room, DType::F64, device)?;
        let [values, gradients, means] = tensors;
        let tensors = [values, gradients, means, Argument::Tensor(&room)];
        let mut parts = ["sums", "columns", "squares", "apply"].iter();
        parts.try_for_each(|part| {
            self.large.run(
                Kernel::new(&format!("adafactor_{part}"), THREADS),
                &tensors,
                norm,
                device,
            )
        })
    }
}

fn decay(step: Step) -> f64 {
    1.0 - (step.number as f64).powf(DECAY)
}

/// The constants of one parameter's update.
struct Update {
    beta: f64,
    rate: f64,
    weight_decay: f64,
}

impl Update {
    fn matrix(&self, values: &mut [f32], gradients: &[f32], row: &mut [f32], column: &mut [f32]) {
        let columns = column.len();
        if row.is_empty() || columns == 0 {
            return;
        }
        let bands = || gradients.par_chunks(BAND * columns);
        let sums: Vec<(Vec<f64>, Vec<f64>)> = bands().map(|band| sums_of_squares(band, columns)).collect();
        let row_sums = sums.iter().flat_map(|(rows, _)| rows.iter().copied());
        for (mean, sum) in row.iter_mut().zip(row_sums) {
            *mean = self.blend(*mean, sum / columns as f64);
        }
        for (index, mean) in column.iter_mut().enumerate() {
            let sum: f64 = sums.iter().map(|(_, of_columns)| of_columns[index]).sum();
            *mean = self.blend(*mean, sum / row.len() as f64);
        }
        let mean_of_rows = row.iter().map(|mean| f64::from(*mean)).sum::<f64>() / row.len() as f64;
        let row_factor = |index: usize| (1.0 / (f64::from(row[index]) / mean_of_rows).sqrt()) as f32;
        let column_factors: Vec<f32> = column.iter().map(|mean| 1.0 / mean.sqrt()).collect();
        let squares = bands().enumerate().map(|(band, gradients)| {
            let rows = gradients.chunks(columns).enumerate();
            let of_row = |(index, gradients): (usize, &[f32])| {
                let factor = row_factor(band * BAND + index);
                let updates = gradients
                    .iter()
                    .zip(&column_factors)
                    .map(|(g, column)| g * factor * column);
                updates.map(|update| f64::from(update).powi(2)).sum::<f64>()
            };
            rows.map(of_row).sum::<f64>()
        });
        let squares: Vec<f64> = squares.collect();
        let scale = self.scale(squares.iter().sum::<f64>() / gradients.len() as f64);
        let keep = self.keep();
        let bands = values.par_chunks_mut(BAND * columns).zip(bands()).enumerate();
        bands.for_each(|(band, (values, gradients))| {
            let rows = values.chunks_mut(columns).zip(gradients.chunks(columns)).enumerate();
            for (index, (values, gradients)) in rows {
                let factor = row_factor(band * BAND + index) * scale;
                for ((value, gradient), column) in values.iter_mut().zip(gradients).zip(&column_factors) {
                    *value = *value * keep - gradient * factor * column;
                }
            }
        });
    }

    fn vector(&self, values: &mut [f32], gradients: &[f32], means: &mut [f32]) {
        let mut squares = 0.0;
        for (gradient, mean) in gradients.iter().zip(means.iter_mut()) {
            *mean = self.blend(*mean, f64::from(*gradient).powi(2) + TINY);
            squares += f64::from(gradient / mean.sqrt()).powi(2);
        }
        let (scale, keep) = (self.scale(squares / gradients.len().max(1) as f64), self.keep());
        for ((value, gradient), mean) in values.iter_mut().zip(gradients).zip(means) {
            *value = *value * keep - gradient / mean.sqrt() * scale;
        }
    }

    fn blend(&self, mean: f32, sample: f64) -> f32 {
        (self.beta * f64::from(mean) + (1.0 - self.beta) * sample) as f32
    }

    /// Learning rate over the clipped root mean square.
    fn scale(&self, mean_square: f64) -> f32 {
        (self.rate / mean_square.sqrt().max(1.0)) as f32
    }

    fn keep(&self) -> f32 {
        (1.0 - self.rate * self.weight_decay) as f32
    }
}

/// Sums of g^2 + 1e-30 of each row of a band, and of each column.
fn sums_of_squares(band: &[f32], columns: usize) -> (Vec<f64>, Vec<f64>) {
    let mut of_columns = vec![0.0; columns];
    let rows = band.chunks(columns).map(|row| {
        let mut of_row = 0.0;
        for (value, of_column) in row.iter().zip(&mut of_columns) {
            let square = f64::from(*value).powi(2) + TINY;
            of_row += square;
            *of_column += square;
        }
        of_row
    });
    let rows = rows.collect();
    (rows, of_columns)
}
