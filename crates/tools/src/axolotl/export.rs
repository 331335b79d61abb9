//! `axolotl.yaml`: the file that `axolotl train` (0.19) reads.
//!
//! axolotl drops keys that it does not know without a word, so every key is one of its schema's. Its own defaults
//! (packing sequences to full length, for one) are overridden where the recipe decides.

use std::path::Path;

use serde_json::{Value, json};

use super::keys::{LIGER, LIGER_KERNELS, NO_WARMUP};
use crate::Tool;
use crate::export::draft::{Advice, Draft, ROWS, Word, builder_of, column, on_hub};
use crate::export::hf_trainer::TrainerWords;
use crate::export::modules::{is_within, peft_targets};
use crate::export::reading::Reading;
use crate::export::{ExportRow, RenderError, TokenFiles};
use peft_tune_core::recipe::{
    AdapterSettings, DataFormat, DataSettings, HeldOut, LongRows, LossOn, Recipe, TargetModules, TargetPreset,
    TemplateTargets,
};

pub(super) const EXPORT: ExportRow = ExportRow {
    about: "axolotl.yaml, for axolotl train",
    file_name: "axolotl.yaml",
    other_trainers: &[],
    reading: Some(Reading {
        formats: &[DataFormat::Messages, DataFormat::PromptCompletion, DataFormat::Text],
        template_targets: TemplateTargets::StopTokens,
        renames_columns: true,
        passes_over_columns: true,
        cuts: false,
        evaluates: |_| true,
        mixes_tokens: false,
        counts_first_tokens: false,
        tokens: TokenFiles::Jsonl,
    }),
    sharding: None,
    asks_for_answer_marks: false,
    render: |input, _| {
        let recipe = input.recipe;
        let mut draft = Draft::new(Tool::Axolotl, input);
        model(&mut draft, recipe);
        if let Some(adapter) = &recipe.adapter {
            self::adapter(&mut draft, adapter);
        }
        data(&mut draft, &recipe.data)?;
        held_out(&mut draft, recipe);
        batch(&mut draft);
        let words = draft.optimizer_words();
        draft.keys(words);
        let words = draft.course_words(WORDS);
        let words = with_warmup(&mut draft, words);
        draft.keys(words);
        draft.say_seed("seed");
        draft.key("logging_steps", 1);
        draft.key("output_dir", input.output_folder());
        let offload = draft.offload_file();
        let mut rendered = draft.finish("axolotl train", Advice::TRAIN_HERE, "");
        rendered.files.extend(offload);
        Ok(rendered)
    },
};

const WORDS: TrainerWords = TrainerWords {
    epochs: "num_epochs",
    warmup_share: "warmup_ratio",
};

fn model(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.said(&["model", "adapter"]);
    draft.key("base_model", recipe.model.as_str());
    let mut words = draft.precision_words();
    words.retain(|(key, _)| *key != "adapter" || recipe.adapter.is_some());
    draft.keys(words);
    let words = draft.attention_words();
    draft.keys(words);
    let words = draft.chosen_words();
    draft.keys(words);
    if recipe.torch.use_liger_kernel {
        draft.said(&["torch.use_liger_kernel"]);
        draft.key("plugins", vec![LIGER]);
        LIGER_KERNELS.iter().for_each(|key| draft.key(key, true));
    }
    if recipe.batch.packing {
        draft.warn("batch.packing", "needs the flash-attn package");
    }
}

