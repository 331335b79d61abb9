//! `torchtune.yaml`: the file that `tune run lora_finetune_single_device --config` (torchtune 0.6.1) reads.
//!
//! torchtune reads no `config.json`: the model is built from dimensions, which are therefore written out. It knows no
//! rsLoRA (its scaling is always alpha / r), so that alpha becomes alpha·sqrt(r), and no constant learning rate, which
//! is a cosine of no cycles.

use std::path::Path;

use serde_json::json;

use super::length::Length;
use super::refused::refused;
use super::{dataset, model};
use crate::Tool;
use crate::export::draft::{Advice, Draft, Word};
use crate::export::reading::Reading;
use crate::export::rows::value_of;
use crate::export::step_counts::{StepCounts, Warmup};
use crate::export::{ExportInput, ExportRow, RenderError, Rendered, TokenFiles};
use peft_tune_core::recipe::{
    DataFormat, HeldOut, OptimizerKind, OptimizerOffload, OptimizerSettings, Precision, Recipe, TemplateTargets,
};

pub(super) const EXPORT: ExportRow = ExportRow {
    about: "torchtune.yaml, for tune run lora_finetune_single_device --config",
    file_name: "torchtune.yaml",
    other_trainers: &[],
    reading: Some(Reading {
        // It has tokenizers and chat templates of its own. The module beside the file reads token ids.
        formats: &[DataFormat::Tokenized],
        template_targets: TemplateTargets::All,
        renames_columns: false,
        passes_over_columns: true,
        cuts: true,
        // Its recipe evaluates nothing, so that held-out files are no reason to write rows.
        evaluates: |_| true,
        mixes_tokens: false,
        counts_first_tokens: false,
        tokens: TokenFiles::Jsonl,
    }),
    sharding: Some(
        "is not in this file: the recipe `lora_finetune_single_device` has no form of it, and `lora_finetune_distributed` shares \
         weights out by itself",
    ),
    asks_for_answer_marks: false,
    render,
};

fn render(input: &ExportInput<'_>, _: &Path) -> Result<Rendered, RenderError> {
    let recipe = input.recipe;
    let mut draft = Draft::new(Tool::Torchtune, input);
    draft.key("output_dir", input.output_folder());
    let length = Length::of(&draft);
    model::write(&mut draft)?;
    dataset::write(&mut draft, length)?;
    held_out(&mut draft, recipe);
    draft.say_seed("seed");
    draft.said(&["training.shuffle"]);
    draft.key("shuffle", recipe.training.shuffle && length.repeats.is_none());
    length.write(&mut draft);
    draft.say_each(&["micro_batch", "gradient_accumulation"]);
    optimizer(&mut draft, &recipe.optimizer);
    schedule(&mut draft, &input.step_counts());
    draft.yaml.map(
        "loss",
        &[("_component_", json!("torchtune.modules.loss.CEWithChunkedOutputLoss"))],
    );
    arithmetic(&mut draft, recipe)?;
    log(&mut draft);
    let has_module = input.data_format() == DataFormat::Tokenized;
    let usage = match has_module {
        true => "in this folder: tune run lora_finetune_single_device --config",
        false => "tune run lora_finetune_single_device --config",
    };
    let mut rendered = draft.finish(usage, Advice::TRAIN_HERE, "");
    let module = has_module.then(|| (dataset::MODULE.0, dataset::MODULE.1.to_owned()));
    rendered.files.extend(module);
    Ok(rendered)
}

fn held_out(draft: &mut Draft<'_>, recipe: &Recipe) {
    let message = match recipe.data.held_out {
        HeldOut::Fraction(_) => "the recipe of torchtune does not evaluate; the last rows are left for you to do it",
        HeldOut::File(_) | HeldOut::Files(_) => "the recipe of torchtune does not evaluate; do it afterwards",
    };
    if matches!(recipe.data.held_out, HeldOut::Fraction(_)) {
        draft.warn_of_other_rows();
    }
    draft.warn("data.held_out", message);
    draft.said(&["training.evaluate_every", "training.evaluation_rows"]);
}

