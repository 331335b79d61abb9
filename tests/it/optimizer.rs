//! Optimizers, schedules and clipping against torch, transformers and bitsandbytes (`tests/golden/optimizer/make.py`, `make_8bit.py`).

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use peft_tune_core::recipe::{DecayType, OptimizerKind, OptimizerSettings, ScheduleKind, ScheduleSettings};
use peft_tune_engine::optimizer::{Optimizer, clip, learning_rate, schedule_free_rate};
use peft_tune_engine::{ParameterKind, ParameterLayout, Parameters};

use crate::golden::{Sample, greatest};

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

struct Golden {
    /// Starting values and gradients of the parameters, and the elements in which a reference is not to be matched.
    whole: HashMap<String, Tensor>,
    /// Changes of each parameter by each reference, 0 where that is not to be matched.
    changes: BTreeMap<String, Sample>,
}

impl Golden {
    fn read() -> Self {
        Self {
            whole: crate::golden::tensors(&golden("whole.safetensors")),
            changes: Sample::read(&golden("changes.safetensors")),
        }
    }

    /// The tensors `prefix.NAME` laid end to end.
    fn flat(&self, prefix: &str) -> Tensor {
        let parts: Vec<_> = NAMES
            .iter()
            .map(|(name, _)| self.whole[&format!("{prefix}.{name}")].flatten_all().unwrap())
            .collect();
        Tensor::cat(&parts, 0).unwrap()
    }

