//! Choice of the steps of a training that compute in F32, and what decides it (`precision_schedule`).
//!
//! | letter | meaning |
//! |---|---|
//! | g | a step's gradient: the mean over its B target tokens, before clipping |
//! | G | what g would be over all data |
//! | N | noise scale: the tokens over which the noise of g is as large as G |
//!
//! g = G + noise, so that for steps t and t + 1, between which the parameters hardly move, E\[g_t · g_(t+1)\] = |G|² and
//! E|g|² = |G|² + (N / B) |G|². Their means over the steps of a window give N (McCandlish et al. 2018, arXiv:1812.06162,
//! find it from batches of two sizes; here it needs no second batch). Where N is at least B, a step is more noise than gradient, and
//! the rounding of 16 bits disappears in it; where it is below B / 2, the next window computes in F32.
//!
//! In fp16, gradients that overflow cost their step. One is how the loss scale finds its place; several in a window are answered with a
//! window in F32.

use candle_core::{DType, Device, Result, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::optimizer::{OptimizerError, dot};
use peft_tune_core::recipe::{Precision, PrecisionSchedule, Recipe};

/// Overflows in a window that are answered with one in F32.
const MOST_OVERFLOWS: u64 = 2;
/// Share of a step's tokens below which the noise scale asks for F32.
const WIDEN_BELOW: f64 = 0.5;
/// Names of the tensors in a checkpoint.
const GRADIENT: &str = "precision_schedule.gradient";
const NUMBERS: &str = "precision_schedule.numbers";

/// Precision that the next steps compute in, and why.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrecisionDecision {
    /// Precision of the steps from the next one on.
    pub precision: Precision,
    pub cause: PrecisionCause,
    /// Noise scale of the gradients in target tokens; absent where it was not asked for, where no two steps could be compared,
    /// and where the gradients had nothing in common, which is noise without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_scale: Option<f64>,
    /// Mean target tokens of the steps that decided.
    pub step_targets: f64,
    /// Steps among them whose gradients overflowed.
    pub overflows: u64,
}

/// Why steps compute in a precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PrecisionCause {
    /// The schedule names the step.
    Schedule,
    /// A step is more noise than gradient.
    Noise,
    /// A step is mostly gradient.
    Signal,
    /// The noise scale lies between the bounds, or is not known: as before.
    Undecided,
    /// Gradients overflowed.
    Overflows,
}

impl PrecisionCause {
    /// Name of the cause as it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Schedule => "schedule",
            Self::Noise => "noise",
            Self::Signal => "signal",
            Self::Undecided => "undecided",
            Self::Overflows => "overflows",
        }
    }
}

/// The precision of the steps of one training.
#[derive(Debug)]
pub(crate) struct PrecisionSwitch {
    schedule: PrecisionSchedule,
    own: Precision,
    adaptive: Option<Adaptive>,
    /// Precision that measuring asks for, whatever the schedule says.
    held: Option<bool>,
}

/// State of an adaptive schedule.
#[derive(Debug)]
struct Adaptive {
    is_fp32: bool,
    window: Window,
    /// The gradient of the step before, unscaled, and its norm; 0 where it is of no use.
    gradient: Tensor,
    norm: f64,
}

/// Sums over the steps since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Window {
    steps: f64,
    targets: f64,
    overflows: f64,
    /// Pairs of steps that follow each other.
    pairs: f64,
    /// Sum of the products of pairs of steps that follow each other.
    signal: f64,
    /// Sum of the mean squares of pairs of steps that follow each other.
    squares: f64,
}

/// Facts about a step that decisions depend on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepFacts {
    /// Number of the step, from 1.
    pub step: u64,
    pub targets: u64,
    /// Norm of the gradient before clipping.
    pub norm: f64,
    /// Product of the step's gradient and that of the step before; see [`PrecisionSwitch::compare`].
    pub product: Option<f64>,
}

