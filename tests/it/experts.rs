//! Mixtures of experts beyond the checks that all families share.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use peft_tune_core::recipe::{AdapterSettings, Checkpointing, Precision, Recipe, TargetModules, TargetPreset};
use peft_tune_engine::adapter::{SavedAdapter, write};
use peft_tune_engine::data::MicroBatch;
use peft_tune_engine::{
    BaseModel, Control, GenerationSettings, Generator, ModelDirectory, TextEnd, Trainer, WrittenDtype,
};
use serde_json::json;
use tempfile::TempDir;

use crate::golden::{
    Sample, assert_close, base, documents, folder, json, losses, numbers, recipe, relative_error, tensors, whole_batch,
};

/// Relative tolerance in float32, that of `parity`.
const F32: f64 = 1e-5;

const FAMILIES: [&str; 11] = [
    "ref_qwen3_moe",
    "ref_qwen2_moe",
    "ref_glm4_moe",
    "ref_olmoe",
    "ref_mixtral",
    "ref_deepseek_v3",
    "ref_deepseek_v2",
    "ref_glm4_moe_lite",
    "ref_gpt_oss",
    "ref_llama4",
    "ref_gemma4_moe",
];

/// A family's model folder with another configuration or other weights.
fn changed(
    family: &str,
    config: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
    weights: impl FnOnce(&mut HashMap<String, Tensor>),
) -> TempDir {
    let (directory, source) = (TempDir::new().unwrap(), folder(family).join("model"));
    let mut keys = json(&source.join("config.json")).as_object().unwrap().clone();
    config(&mut keys);
    std::fs::write(
        directory.path().join("config.json"),
        serde_json::Value::from(keys).to_string(),
    )
    .unwrap();
    let mut tensors = tensors(&source.join("model.safetensors"));
    weights(&mut tensors);
    candle_core::safetensors::save(&tensors, directory.path().join("model.safetensors")).unwrap();
    directory
}

fn load(directory: &Path) -> Result<BaseModel, String> {
    BaseModel::load(directory, Precision::Fp32, &Device::Cpu).map_err(|error| error.to_string())
}

/// The adapter of a reference with other settings and without some of its tensors.
fn adapter_without(family: &str, part: &str, settings: impl FnOnce(&mut serde_json::Value)) -> TempDir {
    let (directory, source) = (TempDir::new().unwrap(), folder(family).join("adapter_init"));
    let mut tensors = tensors(&source.join("adapter_model.safetensors"));
    tensors.retain(|name, _| !name.contains(part));
    candle_core::safetensors::save(&tensors, directory.path().join("adapter_model.safetensors")).unwrap();
    let mut config = json(&source.join("adapter_config.json"));
    settings(&mut config);
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).unwrap();
    directory
}

fn without_experts(parameters: &serde_json::Value) -> serde_json::Value {
    let rest = parameters.as_array().unwrap().iter();
    let rest: Vec<_> = rest
        .filter(|name| !name.as_str().unwrap().starts_with("experts."))
        .cloned()
        .collect();
    if rest.is_empty() { json!(null) } else { json!(rest) }
}

#[test]
fn losses_without_adapters_on_experts_match() {
    for family in FAMILIES {
        let adapter = adapter_without(family, ".experts.", |config| {
            config["target_parameters"] = without_experts(&config["target_parameters"]);
        });
        let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe(adapter.path()), 20).unwrap();
        let expected = json(&folder(family).join("ref.json"));
        let actual = losses(&mut trainer, &whole_batch(family), 20);
        assert_close(&actual, &numbers(&expected["losses_without_experts"]), F32, family);
    }
}

#[test]
fn adapters_of_single_experts_are_joined() {
    for family in ["ref_qwen3_moe", "ref_mixtral"] {
        check_joined(family);
    }
}

fn check_joined(family: &str) {
    let (expected, batch) = (json(&folder(family).join("ref.json")), whole_batch(family));
    let adapter = folder(family).join("adapter_v4");
    let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe(&adapter), 1).unwrap();
    let loss = trainer.evaluate(&batch).unwrap().loss;
    assert_close(&[loss], &[expected["loss_adapter_v4"].as_f64().unwrap()], F32, "joined");
    // The same in plain weights.
    let merged = trainer.merged_tensors().unwrap();
    let merged = BaseModel::from_tensors(
        base(family, Precision::Fp32).architecture().clone(),
        merged,
        Precision::Fp32,
        &Device::Cpu,
    );
    let mut plain = recipe(&adapter);
    plain.adapter = Some(AdapterSettings {
        target_modules: TargetModules::Preset(TargetPreset::Attention),
        ..AdapterSettings::default()
    });
    let mut plain = Trainer::new(Arc::new(merged.unwrap()), &plain, 1).unwrap();
    let loss = plain.evaluate(&batch).unwrap().loss;
    assert_close(
        &[loss],
        &[expected["loss_adapter_v4_merged"].as_f64().unwrap()],
        F32,
        "merged",
    );
}

