//! `llamafactory.yaml` and `dataset_info.json`: what `llamafactory-cli train` (0.9.5) reads.
//!
//! LLaMA-Factory knows data by name: the names stand in `dataset_info.json`, beside which it looks for files with
//! relative paths. Its `template` is left out, so that it takes the tokenizer's own chat template, as the trials did.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::draft::{AdapterWords, CourseWords, Draft, column, quantized_bits};
use super::hf_trainer::{constants, optimizer_name};
use super::modules::module_names;
use super::write::Rendered;
use super::{ExportError, ExportFormat, ExportInput};
use peft_tune_core::recipe::{
    AdapterInit, AdapterSettings, Checkpointing, DataFormat, DataSettings, HeldOut, LossOn, OptimizerSettings,
    Precision, Recipe, TargetModules, TargetPreset,
};

const FORMAT: ExportFormat = ExportFormat::LlamaFactory;
const DATA_SETS: &str = "dataset_info.json";

pub(super) fn render(input: &ExportInput<'_>, directory: &Path) -> Result<Rendered, ExportError> {
    let recipe = input.recipe;
    if input.data_format() == DataFormat::Tokenized {
        return Err(ExportError::Refused {
            format: FORMAT,
            field: "data.format",
            reason: "it reads no files of token ids; give it the text that they were made from",
        });
    }
    let mut target = Target {
        draft: Draft::default(),
        input,
    };
    target.model(recipe);
    match &recipe.adapter {
        Some(adapter) => target.adapter(adapter),
        None => target.draft.key("finetuning_type", "full"),
    }
    let data_sets = target.data(&recipe.data, directory);
    target.held_out(recipe);
    target.batch(recipe);
    target.optimizer(&recipe.optimizer);
    target.course(recipe);
    target.draft.key("seed", recipe.training.seed);
    target.draft.key("logging_steps", 1);
    target.draft.key("report_to", "none");
    target.draft.key("output_dir", input.output_folder());
    let usage = format!("llamafactory-cli train {}", FORMAT.file_name());
    let text = input.header(&usage, &target.draft.warnings) + &target.draft.yaml.finish();
    let data_sets = serde_json::to_string_pretty(&data_sets).unwrap_or_default() + "\n";
    Ok(Rendered {
        files: vec![(FORMAT.file_name(), text), (DATA_SETS, data_sets)],
        warnings: target.draft.warnings,
    })
}

/// The file as it grows.
struct Target<'a> {
    draft: Draft,
    input: &'a ExportInput<'a>,
}

