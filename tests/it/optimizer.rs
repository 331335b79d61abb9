//! Optimizers, schedules and clipping against torch, transformers and bitsandbytes (`tests/golden/optimizer/make.py`).

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{Device, Tensor};
use peft_tune_core::recipe::{OptimizerKind, OptimizerSettings, ScheduleKind, ScheduleSettings};
use peft_tune_engine::optimizer::{Optimizer, clip, learning_rate};
use peft_tune_engine::{ParameterKind, ParameterLayout, Parameters};

const STEPS: usize = 4;
const NAMES: [(&str, ParameterKind); 5] = [
    ("small.lora_A", ParameterKind::LoraA),
    ("wide.lora_A", ParameterKind::LoraA),
    ("small.lora_B", ParameterKind::LoraB),
    ("tall.lora_B", ParameterKind::LoraB),
    ("small.bias", ParameterKind::Bias),
];

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/optimizer")
        .join(name)
}

struct Golden(HashMap<String, Tensor>);

impl Golden {
    fn read() -> Self {
        Self(candle_core::safetensors::load(golden("optimizers.safetensors"), &Device::Cpu).unwrap())
    }

    /// The tensors `prefix.NAME` laid end to end.
    fn flat(&self, prefix: &str) -> Tensor {
        let parts: Vec<_> = NAMES
            .iter()
            .map(|(name, _)| self.0[&format!("{prefix}.{name}")].flatten_all().unwrap())
            .collect();
        Tensor::cat(&parts, 0).unwrap()
    }

    fn parameters(&self) -> Parameters {
        let mut layout = ParameterLayout::default();
        for (name, kind) in NAMES {
            layout.push(name, self.0[&format!("start.{name}")].dims(), kind);
        }
        let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
        parameters.values.slice_set(&self.flat("start"), 0, 0).unwrap();
        parameters
    }

    fn set_gradients(&self, parameters: &Parameters, step: usize) {
        parameters
            .gradients
            .slice_set(&self.flat(&format!("gradient.{step}")), 0, 0)
            .unwrap();
    }

    /// Largest difference from the reference `name` after the four steps, over the largest change of a parameter.
    fn error(&self, name: &str, settings: &OptimizerSettings) -> f32 {
        let parameters = self.parameters();
        let mut optimizer = Optimizer::new(settings, &parameters.layout, &Device::Cpu).unwrap();
        for step in 0..STEPS {
            self.set_gradients(&parameters, step);
            optimizer.step(&parameters, settings.learning_rate).unwrap();
        }
        let expected = self.flat(name);
        let largest = |difference: Tensor| difference.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        let change = largest((&expected - self.flat("start")).unwrap());
        largest((&parameters.values - expected).unwrap()) / change
    }
}

fn settings(kind: OptimizerKind, learning_rate: f64, weight_decay: f64) -> OptimizerSettings {
    OptimizerSettings {
        kind,
        learning_rate,
        weight_decay,
        momentum: 0.0,
        ..Default::default()
    }
}

/// Each reference with the settings that it was made with, and the error that rounding explains.
fn cases() -> Vec<(&'static str, OptimizerSettings, f32)> {
    let adamw = settings(OptimizerKind::AdamW, 1e-2, 0.0);
    let decay = OptimizerSettings {
        weight_decay: 0.1,
        beta1: 0.8,
        beta2: Some(0.95),
        epsilon: 1e-6,
        ..adamw.clone()
    };
    let paged = OptimizerSettings {
        kind: OptimizerKind::PagedAdamW,
        ..decay.clone()
    };
    let loraplus = OptimizerSettings {
        weight_decay: 0.1,
        loraplus_ratio: Some(16.0),
        ..adamw.clone()
    };
    let sgd = settings(OptimizerKind::Sgd, 0.1, 0.1);
    let momentum = OptimizerSettings {
        momentum: 0.9,
        ..sgd.clone()
    };
    let nesterov = OptimizerSettings {
        nesterov: true,
        ..momentum.clone()
    };
    let muon = OptimizerSettings {
        momentum: 0.95,
        ..settings(OptimizerKind::Muon, 2e-3, 0.1)
    };
    vec![
        ("adamw", adamw, 1e-6),
        ("adamw_decay", decay, 1e-6),
        ("paged_adamw", paged, 1e-6),
        ("loraplus", loraplus, 1e-6),
        ("sgd", sgd, 1e-6),
        ("sgd_momentum", momentum, 1e-6),
        ("sgd_nesterov", nesterov, 1e-6),
        ("lion", settings(OptimizerKind::Lion, 1e-3, 0.1), 1e-6),
        ("adamw_8bit", settings(OptimizerKind::AdamW8bit, 1e-2, 0.1), 1e-6),
        ("adamw_8bit", settings(OptimizerKind::PagedAdamW8bit, 1e-2, 0.1), 1e-6),
        ("lion_8bit", settings(OptimizerKind::Lion8bit, 1e-3, 0.1), 1e-6),
        ("adafactor", settings(OptimizerKind::Adafactor, 1e-2, 0.1), 1e-6),
        // torch multiplies BF16 matrices in another order of additions: a few elements round the other way.
        ("muon", muon, 1e-2),
    ]
}