/// The experts' tensors in the layout that transformers 5 has in memory.
fn stack_experts(weights: &mut HashMap<String, Tensor>, block: &str, [gate, up, down]: [&str; 3]) {
    for layer in 0..2 {
        let place = format!("model.layers.{layer}.{block}.experts");
        let mut of = |part: &str| -> Vec<Tensor> {
            let names = (0..8).map(|expert| format!("{place}.{expert}.{part}.weight"));
            names.map(|name| weights.remove(&name).unwrap()).collect()
        };
        let (gate, up, down) = (of(gate), of(up), of(down));
        let both = gate.iter().zip(&up);
        let both: Vec<Tensor> = both.map(|(gate, up)| Tensor::cat(&[gate, up], 0).unwrap()).collect();
        let modules = format!("model.layers.{layer}.mlp.experts");
        weights.insert(format!("{modules}.gate_up_proj"), Tensor::stack(&both, 0).unwrap());
        weights.insert(format!("{modules}.down_proj"), Tensor::stack(&down, 0).unwrap());
    }
}

#[test]
fn experts_in_the_layout_of_transformers_are_the_same_model() {
    for (family, block, parts) in [
        ("ref_qwen3_moe", "mlp", ["gate_proj", "up_proj", "down_proj"]),
        ("ref_mixtral", "block_sparse_moe", ["w1", "w3", "w2"]),
    ] {
        let fused = changed(family, |_| (), |weights| stack_experts(weights, block, parts));
        let loss = |model: Arc<BaseModel>| {
            let recipe = recipe(&folder(family).join("adapter_init"));
            let mut trainer = Trainer::new(model, &recipe, 20).unwrap();
            (
                losses(&mut trainer, &whole_batch(family), 3),
                trainer.merged_tensors().unwrap(),
            )
        };
        let (expected, _) = loss(base(family, Precision::Fp32));
        let (found, merged) = loss(Arc::new(load(fused.path()).unwrap()));
        assert_eq!(found, expected, "{family}");
        // What was read stacked is merged stacked.
        assert!(
            merged.contains_key("model.layers.0.mlp.experts.gate_up_proj"),
            "{family}"
        );
    }
}

/// Puts files of another model into a folder: weights in one file, a shard and a file of a tokenizer.
fn leave_older_model(folder: &Path) {
    let other = self::folder("ref_llama").join("model/model.safetensors");
    for name in ["model.safetensors", "model-00001-of-00099.safetensors"] {
        std::fs::copy(&other, folder.join(name)).unwrap();
    }
    std::fs::write(folder.join("added_tokens.json"), "{}").unwrap();
}

#[test]
fn a_merged_mixture_has_the_names_of_its_files_and_nothing_of_an_older_model() {
    let family = "ref_mixtral";
    let (source, batch) = (folder(family).join("model"), whole_batch(family));
    let mut trainer = Trainer::new(
        base(family, Precision::Fp32),
        &recipe(&folder(family).join("adapter_v4")),
        1,
    )
    .unwrap();
    let expected = trainer.evaluate(&batch).unwrap().loss;
    let output = TempDir::new().unwrap();
    let directory = ModelDirectory {
        source: &source,
        dtype: WrittenDtype::AsStored,
        shard_bytes: 100_000,
        quantization: None,
    };
    leave_older_model(output.path());
    directory.write(output.path(), &trainer.merged().unwrap()).unwrap();
    for older in [
        "model.safetensors",
        "model-00001-of-00099.safetensors",
        "added_tokens.json",
    ] {
        assert!(!output.path().join(older).exists(), "{older}");
    }
    let index = json(&output.path().join("model.safetensors.index.json"));
    let written = index["weight_map"].as_object().unwrap().keys().cloned();
    let published = tensors(&source.join("model.safetensors")).into_keys();
    let is_expert = |name: &String| name.contains(".block_sparse_moe.experts.7.w3.");
    let (written, published): (BTreeSet<String>, BTreeSet<String>) = (written.collect(), published.collect());
    assert!(written == published && written.iter().any(is_expert), "{written:?}");
    let mut plain = recipe(&folder(family).join("adapter_init"));
    plain.adapter = Some(AdapterSettings {
        target_modules: TargetModules::Preset(TargetPreset::Attention),
        ..AdapterSettings::default()
    });
    let mut again = Trainer::new(Arc::new(load(output.path()).unwrap()), &plain, 1).unwrap();
    assert_close(&[again.evaluate(&batch).unwrap().loss], &[expected], F32, family);
}

