//! Steps of models of real sizes with random weights.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::Args;
use crate::architecture::Architecture;
use crate::profile::{DeviceMemory, median};
use crate::recipe::{AdapterSettings, Checkpointing, DataSettings, Precision, Recipe};
use crate::train::data::{Document, MicroBatch};
use crate::train::device::Device;
use crate::train::{BaseModel, StepSeconds, TrainError, Trainer};

/// Name and `config.json` of each shape.
const SHAPES: [(&str, &str); 4] = [
    (
        "qwen2.5-0.5b",
        r#"{"model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
            "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": true,
            "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}"#,
    ),
    (
        "llama-3.2-3b",
        r#"{"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
            "tie_word_embeddings": true, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0}"#,
    ),
    (
        "llama-3.1-8b",
        r#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 128256,
            "tie_word_embeddings": false, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0}"#,
    ),
    ("tiny", TINY),
];

const TINY: &str = r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 688, "vocab_size": 4096, "tie_word_embeddings": false,
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;

const HUGE: &str = r#"{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 131072, "vocab_size": 4096, "tie_word_embeddings": false,
    "max_position_embeddings": 1048576, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}"#;

/// Names of the shapes that are timed where none is named.
pub(super) fn names() -> Vec<String> {
    SHAPES.iter().take(3).map(|(name, _)| (*name).to_owned()).collect()
}

/// Rows of a micro-batch and their length.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    rows: usize,
    length: usize,
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

/// One timing, or why there is none.
#[derive(Debug, Serialize)]
pub(super) struct Timing {
    shape: String,
    precision: String,
    checkpointing: String,
    rows: usize,
    length: usize,
    measured: Option<Measured>,
    message: Option<String>,
}

/// What a setting was measured at; times are medians over the steps.
#[derive(Debug, Serialize)]
struct Measured {
    tokens_per_s: f64,
    step_s: f64,
    forward_s: f64,
    backward_s: f64,
    optimizer_s: f64,
    /// TFLOP/s of the model: products with frozen weights forward and for the gradient of their input, and attention.
    /// Recomputation is not counted.
    model_tflops: f64,
    peak_bytes: u64,
    reserved_bytes: Option<u64>,
    base_bytes: usize,
    /// Seconds from a loaded base model to the end of a fresh adapter's first step.
    switch_s: f64,
}

/// One model and what is done with it.
pub(super) struct Setting {
    config: &'static str,
    precision: Precision,
    checkpointing: Checkpointing,
    rows: Rows,
}

impl Setting {
    /// A model and a step that fit everywhere.
    pub(super) fn tiny() -> Self {
        Self {
            config: TINY,
            precision: Precision::Bf16,
            checkpointing: Checkpointing::None,
            rows: Rows { rows: 2, length: 128 },
        }
    }

    /// Loss of the first step.
    pub(super) fn loss(&self, device: &Device) -> Result<f64, TrainError> {
        let base = Arc::new(self.base(device)?);
        let mut trainer = self.trainer(&base)?;
        Ok(trainer.step(&[self.batch(&base)])?.loss)
    }

    fn base(&self, device: &Device) -> Result<BaseModel, TrainError> {
        let architecture = Architecture::from_json(Path::new("gpu-check"), self.config)?;
        BaseModel::random_on_device(architecture, self.precision, device)
    }

    fn trainer(&self, base: &Arc<BaseModel>) -> Result<Trainer, TrainError> {
        let mut recipe = Recipe::new("random", DataSettings::default());
        recipe.precision = self.precision;
        recipe.gradient_checkpointing = self.checkpointing;
        recipe.adapter = Some(AdapterSettings {
            rank: 16,
            ..AdapterSettings::default()
        });
        Trainer::new(Arc::clone(base), &recipe, 1000)
    }