impl Target<'_> {
    fn model(&mut self, recipe: &Recipe) {
        let draft = &mut self.draft;
        draft.key("model_name_or_path", recipe.model.as_str());
        draft.key("trust_remote_code", false);
        draft.key("bf16", !matches!(recipe.precision, Precision::Fp32 | Precision::Fp16));
        draft.key("fp16", recipe.precision == Precision::Fp16);
        if let Some(bits) = quantized_bits(recipe.precision) {
            draft.key("quantization_bit", bits);
            draft.key("quantization_method", "bnb");
            if bits == 4 {
                draft.key("quantization_type", "nf4");
                draft.key("double_quantization", recipe.precision == Precision::Nf4Double);
            }
        }
        draft.key("flash_attn", if recipe.batch.packing { "fa2" } else { "sdpa" });
        if recipe.batch.packing {
            draft.warn("batch.packing", "needs the flash-attn package");
        }
    }

    fn adapter(&mut self, adapter: &AdapterSettings) {
        let alpha = self.draft.whole_alpha(adapter.alpha, FORMAT);
        let draft = &mut self.draft;
        draft.key("finetuning_type", "lora");
        draft.key("lora_rank", adapter.rank);
        draft.key("lora_alpha", alpha);
        draft.key("lora_dropout", adapter.dropout);
        let targets = match &adapter.target_modules {
            TargetModules::Preset(TargetPreset::AllLinear) => "all".to_owned(),
            targets => module_names(targets, self.input.known.architecture).join(","),
        };
        draft.key("lora_target", targets);
        draft.key("use_rslora", adapter.rslora);
        draft.key("use_dora", adapter.dora);
        draft.key("pissa_init", adapter.init == AdapterInit::Pissa);
        if adapter.init == AdapterInit::Pissa {
            // The exact decomposition, as the trials had it, and no fast approximation.
            draft.key("pissa_iter", -1);
        }
        if !adapter.modules_to_save.is_empty() {
            draft.key("additional_target", adapter.modules_to_save.join(","));
        }
        if let Some(folder) = &adapter.adapter_init {
            draft.key("adapter_name_or_path", folder.to_string_lossy().into_owned());
        }
        let words = AdapterWords {
            init: &[AdapterInit::Pissa],
            modules_to_save: true,
            start: true,
            ..AdapterWords::default()
        };
        draft.unsayable(
            adapter,
            words,
            "has no key in LLaMA-Factory's file; leave it out, or train with `peft-tune train`",
        );
    }

    /// Writes the data keys and returns the content of `dataset_info.json`.
    fn data(&mut self, data: &DataSettings, directory: &Path) -> Value {
        let held_out = match &data.held_out {
            HeldOut::Fraction(_) => &[][..],
            HeldOut::File(path) => std::slice::from_ref(path),
            HeldOut::Files(paths) => paths,
        };
        let train = named("train", &data.train);
        let held_out = named("held_out", held_out);
        let stage = if self.input.data_format() == DataFormat::Text {
            "pt"
        } else {
            "sft"
        };
        self.draft.key("stage", stage);
        self.draft.key("do_train", true);
        self.draft.key("dataset", join(&train));
        if !held_out.is_empty() {
            self.draft.key("eval_dataset", join(&held_out));
        }
        // Where the files are: relative to the folder that the tool is started in.
        let folder = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        self.draft.key("dataset_dir", folder.to_string_lossy().into_owned());
        self.draft.key("train_on_prompt", data.loss_on == LossOn::All);
        if let Some(rows) = data.max_rows {
            self.draft.key("max_samples", rows);
        }
        if data.chat_template.is_some() {
            self.draft.warn(
                "data.chat_template",
                "LLaMA-Factory takes the template from the tokenizer; put yours into tokenizer_config.json",
            );
        }
        if self.input.data_format() == DataFormat::Auto {
            self.draft.warn(
                "data.format",
                "the rows were not recognised; describe them in dataset_info.json",
            );
        }
        if data.columns.contains_key("tools") {
            self.draft
                .warn("data.columns", "tools must be JSON text there; convert the column");
        }
        let entries = train.iter().chain(&held_out);
        let entries: Map<String, Value> = entries
            .map(|(name, path)| (name.clone(), self.entry(path, data)))
            .collect();
        Value::Object(entries)
    }

    /// What `dataset_info.json` says of one file.
    fn entry(&self, path: &Path, data: &DataSettings) -> Value {
        let file = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (formatting, columns, tags) = match self.input.data_format() {
            DataFormat::Messages => (
                "sharegpt",
                json!({"messages": column(data, "messages")}),
                Some(json!({
                    "role_tag": "role", "content_tag": "content",
                    "user_tag": "user", "assistant_tag": "assistant", "system_tag": "system",
                })),
            ),
            DataFormat::Sharegpt => (
                "sharegpt",
                json!({"messages": column(data, "conversations")}),
                Some(json!({
                    "role_tag": "from", "content_tag": "value",
                    "user_tag": "human", "assistant_tag": "gpt", "system_tag": "system",
                })),
            ),
            DataFormat::PromptCompletion => (
                "alpaca",
                json!({"prompt": column(data, "prompt"), "response": column(data, "completion")}),
                None,
            ),
            DataFormat::Text => ("alpaca", json!({"prompt": column(data, "text")}), None),
            DataFormat::Alpaca | DataFormat::Auto | DataFormat::Tokenized => (
                "alpaca",
                json!({
                    "prompt": column(data, "instruction"),
                    "query": column(data, "input"),
                    "response": column(data, "output"),
                }),
                None,
            ),
        };
        let mut entry = json!({"file_name": file.to_string_lossy(), "formatting": formatting, "columns": columns});
        if let Some(tags) = tags {
            entry["tags"] = tags;
        }
        entry
    }

    fn held_out(&mut self, recipe: &Recipe) {
        if let HeldOut::Fraction(fraction) = &recipe.data.held_out {
            self.draft.key("val_size", *fraction);
            self.draft.warn(
                "data.held_out",
                "LLaMA-Factory holds out other rows than were measured; its loss differs a little",
            );
        }
        match recipe.training.evaluate_every {
            Some(steps) => {
                self.draft.key("eval_strategy", "steps");
                self.draft.key("eval_steps", steps);
            }
            None => self.draft.key("eval_strategy", "epoch"),
        }
        self.draft.key("per_device_eval_batch_size", recipe.batch.micro_batch);
    }

    fn batch(&mut self, recipe: &Recipe) {
        let batch = &recipe.batch;
        let draft = &mut self.draft;
        draft.key("cutoff_len", batch.sequence_length);
        draft.key("packing", batch.packing);
        // Keeps packed documents from attending to each other.
        draft.key("neat_packing", batch.packing);
        draft.key("per_device_train_batch_size", batch.micro_batch);
        draft.key("gradient_accumulation_steps", batch.gradient_accumulation);
        draft.key(
            "disable_gradient_checkpointing",
            recipe.gradient_checkpointing == Checkpointing::None,
        );
        match recipe.gradient_checkpointing {
            Checkpointing::None | Checkpointing::Full => {}
            // Layer inputs go to the host; the unsloth package is not needed for it.
            Checkpointing::Offload => draft.key("use_unsloth_gc", true),
            Checkpointing::Every(_) => draft.warn(
                "gradient_checkpointing",
                "LLaMA-Factory recomputes every layer: slower, and less memory",
            ),
        }
        draft.key("disable_shuffling", !recipe.training.shuffle);
        if batch.group_by_length {
            draft.warn(
                "batch.group_by_length",
                "set `group_by_length: true` with transformers 4, `train_sampling_strategy: group_by_length` with 5",
            );
        }
    }

    fn optimizer(&mut self, optimizer: &OptimizerSettings) {
        let draft = &mut self.draft;
        match optimizer_name(optimizer.kind) {
            Some(name) => draft.key("optim", name),
            None => draft.key("use_muon", true),
        }
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
                epochs: "num_train_epochs",
                schedule: "lr_scheduler_type",
                warmup_share: "warmup_ratio",
            },
        );
    }
}

/// Files with a name each: `train`, `train_2`, ...
fn named(name: &str, paths: &[PathBuf]) -> Vec<(String, PathBuf)> {
    let name_of = |index: usize| match index {
        0 => name.to_owned(),
        index => format!("{name}_{}", index + 1),
    };
    paths
        .iter()
        .enumerate()
        .map(|(index, path)| (name_of(index), path.clone()))
        .collect()
}

fn join(named: &[(String, PathBuf)]) -> String {
    named
        .iter()
        .map(|(name, _)| name.as_str())
        .collect::<Vec<_>>()
        .join(",")
}
