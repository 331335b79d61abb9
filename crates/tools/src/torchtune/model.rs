//! The parts of the file that depend on the model: its builder, tokenizer and checkpoint.

use std::path::Path;

use serde_json::{Value, json};

use super::families::TorchtuneFamily;
use super::refused::refused;
use crate::Tool;
use crate::export::RenderError;
use crate::export::draft::{Draft, Word};
use crate::export::modules::module_names;
use peft_tune_core::architecture::{Architecture, RopeScaling};
use peft_tune_core::recipe::{AdapterSettings, DataFormat};

/// Writes `model`, `tokenizer` and `checkpointer`.
pub(super) fn write(draft: &mut Draft<'_>) -> Result<(), RenderError> {
    let (input, recipe) = (draft.input, draft.recipe());
    let Some(adapter) = &recipe.adapter else {
        let tool = Tool::Torchtune;
        return Err(RenderError::NoAdapter { tool });
    };
    let Some(architecture) = input.known.architecture else {
        return Err(refused(
            "model",
            "it needs the model's dimensions and config.json is not on this machine; download the model first",
        ));
    };
    let mut keys = builder(architecture)?;
    keys.extend(adapted(draft, adapter, architecture)?);
    keys.extend(draft.word("rank"));
    keys.extend(draft.word_as("alpha", alpha(adapter)));
    keys.extend(draft.word("dropout"));
    keys.extend(draft.word("dora"));
    keys.push(("quantize_base", json!(recipe.precision.row().bits == 4)));
    draft.yaml.map("model", &keys);
    draft.said(&[
        "model",
        "adapter.target_modules",
        "adapter.rslora",
        "batch.sequence_length",
    ]);
    let folder = input.known.model_folder.unwrap_or(Path::new(&recipe.model));
    tokenizer(draft, architecture, folder, recipe.batch.sequence_length);
    checkpoint(draft, architecture, folder);
    Ok(())
}

/// The numerator that gives the same scaling with alpha / r.
fn alpha(adapter: &AdapterSettings) -> f64 {
    adapter.scaling(adapter.rank, adapter.alpha) * adapter.rank as f64
}

/// The function that builds the model, with its dimensions.
fn builder(architecture: &Architecture) -> Result<Vec<Word>, RenderError> {
    let Some(family) = TorchtuneFamily::of(architecture.family) else {
        return Err(refused(
            "model",
            "torchtune 0.6 has no builder for this family; use --format trl or axolotl",
        ));
    };
    if architecture.within.is_some() {
        return Err(refused(
            "model",
            "torchtune 0.6 has no builder for the language model of a multimodal model; use --format trl or axolotl",
        ));
    }
    let takes_head_dim = family.arguments.contains(&"head_dim");
    if !takes_head_dim && architecture.head_dim * architecture.heads != architecture.hidden_size {
        return Err(refused(
            "model",
            "its heads are not hidden_size / heads wide, as torchtune has them; use --format trl or axolotl",
        ));
    }
    let mut keys = vec![
        ("_component_", json!(format!("torchtune.models.{}", family.builder))),
        ("vocab_size", json!(architecture.vocabulary)),
        ("num_layers", json!(architecture.layers.len())),
        ("num_heads", json!(architecture.heads)),
        ("num_kv_heads", json!(architecture.kv_heads)),
        ("embed_dim", json!(architecture.hidden_size)),
        ("intermediate_dim", json!(architecture.intermediate_size)),
        ("max_seq_len", json!(architecture.max_positions)),
        ("norm_eps", json!(architecture.norm_epsilon)),
    ];
    for name in family.arguments {
        keys.extend(argument(name, architecture)?);
    }
    Ok(keys)
}

/// Base of the position encoding's frequencies.
fn base(architecture: &Architecture) -> f64 {
    architecture.ropes.first().map_or(10_000.0, |rope| rope.base)
}

/// An argument of a family's builder; `None` for what follows from the adapter.
fn argument(name: &'static str, architecture: &Architecture) -> Result<Option<Word>, RenderError> {
    let window = || architecture.layers.iter().find_map(|layer| layer.window);
    let value = match name {
        "rope_base" => json!(base(architecture) as u64),
        "rope_base_float" => return Ok(Some(("rope_base", json!(base(architecture))))),
        "scale_factor" => json!(scale_factor(architecture)?),
        "tie_word_embeddings" => json!(architecture.tied_embeddings),
        "head_dim" => json!(architecture.head_dim),
        "hidden_capping_value" => json!(architecture.attention_soft_cap.unwrap_or(50.0)),
        "final_capping_value" => json!(architecture.logit_soft_cap.unwrap_or(30.0)),
        "sliding_window_size" => json!(window().unwrap_or(4096)),
        "query_pre_attn_scalar" => json!(architecture.attention_scale.powi(-2).round() as u64),
        _ => return Ok(None),
    };
    Ok(Some((name, value)))
}

