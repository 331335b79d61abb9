//! One model with random weights, and what is done with it.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::shapes::{HUGE, TINY};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::predict;
use peft_tune_core::predict::{DataSheet, Host, Machine, Workload};
use peft_tune_core::recipe::{AdapterSettings, Checkpointing, DataSettings, OptimizerKind, Precision, Recipe};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::profile::{DeviceMemory, ceilings, median};
use peft_tune_engine::{BaseModel, StepSeconds, TrainError, Trainer};
use peft_tune_kernels::device;
use peft_tune_kernels::device::Device;

/// Rank of every adapter that is timed.
const RANK: usize = 16;
/// Steps of a length that is not measured yet: what happens once happens in them.
const WARMUP_STEPS: usize = 2;

/// Rows of a micro-batch and their length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    pub(super) rows: usize,
    pub(super) length: usize,
}

impl std::str::FromStr for Rows {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let parts = text
            .split_once('x')
            .and_then(|(rows, length)| Some((number(rows)?, number(length)?)));
        let (rows, length) = parts.ok_or_else(|| format!("`{text}` is not rows x tokens, such as 2x4096"))?;
        Ok(Self { rows, length })
    }
}

/// What trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Method {
    /// An adapter on all linear layers.
    Lora,
    /// Every parameter.
    Full,
}

/// One model and what is done with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting {
    pub(super) config: &'static str,
    pub(super) method: Method,
    pub(super) precision: Precision,
    pub(super) checkpointing: Checkpointing,
    pub(super) optimizer: OptimizerKind,
    pub(super) rows: Rows,
}

/// What a setting was measured at; times are medians over the steps.
#[derive(Debug, Serialize)]
pub(super) struct Measured {
    pub(super) tokens_per_s: f64,
    pub(super) step_s: f64,
    forward_s: f64,
    backward_s: f64,
    optimizer_s: f64,
    /// TFLOP/s of the model: products with weights and attention. Recomputation is not counted.
    pub(super) model_tflops: f64,
    /// Model FLOPs utilisation: the rate over the data sheet's peak of this device at the number type, where the table
    /// has the device.
    pub(super) mfu: Option<f64>,
    pub(super) peak_bytes: u64,
    /// Bytes that were predicted for the highest moment.
    pub(super) predicted_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    /// Bytes that the measured steps asked the driver for, beyond what those before had: 0 where steps allocate nothing.
    pub(super) reserved_growth_bytes: Option<u64>,
    pub(super) base_bytes: usize,
    first_step_s: f64,
    /// Seconds beyond a step from the loaded base model to the end of a fresh adapter's first step.
    pub(super) switch_s: f64,
}

impl Setting {
    /// A model and a step that fit everywhere.
    pub(super) fn tiny() -> Self {
        Self {
            config: TINY,
            method: Method::Lora,
            precision: Precision::Bf16,
            checkpointing: Checkpointing::None,
            optimizer: OptimizerKind::AdamW,
            rows: Rows { rows: 2, length: 128 },
        }
    }

    /// A step that no device has memory for: one activation of its 2^20 tokens takes 256 GiB.
    pub(super) fn huge() -> Self {
        Self {
            config: HUGE,
            rows: Rows {
                rows: 1024,
                length: 1024,
            },
            ..Self::tiny()
        }
    }

    /// Loss of the first step.
    pub(super) fn loss(&self, device: &Device) -> Result<f64, TrainError> {
        let base = Arc::new(self.base(device)?);
        let mut trainer = Trainer::new(Arc::clone(&base), &self.recipe(), 1000)?;
        Ok(trainer.step(&[self.batch(base.architecture(), 1)])?.loss)
    }

    pub(super) fn base(&self, device: &Device) -> Result<BaseModel, TrainError> {
        BaseModel::random_on_device(self.architecture()?, self.precision, device)
    }

    pub(super) fn architecture(&self) -> Result<Architecture, TrainError> {
        Ok(Architecture::from_json(Path::new("gpu-check"), self.config)?)
    }

