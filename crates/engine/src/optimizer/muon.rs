//! Muon (Jordan et al. 2024, <https://kellerjordan.github.io/posts/muon>) as in `torch.optim.Muon`.
//!
//! b = mu b + (1 - mu) g;  u = (1 - mu) g + mu b;  p = p (1 - lr d) - lr sqrt(max(1, out / in)) O(u), where O(u) has
//! the singular vectors of u and singular values near 1: X = u / |u|, then five times X = a X + (b A + c A^2) X with
//! A = X X^T. As in torch, X is rounded to BF16 after each product; here the products themselves are F32. Parameters that
//! are no matrices take AdamW with the same learning rate.
//!
//! On an NVIDIA GPU all matrices with a side of at most 128 are updated by one launch (`muon.cu`), in which a block of threads has one
//! matrix: adapters of ranks up to that. Those of others, and of trained weights, are products that fill the device: tensor ops.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::tensor;
use crate::tensor::{Ledger, Order};
use crate::{ParameterLayout, Parameters};
use peft_tune_core::plan::{LONGEST_SHORT_SIDE, Memory};
use peft_tune_core::predict::MemoryCategory;
use peft_tune_core::recipe::OptimizerSettings;
use peft_tune_kernels::gpu::{Argument, OPERANDS, Source, empty};

use super::adamw::AdamW;
use super::cuda::{GroupFactors, GroupRange, GroupRanges, Kernel, PLACES};
use super::group::{Group, is_in, of_slots};
use super::rule::{RepeatedUpdate, StateHome, Step, UpdateRule};
use super::states_f32::StatesF32;

/// Coefficients of the quintic iteration.
const QUINTIC: (f64, f64, f64) = (3.4445, -4.7750, 2.0315);
const ITERATIONS: usize = 5;
const SMALLEST_NORM: f64 = 1e-7;

static SOURCE: Source = Source {
    name: "muon",
    text: include_str!("muon.cu"),
    headers: &[PLACES, OPERANDS],
};

/// Momentum of the matrices, AdamW's states of the rest.
pub(super) struct Muon {
    momentum: f64,
    matrices: Vec<Matrix>,
    /// Blocks of the matrices that one launch updates on a GPU.
    blocks: Blocks,
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

/// The flat buffers of an update.
struct Buffers {
    values: tensor::Tensor,
    gradients: tensor::Tensor,
    momentum: tensor::Tensor,
}

/// Matrices with a short side, each of which one block of threads updates.
struct Blocks {
    places: GroupRanges,
    /// The sides fit as many tiles of 16; a power of 2, as the kernel wants it.
    tiles: usize,
    /// Elements of the room, BF16.
    room: usize,
}

impl Matrix {
    fn short_side(&self) -> usize {
        self.rows.min(self.columns)
    }

    fn is_short(&self) -> bool {
        self.short_side() <= LONGEST_SHORT_SIDE
    }

    /// Factor of what is taken from the values.
    fn rate(&self, step: Step) -> f64 {
        let spread = (self.rows as f64 / self.columns as f64).max(1.0).sqrt();
        step.rate(&self.group) * spread
    }

    /// Factor of the values.
    fn keep(&self, step: Step) -> f64 {
        1.0 - step.rate(&self.group) * self.group.weight_decay
    }
}

impl Blocks {
    fn new<'a>(matrices: impl Iterator<Item = &'a Matrix> + Clone) -> Self {
        let side = matrices.clone().map(Matrix::short_side).max().unwrap_or(1);
        let tiles = side.div_ceil(16).next_power_of_two();
        let width = 512 / tiles;
        let mut room = 0;
        let place = |matrix: &Matrix| {
            let elements = 16 * tiles * matrix.rows.max(matrix.columns).next_multiple_of(width);
            room += elements;
            GroupRange {
                room: room - elements,
                ..GroupRange::new(matrix.group.range.start, matrix.group.range.len(), matrix.start, 1)
            }
        };
        Self {
            places: GroupRanges::new(matrices.map(place)),
            tiles,
            room,
        }
    }