#[test]
fn tensors_of_a_shared_expert_stay_in_a_joined_adapter() {
    // Where PEFT drops them: as it would be written by transformers 4 for one expert layer of GLM.
    let family = "ref_glm4_moe";
    let (directory, source) = (TempDir::new().unwrap(), folder(family).join("adapter_init"));
    let mut tensors = tensors(&source.join("adapter_model.safetensors"));
    tensors.retain(|name, _| name.contains("shared_experts"));
    let kept = tensors.len();
    let head = "base_model.model.model.layers.1.mlp.experts";
    for expert in 0..8 {
        for (part, inputs, outputs) in [("gate_proj", 64, 24), ("up_proj", 64, 24), ("down_proj", 24, 64)] {
            let values = |rows: usize, columns: usize| {
                let value = |index: usize| ((index * 7 + expert * 3) % 11) as f32 / 40.0 - 0.1;
                Tensor::from_vec((0..rows * columns).map(value).collect(), (rows, columns), &Device::Cpu).unwrap()
            };
            tensors.insert(format!("{head}.{expert}.{part}.lora_A.weight"), values(4, inputs));
            tensors.insert(format!("{head}.{expert}.{part}.lora_B.weight"), values(outputs, 4));
        }
    }
    candle_core::safetensors::save(&tensors, directory.path().join("adapter_model.safetensors")).unwrap();
    let mut config = json(&source.join("adapter_config.json"));
    config["target_parameters"] = json!(null);
    config["target_modules"] = json!(["gate_proj", "up_proj", "down_proj"]);
    config["lora_dropout"] = json!(0.05);
    std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).unwrap();
    let mut generator = Generator::new(base(family, Precision::Fp32), Some(directory.path())).unwrap();
    let (with, prompt) = (SavedAdapter::read(directory.path()).unwrap(), [5, 6, 7, 8]);
    assert_eq!(
        with.names().filter(|name| name.contains("shared_experts")).count(),
        kept
    );
    // Folding it in by hand gives the same logits: nothing was dropped.
    let logits = generator.next_logits(&prompt).unwrap();
    let plain = changed(
        family,
        |_| (),
        |weights| {
            let modules: Vec<String> = tensors
                .keys()
                .filter_map(|name| name.strip_suffix(".lora_A.weight"))
                .map(str::to_owned)
                .collect();
            for module in modules {
                let of = |factor: &str| tensors[&format!("{module}.lora_{factor}.weight")].clone();
                let name = format!("{}.weight", module.strip_prefix("base_model.model.").unwrap());
                let update = (of("B").matmul(&of("A")).unwrap() * 2.0).unwrap();
                weights.insert(name.clone(), (&weights[&name] + update).unwrap());
            }
        },
    );
    let expected = Generator::new(load(plain.path()).unwrap(), None)
        .unwrap()
        .next_logits(&prompt)
        .unwrap();
    let tensor = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap();
    let error = relative_error(&tensor(&logits), &tensor(&expected));
    assert!(error < 1e-5, "{error:.1e}");
}

#[test]
fn what_is_written_is_what_peft_reads_and_what_is_read_again() {
    for (family, down) in [("ref_qwen3_moe", "down_proj"), ("ref_mixtral", "w2")] {
        check_written(family, down);
    }
}

