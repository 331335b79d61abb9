//! Update behind the passes of a step: the gradients' norm, clipping and the optimizer.
//!
//! On an NVIDIA GPU these are a few launches that are the same in every step, for all optimizers but those whose state lies in the
//! host's memory, those that update there, and Muon on large matrices. Nothing waits for the norm: the kernels themselves leave out a step in
//! fp16 whose gradients overflowed. Where graphs are asked for, the launches are captured at the second step and
//! replayed from then on.

use candle_core::{Device, Result};

use super::host_update::HostUpdate;
use super::passes::Lap;
use super::stopwatch::Stopwatch;
use crate::Parameters;
use crate::optimizer::{Clipping, Norm, Optimizer, norm_and_clip, unscale};
use crate::span;
use crate::span::{StepPhase, Work};
use peft_tune_core::plan::{GradientsReady, UpdatePart};
use peft_tune_core::recipe::{OptimizerOffload, OptimizerSettings};
use peft_tune_kernels::Kernels;
use peft_tune_kernels::gpu;
use peft_tune_kernels::gpu::Graph;

/// Rate and scale that updates run with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdateInput {
    pub learning_rate: f64,
    /// Factor on the gradients, where that may make them overflow.
    pub loss_scale: Option<f32>,
}

/// The updates of one training.
pub(crate) struct UpdatePass {
    optimizer: Optimizer,
    max_norm: Option<f64>,
    /// Updates by the host of what another device trains.
    host: Option<HostUpdate>,
    /// Clipping, made at the first update on a GPU.
    clipping: Option<Clipping>,
    replay: Replay,
    replayed: u64,
}

/// Whether and how the launches come from a graph.
#[derive(Debug)]
enum Replay {
    Never,
    /// Launches that are captured once they have been made, which makes all that a capture must not make.
    BehindTheFirst,
    Next,
    Captured(Box<Graph>),
}

impl UpdatePass {
    /// Updates by `optimizer` on `device`, replayed where `form` asks for it and it can be.
    pub(crate) fn new(optimizer: Optimizer, settings: &OptimizerSettings, device: &Device, form: Kernels) -> Self {
        let can_replay = gpu::has_graphs(device) && optimizer.is_repeated() && settings.offload.is_none();
        Self {
            optimizer,
            max_norm: settings.max_grad_norm,
            host: None,
            clipping: None,
            replay: match form == Kernels::Graphs && can_replay {
                true => Replay::BehindTheFirst,
                false => Replay::Never,
            },
            replayed: 0,
        }
    }

    /// Moves the updates of `parameters` to where `settings` has them: on the host, in these parts, which follow a
    /// backward pass. Where the parameters lie in the host's memory nothing differs.
    ///
    /// # Errors
    /// Memory of the host.
    pub(crate) fn offloaded(
        self,
        settings: &OptimizerSettings,
        parameters: &Parameters,
        parts: impl FnOnce() -> Vec<UpdatePart>,
    ) -> Result<Self> {
        let device = parameters.values.device();
        let is_here = device.is_cpu() && !gpu::has_transfer_stream(device);
        match settings.offload {
            OptimizerOffload::Host if !is_here => Ok(Self {
                host: Some(HostUpdate::new(parameters, parts())?),
                ..self
            }),
            OptimizerOffload::Host | OptimizerOffload::None => Ok(self),
        }
    }

    /// Whether updates are on the host, so that they can follow a backward pass.
    pub(crate) fn can_follow(&self) -> bool {
        self.host.is_some()
    }

    /// Begins to update what has its gradients when the backward pass of a step's last micro-batch has come to `ready`, where it
    /// [can](Self::can_follow).
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn follow(&mut self, ready: GradientsReady, learning_rate: f64) -> Result<()> {
        match &mut self.host {
            Some(host) => host.begin(ready, &self.optimizer, learning_rate),
            None => Ok(()),
        }
    }

    /// See [`HostUpdate::hurry`].
    #[cfg(test)]
    pub(crate) fn hurry(&mut self) {
        self.host.iter_mut().for_each(HostUpdate::hurry);
    }

    /// Takes note that values have been changed by something else than an update.
    pub(crate) fn values_changed(&mut self) {
        self.host.iter_mut().for_each(HostUpdate::values_changed);
    }

    pub(crate) fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    pub(crate) fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// Updates that were replayed from a graph.
    pub(crate) fn replayed(&self) -> u64 {
        self.replayed
    }

