//! The engine against PEFT: kinds of adapter, optimizers and schedules, on the toy Llama.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Device;
use peft_tune_core::recipe::{AdapterInit, AdapterSettings, OptimizerKind, Precision, Recipe, ScheduleKind};
use peft_tune_engine::{BaseModel, Trainer};

use crate::golden::{
    Sample, assert_close, assert_gradients, base, folder, json, losses, numbers, recipe, tensors, whole_batch,
};

const F32: f64 = 1e-5;

fn expected(variant: &str) -> Vec<f64> {
    let file = match variant.split('_').next() {
        Some("bias") => "bias.json",
        Some("schedule") => "schedule_free.json",
        _ => "variants.json",
    };
    numbers(&json(&folder("ref_variants").join(file))[variant]["losses"])
}

fn assert_variant(variant: &str, base: Arc<BaseModel>) {
    assert_variant_on("ref_llama", variant, base);
}

fn assert_variant_on(source: &str, variant: &str, base: Arc<BaseModel>) {
    let mut recipe = recipe(&folder("ref_variants").join(variant));
    // How the adapter began does not matter for one that is loaded.
    recipe.adapter.as_mut().unwrap().init = AdapterInit::Kaiming;
    let batch = whole_batch(source);
    let mut trainer = Trainer::new(Arc::clone(&base), &recipe, 20).unwrap();
    trainer.step(&batch).unwrap();
    let gradients = folder("ref_variants").join(format!("{variant}.grads.safetensors"));
    assert_gradients(trainer.parameters(), &gradients, F32);
    let mut trainer = Trainer::new(base, &recipe, 20).unwrap();
    assert_close(&losses(&mut trainer, &batch, 20), &expected(variant), F32, variant);
}

#[test]
fn kinds_of_adapter_match() {
    for variant in [
        "attn_only",
        "rslora",
        "rank_pattern",
        "layers_to_transform",
        "lora_bias",
        "dora",
        "rslora_dora",
        "modules_to_save_norm",
    ] {
        assert_variant(variant, base("ref_llama", Precision::Fp32));
    }
}

#[test]
fn biases_of_the_base_model_train_as_pefts() {
    for variant in ["bias_all", "bias_lora_only"] {
        assert_variant_on("ref_qwen2", variant, base("ref_qwen2", Precision::Fp32));
    }
}

#[test]
fn an_adapter_of_principal_components_matches_on_its_residual_model() {
    let model = base("ref_llama", Precision::Fp32);
    let mut weights: BTreeMap<String, _> = model
        .architecture()
        .tensors()
        .into_iter()
        .map(|tensor| (tensor.name.clone(), model.tensor(&tensor.name).unwrap()))
        .collect();
    let pissa = folder("ref_variants").join("pissa");
    let adapter = tensors(&pissa.join("adapter_model.safetensors"));
    for (name, expected) in Sample::read(&pissa.join("residual_base.safetensors")) {
        let module = name.strip_suffix(".base_layer.weight").unwrap();
        let [lora_a, lora_b] = ["lora_A", "lora_B"].map(|part| &adapter[&format!("{module}.{part}.weight")]);
        let name = format!("{}.weight", module.strip_prefix("base_model.model.").unwrap());
        // The scaling is 16 / 8.
        let components = (lora_b.matmul(lora_a).unwrap() * 2.0).unwrap();
        let residual = (&weights[&name] - components).unwrap();
        let error = expected.error_of(&residual);
        assert!(error < 1e-6, "{name}: {error:.1e}");
        weights.insert(name, residual);
    }
    let architecture = model.architecture().clone();
    let residual = BaseModel::from_tensors(architecture, weights, Precision::Fp32, &Device::Cpu).unwrap();
    assert_variant("pissa", Arc::new(residual));
}

/// The toy Llama quantized to `precision`, and the same values computed in float32.
fn quantized(precision: Precision) -> (Arc<BaseModel>, Arc<BaseModel>) {
    let codes = base("ref_llama", precision);
    let architecture = codes.architecture().clone();
    let dense = base("ref_llama", Precision::Fp32);
    let tensors = architecture.tensors().into_iter().map(|tensor| {
        let linear = tensor.name.contains("_proj");
        let source = if linear { &codes } else { &dense };
        let value = source.tensor(&tensor.name).unwrap();
        (tensor.name, value)
    });
    let tensors = tensors.collect();
    let widened = BaseModel::from_tensors(architecture, tensors, Precision::Fp32, &Device::Cpu).unwrap();
    (codes, Arc::new(widened))
}

