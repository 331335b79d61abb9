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
use super::group::{self, SlotGroups};
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
    let of_slots = || SlotGroups::new(layout, settings);
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
mod tests;