    /// Bytes of the kernel's shared memory: two strips of the matrix, the Gram matrix, a sum of each warp.
    fn shared_bytes(&self) -> usize {
        let (side, width) = (16 * self.tiles, 512 / self.tiles);
        2 * (2 * side * (width + 8) + side * (side + 8)) + 8 * 8
    }
}

impl Muon {
    pub(super) fn new(settings: &OptimizerSettings, layout: &ParameterLayout, home: StateHome<'_>) -> Result<Self> {
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
            blocks: Blocks::new(matrices.iter().filter(|matrix| matrix.is_short())),
            matrices,
            buffer: home.zeros(elements, DType::F32)?,
            vectors: StatesF32::new(AdamW::new(settings), vectors, home)?,
        })
    }

    fn update_matrix(&self, buffers: &Buffers, step: Step, matrix: &Matrix) -> Result<()> {
        let (start, length) = (matrix.group.range.start, matrix.group.range.len());
        let Buffers {
            values,
            gradients,
            momentum,
        } = buffers;
        let gradient = gradients.narrow(0, start, length)?;
        let mean = mixed(
            &momentum.narrow(0, matrix.start, length)?,
            &gradient,
            1.0 - self.momentum,
        )?;
        momentum.slice_set(&mean, 0, matrix.start)?;
        let update = mixed(&gradient, &mean, self.momentum)?.reshape((matrix.rows, matrix.columns))?;
        drop(mean);
        let update = orthogonal(update)?.flatten_all()?;
        let change = times(update, matrix.rate(step))?;
        let value = values.narrow(0, start, length)?.affine(matrix.keep(step), 0.0)?;
        values.slice_set(&value.zip(&change, |value, change| value - change)?, 0, start)
    }

    fn update_matrices<'a>(
        &self,
        parameters: &Parameters,
        step: Step,
        mut matrices: impl Iterator<Item = &'a Matrix>,
    ) -> Result<()> {
        let buffers = Buffers {
            values: parameters.values.clone().into(),
            gradients: parameters.gradients.clone().into(),
            momentum: self.buffer.clone().into(),
        };
        matrices.try_for_each(|matrix| self.update_matrix(&buffers, step, matrix))
    }

    fn short(&self) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().filter(|matrix| matrix.is_short())
    }

    /// momentum, 1 - momentum, keep, rate, rows, columns
    fn for_kernel(&self, matrix: &Matrix, step: Step) -> GroupFactors {
        let (momentum, rest) = (self.momentum as f32, (1.0 - self.momentum) as f32);
        let (keep, rate) = (matrix.keep(step) as f32, matrix.rate(step) as f32);
        let (rows, columns) = (matrix.rows as f32, matrix.columns as f32);
        [momentum, rest, keep, rate, rows, columns, 0.0, 0.0]
    }
}

impl UpdateRule for Muon {
    /// The products are where the time goes: the plain form is as good.
    fn update_fused(&self, parameters: &Parameters, step: Step, elements: Range<usize>) -> Result<()> {
        self.vectors.update_fused(parameters, step, elements.clone())?;
        let inside = self
            .matrices
            .iter()
            .filter(|matrix| is_in(&matrix.group.range, &elements));
        self.update_matrices(parameters, step, inside)
    }

    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.vectors.update_plain(parameters, step)?;
        self.update_matrices(parameters, step, self.matrices.iter())
    }

    fn repeated(&self) -> Option<&dyn RepeatedUpdate> {
        let all_are_short = self.matrices.iter().all(Matrix::is_short);
        all_are_short.then_some(self)
    }

    fn update_gpu(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.prepare(step, parameters.values.device())?;
        self.launch(parameters, None)?;
        let long = self.matrices.iter().filter(|matrix| !matrix.is_short());
        self.update_matrices(parameters, step, long)
    }

    fn update_on_paper(&self, ledger: &Ledger) -> Result<()> {
        self.vectors.update_on_paper(ledger)?;
        let on_gpu = ledger.host().memory() == Memory::Device;
        if on_gpu {
            let room = DType::BF16.size_in_bytes() * self.blocks.room;
            ledger.spike(MemoryCategory::Scratch, room as u64);
        }
        let elements = self.matrices.iter().map(|matrix| matrix.group.range.end).max();
        let flat = || tensor::Tensor::from(ledger.uncounted(elements.unwrap_or(0), DType::F32));
        let buffers = Buffers {
            values: flat(),
            gradients: flat(),
            momentum: flat(),
        };
        let step = Step {
            number: 1,
            learning_rate: 1.0,
            share: 1.0,
        };
        let by_ops = self.matrices.iter().filter(|matrix| !on_gpu || !matrix.is_short());
        for matrix in by_ops {
            self.update_matrix(&buffers, step, matrix)?;
        }
        Ok(())
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let mut state = self.vectors.state();
        state.push(("momentum".to_owned(), self.buffer.clone()));
        state
    }
}