impl PrecisionSwitch {
    /// The switch of a training whose gradients look like `gradients`.
    ///
    /// # Errors
    /// Memory for a copy of the gradients, which an adaptive schedule needs.
    pub(crate) fn new(recipe: &Recipe, gradients: &Tensor) -> Result<Self> {
        let adaptive = recipe.precision_schedule.is_adaptive().then(|| {
            Ok::<_, candle_core::Error>(Adaptive {
                is_fp32: true,
                window: Window::default(),
                gradient: gradients.zeros_like()?,
                norm: 0.0,
            })
        });
        Ok(Self {
            schedule: recipe.precision_schedule,
            own: recipe.precision,
            adaptive: adaptive.transpose()?,
            held: None,
        })
    }

    /// Computes all steps in F32 or none from now on, for measuring; `None` follows the schedule again.
    pub(crate) fn hold(&mut self, fp32: Option<bool>) {
        self.held = fp32;
    }

    /// Whether the step behind so many others computes in F32.
    pub(crate) fn is_fp32(&self, steps: u64) -> bool {
        match (self.held, &self.adaptive) {
            _ if self.schedule.is_none() => false,
            (Some(fp32), _) => fp32,
            (None, Some(adaptive)) => adaptive.is_fp32,
            (None, None) => steps < self.schedule.first_fp32_steps(),
        }
    }

    /// Precision of the step behind so many others; `None` without a schedule.
    pub(crate) fn precision(&self, steps: u64) -> Option<Precision> {
        (!self.schedule.is_none()).then(|| self.named(self.is_fp32(steps)))
    }

    /// The product of `gradients`, which were multiplied by `scale`, with those of the step before, and keeps them for the
    /// next; before they are clipped. `None` where nothing asks for it.
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn compare(&mut self, gradients: &Tensor, scale: f32) -> Result<Option<f64>> {
        let Some(adaptive) = self.adaptive.as_mut().filter(|_| self.held.is_none()) else {
            return Ok(None);
        };
        let product = match adaptive.norm > 0.0 {
            true => Some(dot(&adaptive.gradient, gradients)? / f64::from(scale)),
            false => None,
        };
        match scale {
            1.0 => adaptive.gradient.slice_set(gradients, 0, 0)?,
            scale => adaptive.gradient.slice_set(&(gradients / f64::from(scale))?, 0, 0)?,
        }
        Ok(product)
    }

    /// Takes note of a step that has ended, and decides where it is time to.
    pub(crate) fn step_ended(&mut self, facts: StepFacts) -> Option<PrecisionDecision> {
        if self.schedule.is_none() || self.held.is_some() {
            return None;
        }
        let every = self.schedule.first_fp32_steps();
        let Some(adaptive) = &mut self.adaptive else {
            return (facts.step == every).then_some(PrecisionDecision {
                precision: self.own,
                cause: PrecisionCause::Schedule,
                noise_scale: None,
                step_targets: facts.targets as f64,
                overflows: 0,
            });
        };
        adaptive.note(facts);
        if !facts.step.is_multiple_of(every) {
            return None;
        }
        let window = std::mem::take(&mut adaptive.window);
        let (cause, is_fp32) = window.decide(adaptive.is_fp32);
        adaptive.is_fp32 = is_fp32;
        Some(PrecisionDecision {
            precision: self.named(is_fp32),
            cause,
            noise_scale: window.noise_scale().filter(|scale| scale.is_finite()),
            step_targets: window.step_targets(),
            overflows: window.overflows as u64,
        })
    }

    /// Tensors that the next steps depend on, for a checkpoint.
    ///
    /// # Errors
    /// Those of candle.
    pub(crate) fn state(&self) -> Result<Vec<(String, Tensor)>> {
        let Some(adaptive) = &self.adaptive else {
            return Ok(Vec::new());
        };
        let Window {
            steps,
            targets,
            overflows,
            pairs,
            signal,
            squares,
        } = adaptive.window;
        let is_fp32 = f64::from(u8::from(adaptive.is_fp32));
        let numbers = [
            is_fp32,
            adaptive.norm,
            steps,
            targets,
            overflows,
            pairs,
            signal,
            squares,
        ];
        Ok(vec![
            (NUMBERS.to_owned(), Tensor::new(&numbers, &Device::Cpu)?),
            (GRADIENT.to_owned(), adaptive.gradient.copy()?.to_device(&Device::Cpu)?),
        ])
    }

