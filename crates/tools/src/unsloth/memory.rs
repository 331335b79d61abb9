//! What unsloth holds, read from unsloth and unsloth_zoo 2026.10.

use crate::import::{Reader, Script, StackFileError, choices, on_one_line};
use peft_tune_core::predict::stack::{LossForm, OwnLayers, Raised, Recompute, StackBehaviour, StackRefusal, Unable};
use peft_tune_core::recipe::TargetModules;

pub(super) const BEHAVIOUR: StackBehaviour = StackBehaviour {
    name: super::NAME,
    autocast: true,
    raises: Raised::Nothing,
    loss: LossForm::HalfOfFree,
    recompute: Recompute::LayersOffloaded,
    fused: true,
    fused_lora: true,
    own_layers: Some(OwnLayers {
        // `unsloth/models/loader.py`; others go through `FastModel`.
        model_types: &["llama", "mistral", "gemma", "gemma2", "qwen2", "qwen3"],
        // `FORCE_FLOAT32` of `unsloth_zoo/model_lists.py`.
        wide_types: &[
            "gemma3",
            "gemma3_text",
            "gemma3n",
            "gemma3n_text",
            "gemma4",
            "gemma4_text",
            "glm4_moe",
            "glm4_moe_lite",
            "gpt_oss",
            "qwen3_5",
            "qwen3_5_text",
            "qwen3_moe",
        ],
    }),
    holds_logits: false,
    foreach: false,
    launch_s: 12e-6,
    refuses: &[StackRefusal {
        of: Unable::SharedWeights,
        what: "it does not share weights out between devices",
        instead: "take one device, or `axolotl`",
    }],
    unproven: Some("of 27 peaks that its notebooks print, predictions are up to a quarter too low"),
    ..StackBehaviour::PLAIN
};

/// Module that it trains as a whole, among those that get adapters too (`get_peft_model` of `unsloth/models/llama.py`).
const EMBEDDING: &str = "embed_tokens";

/// Variable of the environment by which the model returns its logits as a whole.
const RETURNS_LOGITS: &str = "UNSLOTH_RETURN_LOGITS";

/// Reads what a script says of it.
///
/// # Errors
/// A value that the tool would not take.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    choices::of_trainer(reader, "attn_implementation")?;
    reader.choices.fused = reader.keys.flag("use_liger_kernel")?.unwrap_or(false);
    if let Some(script) = reader.script {
        logits(reader, script);
    }
    whole_embedding(reader);
    if reader.recipe.precision.is_quantized() {
        reader.assume(
            "all linear layers are in 4 or 8 bits: unsloth's own files (`-unsloth-bnb-4bit`) leave some in 16 bits, \
             which is not counted",
        );
    }
    Ok(())
}

/// Takes the embedding from the modules that get adapters.
fn whole_embedding(reader: &mut Reader<'_>) {
    let Some(adapter) = &mut reader.recipe.adapter else {
        return;
    };
    let TargetModules::Named(names) = &mut adapter.target_modules else {
        return;
    };
    let is_embedding = |name: &String| name == EMBEDDING;
    if !names.iter().any(is_embedding) {
        return;
    }
    names.retain(|name| !is_embedding(name));
    if !adapter.modules_to_save.iter().any(is_embedding) {
        adapter.modules_to_save.push(EMBEDDING.to_owned());
    }
    reader.note(format!(
        "`target_modules` names {EMBEDDING}, which unsloth trains whole: here it is one of `modules_to_save`"
    ));
}

