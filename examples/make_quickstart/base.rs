//! The base model: a small llama, trained from random weights by this project's own engine with all parameters
//! trainable.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use peft_tune::architecture::Architecture;
use peft_tune::recipe::{DataSettings, Precision, Recipe, ScheduleKind, ScheduleSettings};
use peft_tune::train::data::{Document, MicroBatch};
use peft_tune::train::{BaseModel, Evaluation, Trainer};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::texts::{BaseCorpus, Dice};
use super::tokenizer::{MAX_POSITIONS, VOCABULARY, encode};

const SEED: u64 = 4;
/// Tokens of one optimizer step, about.
const STEP_TOKENS: usize = 4096;
const HELD_OUT_DOCUMENTS: usize = 400;
/// Deviation of the first weights.
const DEVIATION: f32 = 0.03;

/// `config.json`.
pub fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 352,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": null,
        "attention_bias": false,
        "mlp_bias": false,
        "attention_dropout": 0.0,
        "tie_word_embeddings": true,
        "initializer_range": DEVIATION,
        "bos_token_id": null,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "use_cache": true,
        "torch_dtype": "bfloat16",
    })
}

/// Trains on about `tokens` tokens and writes `model.safetensors` beside the `config.json` in `directory`. `progress`
/// is told now and then.
pub fn train(
    tokenizer: &Tokenizer,
    tokens: usize,
    directory: &Path,
    progress: impl Fn(&Evaluation),
) -> Result<Evaluation> {
    let architecture = Architecture::from_config(&directory.join("config.json"))?;
    let weights = first_weights(&architecture)?;
    let base = BaseModel::from_tensors(architecture, weights, Precision::Fp32, &Device::Cpu)?;
    let steps = (tokens / STEP_TOKENS).max(1) as u64;
    let mut trainer = Trainer::new(Arc::new(base), &recipe(), steps)?;
    let held_out = held_out(tokenizer)?;
    let mut corpus = BaseCorpus::training();
    for step in 1..=steps {
        let batch = next_batch(&mut corpus, tokenizer)?;
        trainer.step(&[batch])?;
        if step % 100 == 0 {
            progress(&trainer.evaluate(&held_out)?);
        }
    }
    write_weights(&trainer, &directory.join("model.safetensors"))?;
    Ok(trainer.evaluate(&held_out)?)
}

/// Full fine-tuning with AdamW; model and data are given to the trainer directly.
fn recipe() -> Recipe {
    let mut recipe = Recipe::new("in memory", DataSettings::default());
    recipe.adapter = None;
    recipe.precision = Precision::Fp32;
    recipe.optimizer.learning_rate = 4e-3;
    recipe.optimizer.beta2 = Some(0.95);
    recipe.optimizer.weight_decay = 0.01;
    recipe.schedule = ScheduleSettings {
        kind: ScheduleKind::Cosine,
        warmup: 50.0,
    };
    recipe
}

/// Normal numbers for the matrices, ones for the norms.
fn first_weights(architecture: &Architecture) -> Result<BTreeMap<String, Tensor>> {
    let mut dice = Dice::new(SEED);
    let mut weights = BTreeMap::new();
    for tensor in architecture.tensors() {
        let elements: usize = tensor.shape.iter().product();
        let values: Vec<f32> = match tensor.shape.len() {
            1 => vec![1.0; elements],
            _ => (0..elements).map(|_| dice.normal() * DEVIATION).collect(),
        };
        weights.insert(tensor.name, Tensor::from_vec(values, tensor.shape, &Device::Cpu)?);
    }
    Ok(weights)
}

/// The next documents of the corpus, [`STEP_TOKENS`] tokens or little more.
fn next_batch(corpus: &mut BaseCorpus, tokenizer: &Tokenizer) -> Result<MicroBatch> {
    let mut documents = Vec::new();
    let mut tokens = 0;
    for text in corpus {
        let document = document(encode(tokenizer, &text)?);
        tokens += document.input_ids.len();
        documents.push(document);
        if tokens >= STEP_TOKENS {
            break;
        }
    }
    Ok(MicroBatch::from_documents(&documents))
}

fn held_out(tokenizer: &Tokenizer) -> Result<Vec<MicroBatch>> {
    let texts: Vec<_> = BaseCorpus::held_out().take(HELD_OUT_DOCUMENTS).collect();
    let documents = texts.iter().map(|text| Ok(document(encode(tokenizer, text)?)));
    let documents = documents.collect::<Result<Vec<_>>>()?;
    Ok(documents.chunks(100).map(MicroBatch::from_documents).collect())
}

/// A document whose every token is a target.
fn document(input_ids: Vec<u32>) -> Document {
    let labels = input_ids.iter().map(|id| i64::from(*id)).collect();
    Document { input_ids, labels }
}

/// Writes the trained parameters in bf16.
fn write_weights(trainer: &Trainer, path: &Path) -> Result<()> {
    let parameters = trainer.parameters();
    let mut tensors = BTreeMap::new();
    for (index, slot) in parameters.layout.slots().iter().enumerate() {
        tensors.insert(slot.name.clone(), parameters.value(index)?.to_dtype(DType::BF16)?);
    }
    // transformers loads only files that say which framework's layout they have.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok(safetensors::serialize_to_file(tensors, Some(metadata), path)?)
}