/// A scale factor of 1 leaves the frequencies as they are.
fn scale_factor(architecture: &Architecture) -> Result<u64, RenderError> {
    match architecture.ropes.first().map(|rope| &rope.scaling) {
        None | Some(RopeScaling::None) => Ok(1),
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 8192,
        }) => Ok(*factor as u64),
        Some(_) => Err(refused(
            "model",
            "torchtune has no such scaling of positions; use --format trl or axolotl",
        )),
    }
}

/// Which layers get adapters, in torchtune's words: attention layers by name, the MLP as a whole.
fn adapted(
    draft: &mut Draft<'_>,
    adapter: &AdapterSettings,
    architecture: &Architecture,
) -> Result<Vec<Word>, RenderError> {
    let names = module_names(&adapter.target_modules, Some(architecture));
    let mut attention = Vec::new();
    let mut mlp = 0;
    for name in names.iter().map(|name| name.rsplit('.').next().unwrap_or(name)) {
        match name {
            "q_proj" | "k_proj" | "v_proj" => attention.push(name),
            "o_proj" => attention.push("output_proj"),
            "qkv_proj" => attention.extend(["q_proj", "k_proj", "v_proj"]),
            "gate_proj" | "up_proj" | "down_proj" => mlp += 1,
            "gate_up_proj" => mlp += 2,
            _ => {}
        }
    }
    if attention.is_empty() {
        return Err(refused(
            "adapter.target_modules",
            "it adapts the MLP only together with attention; use `all-linear`",
        ));
    }
    if architecture.fused_qkv || architecture.fused_gate_up {
        draft.warn(
            "adapter.target_modules",
            "torchtune splits the fused layers, so that each part has an adapter of its own",
        );
    }
    if mlp == 1 || mlp == 2 {
        draft.warn(
            "adapter.target_modules",
            "torchtune adapts all three layers of the MLP or none: all three here",
        );
    }
    let mut keys = vec![
        ("lora_attn_modules", json!(attention)),
        ("apply_lora_to_mlp", json!(mlp > 0)),
    ];
    let family = TorchtuneFamily::of(architecture.family);
    if family.is_some_and(|family| family.arguments.contains(&"apply_lora_to_output")) {
        let head = names.iter().any(|name| name == "lm_head");
        keys.push(("apply_lora_to_output", json!(head)));
    }
    Ok(keys)
}

fn tokenizer(draft: &mut Draft<'_>, architecture: &Architecture, folder: &Path, longest: usize) {
    if draft.input.data_format() == DataFormat::Tokenized {
        // Of one that reads texts only the padding would be asked, and it may not know this model's.
        let keys = [
            ("_component_", json!("peft_tune_rows.Padding")),
            ("max_seq_len", json!(longest)),
        ];
        draft.yaml.map("tokenizer", &keys);
        return;
    }
    let at = |file: &str| json!(folder.join(file).to_string_lossy());
    let family = TorchtuneFamily::of(architecture.family);
    let Some(tokenizer) = family.and_then(|family| family.tokenizer(architecture.vocabulary)) else {
        return;
    };
    let (component, path) = (tokenizer.builder, tokenizer.file);
    let mut keys = vec![
        ("_component_", json!(format!("torchtune.models.{component}"))),
        ("path", at(path)),
    ];
    if let Some(merges) = tokenizer.merges {
        keys.push(("merges_file", at(merges)));
    }
    keys.push(("max_seq_len", json!(longest)));
    draft.yaml.map("tokenizer", &keys);
    if !folder.join(path).is_file() {
        draft.warn(
            "model",
            format!(
                "torchtune's tokenizer reads {path}, which the model's folder lacks; download it, or set `tokenizer`"
            ),
        );
    }
}

fn checkpoint(draft: &mut Draft<'_>, architecture: &Architecture, folder: &Path) {
    let family = TorchtuneFamily::of(architecture.family);
    let kind = family.map(|family| family.checkpoint(architecture.tied_embeddings));
    let keys = [
        ("_component_", json!("torchtune.training.FullModelHFCheckpointer")),
        ("checkpoint_dir", json!(folder.to_string_lossy())),
        ("checkpoint_files", json!(weight_files(folder))),
        ("recipe_checkpoint", Value::Null),
        ("output_dir", json!("${output_dir}")),
        ("model_type", json!(kind)),
    ];
    draft.yaml.map("checkpointer", &keys);
    draft.key("save_adapter_weights_only", true);
    draft.key("resume_from_checkpoint", false);
}

/// Names of the weight files in a folder, in order; the usual single one where there is none.
fn weight_files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.ends_with(".safetensors"))
        .collect();
    names.sort();
    if names.is_empty() {
        names.push("model.safetensors".to_owned());
    }
    names
}
