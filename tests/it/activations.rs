//! Activations in 8 bits, as a person uses them: what trains, what is searched and measured, and what is refused.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{ActivationQuantization, AdapterSettings, DataSettings, Precision, Recipe};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::{BaseModel, Trainer};
use serde_json::Value;

use crate::calls::{quickstart, run, text};
use crate::golden::{folder as golden, json, tensors, whole_batch};

fn recipe(settings: &str) -> String {
    let quickstart = quickstart();
    format!(
        "model: {quickstart}/base\ndata: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\n\
         batch: {{micro_batch: 4, sequence_length: 128}}\noptimizer: {{learning_rate: 2e-3}}\n\
         training: {{length: {{steps: 12}}, evaluation_rows: 8}}\n{settings}\n"
    )
}

/// The losses of some steps of a fresh adapter on all linear layers.
fn losses(
    base: &Arc<BaseModel>,
    precision: Precision,
    activations: ActivationQuantization,
    batch: &[MicroBatch],
) -> Vec<f64> {
    let mut recipe = Recipe::new("model", DataSettings::default());
    recipe.adapter = Some(AdapterSettings {
        rank: 4,
        ..AdapterSettings::default()
    });
    (recipe.precision, recipe.activation_quantization) = (precision, activations);
    recipe.optimizer.learning_rate = 1e-2;
    let mut trainer = Trainer::new(Arc::clone(base), &recipe, 4).unwrap();
    (0..4).map(|_| trainer.step(batch).unwrap().loss).collect()
}

/// The held-out loss of a training.
fn trained(folder: &Path, name: &str, settings: &str) -> f64 {
    let file = format!("{name}.yaml");
    std::fs::write(folder.join(&file), recipe(settings)).unwrap();
    let output = run(folder, &["train", &file, "--output", name, "--json"]);
    assert!(output.status.success(), "{}", text(&output));
    let last = String::from_utf8(output.stdout).unwrap();
    let end: Value = serde_json::from_str(last.lines().last().unwrap()).unwrap();
    end["held_out_loss"]
        .as_f64()
        .unwrap_or_else(|| panic!("no loss in {end}"))
}

#[test]
fn a_training_learns_as_much_with_activations_in_eight_bits() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for precision in ["int8", "nf4"] {
        let loss = |activations: &str| {
            let settings = format!("precision: {precision}\nactivation_quantization: {activations}");
            trained(folder, &format!("{precision}_{activations}"), &settings)
        };
        let [full, forward, both] = ["none", "int8_forward", "int8_both"].map(loss);
        assert!((forward / full - 1.0).abs() < 0.02, "{precision}: {full} {forward}");
        assert!((both / full - 1.0).abs() < 0.03, "{precision}: {full} {both}");
        // Each is another training.
        assert!(
            full != forward && forward != both,
            "{precision}: {full} {forward} {both}"
        );
    }
    // Nothing of it stays in a merged model, which says so.
    let merged = run(folder, &["merge", "--adapter", "int8_int8_both", "--output", "merged"]);
    let said = text(&merged);
    assert!(
        merged.status.success() && said.contains("its activations are not quantized"),
        "{said}"
    );
    let merged = run(folder, &["merge", "--adapter", "int8_none", "--output", "plain"]);
    assert!(!text(&merged).contains("activation"), "{}", text(&merged));
    // The profile tells its products by the width of both operands.
    let profile = run(
        folder,
        &["profile", "nf4_int8_forward.yaml", "--budget", "1s", "--json"],
    );
    let said = String::from_utf8(profile.stdout).unwrap();
    assert!(
        profile.status.success() && said.contains("w4a8"),
        "{}",
        String::from_utf8_lossy(&profile.stderr)
    );
}

#[test]
fn weights_that_are_not_quantized_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(
        folder.join("recipe.yaml"),
        recipe("precision: bf16\nactivation_quantization: int8_both"),
    )
    .unwrap();
    let output = run(folder, &["train", "recipe.yaml", "--output", "out"]);
    let said = text(&output);
    assert!(!output.status.success(), "{said}");
    assert!(
        said.contains("`activation_quantization: int8_both` needs quantized base weights, and `precision` is bf16"),
        "{said}"
    );
    std::fs::write(folder.join("recipe.yaml"), recipe("activation_quantization: int4")).unwrap();
    let said = text(&run(folder, &["train", "recipe.yaml", "--output", "out"]));
    assert!(said.contains("int4") && said.contains("int8_forward"), "{said}");
}

