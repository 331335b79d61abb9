//! The quickstart's assets: what the kept generator writes, small, and fit to learn from.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::Device;
use peft_tune::recipe::{AdapterSettings, DataSettings, Precision, Recipe};
use peft_tune::train::data::{Document, IGNORE, MicroBatch};
use peft_tune::train::{BaseModel, Trainer};
use serde_json::Value;

#[path = "../../examples/make_quickstart/texts/mod.rs"]
mod texts;
#[path = "../../examples/make_quickstart/tokenizer.rs"]
mod tokenizer;

fn quickstart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart")
}

fn read(name: &str) -> String {
    let path = quickstart().join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn rows_are_what_the_generator_writes() {
    let rows = texts::TaskRows::standard();
    assert!(read("train.jsonl") == texts::to_jsonl(&rows.train), "run the example make_quickstart again");
    assert!(read("held_out.jsonl") == texts::to_jsonl(&rows.held_out), "run the example make_quickstart again");
}

#[test]
fn the_tokenizer_is_what_the_generator_trains() {
    let folder = tempfile::tempdir().unwrap();
    tokenizer::write(&tokenizer::train().unwrap(), folder.path()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let made = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(made == read(&format!("base/{name}")), "{name}: run the example make_quickstart again");
    }
}

#[test]
fn the_assets_are_small() {
    let files = ["base/model.safetensors", "base/tokenizer.json", "train.jsonl", "held_out.jsonl"];
    let bytes: u64 = files.map(|name| quickstart().join(name).metadata().unwrap().len()).iter().sum();
    assert!(bytes < 3_000_000, "{bytes}");
}

/// The base model cannot speak Oskel; an adapter learns much of it from a few hundred rows.
#[test]
fn an_adapter_learns_the_task() {
    let base = BaseModel::load(&quickstart().join("base"), Precision::Fp32, &Device::Cpu).unwrap();
    let mut recipe = Recipe::new("quickstart", DataSettings::default());
    recipe.adapter = Some(AdapterSettings {
        rank: 16,
        ..AdapterSettings::default()
    });
    recipe.optimizer.learning_rate = 1e-2;
    let (train, held_out) = (documents("train.jsonl"), documents("held_out.jsonl"));
    let held_out = [MicroBatch::from_documents(&held_out[..40])];
    let steps = 30;
    let mut trainer = Trainer::new(Arc::new(base), &recipe, steps).unwrap();
    let before = trainer.evaluate(&held_out).unwrap();
    for rows in train.chunks(8).take(steps as usize) {
        trainer.step(&[MicroBatch::from_documents(rows)]).unwrap();
    }
    let after = trainer.evaluate(&held_out).unwrap();
    assert!(after.loss < 0.6 * before.loss, "{before:?} {after:?}");
    assert!(after.accuracy > 2.0 * before.accuracy, "{before:?} {after:?}");
}

/// The rows of a file as the chat template lays them out, with the answers as targets.
fn documents(name: &str) -> Vec<Document> {
    let tokenizer = tokenizers::Tokenizer::from_file(quickstart().join("base/tokenizer.json")).unwrap();
    let encode = |text: String| tokenizer.encode(text, false).unwrap().get_ids().to_vec();
    read(name)
        .lines()
        .map(|line| {
            let row: Value = serde_json::from_str(line).unwrap();
            let content = |message: usize| row["messages"][message]["content"].as_str().unwrap();
            let question = encode(format!(
                "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
                content(0)
            ));
            let answer = encode(format!("{}<|im_end|>\n", content(1)));
            let targets = answer.iter().map(|id| i64::from(*id));
            Document {
                labels: std::iter::repeat_n(IGNORE, question.len()).chain(targets).collect(),
                input_ids: [question, answer].concat(),
            }
        })
        .collect()
}