#[test]
fn qlora_matches_on_the_same_4_bit_values() {
    let expected = json(&folder("ref_variants").join("qlora.json"));
    for (precision, variant) in [
        (Precision::Nf4, "qlora_nf4_dq0_fp32_compute"),
        (Precision::Nf4Double, "qlora_nf4_dq1_fp32_compute"),
    ] {
        let expected = numbers(&expected[variant]["losses"]);
        let recipe = recipe(&folder("ref_llama/adapter_init"));
        let batch = whole_batch("ref_llama");
        let (codes, widened) = quantized(precision);
        let mut exact = Trainer::new(widened, &recipe, 20).unwrap();
        assert_close(&losses(&mut exact, &batch, 20), &expected, F32, variant);
        let mut rounded = Trainer::new(codes, &recipe, 20).unwrap();
        assert_close(&losses(&mut rounded, &batch, 20), &expected, 2e-3, "computed in bf16");
    }
}

#[test]
fn int8_and_fp16_stay_near_float32() {
    let recipe = recipe(&folder("ref_llama/adapter_init"));
    let expected = numbers(&json(&folder("ref_llama/ref.json"))["losses"]);
    for (precision, tolerance) in [(Precision::Int8, 5e-3), (Precision::Fp16, 5e-4)] {
        let mut trainer = Trainer::new(base("ref_llama", precision), &recipe, 20).unwrap();
        let actual = losses(&mut trainer, &whole_batch("ref_llama"), 20);
        assert_close(&actual, &expected, tolerance, &format!("{precision:?} loss"));
    }
}

#[test]
fn quantized_weights_train_as_the_values_that_they_stand_for() {
    let recipe = recipe(&folder("ref_llama/adapter_init"));
    let batch = whole_batch("ref_llama");
    for precision in [Precision::Nf4Double, Precision::Int8] {
        let (codes, widened) = quantized(precision);
        let losses_of = |model| losses(&mut Trainer::new(model, &recipe, 5).unwrap(), &batch, 5);
        assert_close(&losses_of(codes), &losses_of(widened), 2e-3, &format!("{precision:?}"));
    }
}

#[test]
fn quantized_weights_take_the_bytes_that_they_should() {
    let bytes = |precision| base("ref_llama", precision).bytes() as u64;
    let counts = base("ref_llama", Precision::Fp32).architecture().parameter_count();
    let rest = 2 * (counts.total() - counts.linear);
    assert_eq!(bytes(Precision::Bf16), rest + 2 * counts.linear);
    assert_eq!(bytes(Precision::Nf4), rest + counts.linear / 2 + counts.linear / 64 * 4);
}

#[test]
fn a_fresh_adapter_of_principal_components_trains_as_pefts() {
    let mut recipe = recipe(&folder("ref_variants/pissa"));
    let adapter = recipe.adapter.as_mut().unwrap();
    assert_eq!(adapter.init, AdapterInit::Pissa);
    let saved = adapter.adapter_init.take();
    let batch = whole_batch("ref_llama");
    let mut fresh = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 20).unwrap();
    assert_close(&losses(&mut fresh, &batch, 20), &expected("pissa"), F32, "fresh");
    recipe.adapter.as_mut().unwrap().adapter_init = saved;
    let mut loaded = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 20).unwrap();
    assert_close(&losses(&mut loaded, &batch, 20), &expected("pissa"), F32, "loaded");
}

/// A recipe whose scaling is another than that of the adapter that it starts from.
fn at_another_scaling(change: impl FnOnce(&mut AdapterSettings)) -> Recipe {
    let mut recipe = recipe(&folder("ref_llama/adapter_init"));
    change(recipe.adapter.as_mut().unwrap());
    recipe
}