    fn batch(&self, base: &BaseModel) -> MicroBatch {
        let vocabulary = base.architecture().vocabulary as u32;
        let mut state = 1u32;
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

    fn measure(&self, base: &Arc<BaseModel>, steps: usize) -> Result<Measured, TrainError> {
        let memory = DeviceMemory::of(base.device())?;
        let beside = memory.in_use_bytes().saturating_sub(base.bytes() as u64);
        memory.reset_peak();
        let batch = [self.batch(base)];
        let started = std::time::Instant::now();
        let mut trainer = self.trainer(base)?;
        trainer.step(&batch)?;
        let switch_s = started.elapsed().as_secs_f64();
        trainer.step(&batch)?;
        let mut seconds = Vec::with_capacity(steps);
        for _ in 0..steps {
            seconds.push(trainer.step(&batch)?.seconds);
        }
        let middle = |part: fn(&StepSeconds) -> f64| median(seconds.iter().map(part)).unwrap_or(f64::NAN);
        let step_s = middle(|seconds| seconds.total);
        let tokens = batch[0].tokens() as f64;
        Ok(Measured {
            tokens_per_s: tokens / step_s,
            step_s,
            forward_s: middle(|seconds| seconds.forward),
            backward_s: middle(|seconds| seconds.backward),
            optimizer_s: middle(|seconds| seconds.optimizer),
            model_tflops: self.flops(base.architecture()) / step_s / 1e12,
            peak_bytes: memory.peak_bytes().saturating_sub(beside),
            reserved_bytes: memory.peak_reserved_bytes(),
            base_bytes: base.bytes(),
            switch_s,
        })
    }

    /// FLOPs of a step: 4 a token for each weight of a linear layer and of the head (forward and gradient of the input),
    /// and 3 x 2 products of half a score matrix for each head.
    fn flops(&self, architecture: &Architecture) -> f64 {
        let layers = architecture.layers.len() as f64;
        let modules = architecture.linear_modules();
        let linear: usize = modules
            .iter()
            .map(|module| module.in_features * module.out_features)
            .sum();
        let head = architecture.vocabulary * architecture.hidden_size;
        let (rows, length) = (self.rows.rows as f64, self.rows.length as f64);
        let weights = 4.0 * rows * length * (layers * linear as f64 + head as f64);
        weights + 6.0 * rows * length * length * layers * architecture.query_size() as f64
    }
}

/// A step that no device has memory for: one activation of its 2^20 tokens takes 256 GiB.
pub(super) fn huge() -> Setting {
    Setting {
        config: HUGE,
        rows: Rows {
            rows: 1024,
            length: 1024,
        },
        ..Setting::tiny()
    }
}

/// Times every combination that was asked for.
pub(super) fn run(args: &Args, device: &Device, timings: &mut Vec<Timing>) {
    println!(
        "| shape | precision | checkpointing | batch | tokens/s | TFLOP/s | step s | peak GB | base GB | switch s |"
    );
    println!("|---|---|---|---|---:|---:|---:|---:|---:|---:|");
    for shape in &args.shapes {
        let Some((_, config)) = SHAPES.iter().find(|(name, _)| name == shape) else {
            eprintln!(
                "no shape `{shape}`; there are {}",
                SHAPES.map(|(name, _)| name).join(", ")
            );
            continue;
        };
        for precision in &args.precisions {
            time_base(args, shape, config, precision, device, timings);
        }
    }
}

fn time_base(
    args: &Args,
    shape: &str,
    config: &'static str,
    precision_name: &str,
    device: &Device,
    timings: &mut Vec<Timing>,
) {
    let named = |text: &str| serde_json::Value::String(text.to_owned());
    let Ok(precision) = serde_json::from_value::<Precision>(named(precision_name)) else {
        eprintln!("no precision `{precision_name}`");
        return;
    };
    let mut setting = Setting {
        config,
        precision,
        ..Setting::tiny()
    };
    let base = match setting.base(device) {
        Ok(base) => Arc::new(base),
        Err(error) => {
            eprintln!("{shape} {precision_name}: {error}");
            return;
        }
    };
    for rows in &args.batches {
        for kind in &args.checkpointing {
            let Ok(checkpointing) = serde_json::from_value(named(kind)) else {
                eprintln!("no kind of checkpointing `{kind}`");
                continue;
            };
            (setting.rows, setting.checkpointing) = (*rows, checkpointing);
            let (measured, message) = match setting.measure(&base, args.steps) {
                Ok(measured) => (Some(measured), None),
                Err(error) => (None, Some(error.to_string())),
            };
            let timing = Timing {
                shape: shape.to_owned(),
                precision: precision_name.to_owned(),
                checkpointing: kind.clone(),
                rows: rows.rows,
                length: rows.length,
                measured,
                message,
            };
            print(&timing);
            timings.push(timing);
        }
    }
}

fn print(timing: &Timing) {
    let Timing {
        shape,
        precision,
        checkpointing,
        rows,
        length,
        ..
    } = timing;
    print!("| {shape} | {precision} | {checkpointing} | {rows}x{length} | ");
    match (&timing.measured, &timing.message) {
        (Some(m), _) => println!(
            "{:.0} | {:.1} | {:.4} | {:.2} | {:.2} | {:.2} |",
            m.tokens_per_s,
            m.model_tflops,
            m.step_s,
            m.peak_bytes as f64 / 1e9,
            m.base_bytes as f64 / 1e9,
            m.switch_s
        ),
        (None, message) => println!("{} | | | | | |", message.as_deref().unwrap_or_default()),
    }
}