    /// Brings the values to where the optimizer takes gradients. The update brings them back.
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn look_ahead(&mut self, parameters: &Parameters, clock: &mut Stopwatch<Lap>) -> Result<()> {
        if !self.optimizer.looks_ahead() {
            return Ok(());
        }
        let _phase = span::phase(StepPhase::Optimizer);
        let span = span::op("optimizer_step", || Work::on_buffer(&parameters.values, 3));
        match &mut self.host {
            Some(host) => host.shift(|parameters| self.optimizer.look_ahead(parameters))?,
            None => self.optimizer.look_ahead(parameters)?,
        }
        drop(span);
        clock.lap(Lap::Optimizer)
    }

    /// Brings the values back where no update follows [`look_ahead`](Self::look_ahead).
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn look_back(&mut self, parameters: &Parameters) -> Result<()> {
        match &mut self.host {
            Some(host) if self.optimizer.looks_ahead() => host.shift(|parameters| self.optimizer.look_back(parameters)),
            _ => self.optimizer.look_back(parameters),
        }
    }

    /// Unscales and clips the gradients and updates the values, unless there is a loss scale and the norm is not finite; returns the norm
    /// before clipping. The caller counts the step ([`Optimizer::count_step`]) when it knows the norm.
    ///
    /// # Errors
    /// Those of candle, memory. A graph that cannot be made or launched is not an error.
    pub(crate) fn run(&mut self, parameters: &Parameters, input: UpdateInput) -> Result<Norm> {
        if gpu::takes(&parameters.values) {
            return self.run_on_gpu(parameters, input);
        }
        let gradients = &parameters.gradients;
        if let Some(loss_scale) = input.loss_scale {
            let _span = span::op("unscale", || Work::on_buffer(gradients, 2));
            unscale(&gradients.clone().into(), loss_scale)?;
        }
        let span = span::op("clip", || Work::on_buffer(gradients, 1));
        let norm = norm_and_clip(gradients, self.max_norm)?;
        drop(span);
        self.update_if_finite(parameters, input, &norm)?;
        Ok(norm)
    }

    fn run_on_gpu(&mut self, parameters: &Parameters, input: UpdateInput) -> Result<Norm> {
        let device = parameters.values.device();
        let clipping = match self.clipping.take() {
            Some(clipping) => clipping,
            None => Clipping::new(self.max_norm, device)?,
        };
        let clipping = self.clipping.insert(clipping);
        clipping.prepare(input.loss_scale.unwrap_or(1.0))?;
        let norm = Norm::OnDevice(clipping.result.clone());
        if !self.optimizer.is_repeated() || self.host.is_some() {
            let span = span::op("clip", || Work::on_buffer(&parameters.gradients, 1));
            clipping.launch(&parameters.gradients)?;
            drop(span);
            self.update_if_finite(parameters, input, &norm)?;
            return Ok(norm);
        }
        self.optimizer.prepare(input.learning_rate, device)?;
        let may_overflow = input.loss_scale.is_some();
        match self.replay(parameters, may_overflow) {
            Some(Ok(())) => self.replayed += 1,
            Some(Err(error)) => {
                tracing::warn!(%error, "no CUDA graph: updates are launched kernel by kernel from here on");
                self.replay = Replay::Never;
                self.launch(parameters, may_overflow)?;
            }
            None => self.launch(parameters, may_overflow)?,
        }
        if matches!(self.replay, Replay::BehindTheFirst) {
            self.replay = Replay::Next;
        }
        Ok(norm)
    }

    /// Updates from the graph, which is made where there is none yet; nothing where there shall be none this time.
    fn replay(&mut self, parameters: &Parameters, may_overflow: bool) -> Option<Result<()>> {
        // Ops that are recorded have events around them, which tell nothing in a graph.
        if span::handle().is_some() {
            return None;
        }
        if matches!(self.replay, Replay::Next) {
            match Graph::capture(parameters.values.device(), || self.launch(parameters, may_overflow)) {
                Ok(graph) => self.replay = Replay::Captured(Box::new(graph)),
                Err(error) => return Some(Err(error)),
            }
            tracing::info!("captured a CUDA graph of the update");
        }
        match &self.replay {
            Replay::Captured(graph) => Some(graph.launch(|| self.launch(parameters, may_overflow))),
            Replay::Never | Replay::BehindTheFirst | Replay::Next => None,
        }
    }

    /// Launches what a graph holds: all that differs from step to step has been prepared.
    fn launch(&self, parameters: &Parameters, may_overflow: bool) -> Result<()> {
        let Some(clipping) = &self.clipping else {
            candle_core::bail!("no update has been prepared");
        };
        let span = span::op("clip", || Work::on_buffer(&parameters.gradients, 1));
        clipping.launch(&parameters.gradients)?;
        drop(span);
        let _span = self.span(parameters);
        let norm = may_overflow.then_some(&clipping.result);
        self.optimizer.launch(parameters, norm)
    }