impl RepeatedUpdate for Muon {
    fn prepare(&self, step: Step, device: &Device) -> Result<()> {
        self.vectors.prepare(step, device)?;
        let factors = self.short().map(|matrix| self.for_kernel(matrix, step));
        self.blocks.places.prepare(factors, device)
    }

    fn launch(&self, parameters: &Parameters, norm: Option<&Tensor>) -> Result<()> {
        let device = parameters.values.device();
        self.vectors.launch(parameters, norm)?;
        if self.blocks.places.is_empty() {
            return Ok(());
        }
        let room = empty(self.blocks.room, DType::BF16, device)?;
        let tensors = [&parameters.values, &parameters.gradients, &self.buffer, &room].map(Argument::Tensor);
        let kernel = Kernel {
            source: &SOURCE,
            name: &format!("muon_{}", self.blocks.tiles),
            threads: 256,
            shared_bytes: self.blocks.shared_bytes(),
        };
        self.blocks.places.run(kernel, &tensors, norm, device)
    }
}

/// The matrix with the same singular vectors and singular values near 1.
fn orthogonal(update: tensor::Tensor) -> Result<tensor::Tensor> {
    let (rows, columns) = update.dims2()?;
    let is_tall = rows > columns;
    let mut wide = normalised(round(turned(update, is_tall)?)?)?;
    let (a, b, c) = QUINTIC;
    for _ in 0..ITERATIONS {
        let gram = round(wide.matmul(&wide, Order::Transposed)?)?;
        let square = times(gram.matmul(&gram, Order::Straight)?, c)?;
        let polynomial = round(sum(times(gram, b)?, square)?)?;
        let product = polynomial.matmul(&wide, Order::Straight)?;
        drop(polynomial);
        wide = round(sum(times(wide, a)?, product)?)?;
    }
    turned(wide, is_tall)
}

/// x over its norm, rounded.
fn normalised(x: tensor::Tensor) -> Result<tensor::Tensor> {
    let norm = x.map(Tensor::sqr)?.sum_all()?;
    let norm = round(norm.map(Tensor::sqrt)?)?.map(|norm| norm.clamp(SMALLEST_NORM, f64::MAX))?;
    let quotient = x.zip(&norm, Tensor::broadcast_div)?;
    drop(x);
    round(quotient)
}

/// x + (y - x) times `share`.
fn mixed(x: &tensor::Tensor, y: &tensor::Tensor, share: f64) -> Result<tensor::Tensor> {
    let difference = times(y.zip(x, |y, x| y - x)?, share)?;
    x.zip(&difference, |x, difference| x + difference)
}

/// The transpose where `is_tall`. Like the functions below it lets go of what it takes.
fn turned(x: tensor::Tensor, is_tall: bool) -> Result<tensor::Tensor> {
    if is_tall { x.transposed() } else { Ok(x) }
}

fn times(x: tensor::Tensor, factor: f64) -> Result<tensor::Tensor> {
    x.affine(factor, 0.0)
}

fn sum(x: tensor::Tensor, y: tensor::Tensor) -> Result<tensor::Tensor> {
    x.zip(&y, |x, y| x + y)
}