#[test]
fn a_search_compares_them_and_measures_what_they_lose() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let quickstart = quickstart();
    let space = format!(
        "study: own\nmodel: {quickstart}/base\n\
         data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\nconfirm: none\n\
         trial: {{sequence_length: 128, profile_steps: 1, profile_warmup: 1, training_steps: 2, evaluation: {{rows: 4}}}}\n\
         objectives: [throughput, peak_memory, loss_kept_percent]\nsampler: grid\nbudget: {{trials: 4}}\n\
         space:\n  precision: [bf16, int8]\n  rank: 4\n  micro_batch: 4\n  \
         activation_quantization: {{choices: [none, int8_both], when: {{precision: [int8]}}}}\n"
    );
    std::fs::write(folder.join("space.yaml"), space).unwrap();
    let output = run(folder, &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", text(&output));
    let query = |sql: &str| {
        let output = run(folder, &["query", sql, "--format", "csv"]);
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let kept = query("select value from trial_metric where name = 'loss_kept_percent' order by trial");
    let kept: Vec<f64> = kept.lines().skip(1).map(|row| row.parse().unwrap()).collect();
    assert!(
        kept.len() >= 3 && kept.iter().all(|kept| (80.0..105.0).contains(kept)),
        "{kept:?}"
    );
    let states = query("select state from trial where state <> 'complete'");
    assert_eq!(states.lines().count(), 1, "{states}");
}

/// Attention whose output projection is zero says nothing, so that experts alone have what is rounded.
#[test]
fn the_products_of_experts_take_their_activations_in_eight_bits() {
    use ActivationQuantization::{Int8Both, Int8Forward, None};
    for family in ["ref_qwen3_moe", "ref_gpt_oss"] {
        let (source, folder) = (golden(family).join("model"), tempfile::tempdir().unwrap());
        std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
        let mut weights = tensors(&source.join("model.safetensors"));
        for (name, weight) in &mut weights {
            if name.ends_with("o_proj.weight") {
                *weight = weight.zeros_like().unwrap();
            }
        }
        candle_core::safetensors::save(&weights, folder.path().join("model.safetensors")).unwrap();
        let batch = whole_batch(family);
        for precision in [Precision::Int8, Precision::Nf4] {
            let base = Arc::new(BaseModel::load(folder.path(), precision, &Device::Cpu).unwrap());
            let [full, forward, both] = [None, Int8Forward, Int8Both].map(|one| losses(&base, precision, one, &batch));
            for (full, rounded) in full.iter().zip(forward.iter().chain(&both)) {
                assert!((rounded / full - 1.0).abs() < 0.02, "{family}: {full} {rounded}");
            }
            // The first loss is of the forward pass alone; the last one knows gradients through the experts.
            assert!(
                full[0] != forward[0] && forward[0] == both[0],
                "{family}: {full:?} {forward:?} {both:?}"
            );
            assert_ne!(forward[3], both[3], "{family}");
        }
    }
}

/// Widths that are no multiples of the 64 codes of a block, or of the four of a unit, train as others do.
#[test]
fn every_width_trains() {
    use ActivationQuantization::{Int8Both, Int8Forward, None};
    for [hidden, heads, intermediate] in [[60, 3, 90], [66, 3, 91], [64, 2, 352], [6, 1, 7]] {
        let config = format!(
            r#"{{"model_type": "llama", "hidden_size": {hidden}, "num_hidden_layers": 2, "num_attention_heads": {heads},
            "num_key_value_heads": 1, "intermediate_size": {intermediate}, "vocab_size": 96,
            "tie_word_embeddings": true, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}}"#
        );
        let architecture = Architecture::from_json(Path::new("config.json"), &config).unwrap();
        // 37 tokens: two whole tiles of rows and a part of one.
        let row: Vec<u32> = (0..37).map(|token| token * 7 % 96).collect();
        let labels = row.iter().map(|token| i64::from(*token)).collect();
        let batch = [MicroBatch::from_documents(&[Document { input_ids: row, labels }])];
        for precision in [Precision::Int8, Precision::Nf4, Precision::Nf4Double] {
            let base = Arc::new(BaseModel::random(architecture.clone(), 1, precision, &Device::Cpu).unwrap());
            let [full, forward, both] = [None, Int8Forward, Int8Both].map(|one| losses(&base, precision, one, &batch));
            for (full, rounded) in full.iter().zip(forward.iter().chain(&both)) {
                let off = (rounded / full - 1.0).abs();
                assert!(off < 0.02, "{hidden} {intermediate} {precision:?}: {full} {rounded}");
            }
            assert_ne!(full, forward, "{hidden} {intermediate} {precision:?}");
        }
    }
}

