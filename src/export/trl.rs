//! `trl_sft.yaml`: the file that `trl sft --config` (TRL 1.16, transformers 5.23) reads.
//!
//! TRL refuses unknown keys and has defaults of its own (gradient checkpointing is on, for one), so everything that the
//! recipe decides is written out, and nothing else but the output folder.

use serde_json::{Value, json};

use super::target_yaml::TargetYaml;
use super::write::Rendered;
use super::{ExportFormat, ExportInput, Warning};
use crate::recipe::{
    AdapterBias, AdapterInit, AdapterSettings, Checkpointing, DataFormat, DataSettings, HeldOut, LossOn, OptimizerKind,
    OptimizerSettings, Precision, Recipe, ScheduleKind, TrainingLength,
};

pub(super) fn render(input: &ExportInput<'_>) -> Rendered {
    let recipe = input.recipe;
    let mut target = Target::default();
    target.model(recipe);
    match &recipe.adapter {
        Some(adapter) => target.adapter(adapter),
        None => target.yaml.key("use_peft", false),
    }
    target.data(&recipe.data);
    target.batch(recipe);
    target.optimizer(&recipe.optimizer);
    target.length(recipe);
    target.evaluation(recipe);
    target.yaml.key("seed", recipe.training.seed);
    target.yaml.key(
        "output_dir",
        format!("./{}-trial-{}", file_part(input.study), input.trial),
    );
    Rendered {
        text: header(input, &target.warnings) + &target.yaml.finish(),
        warnings: target.warnings,
    }
}

fn header(input: &ExportInput<'_>, warnings: &[Warning]) -> String {
    let mut header = TargetYaml::default();
    header.comment(&format!("trl sft --config {}", ExportFormat::Trl.file_name()));
    for line in input.origin() {
        header.comment(&line);
    }
    for warning in warnings {
        header.comment(&format!("not as measured: {warning}"));
    }
    header.finish()
}

/// The file as it grows, with what it cannot say.
#[derive(Default)]
struct Target {
    yaml: TargetYaml,
    warnings: Vec<Warning>,
}

impl Target {
    fn warn(&mut self, field: &'static str, message: impl Into<String>) {
        self.warnings.push(Warning::new(field, message));
    }

    fn model(&mut self, recipe: &Recipe) {
        let yaml = &mut self.yaml;
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
        let yaml = &mut self.yaml;
        yaml.key("use_peft", true);
        yaml.key("lora_r", adapter.rank);
        yaml.key("lora_alpha", super::peft::whole_if_possible(adapter.alpha));
        yaml.key("lora_dropout", adapter.dropout);
        yaml.key(
            "lora_target_modules",
            match super::peft::target_modules(&adapter.target_modules) {
                Value::String(name) => json!([name]),
                names => names,
            },
        );
        yaml.key("use_rslora", adapter.rslora);
        yaml.key("use_dora", adapter.dora);
        if !adapter.modules_to_save.is_empty() {
            yaml.key("lora_modules_to_save", adapter.modules_to_save.clone());
        }
        let unsayable = [
            (adapter.init != AdapterInit::Kaiming, "adapter.init"),
            (adapter.bias != AdapterBias::None, "adapter.bias"),
            (adapter.lora_bias, "adapter.lora_bias"),
            (!adapter.rank_pattern.is_empty(), "adapter.rank_pattern"),
            (!adapter.alpha_pattern.is_empty(), "adapter.alpha_pattern"),
            (adapter.layers_to_transform.is_some(), "adapter.layers_to_transform"),
            (adapter.adapter_init.is_some(), "adapter.adapter_init"),
        ];
        for (_, field) in unsayable.into_iter().filter(|(given, _)| *given) {
            self.warn(
                field,
                "has no key in TRL's file; pass the LoraConfig of --format peft to SFTTrainer yourself",
            );
        }
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
        self.yaml.block("datasets", &[item]);
        if let Some(template) = &data.chat_template {
            self.yaml
                .key("chat_template_path", template.to_string_lossy().into_owned());
        }
        if !data.columns.is_empty() {
            self.warn("data.columns", "TRL renames no columns; rename them in the file");
        }
        self.targets(data);
    }

