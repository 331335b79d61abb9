//! The base model: a small llama, trained from random weights by this project's own engine with all parameters
//! trainable.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use candle_core::Device;
use peft_tune_core::architecture::{Architecture, Dtype};
use peft_tune_core::recipe::{DataSettings, Precision, Recipe, ScheduleKind, ScheduleSettings};
use peft_tune_engine::data::{Document, MicroBatch};
use peft_tune_engine::{BaseModel, Evaluation, Trainer, write_checkpoint};
use serde_json::{Value, json};
use tokenizers::Tokenizer;

use super::texts::BaseCorpus;
use super::tokenizer::{MAX_POSITIONS, VOCABULARY, encode};

const SEED: u64 = 4;
/// Tokens of one optimizer step, about.
const STEP_TOKENS: usize = 4096;
const HELD_OUT_DOCUMENTS: usize = 400;

/// `config.json`.
pub(crate) fn config() -> Value {
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
        "initializer_range": 0.02,
        "bos_token_id": null,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "use_cache": true,
        "torch_dtype": "bfloat16",
    })
}

/// Trains on about `tokens` tokens and writes `model.safetensors` beside the `config.json` in `directory`. `progress`
/// is told now and then.
pub(crate) fn train(
    tokenizer: &Tokenizer,
    tokens: usize,
    directory: &Path,
    progress: impl Fn(&Evaluation),
) -> Result<Evaluation> {
    let architecture = Architecture::from_config(&directory.join("config.json"))?;
    let base = BaseModel::random(architecture, SEED, Precision::Fp32, &Device::Cpu)?;
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
    write_checkpoint(
        &directory.join("model.safetensors"),
        &trainer.merged_tensors()?,
        Dtype::Bf16,
    )?;
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
        ..ScheduleSettings::default()
    };
    recipe
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