/// Rounds F32 values to those of BF16.
fn round(x: tensor::Tensor) -> Result<tensor::Tensor> {
    let rounded = x.to_dtype(DType::BF16)?;
    drop(x);
    rounded.to_dtype(DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ParameterKind, ParameterLayout};
    use peft_tune_core::recipe::OptimizerKind;
    use peft_tune_kernels::gpu::{emulated, has_compiler};

    /// Changes that two steps of a rate of 1 make to each matrix.
    fn changes(shapes: &[[usize; 2]], on_gpu: bool) -> Vec<Vec<f32>> {
        let mut layout = ParameterLayout::default();
        for (index, shape) in shapes.iter().enumerate() {
            layout.push(format!("matrix {index}"), shape, ParameterKind::LoraA);
        }
        let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
        let settings = OptimizerSettings {
            kind: OptimizerKind::Muon,
            ..OptimizerSettings::default()
        };
        let rule = Muon::new(&settings, &parameters.layout, StateHome::On(&Device::Cpu)).unwrap();
        for number in 1..=2 {
            let elements = parameters.layout.elements();
            let wave = |index: usize| ((index * index % 7919) as f32 * 0.61 + number as f32).sin();
            let gradients: Vec<f32> = (0..elements).map(wave).collect();
            let gradients = Tensor::from_vec(gradients, elements, &Device::Cpu).unwrap();
            parameters.gradients.slice_set(&gradients, 0, 0).unwrap();
            let step = Step {
                number,
                learning_rate: 1.0,
                share: 1.0,
            };
            match on_gpu {
                true => emulated(|| rule.update_gpu(&parameters, step)).unwrap(),
                false => rule.update_plain(&parameters, step).unwrap(),
            }
        }
        let slots = parameters.layout.slots().iter();
        let values = slots.map(|slot| parameters.values.narrow(0, slot.offset, slot.elements()));
        values.map(|values| values.unwrap().to_vec1().unwrap()).collect()
    }

    #[test]
    fn the_kernel_does_what_the_tensor_ops_do() {
        if !has_compiler() {
            return;
        }
        // Each list has a longest short side for another form of the kernel; the last matrix of the last one is for tensor ops.
        let lists: [&[[usize; 2]]; 4] = [
            &[[8, 1030], [513, 16], [1, 40], [16, 16], [3, 2]],
            &[[32, 300], [257, 17], [512, 20]],
            &[[33, 129], [300, 64], [5, 7]],
            &[[128, 140], [150, 100], [70, 65], [130, 129]],
        ];
        for shapes in lists {
            let (expected, got) = (changes(shapes, false), changes(shapes, true));
            for (shape, (expected, got)) in shapes.iter().zip(expected.iter().zip(&got)) {
                let squares = |of: &dyn Fn(usize) -> f32| (0..got.len()).map(|i| of(i).powi(2)).sum::<f32>();
                let error = squares(&|i| got[i] - expected[i]) / squares(&|i| expected[i]);
                // Both round to BF16 seventeen times; where a sum in another order falls to a neighbour, the rest follows.
                assert!(error.sqrt() < 4e-3, "{shape:?}: {}", error.sqrt());
            }
        }
    }

    #[test]
    fn singular_values_come_near_one() {
        for (rows, columns) in [(6, 20), (20, 6)] {
            let values: Vec<f32> = (0..rows * columns)
                .map(|index| ((index * index) as f32 * 1.7).sin())
                .collect();
            let update = Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap();
            let found = orthogonal(update.into()).unwrap();
            let found = found.real().unwrap().to_vec2::<f32>().unwrap();
            let matrix = faer::Mat::from_fn(rows, columns, |row, column| f64::from(found[row][column]));
            let singular = matrix.singular_values().unwrap();
            // The iteration ends between 0.7 and 1.2 for all but the smallest, by its authors' analysis.
            assert!(singular.iter().all(|value| (0.6..1.3).contains(value)), "{singular:?}");
        }
    }
}