    fn parameters(&self) -> Parameters {
        let mut layout = ParameterLayout::default();
        for (name, kind) in NAMES {
            layout.push(name, self.whole[&format!("start.{name}")].dims(), kind);
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

    /// Error after 24 steps of Schedule-Free AdamW, whose gradients halve with each round of four.
    fn schedule_free_error(&self, name: &str, settings: &OptimizerSettings, warmup: f64) -> f64 {
        let parameters = self.parameters();
        let schedule = ScheduleSettings {
            warmup,
            ..Default::default()
        };
        let mut optimizer = Optimizer::new(settings, &parameters.layout, &Device::Cpu).unwrap();
        for step in 0..24 {
            let gradients = self.flat(&format!("gradient.{}", step % STEPS));
            let gradients = (gradients * 0.5_f64.powi((step / STEPS) as i32)).unwrap();
            parameters.gradients.slice_set(&gradients, 0, 0).unwrap();
            let rate = schedule_free_rate(&schedule, settings.learning_rate, step as u64, 24);
            optimizer.step(&parameters, rate).unwrap();
        }
        // Between steps the values are the averages, as in the reference behind `eval()`.
        self.error_of(&parameters, name)
    }

    /// 1 for each element that the reference `name` is to be matched in: all, but where its 8-bit states had lost what they should hold.
    fn kept(&self, name: &str) -> Tensor {
        let prefix = format!("{name}.lost");
        if self.whole.contains_key(&format!("{prefix}.{}", NAMES[0].0)) {
            let lost = self.flat(&prefix).to_dtype(DType::F32).unwrap();
            return lost.affine(-1.0, 1.0).unwrap();
        }
        self.flat("start").ones_like().unwrap()
    }

    /// How far the changes are from those of the reference `name` where that is to be matched: the largest difference over
    /// the largest change of any parameter, or the relative difference of a parameter's norms where that is greater.
    fn error_of(&self, parameters: &Parameters, name: &str) -> f64 {
        let samples = NAMES.map(|(parameter, _)| &self.changes[&format!("{name}.{parameter}")]);
        let largest = greatest(samples.iter().map(|sample| sample.largest()));
        let changes = (&parameters.values - self.flat("start")).unwrap();
        let changes = (changes * self.kept(name)).unwrap();
        let slots = parameters.layout.slots().iter().zip(samples);
        greatest(slots.map(|(slot, sample)| {
            let change = changes.narrow(0, slot.offset, slot.elements()).unwrap();
            sample.error_over(largest, &change)
        }))
    }

    /// Error after the four steps.
    fn error(&self, name: &str, settings: &OptimizerSettings) -> f64 {
        let parameters = self.parameters();
        let mut optimizer = Optimizer::new(settings, &parameters.layout, &Device::Cpu).unwrap();
        for step in 0..STEPS {
            self.set_gradients(&parameters, step);
            optimizer.step(&parameters, settings.learning_rate).unwrap();
        }
        self.error_of(&parameters, name)
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
fn cases() -> Vec<(&'static str, OptimizerSettings, f64)> {
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
        // 1e-6 of the reference's largest change, 3.65: it is one that is not to be matched, 91 times the largest of the others.
        ("adamw_8bit", settings(OptimizerKind::AdamW8bit, 1e-2, 0.1), 9e-5),
        ("adamw_8bit", settings(OptimizerKind::PagedAdamW8bit, 1e-2, 0.1), 9e-5),
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

/// Gradients of a step from 1 on, as `gradient` of `make_8bit.py` has them: three of four are 0, the others differ by four decades.
fn sparse_gradients(step: u32, elements: u32) -> Vec<f32> {
    let gradient = |index: u32| {
        let mut bits = step.wrapping_mul(0x9e37_79b9) ^ index.wrapping_mul(0x85eb_ca6b);
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x7feb_352d);
        bits = (bits ^ (bits >> 15)).wrapping_mul(0x846c_a68b);
        bits ^= bits >> 16;
        let value = ((bits >> 16) as f32 / 32768.0 - 1.0) * 0.5f32.powi((index % 17) as i32);
        if bits.is_multiple_of(4) { value } else { 0.0 }
    };
    (0..elements).map(gradient).collect()
}

#[test]
fn a_thousand_sparse_gradients_move_8_bit_adamw_as_far_as_adamw() {
    let golden = candle_core::safetensors::load(golden("sparse_8bit.safetensors"), &Device::Cpu).unwrap();
    let flat = |name: &str| {
        let flat = golden[name].flatten_all().unwrap();
        flat.to_dtype(DType::F32).unwrap().to_vec1::<f32>().unwrap()
    };
    let mut layout = ParameterLayout::default();
    layout.push("lora_A", golden["adamw"].dims(), ParameterKind::LoraA);
    let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
    let elements = parameters.layout.elements();
    let settings = settings(OptimizerKind::AdamW8bit, 1e-3, 0.0);
    let mut optimizer = Optimizer::new(&settings, &parameters.layout, &Device::Cpu).unwrap();
    for step in 1..=1000 {
        let gradients = sparse_gradients(step, elements as u32);
        let gradients = Tensor::from_vec(gradients, elements, &Device::Cpu).unwrap();
        parameters.gradients.slice_set(&gradients, 0, 0).unwrap();
        optimizer.step(&parameters, settings.learning_rate).unwrap();
    }
    let values = parameters.values.to_vec1::<f32>().unwrap();
    let (adamw, bitsandbytes, lost) = (flat("adamw"), flat("bitsandbytes"), flat("lost"));
    let farthest = |values: &[f32]| values.iter().fold(0f32, |most, value| most.max(value.abs()));
    // A rounding apart, a state takes the code beside: after a thousand steps these make half a percent.
    let allowed = 0.02 * farthest(&adamw);
    for (index, bounded) in flat("bounded").into_iter().enumerate() {
        let value = values[index];
        assert!((value - bounded).abs() < allowed, "{index}: {value} {bounded}");
        let theirs = bitsandbytes[index];
        assert!(
            lost[index] != 0.0 || (value - theirs).abs() < allowed,
            "{index}: {value} {theirs}"
        );
    }
    assert!(farthest(&values) < 2.0 * farthest(&adamw));
    // What the bounds are there for.
    assert!(farthest(&bitsandbytes) > 1000.0 * farthest(&adamw));
}

/// Each reference of Schedule-Free AdamW with its settings and steps of warm-up.
fn schedule_free_cases() -> [(&'static str, OptimizerSettings, f64); 2] {
    let plain = settings(OptimizerKind::AdamWScheduleFree, 1e-2, 0.0);
    let warmup = OptimizerSettings {
        weight_decay: 0.1,
        beta1: 0.95,
        beta2: Some(0.99),
        epsilon: 1e-6,
        loraplus_ratio: Some(16.0),
        ..plain.clone()
    };
    [("schedule_free", plain, 0.0), ("schedule_free_warmup", warmup, 5.0)]
}

#[test]
fn schedule_free_averages_are_those_of_the_published_optimizer() {
    let golden = Golden::read();
    for (name, settings, warmup) in schedule_free_cases() {
        let error = golden.schedule_free_error(name, &settings, warmup);
        assert!(error < 2e-6, "{name}: {error:e}");
    }
}

#[test]
fn a_restored_optimizer_goes_on_bit_for_bit() {
    let golden = Golden::read();
    let schedule_free = schedule_free_cases().into_iter();
    for (name, settings, _) in cases()
        .into_iter()
        .chain(schedule_free.map(|(name, settings, _)| (name, settings, 0.0)))
    {
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
    let schedule = |kind, warmup| ScheduleSettings {
        kind,
        warmup,
        ..Default::default()
    };
    let wsd = |warmup, decay, decay_type, lowest| ScheduleSettings {
        decay: Some(decay),
        decay_type,
        min_lr_rate: Some(lowest),
        ..schedule(ScheduleKind::Wsd, warmup)
    };
    let cases = [
        ("constant_warmup3", schedule(ScheduleKind::Constant, 3.0)),
        ("linear_warmup3", schedule(ScheduleKind::Linear, 3.0)),
        ("cosine_warmup3", schedule(ScheduleKind::Cosine, 3.0)),
        ("cosine_warmup0", schedule(ScheduleKind::Cosine, 0.0)),
        // A tenth is the default.
        ("cosine_with_min_lr", schedule(ScheduleKind::CosineWithMinLr, 3.0)),
        ("wsd", wsd(3.0, 4.0, None, 0.0)),
        ("wsd_linear", wsd(0.0, 0.5, Some(DecayType::Linear), 0.0)),
        ("wsd_sqrt", wsd(2.0, 6.0, Some(DecayType::OneMinusSqrt), 0.1)),
    ];
    for (name, schedule) in cases {
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
