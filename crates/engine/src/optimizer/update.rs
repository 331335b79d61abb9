//! The optimizer as the trainer sees it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};

use crate::tensor::Ledger;
use crate::{ParameterLayout, Parameters};
use peft_tune_core::recipe::{OptimizerKind, OptimizerOffload, OptimizerSettings};
use peft_tune_kernels::gpu;

use super::adafactor::Adafactor;
use super::adamw::AdamW;
use super::group;
use super::lion::Lion;
use super::muon::Muon;
use super::rule::{ElementRule, StateHome, Step, UpdateRule};
use super::schedule_free::{ScheduleFree, Shares, shift, shift_on_host};
use super::sgd::{Momentum, Sgd};
use super::states_8bit::States8bit;
use super::states_f32::StatesF32;

/// Name of the step count among the state tensors.
const STEPS: &str = "steps";
/// Name of the [`Shares`] among them.
const SHARES: &str = "shares";

/// Turns gradients into parameter updates; keeps the state that this takes.
pub struct Optimizer {
    rule: Arc<dyn UpdateRule>,
    offload: OptimizerOffload,
    steps: u64,
    shares: Shares,
}

impl fmt::Debug for Optimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let states: Vec<String> = self.rule.state().into_iter().map(|(name, _)| name).collect();
        let mut out = f.debug_struct("Optimizer");
        out.field("states", &states)
            .field("steps", &self.steps)
            .finish_non_exhaustive()
    }
}

