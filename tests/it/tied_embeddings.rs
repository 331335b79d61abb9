//! Models whose LM head is the embedding: adapters that save either end whole, against PEFT (`tests/golden/make_tied.py`), and files
//! that hold other ends than `config.json` says.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::adapter::write;
use peft_tune_engine::data::MicroBatch;
use peft_tune_engine::{BaseModel, Generator, ModelDirectory, Trainer, WrittenDtype};
use peft_tune_kernels::ops::loss_head::IGNORE;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::golden::{assert_close, base, folder, json as read_json, losses, numbers, recipe, tensors, whole_batch};
use crate::train::{Workplace, adapter_bytes, column};

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// An adapter that saves ends of the embedding whole.
struct Kind {
    name: &'static str,
    modules: &'static [&'static str],
    /// Factors on the base model's embedding at each end.
    ends: &'static [(&'static str, f64)],
    ties: bool,
}

static KINDS: [Kind; 5] = [
    Kind {
        name: "embed_tokens",
        modules: &["embed_tokens"],
        ends: &[(EMBEDDING, 1.25)],
        ties: false,
    },
    Kind {
        name: "lm_head",
        modules: &["lm_head"],
        ends: &[(HEAD, 0.75)],
        ties: false,
    },
    Kind {
        name: "both",
        modules: &["embed_tokens", "lm_head"],
        ends: &[(EMBEDDING, 1.25), (HEAD, 0.75)],
        ties: false,
    },
    Kind {
        name: "embed_tokens_tied",
        modules: &["embed_tokens", "model.embed_tokens"],
        ends: &[(EMBEDDING, 1.25), (HEAD, 1.25)],
        ties: true,
    },
    Kind {
        name: "lm_head_tied",
        modules: &["lm_head"],
        ends: &[(EMBEDDING, 1.25), (HEAD, 1.25)],
        ties: true,
    },
];

impl Kind {
    /// The adapter that `make_tied.py` gave to PEFT.
    fn adapter(&self) -> TempDir {
        let (source, directory) = (folder("ref_llama/adapter_init"), TempDir::new().unwrap());
        let mut config = read_json(&source.join("adapter_config.json"));
        config["modules_to_save"] = json!(self.modules);
        config["ensure_weight_tying"] = json!(self.ties);
        std::fs::write(directory.path().join("adapter_config.json"), config.to_string()).unwrap();
        let mut saved = tensors(&source.join("adapter_model.safetensors"));
        for (end, factor) in self.ends {
            saved.insert(format!("base_model.model.{end}"), (embedding() * *factor).unwrap());
        }
        save(&saved, &directory.path().join("adapter_model.safetensors"));
        directory
    }
}

fn save(tensors: &HashMap<String, Tensor>, path: &Path) {
    candle_core::safetensors::save(tensors, path).unwrap();
}

/// The embedding of the toy model.
fn embedding() -> Tensor {
    tensors(&folder("ref_llama/model/model.safetensors"))[EMBEDDING].clone()
}

fn expected(name: &str) -> Value {
    read_json(&folder("ref_variants/tied.json"))[name].clone()
}

fn trainer(adapter: &Path) -> Trainer {
    Trainer::new(base("ref_llama", Precision::Fp32), &recipe(adapter), 10).unwrap()
}

/// Loss of the model in `directory` as it is.
fn loss_of(directory: &Path) -> f64 {
    let model = BaseModel::load(directory, Precision::Fp32, &Device::Cpu).unwrap();
    let mut full = recipe(&folder("ref_llama/adapter_init"));
    full.adapter = None;
    let mut trainer = Trainer::new(Arc::new(model), &full, 1).unwrap();
    trainer.evaluate(&whole_batch("ref_llama")).unwrap().loss
}

/// Names of the ends that the adapter in `directory` has, and what its configuration says of them.
fn written_ends(directory: &Path) -> (Vec<String>, bool) {
    let names = tensors(&directory.join("adapter_model.safetensors")).into_keys();
    let mut ends: Vec<String> = names.filter(|name| !name.contains(".lora_")).collect();
    ends.sort();
    let config = read_json(&directory.join("adapter_config.json"));
    (ends, config["ensure_weight_tying"].as_bool().unwrap())
}

/// Writes the trained model into `output`; whether its head is one of its own, as its files and its configuration say.
fn merge(trainer: &Trainer, source: &Path, output: &Path) -> bool {
    let directory = ModelDirectory {
        source,
        dtype: WrittenDtype::AsStored,
        shard_bytes: ModelDirectory::SHARD_BYTES,
        quantization: None,
    };
    directory.write(output, &trainer.merged().unwrap()).unwrap();
    let has_head = tensors(&output.join("model.safetensors")).contains_key(HEAD);
    let config = read_json(&output.join("config.json"));
    assert_eq!(config["tie_word_embeddings"], json!(!has_head));
    has_head
}