/// `down` is the name of modules that stands for the projection down of all experts.
fn check_written(family: &str, down: &str) {
    for (targets, parameters, ranks) in [
        (
            TargetModules::Preset(TargetPreset::AllLinear),
            json!(["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
            json!({"mlp.experts.gate_up_proj": 8}),
        ),
        (
            TargetModules::Preset(TargetPreset::Mlp),
            json!(["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
            json!({"mlp.experts.gate_up_proj": 8}),
        ),
        (
            TargetModules::Named(vec!["q_proj".into(), down.into()]),
            json!(["mlp.experts.down_proj"]),
            json!({}),
        ),
        (TargetModules::Preset(TargetPreset::Attention), json!(null), json!({})),
    ] {
        let mut recipe = recipe(&folder(family).join("adapter_init"));
        recipe.adapter = Some(AdapterSettings {
            rank: 4,
            alpha: 8.0,
            target_modules: targets.clone(),
            ..AdapterSettings::default()
        });
        let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe, 4).unwrap();
        let before = losses(&mut trainer, &whole_batch(family), 2);
        let directory = TempDir::new().unwrap();
        write(
            directory.path(),
            trainer.adapter_plan().unwrap(),
            None,
            trainer.parameters(),
        )
        .unwrap();
        let config = json(&directory.path().join("adapter_config.json"));
        assert_eq!(
            (&config["target_parameters"], &config["rank_pattern"]),
            (&parameters, &ranks),
            "{family} {targets:?}"
        );
        let again = self::recipe(directory.path());
        let mut again = Trainer::new(base(family, Precision::Fp32), &again, 4).unwrap();
        let loss = again.evaluate(&whole_batch(family)).unwrap().loss;
        assert_eq!(loss, before[2], "{family} {targets:?}");
    }
}

#[test]
fn adapted_shapes_are_those_of_peft() {
    let expected = json(&folder("families").join("moe_targets.json"));
    for family in FAMILIES {
        let of_family = &expected[family.strip_prefix("ref_").unwrap()];
        let named = |names: &[&str]| TargetModules::Named(names.iter().map(|name| (*name).to_owned()).collect());
        let seven = [
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ];
        let of_mixtral = ["q_proj", "k_proj", "v_proj", "o_proj", "w1", "w2", "w3"];
        let mut cases = vec![
            ("the seven names (q,k,v,o,gate,up,down)_proj", named(&seven), vec![]),
            ("all-linear", TargetModules::Preset(TargetPreset::AllLinear), vec![]),
            (
                "target_parameters experts.{gate_up,down}_proj",
                named(&[]),
                vec!["experts.gate_up_proj".to_owned(), "experts.down_proj".to_owned()],
            ),
        ];
        if family == "ref_mixtral" {
            cases.push(("q, k, v, o and w1, w2, w3", named(&of_mixtral), vec![]));
        }
        for (key, target_modules, target_parameters) in cases {
            let settings = AdapterSettings {
                rank: 4,
                alpha: 8.0,
                target_modules,
                target_parameters,
                ..AdapterSettings::default()
            };
            let architecture = base(family, Precision::Fp32).architecture().clone();
            let plan = peft_tune_core::plan::ModelPlan::adapted(&architecture, &settings).unwrap();
            let mut found = serde_json::Map::new();
            for (linear, slots) in plan.adapted_linears() {
                let shape = |slot: usize| format!("{:?}", plan.layout.slots()[slot].shape);
                let name = linear.linear.name.splitn(4, '.').nth(3).unwrap();
                // PEFT's list has the parameter's name where it is one.
                let name = if linear.by_parameter {
                    linear.linear.parameter_name()
                } else {
                    linear.linear.name.clone()
                }[linear.linear.name.len() - name.len()..]
                    .to_owned();
                let text = format!(
                    "rank {}, A {}, B {}",
                    linear.rank,
                    shape(slots.lora_a),
                    shape(slots.lora_b)
                );
                found.insert(name, text.into());
            }
            assert_eq!(&serde_json::Value::from(found), &of_family[key], "{family} {key}");
        }
    }
}

#[test]
fn checkpointing_changes_no_bit_of_a_mixture() {
    for family in FAMILIES {
        let run = |checkpointing| {
            let mut recipe = recipe(&folder(family).join("adapter_init"));
            recipe.gradient_checkpointing = checkpointing;
            let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe, 20).unwrap();
            let losses = losses(&mut trainer, &whole_batch(family), 3);
            (losses, trainer.parameters().values.to_vec1::<f32>().unwrap())
        };
        let expected = run(Checkpointing::None);
        for checkpointing in [Checkpointing::EVERY_SECOND, Checkpointing::Full, Checkpointing::Offload] {
            assert!(run(checkpointing) == expected, "{family} {checkpointing:?}");
        }
    }
}

#[test]
fn quantized_experts_stay_near_the_exact_ones() {
    for family in FAMILIES {
        let loss = |precision| {
            let recipe = {
                let mut recipe = recipe(&folder(family).join("adapter_init"));
                recipe.precision = precision;
                recipe
            };
            let mut trainer = Trainer::new(base(family, precision), &recipe, 5).unwrap();
            losses(&mut trainer, &whole_batch(family), 5)
        };
        let exact = loss(Precision::Fp32);
        for (precision, tolerance) in [
            (Precision::Int8, 0.02),
            (Precision::Nf4, 0.1),
            (Precision::Nf4Double, 0.1),
        ] {
            let quantized = loss(precision);
            assert!(quantized[5] < quantized[0], "{family} {precision:?} does not learn");
            assert!(
                (quantized[0] / exact[0] - 1.0).abs() < tolerance,
                "{family} {precision:?}: {quantized:?}"
            );
            assert_ne!(quantized[0], exact[0], "{family} {precision:?} is not quantized");
        }
    }
}

#[test]
fn cached_tokens_are_those_of_a_whole_pass() {
    for family in FAMILIES {
        let expected = &Sample::read(&folder(family).join("logits.safetensors"))["logits"];
        let adapter = folder(family).join("adapter_init");
        let mut generator = Generator::new(base(family, Precision::Fp32), Some(&adapter)).unwrap();
        let rows = documents(family, "input_ids", "input_ids");
        let mut positions = 0;
        for row in &rows {
            let actual = generator.next_logits(&row.input_ids).unwrap();
            positions += row.input_ids.len();
            let error = expected.error_of_part(&actual, (positions - 1) * actual.len());
            assert!(error < F32, "{family}: {error:.1e}");
        }
        let settings = GenerationSettings {
            max_tokens: 6,
            temperature: 0.0,
            seed: 0,
            stop_ids: Vec::new(),
        };
        // Tokens that follow go beyond a chunk of llama4.
        let prompt = &rows[0].input_ids[..13];
        let text = generator
            .generate(prompt, &settings, &mut |_| Control::Continue)
            .unwrap();
        assert_eq!(text.end, TextEnd::MaxTokens);
        let mut whole = prompt.to_vec();
        for token in text.tokens {
            let logits = generator.next_logits(&whole).unwrap();
            let best = logits.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1));
            assert_eq!(best.unwrap().0 as u32, token, "{family}");
            whole.push(token);
        }
    }
}

