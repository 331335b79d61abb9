//! `trl_sft.yaml`: the file that `trl sft --config` (TRL 1.16, transformers 5.23) reads.
//!
//! TRL refuses unknown keys and has defaults of its own (gradient checkpointing is on, for one), so everything that the
//! recipe decides is written out, and nothing else but the output folder.

use serde_json::{Value, json};

use super::draft::{AdapterWords, CourseWords, Draft, builder_of};
use super::hf_trainer::{constants, optimizer_name};
use super::write::Rendered;
use super::{ExportFormat, ExportInput};
use peft_tune_core::recipe::{
    AdapterSettings, Checkpointing, DataFormat, DataSettings, HeldOut, LossOn, OptimizerSettings, Precision, Recipe,
};

pub(super) fn render(input: &ExportInput<'_>) -> Rendered {
    let recipe = input.recipe;
    let mut target = Target {
        draft: Draft::default(),
        input,
    };
    target.model(recipe);
    match &recipe.adapter {
        Some(adapter) => target.adapter(adapter),
        None => target.draft.yaml.key("use_peft", false),
    }
    target.data(&recipe.data);
    target.batch(recipe);
    target.optimizer(&recipe.optimizer);
    target.course(recipe);
    target.evaluation(recipe);
    target.draft.yaml.key("seed", recipe.training.seed);
    target.draft.yaml.key("output_dir", input.output_folder());
    let usage = format!("trl sft --config {}", ExportFormat::Trl.file_name());
    let text = input.header(&usage, &target.draft.warnings) + &target.draft.yaml.finish();
    Rendered::new(ExportFormat::Trl, text, target.draft.warnings)
}

/// The file as it grows.
struct Target<'a> {
    draft: Draft,
    input: &'a ExportInput<'a>,
}

