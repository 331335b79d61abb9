//! Updates, the norm and clipping on an NVIDIA GPU: one launch for all groups.

use std::sync::OnceLock;

use candle_core::{DType, Device, Result, Tensor};

use crate::train::gpu::{Argument, Launch, Source, empty};
use crate::train::quant::DynamicMap;

/// The kernels of this folder.
static SOURCE: Source = Source {
    name: "optimizer",
    text: include_str!("optimizer.cu"),
    headers: &[],
};

/// Elements of a block of threads that updates F32 states.
const ELEMENTS: usize = 1024;

/// Blocks of threads that add up squares.
const SUM_BLOCKS: usize = 512;

/// Factors of one group, as the rule's kernel names them.
pub(super) type GroupFactors = [f32; 8];

/// Where each group lies: a table in the device's memory, made at the first update.
#[derive(Debug)]
pub(super) struct Places {
    /// (blocks of threads, first element, elements, first element or block of the states) of each group.
    groups: Vec<[usize; 4]>,
    table: OnceLock<Tensor>,
}

impl Places {
    /// The groups (first element, elements, place of the states), cut into blocks of `elements`.
    fn new(groups: impl Iterator<Item = (usize, usize, usize)>, elements: usize) -> Self {
        let row = |(start, length, state): (usize, usize, usize)| [length.div_ceil(elements), start, length, state];
        Self {
            groups: groups.map(row).collect(),
            table: OnceLock::new(),
        }
    }

    /// For states in F32.
    pub fn of_f32(groups: impl Iterator<Item = (usize, usize, usize)>) -> Self {
        Self::new(groups, ELEMENTS)
    }

    /// For states in 8 bits.
    pub fn of_8bit(groups: impl Iterator<Item = (usize, usize, usize)>) -> Self {
        Self::new(groups, 256)
    }

    /// For a rule that gives each group one block of threads.
    pub fn whole(groups: impl Iterator<Item = (usize, usize, usize)>) -> Self {
        Self::new(groups, usize::MAX)
    }

    fn blocks(&self) -> usize {
        self.groups.iter().map(|group| group[0]).sum()
    }

    fn table(&self, device: &Device) -> Result<Tensor> {
        if let Some(table) = self.table.get() {
            return Ok(table.clone());
        }
        let mut first = 0;
        let mut rows: Vec<i64> = Vec::with_capacity(4 * self.groups.len());
        for [blocks, start, length, state] in &self.groups {
            rows.extend([first, *start, *length, *state].map(|value| value as i64));
            first += blocks;
        }
        let elements = rows.len();
        let table = Tensor::from_vec(rows, elements, device)?;
        Ok(self.table.get_or_init(|| table).clone())
    }