fn adapter(draft: &mut Draft<'_>, adapter: &AdapterSettings) {
    draft.say("rank");
    draft.say_whole_alpha(adapter.alpha);
    draft.say("dropout");
    let architecture = draft.input.known.architecture;
    if adapter.target_modules == TargetModules::Preset(TargetPreset::AllLinear) && !is_within(architecture) {
        draft.said(&["adapter.target_modules"]);
        draft.key("lora_target_linear", true);
    } else {
        draft.say_as("target_modules", peft_targets(adapter, architecture));
    }
    draft.say_each(&["rslora", "dora"]);
    let words = draft.init_words(adapter.init);
    draft.keys(words);
    draft.said(&[
        "adapter.target_parameters",
        "adapter.rank_pattern",
        "adapter.alpha_pattern",
        "adapter.layers_to_transform",
        "adapter.modules_to_save",
        "adapter.adapter_init",
    ]);
    if !adapter.target_parameters.is_empty() {
        draft.key("lora_target_parameters", adapter.target_parameters.clone());
    }
    if !adapter.rank_pattern.is_empty() {
        draft.key("lora_rank_pattern", json!(adapter.rank_pattern));
    }
    if !adapter.alpha_pattern.is_empty() {
        draft.key("lora_alpha_pattern", json!(adapter.alpha_pattern));
    }
    let layers = adapter.layers_to_transform.as_ref();
    if let Some(layers) = layers.filter(|_| !is_within(architecture)) {
        draft.key("peft_layers_to_transform", layers.clone());
    }
    if !adapter.modules_to_save.is_empty() {
        draft.key("lora_modules_to_save", adapter.modules_to_save.clone());
    }
    if let Some(folder) = &adapter.adapter_init {
        draft.key("lora_model_dir", folder.to_string_lossy().into_owned());
    }
}

fn data(draft: &mut Draft<'_>, data: &DataSettings) -> Result<(), RenderError> {
    draft.said(&ROWS);
    draft.refuse_mixture("it puts data sets together whole and knows no weights; use --format trl or llamafactory, or train with `peft-tune train`")?;
    let format = draft.input.data_format();
    let items: Vec<_> = data
        .train
        .files()
        .map(|path| item(format, path, data, data.max_rows))
        .collect();
    draft.yaml.block("datasets", &items);
    if matches!(format, DataFormat::Messages | DataFormat::Sharegpt) {
        match &data.chat_template {
            Some(template) => {
                draft.key("chat_template", "jinja");
                draft.key("chat_template_jinja", template.to_string_lossy().into_owned());
            }
            None => draft.key("chat_template", "tokenizer_default"),
        }
        // Where nothing is said it learns the end-of-text token alone.
        if let Some(end) = draft.input.known.turn_end {
            draft.key("eot_tokens", vec![end]);
        }
        draft.said(&["data.template_targets"]);
    }
    draft.key("train_on_inputs", data.loss_on == LossOn::All);
    draft.key("dataset_prepared_path", "last_run_prepared");
    match format {
        DataFormat::Auto => draft.warn(
            "data.format",
            "the rows were not recognised, so they are taken for alpaca; set `type` under `datasets`",
        ),
        DataFormat::Alpaca => draft.warn(
            "data.format",
            "axolotl writes alpaca rows with its own prompt; let the rows be written for it, without --no-data",
        ),
        _ => {}
    }
    if data.max_rows.is_some() && data.train.files().count() > 1 {
        draft.warn(
            "data.max_rows",
            "is applied to each file by itself; lower it in `split`",
        );
    }
    Ok(())
}

/// One file of rows, or data set of the hub.
fn item(format: DataFormat, path: &Path, data: &DataSettings, rows: Option<usize>) -> Vec<Word> {
    let (mut item, split) = on_hub(path, rows).unwrap_or_else(|| {
        let file = vec![
            ("path", json!(path.to_string_lossy())),
            ("ds_type", json!(builder_of(path))),
        ];
        (file, rows.map_or("train".to_owned(), |rows| format!("train[:{rows}]")))
    });
    item.push(("split", json!(split)));
    match format {
        DataFormat::Messages => item.extend(chat(data, "messages", "role", "content")),
        DataFormat::Sharegpt => item.extend(chat(data, "conversations", "from", "value")),
        DataFormat::PromptCompletion => {
            let plain = json!({
                "field_instruction": column(data, "prompt"),
                "field_output": column(data, "completion"),
                "format": "{instruction}",
                "no_input_format": "{instruction}",
            });
            item.push(("type", plain));
        }
        DataFormat::Text => {
            item.push(("type", json!("completion")));
            item.push(("field", json!(column(data, "text"))));
        }
        // Rows of input_ids and labels have no type.
        DataFormat::Tokenized => item.push(("type", Value::Null)),
        // Recipes that compare answers are refused before.
        DataFormat::Alpaca | DataFormat::Auto | DataFormat::Preference | DataFormat::UnpairedPreference => {
            item.push(("type", json!("alpaca")));
        }
    }
    item
}

