//! `axolotl.yaml`: the file that `axolotl train` (0.19) reads.
//!
//! axolotl drops keys that it does not know without a word, so every key is one of its schema's. Its own defaults
//! (packing sequences to full length, for one) are overridden where the recipe decides.

use std::path::Path;

use serde_json::{Value, json};

use super::draft::{AdapterWords, CourseWords, Draft, builder_of, column, quantized_bits};
use super::hf_trainer::{constants, optimizer_name};
use super::modules::module_names;
use super::write::Rendered;
use super::{ExportFormat, ExportInput};
use peft_tune_core::recipe::{
    AdapterInit, AdapterSettings, Checkpointing, DataFormat, DataSettings, HeldOut, LossOn, OptimizerSettings,
    Precision, Recipe, TargetModules, TargetPreset,
};

pub(super) fn render(input: &ExportInput<'_>) -> Rendered {
    let recipe = input.recipe;
    let mut target = Target {
        draft: Draft::default(),
        input,
    };
    target.model(recipe);
    if let Some(adapter) = &recipe.adapter {
        target.adapter(adapter);
    }
    target.data(&recipe.data);
    target.held_out(recipe);
    target.batch(recipe);
    target.optimizer(&recipe.optimizer);
    target.course(recipe);
    target.draft.key("seed", recipe.training.seed);
    target.draft.key("logging_steps", 1);
    target.draft.key("output_dir", input.output_folder());
    let usage = format!("axolotl train {}", ExportFormat::Axolotl.file_name());
    let text = input.header(&usage, &target.draft.warnings) + &target.draft.yaml.finish();
    Rendered::new(ExportFormat::Axolotl, text, target.draft.warnings)
}

/// The file as it grows.
struct Target<'a> {
    draft: Draft,
    input: &'a ExportInput<'a>,
}