    /// The `datasets` builder for the files.
    fn loader(&mut self, data: &DataSettings) -> &'static str {
        let extension = data
            .train
            .first()
            .and_then(|path| path.extension())
            .map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("csv") => "csv",
            Some("parquet") => "parquet",
            Some("txt" | "text" | "md") => {
                self.warn(
                    "data.train",
                    "TRL takes each line of a text file for a row; write JSONL rows of `text`",
                );
                "text"
            }
            _ => "json",
        }
    }

    /// Which tokens count in the loss.
    fn targets(&mut self, data: &DataSettings) {
        match (data.format, data.loss_on) {
            (DataFormat::Alpaca | DataFormat::Sharegpt, _) => {
                self.warn("data.format", "TRL reads `messages` or `prompt` and `completion`; convert the rows");
            }
            (DataFormat::Auto, LossOn::Completions) => self.warn(
                "data.loss_on",
                "write data.format for chats, so that assistant_only_loss can be set; TRL trains on whole chats otherwise",
            ),
            (DataFormat::Messages, LossOn::Completions) => {
                self.yaml.key("assistant_only_loss", true);
                self.warn("data.loss_on", "the chat template must mark answers with {% generation %}");
            }
            (DataFormat::PromptCompletion, loss_on) => {
                self.yaml.key("completion_only_loss", loss_on == LossOn::Completions);
            }
            (DataFormat::Tokenized, _) => {
                self.warn("data.format", "TRL trains on every token of `input_ids` and leaves `labels` out");
            }
            (DataFormat::Text, _) | (DataFormat::Auto | DataFormat::Messages, LossOn::All) => {
                self.yaml.key("assistant_only_loss", false);
            }
        }
    }

    fn batch(&mut self, recipe: &Recipe) {
        let batch = &recipe.batch;
        let yaml = &mut self.yaml;
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
        let name = match optimizer.kind {
            OptimizerKind::AdamW => "adamw_torch",
            OptimizerKind::Sgd => "sgd",
            OptimizerKind::AdamW8bit => "adamw_8bit",
            OptimizerKind::PagedAdamW => "paged_adamw_32bit",
            OptimizerKind::PagedAdamW8bit => "paged_adamw_8bit",
            OptimizerKind::Lion => "lion_32bit",
            OptimizerKind::Lion8bit => "lion_8bit",
            OptimizerKind::Adafactor => "adafactor",
            OptimizerKind::Muon => {
                self.warn(
                    "optimizer.kind",
                    "TRL's file knows no muon, so it says adamw; pass the optimizer in code",
                );
                "adamw_torch"
            }
        };
        let yaml = &mut self.yaml;
        yaml.key("optim", name);
        yaml.key("learning_rate", optimizer.learning_rate);
        yaml.key("weight_decay", optimizer.weight_decay);
        yaml.key("max_grad_norm", optimizer.max_grad_norm.unwrap_or(0.0));
        match optimizer.kind {
            OptimizerKind::Sgd => {
                let nesterov = if optimizer.nesterov { ",nesterov=true" } else { "" };
                yaml.key("optim_args", format!("momentum={}{nesterov}", optimizer.momentum));
            }
            OptimizerKind::Adafactor | OptimizerKind::Muon => {}
            _ => {
                let lion = matches!(optimizer.kind, OptimizerKind::Lion | OptimizerKind::Lion8bit);
                yaml.key("adam_beta1", optimizer.beta1);
                yaml.key("adam_beta2", optimizer.beta2.unwrap_or(if lion { 0.99 } else { 0.999 }));
                if !lion {
                    yaml.key("adam_epsilon", optimizer.epsilon);
                }
            }
        }
        if optimizer.loraplus_ratio.is_some() {
            self.warn(
                "optimizer.loraplus_ratio",
                "TRL's file knows no LoRA+; pass the optimizer in code",
            );
        }
    }

    /// Schedule and length: steps where they can be known, since every version of TRL understands those.
    fn length(&mut self, recipe: &Recipe) {
        let steps = match recipe.training.length {
            TrainingLength::Steps(steps) => {
                self.yaml.key("max_steps", steps);
                Some(steps)
            }
            TrainingLength::Tokens(tokens) => {
                let full_step = (recipe.batch.global_batch() * recipe.batch.sequence_length).max(1) as u64;
                let steps = tokens.div_ceil(full_step);
                self.yaml.key("max_steps", steps);
                self.warn(
                    "training.length",
                    format!("TRL counts no tokens; {tokens} tokens are {steps} steps of full rows, more where rows are short"),
                );
                Some(steps)
            }
            TrainingLength::Epochs(epochs) => {
                self.yaml.key("num_train_epochs", epochs);
                None
            }
        };
        let warmup = recipe.schedule.warmup;
        let kind = match recipe.schedule.kind {
            ScheduleKind::Constant if warmup > 0.0 => "constant_with_warmup",
            ScheduleKind::Constant => "constant",
            ScheduleKind::Linear => "linear",
            ScheduleKind::Cosine => "cosine",
        };
        self.yaml.key("lr_scheduler_type", kind);
        match steps {
            Some(steps) => self.yaml.key("warmup_steps", recipe.schedule.warmup_steps(steps)),
            // Below 1 it is a fraction there too.
            None if warmup < 1.0 && warmup > 0.0 => self.yaml.key("warmup_steps", warmup),
            None => self.yaml.key("warmup_steps", warmup as u64),
        }
    }

    fn evaluation(&mut self, recipe: &Recipe) {
        let training = &recipe.training;
        if !training.shuffle {
            self.yaml.key("train_sampling_strategy", "sequential");
        }
        match &recipe.data.held_out {
            HeldOut::Fraction(fraction) => {
                self.yaml.key("test_split_size", *fraction);
                match training.evaluate_every {
                    Some(steps) => {
                        self.yaml.key("eval_strategy", "steps");
                        self.yaml.key("eval_steps", steps);
                    }
                    None => self.yaml.key("eval_strategy", "epoch"),
                }
                self.yaml.key("per_device_eval_batch_size", recipe.batch.micro_batch);
                self.warn(
                    "data.held_out",
                    "TRL holds out other rows than were measured; its loss differs a little",
                );
            }
            HeldOut::File(_) | HeldOut::Files(_) => {
                self.yaml.key("eval_strategy", "no");
                self.warn(
                    "data.held_out",
                    "TRL's file takes no held-out file beside local data; evaluate afterwards",
                );
            }
        }
    }
}

/// A study's name as a part of a file name.
fn file_part(name: &str) -> String {
    let part: String = name
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    part.trim_start_matches('.').to_owned()
}