    /// Updates unless the norm is not finite; with a loss scale the host waits for the norm.
    fn update_if_finite(&mut self, parameters: &Parameters, input: UpdateInput, norm: &Norm) -> Result<()> {
        if input.loss_scale.is_some() && !norm.read()?.is_finite() {
            return Ok(());
        }
        let _span = self.span(parameters);
        match &mut self.host {
            Some(host) => host.finish(&self.optimizer, input.learning_rate),
            None => self.optimizer.update(parameters, input.learning_rate),
        }
    }

    fn span(&self, parameters: &Parameters) -> span::Span {
        span::op("optimizer_step", || {
            let passes = Work::on_buffer(&parameters.gradients, 3);
            // The state is read and written, as the values are.
            Work {
                bytes: passes.bytes + 2 * self.optimizer.state_bytes(),
                ..passes
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Tensor;

    use super::*;
    use crate::{ParameterKind, ParameterLayout};
    use peft_tune_core::recipe::OptimizerKind;
    use peft_tune_kernels::gpu::{emulated, has_compiler};

    const STEPS: u64 = 6;

    fn parameters() -> Parameters {
        let mut layout = ParameterLayout::default();
        layout.push("a", &[16, 300], ParameterKind::LoraA);
        layout.push("b", &[40, 16], ParameterKind::LoraB);
        layout.push("bias", &[40], ParameterKind::Bias);
        Parameters::zeros(layout, &Device::Cpu).unwrap()
    }

    /// Sets other gradients for each step; those of the third overflow.
    fn set_gradients(parameters: &Parameters, step: u64) {
        let elements = parameters.layout.elements();
        let wave = |index: usize| (index as f32 * 0.37 + step as f32).sin() * 8.0;
        let mut values: Vec<f32> = (0..elements).map(wave).collect();
        if step == 3 {
            values[17] = f32::INFINITY;
        }
        let values = Tensor::from_vec(values, elements, &Device::Cpu).unwrap();
        parameters.gradients.slice_set(&values, 0, 0).unwrap();
    }

    /// Norms, values behind the last step, and how many updates were replayed.
    fn trained(settings: &OptimizerSettings, form: Kernels) -> (Vec<f64>, Vec<f32>, u64) {
        let parameters = parameters();
        let optimizer = Optimizer::new(settings, &parameters.layout, &Device::Cpu).unwrap();
        let mut updates = UpdatePass::new(optimizer, settings, &Device::Cpu, form);
        let step = |step| {
            set_gradients(&parameters, step);
            let input = UpdateInput {
                learning_rate: 1e-2 / step as f64,
                loss_scale: Some(if step < 5 { 8.0 } else { 4.0 }),
            };
            let norm = updates.run(&parameters, input).unwrap().read().unwrap();
            if norm.is_finite() {
                updates.optimizer_mut().count_step(input.learning_rate);
            }
            norm
        };
        let norms = (1..=STEPS).map(step).collect();
        (norms, parameters.values.to_vec1().unwrap(), updates.replayed())
    }

    fn settings(kind: OptimizerKind) -> OptimizerSettings {
        OptimizerSettings {
            kind,
            max_grad_norm: Some(0.5),
            weight_decay: 0.1,
            momentum: 0.9,
            ..OptimizerSettings::default()
        }
    }

    #[test]
    fn replayed_updates_are_launched_ones_to_the_last_bit() {
        if !has_compiler() {
            return;
        }
        for kind in OptimizerKind::ALL {
            // Pages of states come and go between launches.
            let is_repeated = !kind.is_paged();
            let settings = settings(kind);
            let (norms, values, none) = emulated(|| trained(&settings, Kernels::Fused));
            let (same_norms, same_values, some) = emulated(|| trained(&settings, Kernels::Graphs));
            assert_eq!((norms, values), (same_norms, same_values), "{kind:?}");
            assert_eq!((none, some), (0, if is_repeated { STEPS - 1 } else { 0 }), "{kind:?}");
        }
    }

    #[test]
    fn a_step_that_overflows_changes_nothing_and_the_others_are_those_of_the_cpu() {
        if !has_compiler() {
            return;
        }
        let settings = settings(OptimizerKind::AdamW);
        let (expected_norms, expected, _) = trained(&settings, Kernels::Fused);
        let (norms, values, _) = emulated(|| trained(&settings, Kernels::Fused));
        assert!(norms[2].is_infinite() && expected_norms[2].is_infinite());
        for (norm, expected) in norms.iter().zip(&expected_norms).filter(|(norm, _)| norm.is_finite()) {
            assert!((norm - expected).abs() < 1e-9 * expected);
        }
        for (value, expected) in values.iter().zip(&expected) {
            assert!((value - expected).abs() < 1e-7, "{value} {expected}");
        }
    }
}