impl Target<'_> {
    fn model(&mut self, recipe: &Recipe) {
        let bits = quantized_bits(recipe.precision);
        let draft = &mut self.draft;
        draft.key("base_model", recipe.model.as_str());
        if recipe.adapter.is_some() {
            draft.key("adapter", if bits == Some(4) { "qlora" } else { "lora" });
        }
        draft.key("load_in_8bit", bits == Some(8));
        draft.key("load_in_4bit", bits == Some(4));
        if bits == Some(4) {
            draft.key(
                "bnb_config_kwargs",
                json!({
                    "bnb_4bit_quant_type": "nf4",
                    "bnb_4bit_use_double_quant": recipe.precision == Precision::Nf4Double,
                    "bnb_4bit_compute_dtype": "bfloat16",
                }),
            );
        }
        draft.key("bf16", !matches!(recipe.precision, Precision::Fp32 | Precision::Fp16));
        draft.key("fp16", recipe.precision == Precision::Fp16);
        draft.key("tf32", false);
        // The only kinds of attention that keep packed documents apart are those of flash-attn.
        let attention = if recipe.batch.packing {
            "flash_attention_2"
        } else {
            "sdpa"
        };
        draft.key("attn_implementation", attention);
        if recipe.batch.packing {
            draft.warn("batch.packing", "needs the flash-attn package");
        }
    }

    fn adapter(&mut self, adapter: &AdapterSettings) {
        let alpha = self.draft.whole_alpha(adapter.alpha, ExportFormat::Axolotl);
        let draft = &mut self.draft;
        draft.key("lora_r", adapter.rank);
        draft.key("lora_alpha", alpha);
        draft.key("lora_dropout", adapter.dropout);
        if adapter.target_modules == TargetModules::Preset(TargetPreset::AllLinear) {
            draft.key("lora_target_linear", true);
        } else {
            let names = module_names(&adapter.target_modules, self.input.known.architecture);
            draft.key("lora_target_modules", names);
        }
        draft.key("peft_use_rslora", adapter.rslora);
        draft.key("peft_use_dora", adapter.dora);
        match adapter.init {
            AdapterInit::Kaiming => {}
            AdapterInit::Gaussian => draft.key("peft_init_lora_weights", "gaussian"),
            AdapterInit::Pissa => draft.key("peft_init_lora_weights", "pissa"),
        }
        if !adapter.rank_pattern.is_empty() {
            draft.key("lora_rank_pattern", json!(adapter.rank_pattern));
        }
        if !adapter.alpha_pattern.is_empty() {
            draft.key("lora_alpha_pattern", json!(adapter.alpha_pattern));
        }
        if let Some(layers) = &adapter.layers_to_transform {
            draft.key("peft_layers_to_transform", layers.clone());
        }
        if !adapter.modules_to_save.is_empty() {
            draft.key("lora_modules_to_save", adapter.modules_to_save.clone());
        }
        if let Some(folder) = &adapter.adapter_init {
            draft.key("lora_model_dir", folder.to_string_lossy().into_owned());
        }
        let words = AdapterWords {
            init: &[AdapterInit::Gaussian, AdapterInit::Pissa],
            patterns: true,
            layers: true,
            modules_to_save: true,
            start: true,
            bias: false,
        };
        draft.unsayable(
            adapter,
            words,
            "has no key in axolotl's file; leave it out, or train with `peft-tune train`",
        );
    }

    fn data(&mut self, data: &DataSettings) {
        let format = self.input.data_format();
        let items: Vec<_> = data
            .train
            .iter()
            .map(|path| self.item(path, data, data.max_rows))
            .collect();
        self.draft.yaml.block("datasets", &items);
        if matches!(format, DataFormat::Messages | DataFormat::Sharegpt) {
            match &data.chat_template {
                Some(template) => {
                    self.draft.key("chat_template", "jinja");
                    self.draft
                        .key("chat_template_jinja", template.to_string_lossy().into_owned());
                }
                None => self.draft.key("chat_template", "tokenizer_default"),
            }
        }
        self.draft.key("train_on_inputs", data.loss_on == LossOn::All);
        self.draft.key("dataset_prepared_path", "last_run_prepared");
        match format {
            DataFormat::Auto => self.draft.warn(
                "data.format",
                "the rows were not recognised, so they are taken for alpaca; set `type` under `datasets`",
            ),
            DataFormat::Alpaca => self.draft.warn(
                "data.format",
                "axolotl writes alpaca rows with its own prompt; convert them to `messages` for the chat template",
            ),
            _ => {}
        }
        if data.max_rows.is_some() && data.train.len() > 1 {
            self.draft.warn(
                "data.max_rows",
                "is applied to each file by itself; lower it in `split`",
            );
        }
    }

    /// One file of rows.
    fn item(&self, path: &Path, data: &DataSettings, rows: Option<usize>) -> Vec<(&'static str, Value)> {
        let mut item = vec![
            ("path", json!(path.to_string_lossy())),
            ("ds_type", json!(builder_of(path))),
            (
                "split",
                match rows {
                    Some(rows) => json!(format!("train[:{rows}]")),
                    None => json!("train"),
                },
            ),
        ];
        match self.input.data_format() {
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
            DataFormat::Alpaca | DataFormat::Auto => item.push(("type", json!("alpaca"))),
        }
        item
    }

    fn held_out(&mut self, recipe: &Recipe) {
        let files = match &recipe.data.held_out {
            HeldOut::Fraction(fraction) => {
                self.draft.key("val_set_size", *fraction);
                self.draft.warn(
                    "data.held_out",
                    "axolotl holds out other rows than were measured; its loss differs a little",
                );
                Vec::new()
            }
            HeldOut::File(path) => vec![path],
            HeldOut::Files(paths) => paths.iter().collect(),
        };
        if !files.is_empty() {
            let items: Vec<_> = files
                .into_iter()
                .map(|path| self.item(path, &recipe.data, None))
                .collect();
            self.draft.yaml.block("test_datasets", &items);
        }
        match recipe.training.evaluate_every {
            Some(steps) => self.draft.key("eval_steps", steps),
            None => self.draft.key("eval_strategy", "epoch"),
        }
        self.draft.key("eval_batch_size", recipe.batch.micro_batch);
        if !recipe.training.shuffle {
            self.draft.key("shuffle_merged_datasets", false);
            self.draft
                .warn("training.shuffle", "axolotl still shuffles the rows within an epoch");
        }
    }

    fn batch(&mut self, recipe: &Recipe) {
        let batch = &recipe.batch;
        let draft = &mut self.draft;
        draft.key("sequence_len", batch.sequence_length);
        draft.key("sample_packing", batch.packing);
        draft.key("eval_sample_packing", false);
        draft.key("pad_to_sequence_len", false);
        draft.key("group_by_length", batch.group_by_length);
        draft.key("micro_batch_size", batch.micro_batch);
        draft.key("gradient_accumulation_steps", batch.gradient_accumulation);
        draft.key(
            "gradient_checkpointing",
            recipe.gradient_checkpointing != Checkpointing::None,
        );
        match recipe.gradient_checkpointing {
            Checkpointing::None | Checkpointing::Full => {}
            Checkpointing::Offload => draft.key("activation_offloading", true),
            Checkpointing::Every(_) => draft.warn(
                "gradient_checkpointing",
                "axolotl recomputes every layer: slower, and less memory",
            ),
        }
    }

    fn optimizer(&mut self, optimizer: &OptimizerSettings) {
        let draft = &mut self.draft;
        draft.key("optimizer", optimizer_name(optimizer.kind).unwrap_or("muon"));
        draft.key("learning_rate", optimizer.learning_rate);
        draft.key("weight_decay", optimizer.weight_decay);
        draft.key("max_grad_norm", optimizer.max_grad_norm.unwrap_or(0.0));
        for (key, value) in constants(optimizer) {
            draft.key(key, value);
        }
        if let Some(ratio) = optimizer.loraplus_ratio {
            draft.key("loraplus_lr_ratio", ratio);
        }
    }

    fn course(&mut self, recipe: &Recipe) {
        let course = self.input.course();
        self.draft.course(
            recipe,
            &course,
            CourseWords {
                epochs: "num_epochs",
                schedule: "lr_scheduler",
                warmup_share: "warmup_ratio",
            },
        );
    }
}

/// Rows of conversations, of which the answers are trained on.
fn chat(data: &DataSettings, messages: &str, role: &str, content: &str) -> Vec<(&'static str, Value)> {
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
