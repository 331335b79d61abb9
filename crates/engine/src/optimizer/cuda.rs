//! Updates, the norm and clipping on an NVIDIA GPU: one launch for all groups.

use std::sync::OnceLock;

use candle_core::{DType, Device, Result, Tensor};

use peft_tune_kernels::gpu::{Argument, Header, Launch, Source, empty, overwrite};

/// How kernels find their group.
pub(super) const PLACES: Header = Header {
    name: "places.cuh",
    text: include_str!("places.cuh"),
};

static SOURCE: Source = Source {
    name: "optimizer",
    text: include_str!("optimizer.cu"),
    headers: &[PLACES],
};

/// Elements of a block of threads that updates F32 states.
const ELEMENTS: usize = 1024;

/// Blocks of threads that add up squares.
const SUM_BLOCKS: usize = 512;

/// Blocks of threads that scale gradients.
const MOST_SCALE_BLOCKS: usize = 2048;

/// Factors of one group, as the rule's kernel names them.
pub(super) type GroupFactors = [f32; 8];

/// Ranges of the groups, and the factors of their next update.
#[derive(Debug)]
pub(super) struct GroupRanges {
    groups: Vec<GroupRange>,
    /// Tables on the device, made at the first update.
    on_device: OnceLock<OnDevice>,
}

/// Tables that kernels read of groups, in the device's memory.
#[derive(Debug)]
struct OnDevice {
    /// (5 groups,) I64, as the kernels' file says.
    table: Tensor,
    /// (8 groups,) U32: the bits of [`GroupFactors`].
    factors: Tensor,
}

/// Kernel that is launched for all groups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel<'a> {
    pub source: &'static Source,
    pub name: &'a str,
    /// Threads of a block.
    pub threads: usize,
    /// Dynamic shared memory of a block.
    pub shared_bytes: usize,
}

impl<'a> Kernel<'a> {
    /// Names a kernel of `optimizer.cu`.
    pub(super) fn new(name: &'a str, threads: usize) -> Self {
        Self {
            source: &SOURCE,
            name,
            threads,
            shared_bytes: 0,
        }
    }
}

/// One group of [`GroupRanges`].
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupRange {
    /// First element in the flat buffers.
    pub start: usize,
    pub elements: usize,
    /// First element, or block, of the states.
    pub state: usize,
    /// Blocks of threads that update it.
    pub blocks: usize,
    /// First element of its own in the room that the update works in.
    pub room: usize,
}

impl GroupRange {
    /// Range with states in F32.
    pub(super) fn of_f32(start: usize, elements: usize, state: usize) -> Self {
        Self::new(start, elements, state, elements.div_ceil(ELEMENTS))
    }

    /// Range with states in 8 bits.
    pub(super) fn of_8bit(start: usize, elements: usize, state: usize) -> Self {
        Self::new(start, elements, state, elements.div_ceil(256))
    }

    /// Range whose rule gives each group so many blocks of threads.
    pub(super) fn new(start: usize, elements: usize, state: usize, blocks: usize) -> Self {
        Self {
            start,
            elements,
            state,
            blocks,
            room: 0,
        }
    }
}