/// A state that does not belong to this optimizer.
#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    #[error("optimizer state `{name}` is missing; the checkpoint was made with another optimizer")]
    MissingState { name: String },
    #[error(
        "optimizer state `{name}` has shape {got:?} {got_dtype:?}; expected {expected:?} {expected_dtype:?}: \
             the checkpoint was made with another adapter or optimizer"
    )]
    StateShape {
        name: String,
        got: Vec<usize>,
        got_dtype: DType,
        expected: Vec<usize>,
        expected_dtype: DType,
    },
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Optimizer {
    /// An optimizer whose state is zero, for parameters on `device`.
    ///
    /// # Errors
    /// Those of candle, out of memory included.
    pub fn new(settings: &OptimizerSettings, layout: &ParameterLayout, device: &Device) -> Result<Self> {
        Self::at(
            settings,
            layout,
            StateHome::On(match settings.offload {
                OptimizerOffload::None => device,
                OptimizerOffload::Host => &Device::Cpu,
            }),
        )
    }

    /// An optimizer on paper, whose state takes no memory.
    pub(crate) fn on_paper(settings: &OptimizerSettings, layout: &ParameterLayout) -> Result<Self> {
        Self::at(settings, layout, StateHome::Paper)
    }

    fn at(settings: &OptimizerSettings, layout: &ParameterLayout, home: StateHome<'_>) -> Result<Self> {
        let rule: Box<dyn UpdateRule> = match settings.kind {
            OptimizerKind::AdamW
            | OptimizerKind::AdamW8bit
            | OptimizerKind::PagedAdamW
            | OptimizerKind::PagedAdamW8bit => with_states(AdamW::new(settings), settings, layout, home)?,
            OptimizerKind::Lion | OptimizerKind::Lion8bit => with_states(Lion::new(settings), settings, layout, home)?,
            OptimizerKind::Sgd if settings.momentum == 0.0 => {
                Box::new(StatesF32::new(Sgd, group::merged(layout, settings), home)?)
            }
            OptimizerKind::Sgd => with_states(Momentum::new(settings), settings, layout, home)?,
            OptimizerKind::Adafactor => Box::new(Adafactor::new(settings, layout, home)?),
            OptimizerKind::Muon => Box::new(Muon::new(settings, layout, home)?),
            OptimizerKind::AdamWScheduleFree => with_states(ScheduleFree::new(settings), settings, layout, home)?,
        };
        Ok(Self {
            rule: rule.into(),
            offload: settings.offload,
            steps: 0,
            shares: Shares::default(),
        })
    }

    /// Updates the values of `parameters` in place from their gradients, which stay as they are.
    pub fn step(&mut self, parameters: &Parameters, learning_rate: f64) -> Result<()> {
        self.look_ahead(parameters)?;
        self.update(parameters, learning_rate)?;
        self.count_step(learning_rate);
        Ok(())
    }

    /// Whether gradients are taken elsewhere than at the values: [`look_ahead`](Self::look_ahead) goes there.
    pub(crate) fn looks_ahead(&self) -> bool {
        self.rule.look_ahead().is_some()
    }

    /// Brings the values to where this optimizer takes gradients: for most where they are. The update brings them back.
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn look_ahead(&self, parameters: &Parameters) -> Result<()> {
        match self.rule.look_ahead() {
            Some((state, factor)) => self.shift(parameters, state, factor),
            None => Ok(()),
        }
    }

    /// Brings the values back where no update follows [`look_ahead`](Self::look_ahead).
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn look_back(&self, parameters: &Parameters) -> Result<()> {
        match self.rule.look_ahead() {
            Some((state, factor)) => self.shift(parameters, state, -factor),
            None => Ok(()),
        }
    }

    fn shift(&self, parameters: &Parameters, state: &Tensor, factor: f32) -> Result<()> {
        match self.offload {
            OptimizerOffload::None => shift(&parameters.values, state, factor),
            OptimizerOffload::Host => shift_on_host(&parameters.values, state, factor),
        }
    }

    /// Updates as [`step`](Self::step) does, without counting it.
    pub(crate) fn update(&self, parameters: &Parameters, learning_rate: f64) -> Result<()> {
        let step = self.next(learning_rate);
        if !gpu::takes(&parameters.values) {
            return match parameters.values.device().is_cpu() {
                true => self
                    .rule
                    .update_fused(parameters, step, 0..parameters.values.elem_count()),
                false => self.rule.update_plain(parameters, step),
            };
        }
        match self.rule.repeated() {
            Some(update) => {
                update.prepare(step, parameters.values.device())?;
                update.launch(parameters, None)
            }
            None => self.rule.update_gpu(parameters, step),
        }
    }

    /// Takes what [`update`](Self::update) takes besides values, gradients and states, on paper.
    ///
    /// # Errors
    /// A step that has no form on paper.
    pub(crate) fn update_on_paper(&self, ledger: &Ledger) -> Result<()> {
        self.rule.update_on_paper(ledger)
    }

    /// The update of the parameters in `ranges`, each of which begins and ends at their bounds, as work for a thread of the host: of
    /// `parameters`, which lie there as the states do. Like [`update`](Self::update), it counts no step.
    pub(crate) fn update_of(
        &self,
        parameters: &Arc<Parameters>,
        ranges: &[Range<usize>],
        learning_rate: f64,
    ) -> impl FnOnce() -> Result<()> + Send + 'static {
        let (rule, parameters) = (Arc::clone(&self.rule), Arc::clone(parameters));
        let (step, ranges) = (self.next(learning_rate), ranges.to_vec());
        move || {
            let mut ranges = ranges.into_iter();
            ranges.try_for_each(|range| rule.update_fused(&parameters, step, range))
        }
    }

    /// Takes note that a step was taken.
    pub(crate) fn count_step(&mut self, learning_rate: f64) {
        self.steps += 1;
        self.shares = self.shares.with(learning_rate);
    }

    /// Whether an update on an NVIDIA GPU is the same launches in every step.
    pub(crate) fn is_repeated(&self) -> bool {
        self.rule.repeated().is_some()
    }

    /// Puts what the next update needs into the memory of `device`, where the rule [is repeated](Self::is_repeated).
    pub(crate) fn prepare(&self, learning_rate: f64, device: &Device) -> Result<()> {
        match self.rule.repeated() {
            Some(update) => update.prepare(self.next(learning_rate), device),
            None => Ok(()),
        }
    }

    /// Launches the update that was last prepared, which changes nothing where `norm` is not finite.
    pub(crate) fn launch(&self, parameters: &Parameters, norm: Option<&Tensor>) -> Result<()> {
        match self.rule.repeated() {
            Some(update) => update.launch(parameters, norm),
            None => candle_core::bail!("the update of this optimizer is not the same in every step"),
        }
    }

    fn next(&self, learning_rate: f64) -> Step {
        Step {
            number: self.steps + 1,
            learning_rate,
            share: self.shares.with(learning_rate).last(),
        }
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> u64 {
        let bytes = |tensor: &Tensor| (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64;
        self.rule.state().iter().map(|(_, tensor)| bytes(tensor)).sum()
    }

    /// Bytes of the state in the memory of `device`: none of a GPU where its host has them.
    pub fn state_bytes_on(&self, device: &Device) -> u64 {
        let state = self.rule.state().into_iter();
        let there = state.filter(|(_, tensor)| tensor.device().same_device(device));
        there
            .map(|(_, tensor)| (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64)
            .sum()
    }

    /// A copy of the whole state on the CPU, for a checkpoint, to be called when the device has finished its steps: [`load_state`](Self::load_state) continues from it
    /// exactly.
    pub fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let mut state = vec![(STEPS.to_owned(), Tensor::new(&[self.steps as i64], &Device::Cpu)?)];
        if self.looks_ahead() {
            state.push((SHARES.to_owned(), self.shares.to_tensor()?));
        }
        for (name, tensor) in self.rule.state() {
            // `copy` first: on the CPU, `to_device` would hand out the live buffer.
            state.push((name, tensor.copy()?.to_device(&Device::Cpu)?));
        }
        Ok(state)
    }

    /// Continues from a state that [`state`](Self::state) returned.
    ///
    /// # Errors
    /// A tensor is missing or has another shape or dtype; nothing has changed then.
    pub fn load_state(&mut self, state: &[(String, Tensor)]) -> std::result::Result<(), OptimizerError> {
        let find = |name: &str| {
            let found = state.iter().find(|(other, _)| other == name);
            found
                .map(|(_, tensor)| tensor)
                .ok_or_else(|| OptimizerError::MissingState { name: name.to_owned() })
        };
        let mut pairs = Vec::new();
        for (name, live) in self.rule.state() {
            let saved = find(&name)?;
            check_same_kind(&name, saved, &live)?;
            pairs.push((saved, live));
        }
        let steps = find(STEPS)?;
        check_same_kind(STEPS, steps, &Tensor::zeros(1, DType::I64, &Device::Cpu)?)?;
        let steps = steps.to_vec1::<i64>()?[0];
        let shares = match self.rule.look_ahead() {
            Some(_) => Shares::from_tensor(find(SHARES)?)?,
            None => Shares::default(),
        };
        for (saved, live) in pairs {
            live.slice_set(&saved.to_device(live.device())?.copy()?, 0, 0)?;
        }
        self.steps = steps.max(0) as u64;
        self.shares = shares;
        Ok(())
    }
}

/// A rule with its states, stored as the optimizer's row says.
fn with_states<R: ElementRule<N> + Copy + 'static, const N: usize>(
    rule: R,
    settings: &OptimizerSettings,
    layout: &ParameterLayout,
    home: StateHome<'_>,
) -> Result<Box<dyn UpdateRule>> {
    let merged = || group::merged(layout, settings);
    let of_slots = || group::of_coded_slots(layout, settings);
    Ok(match (settings.kind.has_8bit_states(), settings.kind.is_paged()) {
        (false, false) => Box::new(StatesF32::new(rule, merged(), home)?),
        (false, true) => Box::new(StatesF32::paged(rule, merged(), home)?),
        (true, false) => Box::new(States8bit::new(rule, of_slots(), home)?),
        (true, true) => Box::new(States8bit::paged(rule, of_slots(), home)?),
    })
}