#[test]
fn a_whole_mixture_trains() {
    for family in &FAMILIES[..7] {
        let run = |checkpointing| {
            let mut recipe = recipe(&folder(family).join("adapter_init"));
            recipe.adapter = None;
            recipe.gradient_checkpointing = checkpointing;
            let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe, 5).unwrap();
            losses(&mut trainer, &whole_batch(family), 5)
        };
        let losses = run(Checkpointing::None);
        assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{family}: {losses:?}");
        assert_eq!(losses, run(Checkpointing::Full), "{family}");
    }
}

#[test]
fn gradients_of_all_weights_match_differences_of_the_loss() {
    let family = "ref_qwen2_moe";
    let mut recipe = recipe(&folder(family).join("adapter_init"));
    recipe.adapter = None;
    let names = [
        "layers.1.mlp.gate.weight",
        "layers.0.mlp.experts.3.gate_proj.weight",
        "layers.0.mlp.experts.3.down_proj.weight",
        "layers.1.mlp.shared_expert_gate.weight",
        "layers.1.mlp.shared_expert.up_proj.weight",
    ];
    check_slopes(family, &recipe, 1e-2, &names);
}

/// Gradients of the parameters that end in these names against differences of the loss over steps of this length.
fn check_slopes(family: &str, recipe: &Recipe, length: f32, names: &[&str]) {
    let mut trainer = Trainer::new(base(family, Precision::Fp32), recipe, 5).unwrap();
    let batch = whole_batch(family);
    trainer.step(&batch).unwrap();
    let slots = trainer.parameters().layout.slots().to_vec();
    // The gradient is that of the values before the step: a fresh trainer has them.
    let gradients: Vec<Tensor> = (0..slots.len())
        .map(|slot| trainer.parameters().gradient(slot).unwrap().copy().unwrap())
        .collect();
    let mut fresh = Trainer::new(base(family, Precision::Fp32), recipe, 5).unwrap();
    for name in names {
        let index = slots.iter().position(|slot| slot.name.ends_with(name)).unwrap();
        let value = fresh.parameters().value(index).unwrap();
        let start = value.copy().unwrap();
        // Along the gradient itself, where the difference is largest.
        let norm = gradients[index]
            .sqr()
            .unwrap()
            .sum_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap()
            .sqrt();
        let mut loss = |step: f32| {
            let moved = (&start + (&gradients[index] * f64::from(step / norm)).unwrap()).unwrap();
            fresh
                .parameters()
                .value(index)
                .unwrap()
                .slice_set(&moved, 0, 0)
                .unwrap();
            fresh.evaluate(&batch).unwrap().loss
        };
        let slope = (loss(length) - loss(-length)) / f64::from(2.0 * length);
        loss(0.0);
        assert!(
            (slope / f64::from(norm) - 1.0).abs() < 0.02,
            "{name}: {slope} and {norm}"
        );
    }
}

#[test]
fn a_router_without_numbers_ends_as_a_loss_without_one() {
    let directory = changed(
        "ref_qwen3_moe",
        |_| (),
        |weights| {
            let name = "model.layers.0.input_layernorm.weight";
            weights.insert(name.to_owned(), (&weights[name] * 1e38).unwrap());
        },
    );
    let model = Arc::new(load(directory.path()).unwrap());
    let mut trainer = Trainer::new(model, &recipe(&folder("ref_qwen3_moe/adapter_init")), 2).unwrap();
    let event = trainer.step(&whole_batch("ref_qwen3_moe")).unwrap();
    assert!(!event.loss.is_finite(), "{}", event.loss);
}

