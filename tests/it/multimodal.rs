//! The language model inside of a multimodal checkpoint: found in every layout, trained, saved and merged.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use peft_tune_core::architecture::Dtype;
use peft_tune_core::recipe::{Precision, TargetModules};
use peft_tune_engine::adapter::{self, SavedAdapter};
use peft_tune_engine::{BaseModel, ModelDirectory, Trainer, WrittenDtype, write_checkpoint};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::golden::{assert_close, folder, json, losses, numbers, recipe, tensors, whole_batch};

/// The vision tower of the checkpoints made here: its names end as the language model's do.
const VISION: &str = "visual.blocks.0.attn.q_proj.weight";

/// How one kind of multimodal checkpoint holds the language model of a reference.
struct Layout {
    reference: &'static str,
    model_type: &'static str,
    /// The language model's `model_type`; `None` where its keys stand at the top.
    text: Option<&'static str>,
    /// Names in the place of `model.`, and of `lm_head`.
    names: [&'static str; 2],
}

const LAYOUTS: [Layout; 7] = [
    Layout {
        reference: "ref_mistral",
        model_type: "mistral3",
        text: Some("mistral"),
        names: ["language_model.model.", "language_model.lm_head"],
    },
    Layout {
        reference: "ref_qwen2",
        model_type: "qwen2_5_vl",
        text: None,
        names: ["model.", "lm_head"],
    },
    Layout {
        reference: "ref_qwen2",
        model_type: "qwen2_5_vl",
        text: Some("qwen2_5_vl_text"),
        names: ["model.language_model.", "lm_head"],
    },
    Layout {
        reference: "ref_gemma4",
        model_type: "gemma4",
        text: Some("gemma4_text"),
        names: ["model.language_model.", "lm_head"],
    },
    Layout {
        reference: "ref_gemma4_e2b",
        model_type: "gemma4",
        text: Some("gemma4_text"),
        names: ["model.language_model.", "lm_head"],
    },
    Layout {
        reference: "ref_gemma4",
        model_type: "gemma4_unified",
        text: Some("gemma4_unified_text"),
        names: ["model.language_model.", "lm_head"],
    },
    Layout {
        reference: "ref_qwen3",
        model_type: "qwen3_vl",
        text: Some("qwen3_vl_text"),
        names: ["model.language_model.", "lm_head"],
    },
];

impl Layout {
    fn config(&self) -> Value {
        let mut text = json(&folder(self.reference).join("model/config.json"));
        if text["rope_scaling"].is_null() {
            text["rope_scaling"] = json!({"type": "mrope", "mrope_section": [2, 3, 3]});
        }
        let vision = json!({"hidden_size": 8});
        let Some(name) = self.text else {
            text["model_type"] = json!(self.model_type);
            text["vision_config"] = vision;
            return text;
        };
        text["model_type"] = json!(name);
        json!({"model_type": self.model_type, "text_config": text, "vision_config": vision})
    }

    /// Writes the checkpoint: the reference's tensors under their other names, and a vision tower.
    fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("config.json"), self.config().to_string()).unwrap();
        let plain = tensors(&folder(self.reference).join("model/model.safetensors"));
        let renamed = plain.into_iter().map(|(name, tensor)| {
            let [module, head] = self.names;
            let name = match name.strip_prefix("model.") {
                Some(rest) => format!("{module}{rest}"),
                None => name.replace("lm_head", head),
            };
            (name, tensor)
        });
        let mut all: BTreeMap<String, Tensor> = renamed.collect();
        all.insert(VISION.to_owned(), vision());
        write_checkpoint(&directory.join("model.safetensors"), &all, Dtype::F32).unwrap();
    }
}

fn vision() -> Tensor {
    Tensor::new(&[[0.5f32, -1.25], [3.0, 0.125]], &Device::Cpu).unwrap()
}

fn trainer(model: &Path, adapter: &Path) -> Trainer {
    let base = BaseModel::load(model, Precision::Fp32, &Device::Cpu).unwrap();
    Trainer::new(Arc::new(base), &recipe(adapter), 20).unwrap()
}

fn loss(model: &Path, adapter: &Path, reference: &str) -> f64 {
    trainer(model, adapter).evaluate(&whole_batch(reference)).unwrap().loss
}

#[test]
fn a_language_model_trains_alike_in_every_layout() {
    for layout in LAYOUTS {
        let place = TempDir::new().unwrap();
        layout.write(place.path());
        let reference = folder(layout.reference);
        // The adapter of the language model alone fits.
        let mut trainer = trainer(place.path(), &reference.join("adapter_init"));
        let expected = numbers(&json(&reference.join("ref.json"))["losses_f64"]);
        let actual = losses(&mut trainer, &whole_batch(layout.reference), 20);
        assert_close(&actual, &expected, 1e-5, layout.model_type);
    }
}