    pub(super) fn recipe(&self) -> Recipe {
        let mut recipe = Recipe::new("random", DataSettings::default());
        recipe.precision = self.precision;
        recipe.gradient_checkpointing = self.checkpointing;
        recipe.optimizer.kind = self.optimizer;
        (recipe.batch.micro_batch, recipe.batch.sequence_length) = (self.rows.rows, self.rows.length);
        recipe.adapter = (self.method == Method::Lora).then(|| AdapterSettings {
            rank: RANK,
            ..AdapterSettings::default()
        });
        recipe
    }

    /// Rows of random tokens: others for each seed.
    pub(super) fn batch(&self, architecture: &Architecture, seed: u32) -> MicroBatch {
        let vocabulary = architecture.vocabulary as u32;
        let mut state = seed;
        let mut token = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % vocabulary
        };
        let documents: Vec<Document> = (0..self.rows.rows)
            .map(|_| {
                let input_ids: Vec<u32> = (0..self.rows.length).map(|_| token()).collect();
                let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
                Document { input_ids, labels }
            })
            .collect();
        MicroBatch::from_documents(&documents)
    }

    /// Bytes at the highest moment of a step, as they are predicted before it runs; `None` where the model takes no such rows.
    pub(super) fn predicted_bytes(&self, device: &Device) -> Option<u64> {
        let host = match device.is_cpu() {
            true => ceilings::host(),
            false => Host::gpu(device::facts(device).map_or(0, |facts| facts.memory_bytes)),
        };
        self.predicted_on(host)
    }

    /// Bytes like [`Setting::predicted_bytes`], on a device that need not be there.
    pub(super) fn predicted_on(&self, host: Host) -> Option<u64> {
        let predictor = peft_tune_engine::predictor(self.architecture().ok()?, Machine::Unmeasured(host));
        let (recipe, workload) = (self.recipe(), Workload::full(self.rows.rows, self.rows.length));
        let setting = predict::Setting {
            recipe: &recipe,
            workload: &workload,
        };
        Some(predictor.predict(&setting).ok()?.peak_bytes())
    }

    /// Times `steps` steps behind some others. Where every parameter trains, `base` should be the only one who holds the model:
    /// its weights are released.
    pub(super) fn measure(&self, base: Arc<BaseModel>, steps: usize) -> Result<Measured, TrainError> {
        let (device, base_bytes) = (base.device().clone(), base.bytes());
        let architecture = base.architecture().clone();
        let memory = DeviceMemory::of(&device)?;
        device::prepare(&device)?;
        // What an earlier setting left there would be missing in this one's count.
        device::forget_scratch();
        let beside = memory.in_use_bytes().saturating_sub(base_bytes as u64);
        memory.reset_peak();
        let batch = [self.batch(&architecture, 1)];
        let started = Instant::now();
        let mut trainer = Trainer::new(base, &self.recipe(), 1000)?;
        trainer.step(&batch)?;
        let first_step_s = started.elapsed().as_secs_f64();
        for _ in 1..WARMUP_STEPS {
            trainer.step(&batch)?;
        }
        let reserved = memory.peak_reserved_bytes();
        let mut seconds = Vec::with_capacity(steps);
        for _ in 0..steps {
            seconds.push(trainer.step(&batch)?.seconds);
        }
        let middle = |part: fn(&StepSeconds) -> f64| median(seconds.iter().map(part)).unwrap_or(f64::NAN);
        let step_s = middle(|seconds| seconds.total);
        let tokens = batch[0].tokens() as f64;
        let flops_per_s = self.flops(&architecture) / step_s;
        Ok(Measured {
            tokens_per_s: tokens / step_s,
            step_s,
            forward_s: middle(|seconds| seconds.forward),
            backward_s: middle(|seconds| seconds.backward),
            optimizer_s: middle(|seconds| seconds.optimizer),
            model_tflops: flops_per_s / 1e12,
            mfu: sheet_of(&device).map(|sheet| flops_per_s / self.peak_flops(sheet)),
            peak_bytes: memory.peak_bytes().saturating_sub(beside),
            predicted_bytes: self.predicted_bytes(&device),
            reserved_bytes: memory.peak_reserved_bytes(),
            reserved_growth_bytes: reserved
                .zip(memory.peak_reserved_bytes())
                .map(|(before, after)| after.saturating_sub(before)),
            base_bytes,
            first_step_s,
            switch_s: (first_step_s - step_s).max(0.0),
        })
    }

    /// FLOPs of a step: for each weight of a linear layer and of the head 2 a token forward, 2 for the gradient of the input and,
    /// where it trains, 2 for its own; and 3 x 2 products of half a score matrix for each head.
    fn flops(&self, architecture: &Architecture) -> f64 {
        let layers = architecture.layers.len() as f64;
        let modules = architecture.linear_modules();
        let linear: usize = modules
            .iter()
            .map(|module| module.in_features * module.out_features)
            .sum();
        let head = architecture.vocabulary * architecture.hidden_size;
        let (rows, length) = (self.rows.rows as f64, self.rows.length as f64);
        let of_a_weight = match self.method {
            Method::Lora => 4.0,
            Method::Full => 6.0,
        };
        let weights = of_a_weight * rows * length * (layers * linear as f64 + head as f64);
        weights + 6.0 * rows * length * length * layers * architecture.query_size(0) as f64
    }

    /// What the products could reach: matrix units, and for fp32, which never uses TF32 unasked, the plain ones.
    fn peak_flops(&self, sheet: &DataSheet) -> f64 {
        match self.precision {
            Precision::Fp32 => sheet.f32,
            _ => sheet.matrix,
        }
    }
}