fn check_same_kind(name: &str, saved: &Tensor, live: &Tensor) -> std::result::Result<(), OptimizerError> {
    if saved.dims() == live.dims() && saved.dtype() == live.dtype() {
        return Ok(());
    }
    Err(OptimizerError::StateShape {
        name: name.to_owned(),
        got: saved.dims().to_vec(),
        got_dtype: saved.dtype(),
        expected: live.dims().to_vec(),
        expected_dtype: live.dtype(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ParameterKind;
    use peft_tune_core::predict::{Host, Stage};

    /// Parameters of every kind with values and gradients that a formula gives.
    fn parameters() -> Parameters {
        let mut layout = ParameterLayout::default();
        layout.push("a", &[16, 300], ParameterKind::LoraA);
        layout.push("b", &[40, 16], ParameterKind::LoraB);
        layout.push("bias", &[40], ParameterKind::Bias);
        let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
        set(&parameters.values, 0.1, 0.37);
        set(&parameters.gradients, 1.0, 0.91);
        parameters
    }

    fn set(buffer: &Tensor, scale: f32, frequency: f32) {
        let elements = buffer.elem_count();
        let values: Vec<f32> = (0..elements)
            .map(|index| scale * (index as f32 * frequency).sin())
            .collect();
        buffer
            .slice_set(&Tensor::from_vec(values, elements, &Device::Cpu).unwrap(), 0, 0)
            .unwrap();
    }

    /// Leaves one of four values; the others become 0.
    fn thin(buffer: &Tensor) {
        let mut values = buffer.to_vec1::<f32>().unwrap();
        for (index, value) in values.iter_mut().enumerate() {
            if !index.is_multiple_of(4) {
                *value = 0.0;
            }
        }
        let thinned = Tensor::from_vec(values, buffer.elem_count(), &Device::Cpu).unwrap();
        buffer.slice_set(&thinned, 0, 0).unwrap();
    }

    fn settings(kind: OptimizerKind) -> OptimizerSettings {
        OptimizerSettings {
            kind,
            weight_decay: 0.1,
            loraplus_ratio: Some(4.0),
            ..Default::default()
        }
    }

    #[test]
    fn the_plain_form_agrees_with_the_fused_one() {
        for kind in OptimizerKind::ALL {
            let (fused, plain) = (parameters(), parameters());
            let new = || {
                Optimizer::new(&settings(kind), &fused.layout, &Device::Cpu)
                    .unwrap()
                    .rule
            };
            let (first, second) = (new(), new());
            for number in 1..=3 {
                let step = Step {
                    number,
                    learning_rate: 1e-2,
                    share: 1.0 / number as f64,
                };
                first.update_fused(&fused, step, 0..fused.layout.elements()).unwrap();
                second.update_plain(&plain, step).unwrap();
                for buffer in [&fused.gradients, &plain.gradients] {
                    set(buffer, 1.0, 0.5 + number as f32);
                    // Where gradients are 0, squares that were coded as 0 count.
                    if kind.has_8bit_states() && number == 1 {
                        thin(buffer);
                    }
                }
            }
            let difference = (&fused.values - &plain.values)
                .unwrap()
                .abs()
                .unwrap()
                .max_all()
                .unwrap();
            let difference = difference.to_scalar::<f32>().unwrap();
            // A state near the bound of two 8-bit codes may take the other one.
            assert!(
                difference < if kind.has_8bit_states() { 1e-4 } else { 1e-6 },
                "{kind:?}: {difference:e}"
            );
        }
    }

    #[test]
    fn an_update_part_by_part_is_that_of_the_whole_to_the_last_bit() {
        for kind in OptimizerKind::ALL {
            let (whole, parts) = (parameters(), Arc::new(parameters()));
            let new = || Optimizer::new(&settings(kind), &whole.layout, &Device::Cpu).unwrap();
            let (mut first, mut second) = (new(), new());
            let bounds: Vec<usize> = whole.layout.slots().iter().map(|slot| slot.offset).collect();
            for _ in 0..3 {
                first.step(&whole, 1e-2).unwrap();
                second.look_ahead(&parts).unwrap();
                // The last first, and two at once.
                let ranges = [0..bounds[1], bounds[1]..bounds[2], bounds[2]..whole.layout.elements()];
                for ranges in [&ranges[2..], &ranges[..2]] {
                    second.update_of(&parts, ranges, 1e-2)().unwrap();
                }
                second.count_step(1e-2);
            }
            let values = |parameters: &Parameters| parameters.values.to_vec1::<f32>().unwrap();
            assert_eq!(values(&whole), values(&parts), "{kind:?}");
        }
    }

    #[test]
    fn a_look_ahead_without_an_update_is_taken_back() {
        let parameters = parameters();
        let settings = settings(OptimizerKind::AdamWScheduleFree);
        let mut optimizer = Optimizer::new(&settings, &parameters.layout, &Device::Cpu).unwrap();
        for _ in 0..2 {
            optimizer.step(&parameters, 1e-2).unwrap();
        }
        let values = || parameters.values.to_vec1::<f32>().unwrap();
        let before = values();
        let distance = || {
            let pairs = before.iter().zip(values());
            pairs.fold(0f32, |most, (before, now)| most.max((before - now).abs()))
        };
        optimizer.look_ahead(&parameters).unwrap();
        assert!(distance() > 1e-4);
        optimizer.look_back(&parameters).unwrap();
        assert!(distance() < 1e-7);
    }

    #[test]
    fn state_bytes_are_those_of_the_buffers() {
        use OptimizerKind::{AdamW, AdamWScheduleFree, Sgd};

        let layout = parameters().layout;
        let bytes = |kind| {
            Optimizer::new(&settings(kind), &layout, &Device::Cpu)
                .unwrap()
                .state_bytes()
        };
        let elements = layout.elements() as u64;
        assert_eq!(
            [AdamW, Sgd, AdamWScheduleFree].map(bytes),
            [8 * elements, 4 * elements, 8 * elements]
        );
    }

    /// Pages and bands are those of tests.
    #[test]
    fn what_an_update_takes_on_a_gpu_follows_the_shapes() {
        let bytes = |kind, shapes: &[&[usize]]| {
            let mut layout = ParameterLayout::default();
            for (index, shape) in shapes.iter().enumerate() {
                layout.push(format!("{index}"), shape, ParameterKind::LoraA);
            }
            let (optimizer, ledger) = (
                Optimizer::on_paper(&settings(kind), &layout).unwrap(),
                Ledger::new(Host::GPU),
            );
            optimizer.update_on_paper(&ledger).unwrap();
            ledger.segment(Stage::Optimizer).rise()
        };
        let adapter: [&[usize]; 4] = [&[16, 896], &[16, 896], &[4864, 16], &[896]];
        // Sixteen rows, 896 columns as two strips of 512, 4864 as ten.
        assert_eq!(bytes(OptimizerKind::Muon, &adapter), 2 * 16 * (2 * 1024 + 5120));
        let full: [&[usize]; 4] = [&[200, 300], &[200, 300], &[200, 300], &[16, 896]];
        assert_eq!(bytes(OptimizerKind::Muon, &full), 4 * 3 * 200 * 300);
        let square: [&[usize]; 1] = [&[200, 210]];
        assert_eq!(bytes(OptimizerKind::Muon, &square), 4 * (200 * 210 + 3 * 200 * 200));
        // Pages of 1024 elements, two at once, of two states each.
        assert_eq!(bytes(OptimizerKind::PagedAdamW, &full), 2 * 2 * 4 * 1024);
        assert_eq!(bytes(OptimizerKind::PagedAdamW, &[&[16, 20]]), 2 * 2 * 4 * 16 * 20);
        assert_eq!(bytes(OptimizerKind::Adafactor, &[&[16, 100], &[896]]), 0);
        // Rows of 500 elements in bands of six, of which 13 rows make three.
        assert_eq!(
            bytes(OptimizerKind::Adafactor, &[&[13, 500], &[13, 500]]),
            8 * 2 * 3 * 501
        );
        assert_eq!(bytes(OptimizerKind::AdamW, &full), 0);
    }

    #[test]
    fn embeddings_keep_states_of_32_bits() {
        let bytes = |name: &str| {
            let mut layout = ParameterLayout::default();
            layout.push(name, &[40, 128], ParameterKind::Base);
            let optimizer = Optimizer::new(&settings(OptimizerKind::AdamW8bit), &layout, &Device::Cpu).unwrap();
            optimizer.state_bytes()
        };
        // A block, or a value, is there for nothing: tensors have at least one element.
        assert_eq!(bytes("lm_head.weight"), 2 * 20 * (256 + 4) + 2 * 4);
        assert_eq!(bytes("model.embed_tokens.weight"), 8 * 40 * 128 + 2 * (256 + 4));
    }

    #[test]
    fn a_gradient_of_zero_divides_no_mean_by_epsilon() {
        let moved = |kind| {
            let mut layout = ParameterLayout::default();
            layout.push("a", &[32, 128], ParameterKind::LoraA);
            let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
            let elements = parameters.layout.elements();
            let settings = OptimizerSettings {
                weight_decay: 0.0,
                loraplus_ratio: None,
                ..settings(kind)
            };
            let mut optimizer = Optimizer::new(&settings, &parameters.layout, &Device::Cpu).unwrap();
            // Squares of 1/3000 of the largest gradient are coded as 0, means are not.
            let first: Vec<f32> = (0..elements)
                .map(|index| if index.is_multiple_of(256) { 1.0 } else { 1.0 / 3000.0 })
                .collect();
            let first = Tensor::from_vec(first, elements, &Device::Cpu).unwrap();
            parameters.gradients.slice_set(&first, 0, 0).unwrap();
            optimizer.step(&parameters, 1e-3).unwrap();
            let zeros = first.zeros_like().unwrap();
            parameters.gradients.slice_set(&zeros, 0, 0).unwrap();
            for _ in 0..20 {
                optimizer.step(&parameters, 1e-3).unwrap();
            }
            parameters.values.to_vec1::<f32>().unwrap()
        };
        let (wide, coded) = (moved(OptimizerKind::AdamW), moved(OptimizerKind::AdamW8bit));
        for (index, (wide, coded)) in wide.iter().zip(&coded).enumerate() {
            let ratio = coded / wide;
            assert!(ratio > 0.5 && ratio < 1.1, "{index}: {coded} {wide}");
        }
    }
}