impl GroupRanges {
    pub(super) fn new(groups: impl IntoIterator<Item = GroupRange>) -> Self {
        Self {
            groups: groups.into_iter().collect(),
            on_device: OnceLock::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    fn blocks(&self) -> usize {
        self.groups.iter().map(|group| group.blocks).sum()
    }

    /// Tables that were made for `device` when the first update was prepared.
    fn on_device(&self, device: &Device) -> Result<&OnDevice> {
        if let Some(known) = self.on_device.get() {
            return Ok(known);
        }
        let mut first = 0;
        let mut rows: Vec<i64> = Vec::with_capacity(5 * self.groups.len());
        for group in &self.groups {
            let row = [first, group.start, group.elements, group.state, group.room];
            rows.extend(row.map(|value| value as i64));
            first += group.blocks;
        }
        let elements = rows.len();
        let made = OnDevice {
            table: Tensor::from_vec(rows, elements, device)?,
            factors: empty(8 * self.groups.len(), DType::U32, device)?,
        };
        Ok(self.on_device.get_or_init(|| made))
    }

    /// Puts the factors of the next update, in the order of the groups, where [`run`](Self::run) reads them.
    pub(super) fn prepare(&self, factors: impl Iterator<Item = GroupFactors>, device: &Device) -> Result<()> {
        if self.groups.is_empty() {
            return Ok(());
        }
        let words: Vec<u32> = factors.flatten().map(f32::to_bits).collect();
        overwrite(&self.on_device(device)?.factors, &words)
    }

    /// Launches `kernel` on `tensors`, behind which it takes the table, the factors that were last prepared, the number of groups
    /// and the norm, if there is one.
    pub(super) fn run(
        &self,
        kernel: Kernel<'_>,
        tensors: &[Argument<'_>],
        norm: Option<&Tensor>,
        device: &Device,
    ) -> Result<()> {
        if self.groups.is_empty() {
            return Ok(());
        }
        let OnDevice { table, factors } = self.on_device(device)?;
        let mut arguments = tensors.to_vec();
        arguments.extend([
            Argument::Tensor(table),
            Argument::Tensor(factors),
            Argument::U32(self.groups.len() as u32),
            Argument::Maybe(norm),
        ]);
        let launch = Launch {
            source: kernel.source,
            kernel: kernel.name,
            blocks: [self.blocks(), 1, 1],
            threads: [kernel.threads, 1, 1],
            shared_bytes: kernel.shared_bytes,
        };
        launch.run(device, &arguments)
    }
}

/// The norm of the gradients and what brings it down, found by the device alone, in launches that are the same in every step.
#[derive(Debug)]
pub(crate) struct Clipping {
    /// (2,) F64, written by each launch: the norm, and the factor that the gradients were multiplied by.
    pub result: Tensor,
    /// (SUM_BLOCKS,) F64.
    partial: Tensor,
    /// (1,) U32: the bits of the F32 by which the gradients are too large.
    excess: Tensor,
    /// Norm that gradients have at most; `None` leaves them as large as they are.
    most: Option<f64>,
}

impl Clipping {
    /// Clips gradients on `device` to a norm of at most `most`.
    pub(crate) fn new(most: Option<f64>, device: &Device) -> Result<Self> {
        Ok(Self {
            result: empty(2, DType::F64, device)?,
            partial: empty(SUM_BLOCKS, DType::F64, device)?,
            excess: Tensor::full(1f32.to_bits(), 1, device)?,
            most,
        })
    }

    /// Says that gradients are `excess` times too large from the next launch on.
    pub(crate) fn prepare(&self, excess: f32) -> Result<()> {
        overwrite(&self.excess, &[excess.to_bits()])
    }

    /// Finds the norm of `gradients`, flat F32, whose squares are added up in F64, and multiplies them by what brings it down to the most;
    /// a norm that is not finite is not brought down.
    pub(crate) fn launch(&self, gradients: &Tensor) -> Result<()> {
        let (device, count) = (gradients.device(), gradients.elem_count());
        let launch = |kernel, blocks, threads| Launch {
            source: &SOURCE,
            kernel,
            blocks: [blocks, 1, 1],
            threads: [threads, 1, 1],
            shared_bytes: 0,
        };
        let elements = Argument::U64(count as u64);
        let arguments = [Argument::Tensor(gradients), Argument::Tensor(&self.partial), elements];
        launch("sum_of_squares", SUM_BLOCKS, 256).run(device, &arguments)?;
        let arguments = [
            Argument::Tensor(&self.partial),
            Argument::Tensor(&self.result),
            Argument::Tensor(&self.excess),
            Argument::F64(self.most.unwrap_or(f64::INFINITY)),
            Argument::U32(SUM_BLOCKS as u32),
        ];
        launch("norm_of_sums", 1, 32).run(device, &arguments)?;
        let arguments = [Argument::Tensor(gradients), Argument::Tensor(&self.result), elements];
        launch("scale_to_norm", count.div_ceil(256).min(MOST_SCALE_BLOCKS), 256).run(device, &arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optimizer::Optimizer;
    use crate::{ParameterKind, ParameterLayout, Parameters};
    use peft_tune_core::recipe::{OptimizerKind, OptimizerSettings, UpdateOrder};
    use peft_tune_kernels::gpu::{emulated, has_compiler};

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
        for step in 0..3 {
            optimizer.step(&parameters, 0.01).unwrap();
            // Where gradients are 0, squares that were coded as 0 count.
            if settings.kind.has_8bit_states() && step == 0 {
                let gradients = parameters.gradients.to_vec1::<f32>().unwrap().into_iter().enumerate();
                let thinned: Vec<f32> = gradients
                    .map(|(index, gradient)| if index.is_multiple_of(4) { gradient } else { 0.0 })
                    .collect();
                let thinned = Tensor::from_vec(thinned, parameters.layout.elements(), &Device::Cpu).unwrap();
                parameters.gradients.slice_set(&thinned, 0, 0).unwrap();
            }
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
        for kind in OptimizerKind::ALL {
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
                    // Muon rounds to BF16 between its products: a sum in another order may become a neighbour.
                    let is_rounded = kind.row().update.order == UpdateOrder::Orthogonalised;
                    let allowed = if is_rounded { 2e-4 } else { 2e-6 };
                    let differs = |(a, b): (&f32, &f32)| (a - b).abs() > allowed * scale;
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
        let norm = crate::optimizer::clip(&expected, 0.5).unwrap();
        let ours = emulated(|| crate::optimizer::clip(&got, 0.5)).unwrap();
        assert!((norm - ours).abs() < 1e-9 * norm);
        assert_eq!(got.to_vec1::<f32>().unwrap(), expected.to_vec1::<f32>().unwrap());
        // Below the limit, and without one, nothing is touched.
        let before = got.to_vec1::<f32>().unwrap();
        for most in [Some(0.6), None] {
            let norm = emulated(|| crate::optimizer::norm_and_clip(&got, most)).unwrap();
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
            let norm = emulated(|| crate::optimizer::norm_and_clip(&gradients, Some(0.1))).unwrap();
            assert!(!norm.read().unwrap().is_finite());
            assert_eq!(gradients.to_vec1::<f32>().unwrap()[2], 3.0);
        }
    }
}