fn sheet_of(device: &Device) -> Option<&'static DataSheet> {
    predict::device_of_driver(&device::facts(device)?.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::machine::gpu_check::shapes::config;

    fn setting(shape: &str, method: Method, precision: Precision) -> Setting {
        Setting {
            config: config(shape).unwrap(),
            method,
            precision,
            rows: "8x512".parse().unwrap(),
            ..Setting::tiny()
        }
    }

    #[test]
    fn rows_are_read_and_others_refused() {
        let rows: Rows = "2x4096".parse().unwrap();
        assert_eq!((rows.rows, rows.length), (2, 4096));
        for text in ["4096", "0x5", "2x", "2x4x8"] {
            assert!(text.parse::<Rows>().is_err(), "{text}");
        }
    }

    #[test]
    fn full_training_counts_half_as_many_flops_again_for_its_weights() {
        let flops = |method| {
            let setting = setting("llama-2-7b", method, Precision::Fp32);
            setting.flops(&setting.architecture().unwrap())
        };
        let tokens = 8.0 * 512.0;
        let scores = 6.0 * tokens * 512.0 * 32.0 * 4096.0;
        // 6.6 billion weights are multiplied; the embedding is read.
        let weights = (flops(Method::Lora) - scores) / (4.0 * tokens);
        assert!((6.6e9..6.62e9).contains(&weights), "{weights}");
        let whole = (flops(Method::Full) - scores) / (6.0 * tokens);
        assert!((whole - weights).abs() < 1.0);
    }

    #[test]
    fn a_tiny_setting_is_measured_on_the_cpu() {
        let device = Device::Cpu;
        for method in [Method::Lora, Method::Full] {
            let setting = Setting {
                method,
                precision: Precision::Fp32,
                rows: "1x16".parse().unwrap(),
                ..Setting::tiny()
            };
            let base = Arc::new(setting.base(&device).unwrap());
            let measured = setting.measure(base, 1).unwrap();
            assert!(
                measured.tokens_per_s > 0.0 && measured.predicted_bytes > Some(0),
                "{measured:?}"
            );
            assert_eq!(measured.mfu, None, "the CPU has no data sheet");
        }
    }
}