/// Rows of conversations, of which the answers are trained on.
fn chat(data: &DataSettings, messages: &str, role: &str, content: &str) -> Vec<Word> {
    let trained = match data.loss_on {
        LossOn::Completions => json!(["assistant"]),
        LossOn::All => json!(["system", "user", "assistant"]),
    };
    vec![
        ("type", json!("chat_template")),
        ("field_messages", json!(column(data, messages))),
        ("message_property_mappings", json!({"role": role, "content": content})),
        ("roles_to_train", trained),
        ("train_on_eos", json!("turn")),
    ]
}

fn held_out(draft: &mut Draft<'_>, recipe: &Recipe) {
    draft.said(&["data.held_out", "training.evaluate_every", "training.shuffle"]);
    if let HeldOut::Fraction(fraction) = &recipe.data.held_out {
        draft.key("val_set_size", *fraction);
        draft.warn_of_other_rows();
    }
    let files = recipe.data.held_out.files();
    if !files.is_empty() {
        let format = draft.input.data_format();
        let items: Vec<_> = files
            .iter()
            .map(|path| item(format, path, &recipe.data, None))
            .collect();
        draft.yaml.block("test_datasets", &items);
    }
    match recipe.training.evaluate_every {
        Some(steps) => draft.key("eval_steps", steps),
        None => draft.key("eval_strategy", "epoch"),
    }
    draft.key("eval_batch_size", recipe.batch.micro_batch);
    if !recipe.training.shuffle {
        draft.key("shuffle_merged_datasets", false);
        draft.warn("training.shuffle", "axolotl still shuffles the rows within an epoch");
    }
}

fn batch(draft: &mut Draft<'_>) {
    draft.say("sequence_length");
    // Where nothing is said it leaves long rows out.
    draft.said(&["data.long_rows"]);
    let long_rows = match draft.recipe().data.long_rows {
        LongRows::Cut => "truncate",
        LongRows::Drop => "drop",
    };
    draft.key("excess_length_strategy", long_rows);
    draft.say("packing");
    draft.key("eval_sample_packing", false);
    draft.key("pad_to_sequence_len", false);
    draft.say_each(&["group_by_length", "micro_batch", "gradient_accumulation"]);
    let words = draft.reading_words("dataset_num_proc");
    draft.keys(words);
    let words = draft.checkpointing_words();
    draft.keys(words);
    sharding(draft);
}

/// The warm-up as every version takes it: those from 0.10 to 0.12 take 0 steps for nothing said, and so for 3% of all, from 0.5 on
/// one step becomes two, and a share is told, of which all take the whole steps.
fn with_warmup(draft: &mut Draft<'_>, mut words: Vec<Word>) -> Vec<Word> {
    for (key, value) in &mut words {
        match (*key, value.as_u64()) {
            ("warmup_steps", Some(0)) => (*key, *value) = ("warmup_ratio", json!(NO_WARMUP)),
            ("warmup_steps", Some(1)) => {
                *value = json!(2);
                draft.warn(
                    "schedule.warmup",
                    "axolotl takes two steps to warm up where one is asked for",
                );
            }
            ("warmup_ratio", _) => draft.warn(
                "schedule.warmup",
                "axolotl warms up for the whole steps of a share, which may be one less than here; `warmup_steps` says them",
            ),
            _ => {}
        }
    }
    words
}

/// FSDP where it shares weights out. Layers are wrapped by the classes that transformers names for the model.
fn sharding(draft: &mut Draft<'_>) {
    if !draft.shares_weights() {
        return;
    }
    draft.key("fsdp_version", 2);
    let words = [
        ("auto_wrap_policy", json!("TRANSFORMER_BASED_WRAP")),
        ("state_dict_type", json!("FULL_STATE_DICT")),
        ("reshard_after_forward", json!(true)),
        ("offload_params", json!(false)),
    ];
    draft.yaml.map("fsdp_config", &words);
}