    /// Continues from a state that [`PrecisionSwitch::state`] returned.
    ///
    /// # Errors
    /// A tensor that is missing or of another kind; nothing has changed then.
    pub(crate) fn load_state(&mut self, state: &[(String, Tensor)]) -> std::result::Result<(), OptimizerError> {
        let Some(adaptive) = &mut self.adaptive else {
            return Ok(());
        };
        let find = |name: &str| {
            let found = state.iter().find(|(other, _)| other == name).map(|(_, tensor)| tensor);
            found.ok_or_else(|| OptimizerError::MissingState { name: name.to_owned() })
        };
        let numbers = find(NUMBERS)?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let [is_fp32, norm, steps, targets, overflows, pairs, signal, squares] = numbers[..] else {
            return Err(OptimizerError::MissingState {
                name: NUMBERS.to_owned(),
            });
        };
        let gradient = find(GRADIENT)?.to_device(adaptive.gradient.device())?;
        adaptive.gradient.slice_set(&gradient, 0, 0)?;
        adaptive.is_fp32 = is_fp32 > 0.0;
        adaptive.norm = norm;
        adaptive.window = Window {
            steps,
            targets,
            overflows,
            pairs,
            signal,
            squares,
        };
        Ok(())
    }

    fn named(&self, is_fp32: bool) -> Precision {
        match is_fp32 {
            true => Precision::Fp32,
            false => self.own,
        }
    }
}

impl Adaptive {
    fn note(&mut self, facts: StepFacts) {
        let window = &mut self.window;
        window.steps += 1.0;
        window.targets += facts.targets as f64;
        if !facts.norm.is_finite() {
            window.overflows += 1.0;
            self.norm = 0.0;
            return;
        }
        if let Some(product) = facts.product.filter(|product| product.is_finite()) {
            window.pairs += 1.0;
            window.signal += product;
            window.squares += f64::midpoint(self.norm.powi(2), facts.norm.powi(2));
        }
        self.norm = facts.norm;
    }
}

impl Window {
    fn step_targets(&self) -> f64 {
        self.targets / self.steps.max(1.0)
    }

    /// N in target tokens, infinite where the steps have nothing in common; `None` where none follow each other.
    fn noise_scale(&self) -> Option<f64> {
        (self.pairs > 0.0).then(|| match self.signal > 0.0 {
            true => self.step_targets() * (self.squares - self.signal).max(0.0) / self.signal,
            false => f64::INFINITY,
        })
    }

    fn decide(&self, is_fp32: bool) -> (PrecisionCause, bool) {
        if self.overflows as u64 >= MOST_OVERFLOWS {
            return (PrecisionCause::Overflows, true);
        }
        match self.noise_scale() {
            Some(scale) if scale >= self.step_targets() => (PrecisionCause::Noise, false),
            Some(scale) if scale < WIDEN_BELOW * self.step_targets() => (PrecisionCause::Signal, true),
            _ => (PrecisionCause::Undecided, is_fp32),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::DataSettings;

    const ELEMENTS: usize = 4000;

    fn switch(schedule: &str, precision: Precision) -> PrecisionSwitch {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.precision = precision;
        recipe.precision_schedule = PrecisionSchedule::from_name(schedule).unwrap();
        let gradients = Tensor::zeros(ELEMENTS, DType::F32, &Device::Cpu).unwrap();
        PrecisionSwitch::new(&recipe, &gradients).unwrap()
    }

    /// A gradient of norm 1 with noise of norm `noise` that no other step has.
    fn gradient(step: u64, noise: f64) -> Tensor {
        let each = (1.0 / ELEMENTS as f64).sqrt();
        let mut state = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let values = (0..ELEMENTS).map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let sign = if state & 1 == 0 { 1.0 } else { -1.0 };
            (each * (1.0 + noise * sign)) as f32
        });
        Tensor::from_vec(values.collect::<Vec<_>>(), ELEMENTS, &Device::Cpu).unwrap()
    }