#[test]
fn every_optimizer_steps_as_its_reference() {
    let golden = Golden::read();
    for (name, settings, tolerance) in cases() {
        let error = golden.error(name, &settings);
        assert!(error < tolerance, "{name}: {error:e}");
    }
}

#[test]
fn a_restored_optimizer_goes_on_bit_for_bit() {
    let golden = Golden::read();
    for (name, settings, _) in cases() {
        let parameters = golden.parameters();
        let step = |optimizer: &mut Optimizer, parameters: &Parameters, step| {
            golden.set_gradients(parameters, step);
            optimizer.step(parameters, 1e-2).unwrap();
        };
        let mut straight = Optimizer::new(&settings, &parameters.layout, &Device::Cpu).unwrap();
        step(&mut straight, &parameters, 0);
        step(&mut straight, &parameters, 1);
        let (saved, values) = (straight.state().unwrap(), parameters.values.copy().unwrap());
        step(&mut straight, &parameters, 2);
        step(&mut straight, &parameters, 3);

        let resumed_parameters = golden.parameters();
        resumed_parameters.values.slice_set(&values, 0, 0).unwrap();
        let mut resumed = Optimizer::new(&settings, &parameters.layout, &Device::Cpu).unwrap();
        resumed.load_state(&saved).unwrap();
        step(&mut resumed, &resumed_parameters, 2);
        step(&mut resumed, &resumed_parameters, 3);
        let bits = |tensor: &Tensor| tensor.to_vec1::<f32>().unwrap();
        assert_eq!(bits(&resumed_parameters.values), bits(&parameters.values), "{name}");
        assert_eq!((resumed.steps(), straight.steps()), (4, 4));
    }
}

#[test]
fn a_foreign_state_is_refused() {
    let parameters = Golden::read().parameters();
    let new = |kind| Optimizer::new(&settings(kind, 1e-2, 0.0), &parameters.layout, &Device::Cpu).unwrap();
    let state = new(OptimizerKind::Sgd).state().unwrap();
    let message = new(OptimizerKind::AdamW).load_state(&state).unwrap_err().to_string();
    assert_eq!(
        message,
        "optimizer state `mean` is missing; the checkpoint was made with another optimizer"
    );
}

#[test]
fn schedules_are_those_of_transformers() {
    let text = std::fs::read_to_string(golden("schedules.json")).unwrap();
    let expected: HashMap<String, Vec<f64>> = serde_json::from_str(&text).unwrap();
    let cases = [
        ("constant_warmup3", ScheduleKind::Constant, 3.0),
        ("linear_warmup3", ScheduleKind::Linear, 3.0),
        ("cosine_warmup3", ScheduleKind::Cosine, 3.0),
        ("cosine_warmup0", ScheduleKind::Cosine, 0.0),
    ];
    for (name, kind, warmup) in cases {
        let schedule = ScheduleSettings { kind, warmup };
        for (done, expected) in expected[name].iter().enumerate() {
            let rate = learning_rate(&schedule, 2e-3, done as u64, 10);
            assert!(
                (rate - expected).abs() < 1e-12,
                "{name} after {done} steps: {rate} {expected}"
            );
        }
    }
}

#[test]
fn clipping_is_that_of_torch() {
    let golden_tensors = Golden::read();
    let text = std::fs::read_to_string(golden("clip.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (limit, key) in [(0.5, "0.5"), (1000.0, "1000.0")] {
        let parameters = golden_tensors.parameters();
        golden_tensors.set_gradients(&parameters, 0);
        let norm = clip(&parameters.gradients, limit).unwrap();
        let expected_norm = expected[key]["norm"].as_f64().unwrap();
        assert!(
            (norm - expected_norm).abs() < 1e-6 * expected_norm,
            "{norm} {expected_norm}"
        );
        let values: Vec<f32> = parameters.gradients.to_vec1().unwrap();
        for (slot, expected) in parameters
            .layout
            .slots()
            .iter()
            .zip(expected[key]["first"].as_array().unwrap())
        {
            let (value, expected) = (f64::from(values[slot.offset]), expected.as_f64().unwrap());
            assert!((value - expected).abs() <= 1e-6 * expected.abs(), "{value} {expected}");
        }
    }
}