#[test]
fn an_expert_without_tokens_has_no_gradient_and_hurts_nobody() {
    // One token goes to three of eight experts.
    let family = "ref_qwen3_moe";
    let mut trainer = Trainer::new(
        base(family, Precision::Fp32),
        &recipe(&folder(family).join("adapter_init")),
        2,
    )
    .unwrap();
    let mut batch = MicroBatch::new();
    batch.push(&[9, 11], [9, 11].into_iter());
    let event = trainer.step(&[batch]).unwrap();
    assert!(event.loss.is_finite());
    let slots = trainer.parameters().layout.slots().to_vec();
    let index = slots
        .iter()
        .position(|slot| slot.name.ends_with("experts.lora_A.weight"))
        .unwrap();
    let gradient: Vec<Vec<f32>> = trainer.parameters().gradient(index).unwrap().to_vec2().unwrap();
    let of_expert = |rows: &[Vec<f32>]| rows.iter().flatten().any(|value| *value != 0.0);
    let used = gradient.chunks(4).filter(|rows| of_expert(rows)).count();
    assert!((3..=6).contains(&used), "{used} experts of 8");
    assert!(gradient.iter().flatten().all(|value| value.is_finite()));
}

#[test]
fn a_checkpoint_without_some_experts_is_refused_by_name() {
    let lacking = changed(
        "ref_qwen3_moe",
        |_| (),
        |weights| weights.retain(|name, _| !name.contains("experts.7.")),
    );
    let error = load(lacking.path()).unwrap_err();
    assert!(
        error.contains("experts.7.gate_proj.weight") && error.contains("6 missing in all"),
        "{error}"
    );
    let more = changed(
        "ref_qwen3_moe",
        |config| drop(config.insert("num_local_experts".into(), json!(9))),
        |_| (),
    );
    let error = load(more.path()).unwrap_err();
    assert!(error.contains("experts.8.gate_proj.weight"), "{error}");
    let fewer = changed(
        "ref_qwen3_moe",
        |config| drop(config.insert("num_local_experts".into(), json!(7))),
        |_| (),
    );
    let error = load(fewer.path()).unwrap_err();
    assert!(
        error.contains("mlp.gate.weight") || error.contains("experts.7"),
        "{error}"
    );
}

#[test]
fn experts_as_openai_publishes_them_are_the_same_model() {
    let family = "ref_gpt_oss";
    let expected = json(&folder(family).join("ref.json"))["base_loss_mxfp4_dequantised"]
        .as_f64()
        .unwrap();
    let packed = folder(family).join("model_mxfp4");
    let loss = |model: BaseModel| {
        let mut plain = recipe(&folder(family).join("adapter_init"));
        plain.adapter = Some(AdapterSettings {
            target_modules: TargetModules::Preset(TargetPreset::Attention),
            rank: 4,
            ..AdapterSettings::default()
        });
        let mut trainer = Trainer::new(Arc::new(model), &plain, 1).unwrap();
        trainer.evaluate(&whole_batch(family)).unwrap().loss
    };
    assert_close(&[loss(load(&packed).unwrap())], &[expected], F32, "MXFP4");
    let (one, two) = (load(&packed).unwrap(), load(&folder(family).join("model")).unwrap());
    for tensor in one.architecture().tensors() {
        let values = |model: &BaseModel| {
            let tensor = model.tensor(&tensor.name).unwrap();
            (
                tensor.dims().to_vec(),
                tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
            )
        };
        assert!(values(&one) == values(&two), "{}", tensor.name);
    }
    // Scales that mean no number, and blocks of another size.
    let broken = |change: fn(&mut HashMap<String, Tensor>)| {
        let (directory, mut weights) = (TempDir::new().unwrap(), tensors(&packed.join("model.safetensors")));
        change(&mut weights);
        std::fs::copy(packed.join("config.json"), directory.path().join("config.json")).unwrap();
        candle_core::safetensors::save(&weights, directory.path().join("model.safetensors")).unwrap();
        load(directory.path()).unwrap_err()
    };
    let scale = broken(|weights| {
        let name = "model.layers.0.mlp.experts.down_proj_scales";
        let scales = weights[name].ones_like().unwrap();
        weights.insert(name.to_owned(), (scales * 255.0).unwrap());
    });
    assert!(
        scale.contains("not finite") && scale.contains("down_proj_scales"),
        "{scale}"
    );
    let size = broken(|weights| {
        let name = "model.layers.0.mlp.experts.down_proj_blocks";
        let blocks = weights[name].narrow(1, 0, 8).unwrap().contiguous().unwrap();
        weights.insert(name.to_owned(), blocks);
    });
    assert!(size.contains("down_proj_blocks") && size.contains("shape"), "{size}");
}