#[test]
fn an_adapter_to_start_from_is_the_same_at_another_scaling() {
    let batch = whole_batch("ref_llama");
    let loss = numbers(&json(&folder("ref_llama/ref.json"))["losses_f64"])[0];
    type Change = fn(&mut AdapterSettings);
    let changes: [Change; 4] = [
        |adapter| adapter.alpha = 64.0,
        |adapter| adapter.alpha = 3.0,
        |adapter| adapter.rslora = true,
        |adapter| adapter.alpha_pattern = BTreeMap::from([("q_proj".to_owned(), 3.0)]),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let recipe = at_another_scaling(change);
        let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 1).unwrap();
        assert_close(
            &[trainer.evaluate(&batch).unwrap().loss],
            &[loss],
            F32,
            &format!("change {index}"),
        );
        let settings = &trainer.adapter_plan().unwrap().settings;
        assert_eq!(settings.alpha, recipe.adapter.unwrap().alpha);
    }
    let variants: [(&str, Change); 4] = [
        ("lora_bias", |adapter| adapter.alpha = 5.0),
        ("rslora_dora", |adapter| adapter.rslora = false),
        ("rank_pattern", |adapter| adapter.alpha_pattern.clear()),
        ("pissa", |adapter| adapter.alpha *= 4.0),
    ];
    for (variant, change) in variants {
        let mut recipe = recipe(&folder("ref_variants").join(variant));
        change(recipe.adapter.as_mut().unwrap());
        let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 1).unwrap();
        let actual = trainer.evaluate(&batch).unwrap().loss;
        assert_close(&[actual], &expected(variant)[..1], F32, variant);
    }
    let none = at_another_scaling(|adapter| adapter.alpha = 0.0);
    let error = Trainer::new(base("ref_llama", Precision::Fp32), &none, 1).err();
    let message = error.unwrap().to_string();
    assert!(
        message.contains("alpha 0 for `model.layers.0.") && message.contains("ref_llama/adapter_init"),
        "{message}"
    );
}

fn assert_training(variant: &str, change: impl FnOnce(&mut Recipe)) {
    assert_training_within(F32, variant, change);
}

fn assert_training_within(tolerance: f64, variant: &str, change: impl FnOnce(&mut Recipe)) {
    let mut recipe = recipe(&folder("ref_llama").join("adapter_init"));
    change(&mut recipe);
    let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 20).unwrap();
    let actual = losses(&mut trainer, &whole_batch("ref_llama"), 20);
    assert_close(&actual, &expected(variant), tolerance, variant);
}

#[test]
fn optimizers_match() {
    assert_training("adamw_wd0.1", |recipe| recipe.optimizer.weight_decay = 0.1);
    assert_training("sgd_lr0.1", |recipe| {
        recipe.optimizer.kind = OptimizerKind::Sgd;
        recipe.optimizer.learning_rate = 0.1;
        recipe.optimizer.momentum = 0.0;
    });
    assert_training("sgd_momentum0.9_lr0.1", |recipe| {
        recipe.optimizer.kind = OptimizerKind::Sgd;
        recipe.optimizer.learning_rate = 0.1;
    });
    // Its learning rate of 0.016 carries each step's rounding into the next ones, sixteen times as far as the others'.
    assert_training_within(5e-5, "loraplus_ratio16_adamw", |recipe| {
        recipe.optimizer.loraplus_ratio = Some(16.0);
    });
}

#[test]
fn schedule_free_trains_at_one_point_and_is_evaluated_at_another() {
    assert_training("schedule_free_lr2e-3", |recipe| {
        recipe.optimizer.kind = OptimizerKind::AdamWScheduleFree;
        recipe.optimizer.learning_rate = 2e-3;
        // No schedule is read.
        recipe.schedule.kind = ScheduleKind::Cosine;
    });
    assert_training("schedule_free_lr2e-3_warmup4_wd0.1", |recipe| {
        recipe.optimizer.kind = OptimizerKind::AdamWScheduleFree;
        recipe.optimizer.learning_rate = 2e-3;
        recipe.optimizer.weight_decay = 0.1;
        (recipe.optimizer.beta1, recipe.optimizer.beta2) = (0.95, Some(0.99));
        recipe.schedule.warmup = 4.0;
    });
}

#[test]
fn schedules_and_clipping_match() {
    assert_training("adamw_cosine_warmup4_of20_lr2e-3_clip0.5", |recipe| {
        recipe.optimizer.learning_rate = 2e-3;
        recipe.optimizer.max_grad_norm = Some(0.5);
        recipe.schedule.kind = ScheduleKind::Cosine;
        recipe.schedule.warmup = 4.0;
    });
    assert_training("adamw_linear_warmup4_of20_lr2e-3", |recipe| {
        recipe.optimizer.learning_rate = 2e-3;
        recipe.schedule.kind = ScheduleKind::Linear;
        recipe.schedule.warmup = 4.0;
    });
}