impl Target<'_> {
    fn warn(&mut self, field: &'static str, message: impl Into<String>) {
        self.draft.warn(field, message);
    }

    fn model(&mut self, recipe: &Recipe) {
        let yaml = &mut self.draft.yaml;
        yaml.key("model_name_or_path", recipe.model.as_str());
        let (dtype, bf16, fp16) = match recipe.precision {
            Precision::Fp32 => ("float32", false, false),
            Precision::Fp16 => ("float16", false, true),
            Precision::Bf16 | Precision::Int8 | Precision::Nf4 | Precision::Nf4Double => ("bfloat16", true, false),
        };
        yaml.key("dtype", dtype);
        yaml.key("bf16", bf16);
        yaml.key("fp16", fp16);
        match recipe.precision {
            Precision::Int8 => yaml.key("load_in_8bit", true),
            Precision::Nf4 | Precision::Nf4Double => {
                yaml.key("load_in_4bit", true);
                yaml.key("bnb_4bit_quant_type", "nf4");
                yaml.key("use_bnb_nested_quant", recipe.precision == Precision::Nf4Double);
            }
            Precision::Fp32 | Precision::Bf16 | Precision::Fp16 => {}
        }
        if recipe.batch.packing {
            // The only way in which TRL keeps packed documents from attending to each other.
            yaml.key("attn_implementation", "flash_attention_2");
            self.warn(
                "batch.packing",
                "needs the flash-attn package, or documents attend to each other",
            );
        }
    }

    fn adapter(&mut self, adapter: &AdapterSettings) {
        let yaml = &mut self.draft.yaml;
        yaml.key("use_peft", true);
        yaml.key("lora_r", adapter.rank);
        yaml.key("lora_alpha", super::peft::whole_if_possible(adapter.alpha));
        yaml.key("lora_dropout", adapter.dropout);
        yaml.key(
            "lora_target_modules",
            match super::peft::target_modules(&adapter.target_modules, self.input.known.architecture) {
                Value::String(name) => json!([name]),
                names => names,
            },
        );
        yaml.key("use_rslora", adapter.rslora);
        yaml.key("use_dora", adapter.dora);
        if !adapter.modules_to_save.is_empty() {
            yaml.key("lora_modules_to_save", adapter.modules_to_save.clone());
        }
        let words = AdapterWords {
            modules_to_save: true,
            ..AdapterWords::default()
        };
        self.draft.unsayable(
            adapter,
            words,
            "has no key in TRL's file; pass the LoraConfig of --format peft to SFTTrainer yourself",
        );
    }

    fn data(&mut self, data: &DataSettings) {
        let mut item = vec![
            ("path", json!(self.loader(data))),
            (
                "data_files",
                match &data.train[..] {
                    [one] => json!(one),
                    many => json!(many),
                },
            ),
        ];
        item.push((
            "split",
            match data.max_rows {
                Some(rows) => json!(format!("train[:{rows}]")),
                None => json!("train"),
            },
        ));
        self.draft.yaml.block("datasets", &[item]);
        if let Some(template) = &data.chat_template {
            self.draft
                .yaml
                .key("chat_template_path", template.to_string_lossy().into_owned());
        }
        self.draft.no_renaming(data, ExportFormat::Trl);
        self.targets(data);
    }

    /// The `datasets` builder for the files.
    fn loader(&mut self, data: &DataSettings) -> &'static str {
        let builder = data.train.first().map_or("json", |path| builder_of(path));
        if builder == "text" {
            self.warn(
                "data.train",
                "TRL takes each line of a text file for a row; write JSONL rows of `text`",
            );
        }
        builder
    }

    /// Which tokens count in the loss.
    fn targets(&mut self, data: &DataSettings) {
        match (self.input.data_format(), data.loss_on) {
            (DataFormat::Alpaca | DataFormat::Sharegpt, _) => {
                self.warn("data.format", "TRL reads `messages` or `prompt` and `completion`; convert the rows");
            }
            (DataFormat::Auto, LossOn::Completions) => self.warn(
                "data.loss_on",
                "write data.format for chats, so that assistant_only_loss can be set; TRL trains on whole chats otherwise",
            ),
            (DataFormat::Messages, LossOn::Completions) => {
                self.draft.yaml.key("assistant_only_loss", true);
                self.warn("data.loss_on", "the chat template must mark answers with {% generation %}");
            }
            (DataFormat::PromptCompletion, loss_on) => {
                self.draft.yaml.key("completion_only_loss", loss_on == LossOn::Completions);
            }
            (DataFormat::Tokenized, _) => {
                self.warn("data.format", "TRL trains on every token of `input_ids` and leaves `labels` out");
            }
            (DataFormat::Text, _) | (DataFormat::Auto | DataFormat::Messages, LossOn::All) => {
                self.draft.yaml.key("assistant_only_loss", false);
            }
        }
    }

    fn batch(&mut self, recipe: &Recipe) {
        let batch = &recipe.batch;
        let yaml = &mut self.draft.yaml;
        yaml.key("max_length", batch.sequence_length);
        yaml.key("packing", batch.packing);
        if batch.packing {
            yaml.key("packing_strategy", "bfd");
            yaml.key("eval_packing", false);
        }
        yaml.key("per_device_train_batch_size", batch.micro_batch);
        yaml.key("gradient_accumulation_steps", batch.gradient_accumulation);
        yaml.key(
            "gradient_checkpointing",
            recipe.gradient_checkpointing != Checkpointing::None,
        );
        match recipe.gradient_checkpointing {
            Checkpointing::None | Checkpointing::Full => {}
            Checkpointing::Offload => yaml.key("activation_offloading", true),
            Checkpointing::Every(_) => {
                self.warn(
                    "gradient_checkpointing",
                    "TRL recomputes every layer: slower, and less memory",
                );
            }
        }
    }

    fn optimizer(&mut self, optimizer: &OptimizerSettings) {
        let name = optimizer_name(optimizer.kind).unwrap_or_else(|| {
            self.warn(
                "optimizer.kind",
                "TRL's file knows no muon, so it says adamw; pass the optimizer in code",
            );
            "adamw_torch"
        });
        let yaml = &mut self.draft.yaml;
        yaml.key("optim", name);
        yaml.key("learning_rate", optimizer.learning_rate);
        yaml.key("weight_decay", optimizer.weight_decay);
        yaml.key("max_grad_norm", optimizer.max_grad_norm.unwrap_or(0.0));
        for (key, value) in constants(optimizer) {
            yaml.key(key, value);
        }
        if optimizer.loraplus_ratio.is_some() {
            self.warn(
                "optimizer.loraplus_ratio",
                "TRL's file knows no LoRA+; pass the optimizer in code",
            );
        }
    }

    /// Schedule and length: steps where they can be known, since every version of TRL understands those.
    fn course(&mut self, recipe: &Recipe) {
        let course = self.input.course();
        self.draft.course(
            recipe,
            &course,
            CourseWords {
                epochs: "num_train_epochs",
                schedule: "lr_scheduler_type",
                // Below 1 it is a fraction there too.
                warmup_share: "warmup_steps",
            },
        );
    }

    fn evaluation(&mut self, recipe: &Recipe) {
        let training = &recipe.training;
        if !training.shuffle {
            self.draft.key("train_sampling_strategy", "sequential");
        } else if recipe.batch.group_by_length {
            self.draft.key("train_sampling_strategy", "group_by_length");
        }
        match &recipe.data.held_out {
            HeldOut::Fraction(fraction) => {
                self.draft.yaml.key("test_split_size", *fraction);
                match training.evaluate_every {
                    Some(steps) => {
                        self.draft.yaml.key("eval_strategy", "steps");
                        self.draft.yaml.key("eval_steps", steps);
                    }
                    None => self.draft.yaml.key("eval_strategy", "epoch"),
                }
                self.draft
                    .yaml
                    .key("per_device_eval_batch_size", recipe.batch.micro_batch);
                self.warn(
                    "data.held_out",
                    "TRL holds out other rows than were measured; its loss differs a little",
                );
            }
            HeldOut::File(_) | HeldOut::Files(_) => {
                self.draft.yaml.key("eval_strategy", "no");
                self.warn(
                    "data.held_out",
                    "TRL's file takes no held-out file beside local data; evaluate afterwards",
                );
            }
        }
    }
}