#[test]
fn pefts_adapters_on_either_end_go_on_as_there() {
    let batch = whole_batch("ref_llama");
    for kind in &KINDS {
        let adapter = kind.adapter();
        let mut trainer = trainer(adapter.path());
        let losses = losses(&mut trainer, &batch, 10);
        assert_close(&losses, &numbers(&expected(kind.name)), 2e-5, kind.name);
        let last = losses[10];

        let (output, name) = (TempDir::new().unwrap(), kind.name);
        let written = output.path().join("adapter");
        write(&written, trainer.adapter_plan().unwrap(), None, trainer.parameters()).unwrap();
        let mut ends: Vec<String> = kind
            .ends
            .iter()
            .map(|(end, _)| format!("base_model.model.{end}"))
            .collect();
        ends.sort();
        assert_eq!(written_ends(&written), (ends, kind.ties), "{name}");
        let read = self::trainer(&written).evaluate(&batch).unwrap().loss;
        assert_close(&[read], &[last], 1e-6, name);

        let merged = output.path().join("merged");
        assert_eq!(
            merge(&trainer, &folder("ref_llama/model"), &merged),
            !kind.ties,
            "{name}"
        );
        assert_close(&[loss_of(&merged)], &[last], 1e-5, name);
    }
}

#[test]
fn pefts_adapters_on_either_end_answer_as_they_train() {
    let prompt = [5, 77, 300, 12, 9];
    let mut all = Vec::new();
    for kind in &KINDS {
        let adapter = kind.adapter();
        let mut batch = MicroBatch::new();
        batch.push(&prompt, std::iter::repeat_n(IGNORE, prompt.len()));
        let expected: Vec<Vec<f32>> = trainer(adapter.path()).logits(&batch).unwrap().to_vec2().unwrap();
        let expected = expected.last().unwrap();
        let model = || BaseModel::load(&folder("ref_llama/model"), Precision::Fp32, &Device::Cpu).unwrap();
        let mut generator = Generator::new(model(), Some(adapter.path())).unwrap();
        let difference = |actual: Vec<f32>| {
            let differences = actual.iter().zip(expected).map(|(a, e)| (a - e).abs());
            differences.fold(0.0, f32::max)
        };
        assert!(
            difference(generator.next_logits(&prompt).unwrap()) < 1e-4,
            "{}",
            kind.name
        );
        let mut merged = generator.into_merged().unwrap();
        assert!(difference(merged.next_logits(&prompt).unwrap()) < 1e-4, "{}", kind.name);
        all.push(expected.clone());
    }
    assert_ne!(all[0], all[3], "one end is not both");
}