fn optimizer(draft: &mut Draft<'_>, optimizer: &OptimizerSettings) {
    draft.said(&["optimizer.kind"]);
    let mut keys = draft.words(|keys| (keys.optimizer)(optimizer.kind)).unwrap_or_default();
    offload(draft, optimizer, &mut keys);
    keys.extend(draft.word("learning_rate"));
    keys.extend(draft.word("weight_decay"));
    // torch's Muon takes matrices only: what it does to them is all that can be said.
    if optimizer.kind.reads_betas() {
        keys.push(("betas", json!([optimizer.beta1, optimizer.beta2()])));
        draft.said(&["optimizer.beta1", "optimizer.beta2"]);
    }
    if optimizer.kind.reads_epsilon() {
        keys.extend(draft.word("epsilon"));
    }
    keys.extend(draft.word("momentum"));
    keys.extend(draft.word("nesterov"));
    tell_package(draft, "optimizer.kind", &keys);
    draft.yaml.map("optimizer", &keys);
    if optimizer.loraplus_ratio.is_some() {
        draft.warn(
            "optimizer.loraplus_ratio",
            "torchtune knows no LoRA+; lower the learning rate's ratio to 1",
        );
    }
    if optimizer.kind == OptimizerKind::Muon {
        draft.warn("optimizer.kind", "needs torch 2.9 or later, where torch.optim has Muon");
    }
}

/// torchao's optimizer whose states are on the host, which makes torch's AdamW by itself.
fn offload(draft: &mut Draft<'_>, optimizer: &OptimizerSettings, keys: &mut Vec<Word>) {
    const FIELD: &str = "optimizer.offload";
    match (optimizer.offload, optimizer.kind) {
        (OptimizerOffload::None, _) => {}
        (OptimizerOffload::Host, OptimizerKind::AdamW) => {
            *keys = vec![("_component_", json!("torchao.optim.CPUOffloadOptimizer"))];
            draft.warn(FIELD, "needs the torchao package");
        }
        (OptimizerOffload::Host, _) => draft.warn(
            FIELD,
            "has a form for AdamW with F32 states only; write `optimizer: adamw`, or train with `peft-tune train`",
        ),
    }
}

fn schedule(draft: &mut Draft<'_>, step_counts: &StepCounts) {
    draft.said(&["schedule.warmup"]);
    let steps = match step_counts.warmup {
        Warmup::Steps(steps) => steps,
        Warmup::Share(share) => {
            draft.warn(
                "schedule.warmup",
                format!("torchtune counts warm-up in steps; set `num_warmup_steps` to {share} of all steps"),
            );
            0
        }
    };
    let mut keys = draft.schedule_words();
    keys.insert(keys.len().min(1), ("num_warmup_steps", json!(steps)));
    tell_package(draft, "schedule.kind", &keys);
    draft.yaml.map("lr_scheduler", &keys);
}

/// Says which package a component is of, where torchtune does not bring it.
fn tell_package(draft: &mut Draft<'_>, field: &'static str, keys: &[Word]) {
    let component = value_of(keys, "_component_");
    let package = component.as_str().and_then(|component| component.split('.').next());
    if let Some(package @ ("bitsandbytes" | "transformers")) = package {
        draft.warn(
            field,
            format!("needs the {package} package, which torchtune does not bring"),
        );
    }
}

fn arithmetic(draft: &mut Draft<'_>, recipe: &Recipe) -> Result<(), RenderError> {
    if recipe.precision == Precision::Fp16 {
        return Err(refused(
            "precision",
            "its recipe takes no fp16; search with bf16 or fp32",
        ));
    }
    let dtype = value_of(&draft.precision_words(), "dtype");
    draft.key("device", "cuda");
    draft.key("dtype", dtype);
    let words = draft.checkpointing_words();
    draft.keys(words);
    draft.say_as("max_grad_norm", recipe.optimizer.max_grad_norm);
    draft.say("torch_compile");
    Ok(())
}

fn log(draft: &mut Draft<'_>) {
    let logger = [
        ("_component_", json!("torchtune.training.metric_logging.DiskLogger")),
        ("log_dir", json!("${output_dir}/logs")),
    ];
    draft.yaml.map("metric_logger", &logger);
    draft.key("log_every_n_steps", 1);
    draft.key("log_peak_memory_stats", true);
    let profiler = [
        ("_component_", json!("torchtune.training.setup_torch_profiler")),
        ("enabled", json!(false)),
    ];
    draft.yaml.map("profiler", &profiler);
}