#[test]
fn an_adapter_is_saved_under_the_whole_models_names() {
    let (layout, place) = (&LAYOUTS[0], TempDir::new().unwrap());
    let (model, saved) = (place.path().join("model"), place.path().join("adapter"));
    layout.write(&model);
    let reference = folder(layout.reference);
    let trainer = trainer(&model, &reference.join("adapter_init"));
    adapter::write(&saved, trainer.adapter_plan().unwrap(), None, trainer.parameters()).unwrap();
    let read = SavedAdapter::read(&saved).unwrap();
    assert!(read.names().count() > 0);
    for name in read.names() {
        assert!(
            name.starts_with("base_model.model.model.language_model.layers."),
            "{name}"
        );
    }
    let config = json(&saved.join("adapter_config.json"));
    assert_eq!(
        config["target_modules"],
        r".*language_model\.(?:.*\.)?(?:down_proj|gate_proj|k_proj|o_proj|q_proj|up_proj|v_proj)"
    );
    // It is read where the language model stands alone too, and by its modules where the list is an expression.
    let TargetModules::Named(modules) = &read.config.settings.target_modules else {
        panic!("an expression names the modules with tensors")
    };
    assert!(modules[0].starts_with("model.layers.0."), "{modules:?}");
    let alone = loss(&reference.join("model"), &saved, layout.reference);
    assert_eq!(loss(&model, &saved, layout.reference), alone);
    assert_eq!(
        loss(
            &reference.join("model"),
            &reference.join("adapter_init"),
            layout.reference
        ),
        alone
    );
}

#[test]
fn a_merged_model_keeps_the_names_and_the_vision_tower() {
    for layout in LAYOUTS {
        let place = TempDir::new().unwrap();
        let (model, merged) = (place.path().join("model"), place.path().join("merged"));
        layout.write(&model);
        let adapter = folder(layout.reference).join("adapter_init");
        let trainer = trainer(&model, &adapter);
        let directory = ModelDirectory {
            source: &model,
            dtype: WrittenDtype::AsStored,
            shard_bytes: ModelDirectory::SHARD_BYTES,
            quantization: None,
        };
        directory.write(&merged, &trainer.merged().unwrap()).unwrap();
        let (before, after) = (
            tensors(&model.join("model.safetensors")),
            tensors(&merged.join("model.safetensors")),
        );
        let sorted = |all: &std::collections::HashMap<String, Tensor>| {
            let mut names: Vec<String> = all.keys().cloned().collect();
            names.sort();
            names
        };
        assert_eq!(sorted(&after), sorted(&before), "{}", layout.model_type);
        let tower = after[VISION].to_vec2::<f32>().unwrap();
        assert_eq!(tower, vision().to_vec2::<f32>().unwrap());
        let mut frozen = recipe(&adapter);
        frozen.adapter = None;
        let base = BaseModel::load(&merged, Precision::Fp32, &Device::Cpu).unwrap();
        let mut plain = Trainer::new(Arc::new(base), &frozen, 1).unwrap();
        let batch = whole_batch(layout.reference);
        let expected = loss(&model, &adapter, layout.reference);
        assert_close(
            &[plain.evaluate(&batch).unwrap().loss],
            &[expected],
            1e-6,
            layout.model_type,
        );
    }
}

#[test]
fn a_tensor_of_the_vision_tower_is_no_part_of_an_adapter() {
    let (layout, place) = (&LAYOUTS[3], TempDir::new().unwrap());
    layout.write(place.path());
    let adapter = place.path().join("adapter");
    std::fs::create_dir(&adapter).unwrap();
    let source = folder(layout.reference).join("adapter_init");
    std::fs::copy(source.join("adapter_config.json"), adapter.join("adapter_config.json")).unwrap();
    let mut all: BTreeMap<String, Tensor> = tensors(&source.join("adapter_model.safetensors")).into_iter().collect();
    all.insert(
        format!("base_model.model.model.{VISION}").replace("weight", "lora_A.weight"),
        vision(),
    );
    write_checkpoint(&adapter.join("adapter_model.safetensors"), &all, Dtype::F32).unwrap();
    let base = BaseModel::load(place.path(), Precision::Fp32, &Device::Cpu).unwrap();
    let error = Trainer::new(Arc::new(base), &recipe(&adapter), 1)
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("visual.blocks.0"), "{error}");
}