#[test]
fn what_trains_here_is_written_as_both_ends() {
    let batch = whole_batch("ref_llama");
    for names in [&["embed_tokens"][..], &["lm_head"], &["embed_tokens", "lm_head"]] {
        let mut recipe = recipe(&folder("ref_llama/adapter_init"));
        let settings = recipe.adapter.as_mut().unwrap();
        settings.adapter_init = None;
        settings.modules_to_save = names.iter().map(|name| (*name).to_owned()).collect();
        let mut trainer = Trainer::new(base("ref_llama", Precision::Fp32), &recipe, 3).unwrap();
        let last = losses(&mut trainer, &batch, 3)[3];
        let output = TempDir::new().unwrap();
        let written = output.path().join("adapter");
        write(&written, trainer.adapter_plan().unwrap(), None, trainer.parameters()).unwrap();
        let ends = [HEAD, EMBEDDING].map(|end| format!("base_model.model.{end}"));
        assert_eq!(written_ends(&written), (ends.to_vec(), true), "{names:?}");
        let saved = tensors(&written.join("adapter_model.safetensors"));
        let values = ends.map(|end| saved[&end].flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert!(values[0] == values[1], "{names:?}");
        let read = self::trainer(&written).evaluate(&batch).unwrap().loss;
        assert_close(&[read], &[last], 1e-6, "read again");
        let merged = output.path().join("merged");
        assert!(!merge(&trainer, &folder("ref_llama/model"), &merged), "{names:?}");
        assert_close(&[loss_of(&merged)], &[last], 1e-5, "merged");
    }
}

#[test]
fn ends_that_are_one_and_differ_are_refused() {
    let kind = Kind {
        name: "different",
        modules: &["embed_tokens"],
        ends: &[(EMBEDDING, 1.25), (HEAD, 0.75)],
        ties: true,
    };
    let adapter = kind.adapter();
    let error = Trainer::new(base("ref_llama", Precision::Fp32), &recipe(adapter.path()), 1).err();
    let message = error.unwrap().to_string();
    assert!(
        message.contains("adapter_model.safetensors") && message.contains("`ensure_weight_tying`"),
        "{message}"
    );
}

#[test]
fn a_training_goes_on_with_the_ends_that_it_began_with() {
    for kind in [&KINDS[1], &KINDS[3]] {
        let adapter = kind.adapter();
        let settings = format!(
            "{{rank: 8, alpha: 16, target_modules: all-linear, modules_to_save: [{}], adapter_init: {:?}}}",
            kind.modules[0],
            adapter.path()
        );
        let place = Workplace::new(&[
            ("adapter", settings.as_str()),
            ("training", "{length: {steps: 6}, shuffle: false}"),
        ]);
        let arguments = ["--output", "out", "--checkpoint-every", "3", "--keep-checkpoints", "9"];
        let whole = place.train(&arguments);
        let bytes = adapter_bytes(&place.path("out"));
        std::fs::remove_file(place.path("out/result.json")).unwrap();
        std::fs::remove_dir_all(place.path("out/checkpoints/step-00000006")).unwrap();
        std::fs::remove_file(adapter.path().join("adapter_model.safetensors")).unwrap();
        let rest = place.train(&["--output", "out", "--resume"]);
        assert_eq!(
            column(&rest, "step", "loss"),
            column(&whole, "step", "loss")[3..],
            "{}",
            kind.name
        );
        assert!(adapter_bytes(&place.path("out")) == bytes, "{}", kind.name);
        assert_eq!(written_ends(&place.path("out")).1, kind.ties, "{}", kind.name);
    }
}

/// The toy model with other ends in its file, and the loss of the reference's adapter on it.
fn changed(change: impl FnOnce(&mut HashMap<String, Tensor>)) -> (TempDir, Trainer) {
    let (source, directory) = (folder("ref_llama/model"), TempDir::new().unwrap());
    std::fs::copy(source.join("config.json"), directory.path().join("config.json")).unwrap();
    let mut weights = tensors(&source.join("model.safetensors"));
    change(&mut weights);
    save(&weights, &directory.path().join("model.safetensors"));
    let model = BaseModel::load(directory.path(), Precision::Fp32, &Device::Cpu).unwrap();
    let recipe = recipe(&folder("ref_llama/adapter_init"));
    (directory, Trainer::new(Arc::new(model), &recipe, 1).unwrap())
}

#[test]
fn a_head_with_values_of_its_own_is_used_whatever_the_configuration_says() {
    let (model, mut trainer) = changed(|weights| {
        weights.insert(HEAD.into(), (embedding() * 0.75).unwrap());
    });
    let loss = trainer.evaluate(&whole_batch("ref_llama")).unwrap().loss;
    assert_close(&[loss], &[expected("own_head").as_f64().unwrap()], 1e-5, "own head");
    let output = TempDir::new().unwrap();
    assert!(merge(&trainer, model.path(), output.path()));
    assert_close(&[loss_of(output.path())], &[loss], 1e-5, "merged");
}

#[test]
fn a_copy_of_the_embedding_is_no_head_of_its_own() {
    let (_, trainer) = changed(|weights| {
        weights.insert(HEAD.into(), embedding());
    });
    assert!(trainer.base().architecture().tied_embeddings);
    // As numbers, the same in another dtype.
    let (_, trainer) = changed(|weights| {
        let rounded = embedding().to_dtype(candle_core::DType::BF16).unwrap();
        weights.insert(EMBEDDING.into(), rounded.to_dtype(candle_core::DType::F32).unwrap());
        weights.insert(HEAD.into(), rounded);
    });
    assert!(trainer.base().architecture().tied_embeddings);
}

#[test]
fn tied_embeddings_may_have_the_name_of_the_head() {
    let (model, mut trainer) = changed(|weights| {
        let embedding = weights.remove(EMBEDDING).unwrap();
        weights.insert(HEAD.into(), embedding);
    });
    assert!(trainer.base().architecture().tied_embeddings);
    let loss = trainer.evaluate(&whole_batch("ref_llama")).unwrap().loss;
    assert_close(
        &[loss],
        &[expected("head_alone").as_f64().unwrap()],
        1e-5,
        "under the head's name",
    );
    let output = TempDir::new().unwrap();
    assert!(!merge(&trainer, model.path(), output.path()));
    assert_close(&[loss_of(output.path())], &[loss], 1e-5, "merged");
}