#[test]
fn a_stacked_mixture_is_merged_into_its_own_layout() {
    let family = "ref_gpt_oss";
    let mut trainer = Trainer::new(
        base(family, Precision::Fp32),
        &recipe(&folder(family).join("adapter_init")),
        2,
    )
    .unwrap();
    let loss = trainer.evaluate(&whole_batch(family)).unwrap().loss;
    let merged = trainer.merged_tensors().unwrap();
    let architecture = base(family, Precision::Fp32).architecture().clone();
    let merged = BaseModel::from_tensors(architecture, merged, Precision::Fp32, &Device::Cpu).unwrap();
    let mut generator = Generator::new(merged, None).unwrap();
    let mut adapted = Generator::new(
        base(family, Precision::Fp32),
        Some(&folder(family).join("adapter_init")),
    )
    .unwrap();
    let row = &documents(family, "input_ids", "input_ids")[0].input_ids;
    let tensor = |values: Vec<f32>| Tensor::new(values, &Device::Cpu).unwrap();
    let error = relative_error(
        &tensor(generator.next_logits(row).unwrap()),
        &tensor(adapted.next_logits(row).unwrap()),
    );
    assert!(error < F32 && loss.is_finite(), "{error:.1e}");
    let mut whole = recipe(&folder(family).join("adapter_init"));
    whole.adapter = None;
    let error = Trainer::new(base(family, Precision::Fp32), &whole, 1)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("`gpt_oss`") && error.contains("train an adapter"),
        "{error}"
    );
}

/// The value of a byte of FP8, E4M3.
fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match exponent {
        0 => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 128 == 0 { magnitude } else { -magnitude }
}

/// The weights of a decoder layer's linear layers are in FP8 there, all but the router's.
fn is_in_tiles(name: &str, shape: &[usize]) -> bool {
    name.contains(".layers.") && shape.len() == 2 && !name.ends_with("mlp.gate.weight")
}