/// The quickstart's model with two of its normed channels 64 times the others, and the weights behind them a 64th: the same function
/// in every bit of BF16 weights.
fn with_outliers(place: &Path) {
    let source = Path::new(&quickstart()).join("base");
    std::fs::create_dir(place).unwrap();
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    ] {
        std::fs::copy(source.join(file), place.join(file)).unwrap();
    }
    let mut weights: HashMap<String, Tensor> = tensors(&source.join("model.safetensors"));
    let width = json(&source.join("config.json"))["hidden_size"].as_u64().unwrap() as usize;
    let gains = |gain: f32| {
        let of_channels = (0..width).map(|channel| if [5, 77].contains(&channel) { gain } else { 1.0 });
        Tensor::from_iter(of_channels, &Device::Cpu).unwrap()
    };
    let (up, down) = (gains(64.0), gains(1.0 / 64.0));
    for (name, weight) in &mut weights {
        let is_norm = name.ends_with("input_layernorm.weight") || name.ends_with("post_attention_layernorm.weight");
        let is_behind = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
            .iter()
            .any(|part| name.contains(part));
        let gains = match (is_norm, is_behind) {
            (true, _) => &up,
            (_, true) => &down,
            _ => continue,
        };
        let scaled = weight.to_dtype(DType::F32).unwrap().broadcast_mul(gains).unwrap();
        *weight = scaled.to_dtype(weight.dtype()).unwrap();
    }
    candle_core::safetensors::save(&weights, place.join("model.safetensors")).unwrap();
}

/// Results of a study with `accuracy_check` for int8 weights without and with activations in 8 bits: loss kept and same
/// likeliest tokens, in percent.
fn accuracy(folder: &Path, name: &str, model: &Path) -> [[f64; 2]; 2] {
    let (quickstart, model) = (quickstart(), model.display());
    let space = format!(
        "study: {name}\nmodel: {model}\n\
         data: {{train: {quickstart}/train.jsonl, held_out: {quickstart}/held_out.jsonl}}\nconfirm: none\n\
         trial: {{sequence_length: 128, profile_steps: 1, profile_warmup: 1, training_steps: 8, evaluation: {{rows: 16}}}}\n\
         objectives: [loss_kept_percent, top1_agreement_percent]\nsampler: grid\nbudget: {{trials: 2}}\n\
         space:\n  precision: int8\n  rank: 8\n  micro_batch: 4\n  learning_rate: 1e-3\n  \
         activation_quantization: [none, int8_both]\n"
    );
    std::fs::write(folder.join(format!("{name}.yaml")), space).unwrap();
    let output = run(folder, &["search", &format!("{name}.yaml")]);
    assert!(output.status.success(), "{}", text(&output));
    ["none", "int8_both"].map(|activations| {
        ["loss_kept_percent", "top1_agreement_percent"].map(|metric| {
            let sql = format!(
                "select m.value from trial_metric m join trial_param p on p.study = m.study and p.trial = m.trial \
                 where m.study = '{name}' and m.name = '{metric}' and p.name = 'activation_quantization' \
                 and p.value = '{activations}'"
            );
            let output = run(folder, &["query", &sql, "--format", "csv"]);
            let said = String::from_utf8(output.stdout).unwrap();
            let value = said.lines().nth(1).and_then(|row| row.parse().ok());
            value.unwrap_or_else(|| panic!("{metric} of {activations}: {said}"))
        })
    })
}

/// The fp32 function is the same, and so is what a study without the setting says; with it a study says what outliers cost.
#[test]
fn a_study_says_what_outliers_cost() {
    let folder = tempfile::tempdir().unwrap();
    let outliers = folder.path().join("outliers");
    with_outliers(&outliers);
    let plain = accuracy(folder.path(), "plain", &Path::new(&quickstart()).join("base"));
    let outliers = accuracy(folder.path(), "outliers", &outliers);
    let lost = |of: [[f64; 2]; 2]| of.map(|[_, agreement]| 100.0 - agreement);
    let (plain, outliers) = (lost(plain), lost(outliers));
    assert!(plain[1] < 5.0, "{plain:?}");
    // Weights alone lose little more, activations several times as much.
    assert!(
        outliers[1] > 2.0 * plain[1] && outliers[1] > 2.0 * outliers[0],
        "{plain:?} {outliers:?}"
    );
}