/// Takes logits as a whole where the variable is 1 when a script trains. A notebook's `%env` has no comments, and takes them for a part of
/// the value.
fn logits(reader: &mut Reader<'_>, script: &Script) {
    match script.environment.get(RETURNS_LOGITS).map(String::as_str) {
        Some("1") => reader.choices.loss = Some(LossForm::InPlace),
        Some(value) if value.starts_with('1') => reader.assume(format!(
            "`{RETURNS_LOGITS}` is `{}` there, with its comment, which unsloth does not take for 1: logits are counted in parts",
            on_one_line(value)
        )),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Tool;
    use crate::import::{Imported, parse_recipe};
    use peft_tune_core::predict;
    use peft_tune_core::predict::stack::{AttentionForm, ModelShape, StackDevice, StackSetting, Trains};

    fn shape(model_type: &str, more: &str) -> ModelShape {
        let config = format!(
            r#"{{"model_type": "{model_type}", "hidden_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
                "num_key_value_heads": 4, "intermediate_size": 8192, "vocab_size": 128000{more}}}"#
        );
        ModelShape::from_json("config.json", &serde_json::from_str(&config).unwrap()).unwrap()
    }

    /// Program with a line before its calls, and these arguments of the trainer's config and of the adapter.
    fn imported(before: &str, of_config: &str, of_adapter: &str) -> Imported {
        let script = format!(
            "import os\n{before}\nfrom unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n\
             model, tokenizer = FastLanguageModel.from_pretrained(model_name = 'm', max_seq_length = 4096, load_in_4bit = True)\n\
             model = FastLanguageModel.get_peft_model(model, {of_adapter})\n\
             trainer = SFTTrainer(model = model, args = SFTConfig({of_config}))\ntrainer.train()\n"
        );
        let imported = parse_recipe(Path::new("train.py"), &script, None).unwrap();
        assert_eq!(imported.tool, Tool::Unsloth);
        assert!(imported.assumed.iter().any(|line| line.contains("16 bits")));
        imported
    }

    fn setting(before: &str, of_config: &str, of_adapter: &str) -> StackSetting {
        imported(before, of_config, of_adapter).setting()
    }

    const CAPPED: &str = r#", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0"#;
    /// One row, of as many tokens as the loader is told.
    const LONG: &str = "per_device_train_batch_size = 1";
    const PLAIN: &str = "r = 16, lora_dropout = 0";

    fn tensors(shape: &ModelShape, setting: &StackSetting, device: &str) -> u64 {
        let on = StackDevice {
            sheet: predict::device(device).unwrap(),
        };
        let prediction = predict::stack::predict(shape, setting, Some(on)).unwrap();
        prediction.memory.tensors_bytes
    }

    #[test]
    fn logits_exist_as_a_whole_where_the_script_asks_for_them() {
        let chunks = setting("", LONG, PLAIN);
        assert_eq!((chunks.loss, chunks.holds_logits), (LossForm::HalfOfFree, false));
        // 6 bytes for each logit of the row, against 14 for each of a quarter of them.
        let shape = shape("llama", "");
        for line in [
            "os.environ['UNSLOTH_RETURN_LOGITS'] = '1'",
            "os.environ[\"UNSLOTH_RETURN_LOGITS\"] = \"1\"",
            "%env UNSLOTH_RETURN_LOGITS=1",
            "name = 'RETURN_LOGITS'; os.environ[f'UNSLOTH_{name}'] = str(1)",
            "from os import environ\nenviron.setdefault('UNSLOTH_RETURN_LOGITS', '1')",
            "os.environ.update({'UNSLOTH_RETURN_LOGITS': '1'})",
        ] {
            let whole = setting(line, LONG, PLAIN);
            assert_eq!((whole.loss, whole.holds_logits), (LossForm::InPlace, true), "{line}");
            assert!(whole.raises_outputs);
            let [whole, chunks] = [&whole, &chunks].map(|setting| tensors(&shape, setting, "A100 80GB"));
            assert!(whole > chunks + (1 << 30), "{line}: {whole} {chunks}");
        }
        for line in [
            "# os.environ['UNSLOTH_RETURN_LOGITS'] = '1'",
            "os.environ['UNSLOTH_RETURN_LOGITS'] = '0'",
            "%env UNSLOTH_RETURN_LOGITS=1 # logits",
            "os.environ['UNSLOTH_RETURN_LOGITS'] = '1'\nos.environ['UNSLOTH_RETURN_LOGITS'] = '0'",
            "if False:\n    os.environ['UNSLOTH_RETURN_LOGITS'] = '1'",
            "text = 'os.environ[\"UNSLOTH_RETURN_LOGITS\"] = 1'",
        ] {
            assert_eq!(setting(line, LONG, PLAIN).loss, LossForm::HalfOfFree, "{line}");
        }
    }

    #[test]
    fn an_embedding_among_the_targets_is_trained_whole() {
        let of = |modules: &str| {
            let arguments = format!("{PLAIN}, target_modules = {modules}");
            let imported = imported("", LONG, &arguments);
            let Trains::Adapters { whole_embeddings, .. } = imported.setting().trains else {
                panic!("adapters are trained");
            };
            let told = imported.notes.iter().any(|note| note.contains(EMBEDDING));
            (imported.recipe.adapter.unwrap(), [whole_embeddings, told])
        };
        let (plain, is_whole) = of("['q_proj', 'v_proj']");
        assert_eq!(is_whole, [false; 2]);
        let (whole, is_whole) = of("['q_proj', 'embed_tokens', 'v_proj']");
        assert_eq!(is_whole, [true; 2]);
        assert_eq!(whole.target_modules, plain.target_modules);
        assert_eq!(whole.modules_to_save, [EMBEDDING]);
    }

    #[test]
    fn own_layers_are_those_of_some_families_and_take_no_dropout() {
        let plain = setting("", LONG, PLAIN);
        let run = |model_type: &str, setting: &StackSetting| {
            let run = setting.as_run(&shape(model_type, CAPPED));
            (run.fused_lora, run.attention)
        };
        assert_eq!(run("llama", &plain), (true, AttentionForm::Sdpa));
        assert_eq!(run("gemma2", &plain), (true, AttentionForm::Eager), "scores are capped");
        assert_eq!(run("gemma3_text", &plain), (false, AttentionForm::Sdpa));
        let dropped = setting("", LONG, "r = 16, lora_dropout = 0.1");
        assert_eq!(run("llama", &dropped), (false, AttentionForm::Sdpa));
        let shape = shape("gemma2", "");
        let again = plain.as_run(&shape);
        assert_eq!(again.as_run(&shape), again);
    }

    #[test]
    fn gemma_3_is_computed_in_f32_where_a_device_has_no_bf16() {
        let setting = setting("", LONG, PLAIN);
        // Few words, so that layers hold more than the loss.
        let few = r#", "vocab_size": 1000"#;
        let needs = |model_type: &str, device: &str| tensors(&shape(model_type, few), &setting, device);
        let more = |model_type: &str| {
            let [small, large] = ["T4", "A100 40GB"].map(|device| needs(model_type, device));
            small.saturating_sub(large)
        };
        let [wide, plain] = ["gemma3_text", "mistral"].map(more);
        assert!(wide > plain + (16 << 20), "{wide} {plain}");
    }
}