#[test]
fn latent_attention_in_tiles_of_fp8_is_the_same_model() {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;
    const TILE: [usize; 2] = [16, 10];
    let family = "ref_deepseek_v3";
    let (packed, source) = (TempDir::new().unwrap(), folder(family).join("model"));
    let (mut plain, mut parts) = (tensors(&source.join("model.safetensors")), Vec::new());
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    // The layer that drafts is published in tiles as well.
    plain.insert(
        "model.layers.2.self_attn.kv_a_proj_with_mqa.weight".into(),
        plain["model.layers.1.self_attn.kv_a_proj_with_mqa.weight"].clone(),
    );
    for (number, (name, tensor)) in plain.iter_mut().enumerate() {
        let (shape, mut values) = (tensor.dims().to_vec(), tensor.flatten_all().unwrap().to_vec1().unwrap());
        if !is_in_tiles(name, &shape) {
            parts.push((name.clone(), Dtype::F32, shape, bytes(&values)));
            continue;
        }
        let [rows, columns] = [shape[0], shape[1]];
        let grid = [rows.div_ceil(TILE[0]), columns.div_ceil(TILE[1])];
        let scales: Vec<f32> = (0..grid[0] * grid[1])
            .map(|tile| 0.002 + tile as f32 / 8192.0)
            .collect();
        let mut codes = Vec::with_capacity(values.len());
        for (place, value) in values.iter_mut().enumerate() {
            // Every code but the largest, which are no numbers or near the limit.
            let code = (place * 37 + number * 11) as u8 & 0b1101_1111;
            let tile = place / columns / TILE[0] * grid[1] + place % columns / TILE[1];
            *value = e4m3(code) * scales[tile];
            codes.push(code);
        }
        *tensor = Tensor::from_vec(values, shape.as_slice(), &Device::Cpu).unwrap();
        parts.push((name.clone(), Dtype::F8_E4M3, shape, codes));
        parts.push((format!("{name}_scale_inv"), Dtype::F32, grid.to_vec(), bytes(&scales)));
    }
    let views = parts
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    safetensors::serialize_to_file(views, None, &packed.path().join("model.safetensors")).unwrap();
    let mut config = json(&source.join("config.json"));
    config["quantization_config"] = json!({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": TILE});
    std::fs::write(packed.path().join("config.json"), config.to_string()).unwrap();
    let expected = changed(family, |_| (), |weights| *weights = plain);
    let (packed, expected) = (load(packed.path()).unwrap(), load(expected.path()).unwrap());
    for tensor in packed.architecture().tensors() {
        let values = |model: &BaseModel| {
            let tensor = model.tensor(&tensor.name).unwrap();
            tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        assert!(values(&packed) == values(&expected), "{}", tensor.name);
    }
}

#[test]
fn attention_of_latent_models_is_all_of_its_projections() {
    for (family, expected) in [
        (
            "ref_deepseek_v3",
            vec!["q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj"],
        ),
        (
            "ref_deepseek_v2",
            vec!["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"],
        ),
    ] {
        let settings = AdapterSettings {
            rank: 4,
            target_modules: TargetModules::Preset(TargetPreset::Attention),
            dora: true,
            dropout: 0.1,
            ..AdapterSettings::default()
        };
        let mut recipe = recipe(&folder(family).join("adapter_init"));
        recipe.adapter = Some(settings);
        let mut trainer = Trainer::new(base(family, Precision::Fp32), &recipe, 6).unwrap();
        let plan = trainer.adapter_plan().unwrap();
        let found: Vec<&str> = plan
            .linears
            .iter()
            .take(expected.len())
            .map(|one| one.linear.suffix())
            .collect();
        assert_eq!(
            (found, plan.linears.len()),
            (expected.clone(), 2 * expected.len()),
            "{family}"
        );
        let losses = losses(&mut trainer, &whole_batch(family), 5);
        assert!(losses[5] < losses[0], "{family}: {losses:?}");
    }
}

#[test]
fn gradients_of_latent_attention_match_differences_of_the_loss() {
    let family = "ref_deepseek_v3";
    let mut recipe = recipe(&folder(family).join("adapter_init"));
    recipe.adapter = None;
    let names = [
        "layers.0.self_attn.q_a_proj.weight",
        "layers.0.self_attn.q_a_layernorm.weight",
        "layers.1.self_attn.q_b_proj.weight",
        "layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "layers.1.self_attn.kv_a_layernorm.weight",
        "layers.1.self_attn.kv_b_proj.weight",
    ];
    // A longer step sends a token to another expert.
    check_slopes(family, &recipe, 1e-3, &names);
}

#[test]
fn draft_layers_are_left_out_and_no_others() {
    let more = |config: &mut serde_json::Map<String, serde_json::Value>, drafts: usize| {
        config.insert("num_nextn_predict_layers".into(), json!(drafts));
    };
    let with_draft = |weights: &mut HashMap<String, Tensor>| {
        let norm = weights["model.norm.weight"].clone();
        weights.insert("model.layers.2.enorm.weight".into(), norm);
    };
    assert!(load(changed("ref_glm4_moe", |config| more(config, 1), with_draft).path()).is_ok());
    let error = load(changed("ref_glm4_moe", |config| more(config, 0), with_draft).path()).unwrap_err();
    assert!(error.contains("model.layers.2.enorm.weight"), "{error}");
}

#[test]
fn what_peft_refuses_on_experts_is_refused_by_name() {
    let message = |change: fn(&mut AdapterSettings)| {
        let mut recipe = recipe(&folder("ref_qwen3_moe/adapter_init"));
        let mut settings = AdapterSettings {
            rank: 4,
            ..AdapterSettings::default()
        };
        change(&mut settings);
        recipe.adapter = Some(settings);
        Trainer::new(base("ref_qwen3_moe", Precision::Fp32), &recipe, 1)
            .err()
            .unwrap()
            .to_string()
    };
    let dropout = message(|settings| settings.dropout = 0.1);
    assert!(
        dropout.contains("`dropout` cannot be combined") && dropout.contains("mlp.gate"),
        "{dropout}"
    );
    assert!(message(|settings| settings.dora = true).contains("`dora` cannot be combined"));
    assert!(message(|settings| settings.lora_bias = true).contains("`lora_bias` cannot be combined"));
    let half = message(|settings| settings.target_modules = TargetModules::Named(vec!["up_proj".into()]));
    assert!(half.contains("names `up_proj` without `gate_proj`"), "{half}");
    let mixtral = AdapterSettings {
        target_modules: TargetModules::Named(vec!["w1".into(), "w2".into()]),
        ..AdapterSettings::default()
    };
    let architecture = base("ref_mixtral", Precision::Fp32).architecture().clone();
    let half = peft_tune_core::plan::ModelPlan::adapted(&architecture, &mixtral).unwrap_err();
    assert!(half.to_string().contains("names `w1` without `w3`"), "{half}");
    // Names of other mixtures are none of Mixtral's.
    let others = AdapterSettings {
        target_modules: TargetModules::Named(["q_proj", "gate_proj", "up_proj", "w1", "w3"].map(str::to_owned).into()),
        ..AdapterSettings::default()
    };
    let told = peft_tune_core::plan::passed_over(&others, &architecture).unwrap();
    assert!(
        told.contains("names `gate_proj`, `up_proj`, as no module") && told.ends_with("o_proj, w1, w3, w2"),
        "{told}"
    );
    let qwen = base("ref_qwen3_moe", Precision::Fp32).architecture().clone();
    let of_qwen = AdapterSettings {
        target_modules: TargetModules::Named(["q_proj", "gate_proj", "up_proj", "gate"].map(str::to_owned).into()),
        ..AdapterSettings::default()
    };
    assert_eq!(peft_tune_core::plan::passed_over(&of_qwen, &qwen), None);
    let unknown = message(|settings| settings.target_parameters = vec!["experts.w1".into()]);
    assert!(
        unknown.contains("`experts.w1`") && unknown.contains("experts.gate_up_proj"),
        "{unknown}"
    );
}