    /// Launches `kernel` on `tensors`, behind which it takes the table, the factors and the number of groups.
    pub fn run(
        &self,
        kernel: &str,
        threads: usize,
        tensors: &[Argument<'_>],
        factors: &[GroupFactors],
        device: &Device,
    ) -> Result<()> {
        if self.groups.is_empty() {
            return Ok(());
        }
        let table = self.table(device)?;
        let factors = Tensor::from_slice(factors.as_flattened(), 8 * factors.len(), device)?;
        let mut arguments = tensors.to_vec();
        arguments.extend([
            Argument::Tensor(&table),
            Argument::Tensor(&factors),
            Argument::U32(self.groups.len() as u32),
        ]);
        let launch = Launch {
            source: &SOURCE,
            kernel,
            blocks: [self.blocks(), 1, 1],
            threads: [threads, 1, 1],
            shared_bytes: 0,
        };
        launch.run(device, &arguments)
    }
}

/// Values, then bounds of each map.
pub(super) fn maps(maps: &[&DynamicMap], device: &Device) -> Result<Tensor> {
    let values: Vec<f32> = maps
        .iter()
        .flat_map(|map| map.values().iter().chain(map.bounds()).copied())
        .collect();
    let elements = values.len().max(1);
    match values.is_empty() {
        true => Tensor::zeros(elements, DType::F32, device),
        false => Tensor::from_vec(values, elements, device),
    }
}

/// Euclidean norm of a flat F32 tensor, whose squares are added up in F64, and the factor that brings it down to `most`, (2,) F64
/// on the device; 1 where it is below that or not finite.
pub(super) fn norm_and_factor(values: &Tensor, most: f64) -> Result<Tensor> {
    let device = values.device();
    let (partial, result) = (empty(SUM_BLOCKS, DType::F64, device)?, empty(2, DType::F64, device)?);
    let launch = Launch {
        source: &SOURCE,
        kernel: "sum_of_squares",
        blocks: [SUM_BLOCKS, 1, 1],
        threads: [256, 1, 1],
        shared_bytes: 0,
    };
    let count = Argument::U64(values.elem_count() as u64);
    launch.run(device, &[Argument::Tensor(values), Argument::Tensor(&partial), count])?;
    let arguments = [
        Argument::Tensor(&partial),
        Argument::Tensor(&result),
        Argument::F64(most),
        Argument::U32(SUM_BLOCKS as u32),
    ];
    let launch = Launch {
        kernel: "norm_of_sums",
        blocks: [1, 1, 1],
        threads: [32, 1, 1],
        ..launch
    };
    launch.run(device, &arguments)?;
    Ok(result)
}

/// Multiplies a flat F32 tensor by the factor of [`norm_and_factor`], in place.
pub(super) fn scale_to_norm(values: &Tensor, norm_and_factor: &Tensor) -> Result<()> {
    let count = values.elem_count();
    let launch = Launch {
        source: &SOURCE,
        kernel: "scale_to_norm",
        blocks: [count.div_ceil(256), 1, 1],
        threads: [256, 1, 1],
        shared_bytes: 0,
    };
    let arguments = [
        Argument::Tensor(values),
        Argument::Tensor(norm_and_factor),
        Argument::U64(count as u64),
    ];
    launch.run(values.device(), &arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::{OptimizerKind, OptimizerSettings};
    use crate::train::gpu::{emulated, has_compiler};
    use crate::train::optimizer::Optimizer;
    use crate::train::{ParameterKind, ParameterLayout, Parameters};

    fn parameters() -> Parameters {
        let mut layout = ParameterLayout::default();
        layout.push("a", &[40, 130], ParameterKind::LoraA);
        layout.push("b", &[17, 3], ParameterKind::LoraB);
        layout.push("c", &[64, 80], ParameterKind::LoraB);
        layout.push("d", &[3, 1100], ParameterKind::LoraA);
        layout.push("bias", &[5], ParameterKind::Bias);
        let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
        let wave = |factor: f64| {
            let values: Vec<f32> = (0..parameters.layout.elements())
                .map(|i| (i as f64 * factor).sin() as f32)
                .collect();
            Tensor::from_vec(values, parameters.layout.elements(), &Device::Cpu).unwrap()
        };
        parameters.values.slice_set(&wave(0.37), 0, 0).unwrap();
        parameters.gradients.slice_set(&wave(1.7), 0, 0).unwrap();
        parameters
    }

    /// Three steps of `kind`, and the state behind them.
    fn trained(settings: &OptimizerSettings) -> Vec<Vec<f32>> {
        let parameters = parameters();
        let mut optimizer = Optimizer::new(settings, &parameters.layout, &Device::Cpu).unwrap();
        for _ in 0..3 {
            optimizer.step(&parameters, 0.01).unwrap();
        }
        let wide = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap();
        let mut all = vec![wide(&parameters.values)];
        all.extend(optimizer.state().unwrap().iter().map(|(_, tensor)| wide(tensor)));
        all
    }

    #[test]
    fn every_rule_updates_as_on_the_cpu() {
        if !has_compiler() {
            return;
        }
        let kinds = [
            OptimizerKind::AdamW,
            OptimizerKind::AdamW8bit,
            OptimizerKind::PagedAdamW,
            OptimizerKind::PagedAdamW8bit,
            OptimizerKind::Lion,
            OptimizerKind::Lion8bit,
            OptimizerKind::Sgd,
            OptimizerKind::Muon,
            OptimizerKind::Adafactor,
        ];
        for kind in kinds {
            for momentum in [0.0, 0.9] {
                let settings = OptimizerSettings {
                    kind,
                    momentum,
                    weight_decay: 0.1,
                    loraplus_ratio: Some(4.0),
                    ..Default::default()
                };
                let (expected, got) = (trained(&settings), emulated(|| trained(&settings)));
                for (expected, got) in expected.iter().zip(&got) {
                    let scale = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > 2e-6 * scale;
                    // A fused multiply-add may move a fraction over the bound between two codes.
                    let different = expected.iter().zip(got).filter(|pair| differs(*pair)).count();
                    assert!(
                        different * 1000 <= expected.len(),
                        "{kind:?}: {different} of {}",
                        expected.len()
                    );
                }
            }
        }
    }

    #[test]
    fn norm_and_clipping_are_those_of_the_cpu() {
        if !has_compiler() {
            return;
        }
        let (expected, got) = (parameters().gradients, parameters().gradients);
        let norm = crate::train::optimizer::clip(&expected, 0.5).unwrap();
        let ours = emulated(|| crate::train::optimizer::clip(&got, 0.5)).unwrap();
        assert!((norm - ours).abs() < 1e-9 * norm);
        assert_eq!(got.to_vec1::<f32>().unwrap(), expected.to_vec1::<f32>().unwrap());
        // Below the limit, and without one, nothing is touched.
        let before = got.to_vec1::<f32>().unwrap();
        for most in [Some(0.6), None] {
            let norm = emulated(|| crate::train::optimizer::norm_and_clip(&got, most)).unwrap();
            assert!((norm.read().unwrap() - 0.5).abs() < 1e-6);
            assert_eq!(got.to_vec1::<f32>().unwrap(), before);
        }
    }

    #[test]
    fn a_norm_that_is_not_finite_leaves_the_gradients_to_the_host() {
        if !has_compiler() {
            return;
        }
        for bad in [f32::INFINITY, f32::NAN] {
            let gradients = Tensor::new(&[1.0f32, bad, 3.0], &Device::Cpu).unwrap();
            let norm = emulated(|| crate::train::optimizer::norm_and_clip(&gradients, Some(0.1))).unwrap();
            assert!(!norm.read().unwrap().is_finite());
            assert_eq!(gradients.to_vec1::<f32>().unwrap()[2], 3.0);
        }
    }
}