    /// Trains one step whose gradient has this much noise, and 100 targets.
    fn step(switch: &mut PrecisionSwitch, step: u64, noise: f64) -> Option<PrecisionDecision> {
        let gradient = gradient(step, noise);
        let norm = match noise.is_finite() {
            true => dot(&gradient, &gradient).unwrap().sqrt(),
            false => f64::INFINITY,
        };
        let product = switch.compare(&gradient, 1.0).unwrap();
        switch.step_ended(StepFacts {
            step,
            targets: 100,
            norm,
            product,
        })
    }

    #[test]
    fn the_first_steps_compute_in_f32_and_the_switch_is_told_once() {
        let mut switch = switch("fp32_3", Precision::Bf16);
        let told: Vec<_> = (0..6)
            .map(|done| (switch.is_fp32(done), step(&mut switch, done + 1, 0.0)))
            .collect();
        let wide: Vec<_> = told.iter().map(|(wide, _)| *wide).collect();
        assert_eq!(wide, [true, true, true, false, false, false]);
        let decisions: Vec<_> = told.iter().filter_map(|(_, decision)| *decision).collect();
        let [decision] = decisions[..] else {
            panic!("{decisions:?}")
        };
        assert_eq!(
            (decision.precision, decision.cause),
            (Precision::Bf16, PrecisionCause::Schedule)
        );
    }

    #[test]
    fn noise_narrows_and_signal_widens() {
        let mut switch = switch("adaptive_4", Precision::Bf16);
        let decisions: Vec<_> = (1..=16)
            .filter_map(|number| step(&mut switch, number, if number <= 8 { 2.0 } else { 0.2 }))
            .collect();
        let [first, second, _, third] = decisions[..] else {
            panic!("{decisions:?}")
        };
        assert_eq!((first.precision, first.cause), (Precision::Bf16, PrecisionCause::Noise));
        assert_eq!(
            (second.precision, second.cause),
            (Precision::Bf16, PrecisionCause::Noise)
        );
        assert_eq!(
            (third.precision, third.cause),
            (Precision::Fp32, PrecisionCause::Signal)
        );
        // Noise of twice the gradient's norm in 100 tokens is as large as the gradient in 400.
        let scale = first.noise_scale.unwrap();
        assert!((300.0..500.0).contains(&scale), "{scale}");
        assert!(switch.is_fp32(16));
    }

    #[test]
    fn several_overflows_are_answered_with_a_window_in_f32() {
        let mut switch = switch("adaptive_4", Precision::Fp16);
        assert!(
            (1..=4)
                .filter_map(|number| step(&mut switch, number, 2.0))
                .all(|one| one.precision == Precision::Fp16)
        );
        let one = (5..=8).filter_map(|number| step(&mut switch, number, if number == 6 { f64::INFINITY } else { 2.0 }));
        assert_eq!(one.last().unwrap().precision, Precision::Fp16);
        let two =
            (9..=12).filter_map(|number| step(&mut switch, number, if number < 11 { f64::INFINITY } else { 2.0 }));
        let two = two.last().unwrap();
        assert_eq!(
            (two.precision, two.cause, two.overflows),
            (Precision::Fp32, PrecisionCause::Overflows, 2)
        );
    }

    #[test]
    fn a_state_that_is_loaded_decides_as_the_one_that_was_saved() {
        let mut whole = switch("adaptive_4", Precision::Bf16);
        for number in 1..=6 {
            step(&mut whole, number, 0.8);
        }
        let mut resumed = switch("adaptive_4", Precision::Bf16);
        assert!(resumed.load_state(&[]).is_err());
        resumed.load_state(&whole.state().unwrap()).unwrap();
        for number in 7..=12 {
            assert_eq!(step(&mut whole, number, 0.8), step(&mut resumed, number, 0.8));
        }
    }

    #[test]
    fn what_is_held_decides_nothing() {
        let mut switch = switch("adaptive_1", Precision::Bf16);
        switch.hold(Some(false));
        assert!(!switch.is_fp32(0));
        assert_eq!(step(&mut switch, 1, 2.0), None);
        switch.hold(None);
        assert!(switch.is_fp32(1));
    }
}
