//! `torchtune.yaml`: the file that `tune run lora_finetune_single_device --config` (torchtune 0.6.1) reads.
//!
//! torchtune reads no `config.json`: the model is built from dimensions, which are therefore written out. It knows no
//! rsLoRA (its scaling is always alpha / r), so that alpha becomes alpha·sqrt(r), and no constant learning rate, which
//! is a cosine of no cycles.

use std::path::Path;

use serde_json::json;

use super::model;
use crate::tools::Tool;
use crate::tools::export::draft::{Advice, Draft, ROWS, Word, builder_of, column, on_hub};
use crate::tools::export::rows::value_of;
use crate::tools::export::step_counts::{StepCounts, Warmup};
use crate::tools::export::{ExportInput, ExportRow, RenderError, Rendered};
use peft_tune_core::recipe::{
    BatchSettings, DataFormat, DataSettings, HeldOut, HubDataSet, LossOn, OptimizerKind, OptimizerOffload,
    OptimizerSettings, Precision, Recipe, TrainingLength,
};

pub(super) const EXPORT: ExportRow = ExportRow {
    about: "torchtune.yaml, for tune run lora_finetune_single_device --config",
    file_name: "torchtune.yaml",
    reading: None,
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
    model::write(&mut draft)?;
    data(&mut draft)?;
    held_out(&mut draft, recipe);
    draft.say_seed("seed");
    draft.said(&["training.shuffle", "training.length"]);
    draft.key("shuffle", recipe.training.shuffle);
    length(&mut draft, &input.step_counts());
    draft.say_each(&["micro_batch", "gradient_accumulation"]);
    optimizer(&mut draft, &recipe.optimizer);
    schedule(&mut draft, &input.step_counts());
    draft.yaml.map(
        "loss",
        &[("_component_", json!("torchtune.modules.loss.CEWithChunkedOutputLoss"))],
    );
    arithmetic(&mut draft, recipe)?;
    log(&mut draft);
    Ok(draft.finish("tune run lora_finetune_single_device --config", Advice::TRAIN_HERE, ""))
}

pub(super) fn refused(field: &'static str, reason: &'static str) -> RenderError {
    RenderError::Refused {
        tool: Tool::Torchtune,
        field,
        reason,
    }
}

fn data(draft: &mut Draft<'_>) -> Result<(), RenderError> {
    draft.said(&ROWS);
    draft.refuse_mixture("it puts data sets together whole and knows no weights; use --format trl or llamafactory, or train with `peft-tune train`")?;
    let data = &draft.recipe().data;
    let format = draft.input.data_format();
    let component = match format {
        DataFormat::Messages | DataFormat::Sharegpt => "chat_dataset",
        DataFormat::Alpaca | DataFormat::Auto => "alpaca_dataset",
        DataFormat::PromptCompletion => "instruct_dataset",
        DataFormat::Text => "text_completion_dataset",
        DataFormat::Tokenized => {
            return Err(refused(
                "data.format",
                "it reads no token ids; give it the text that they were made from",
            ));
        }
    };
    let train: Vec<_> = data.train.files().collect();
    let files: Vec<_> = train.iter().map(|path| path.to_string_lossy()).collect();
    let mut keys = vec![("_component_", json!(format!("torchtune.datasets.{component}")))];
    match &train[..] {
        [set] if HubDataSet::is_written(set) => {
            let (words, name) = on_hub(set, None).unwrap_or_default();
            let as_source = |(word, value)| (if word == "path" { "source" } else { word }, value);
            keys.extend(words.into_iter().map(as_source));
            keys.push(("split", json!(split(data, &name))));
        }
        many if many.iter().any(|path| HubDataSet::is_written(path)) => {
            return Err(refused(
                "data.train",
                "it loads one data set of the hub; download the others and name files only",
            ));
        }
        _ => {
            let builder = train.first().map_or("json", |path| builder_of(path));
            keys.push(("source", json!(builder)));
            keys.push(("data_files", json!(files)));
            keys.push(("split", json!(split(data, "train"))));
        }
    }
    match format {
        DataFormat::Messages => {
            keys.push(("conversation_column", json!(column(data, "messages"))));
            keys.push(("conversation_style", json!("openai")));
        }
        DataFormat::Sharegpt => {
            keys.push(("conversation_column", json!(column(data, "conversations"))));
            keys.push(("conversation_style", json!("sharegpt")));
        }
        DataFormat::PromptCompletion => keys.push((
            "column_map",
            json!({"input": column(data, "prompt"), "output": column(data, "completion")}),
        )),
        DataFormat::Text => keys.push(("column", json!(column(data, "text")))),
        DataFormat::Alpaca | DataFormat::Auto | DataFormat::Tokenized => keys.push((
            "column_map",
            json!({
                "instruction": column(data, "instruction"),
                "input": column(data, "input"),
                "output": column(data, "output"),
            }),
        )),
    }
    if format != DataFormat::Text {
        keys.push(("train_on_input", json!(data.loss_on == LossOn::All)));
    }
    keys.extend(draft.word("packing"));
    draft.yaml.map("dataset", &keys);
    if format == DataFormat::Auto {
        draft.warn(
            "data.format",
            "the rows were not recognised, so they are taken for alpaca; set `dataset`",
        );
    }
    match draft.recipe().batch.prefetch_depth {
        0 | BatchSettings::USUAL_PREFETCH_DEPTH => draft.said(&["batch.prefetch_depth"]),
        _ => draft.warn(
            "batch.prefetch_depth",
            "torchtune reads the rows of a step when it begins",
        ),
    }
    if draft.recipe().batch.group_by_length {
        draft.warn(
            "batch.group_by_length",
            "torchtune orders rows by chance only: more padding, less throughput",
        );
    }
    if data.chat_template.is_some() {
        draft.warn(
            "data.chat_template",
            "torchtune has chat templates of its own; set `tokenizer.prompt_template`",
        );
    } else if matches!(format, DataFormat::Messages | DataFormat::Sharegpt) {
        draft.warn(
            "data.chat_template",
            "torchtune writes chats with its own template of the family; compare a row with the tokenizer's",
        );
    }
    Ok(())
}

/// Which of the rows are read: as many as were asked for, without the last ones where a part is held out.
fn split(data: &DataSettings, name: &str) -> String {
    match (&data.held_out, data.max_rows) {
        (_, Some(rows)) => format!("{name}[:{rows}]"),
        (HeldOut::Fraction(fraction), None) => format!("{name}[:{}%]", (100.0 * (1.0 - fraction)).round()),
        (HeldOut::File(_) | HeldOut::Files(_), None) => name.to_owned(),
    }
}

fn held_out(draft: &mut Draft<'_>, recipe: &Recipe) {
    let message = match recipe.data.held_out {
        HeldOut::Fraction(_) => "the recipe of torchtune does not evaluate; the last rows are left for you to do it",
        HeldOut::File(_) | HeldOut::Files(_) => "the recipe of torchtune does not evaluate; do it afterwards",
    };
    draft.warn("data.held_out", message);
    draft.said(&["training.evaluate_every", "training.evaluation_rows"]);
}

fn length(draft: &mut Draft<'_>, step_counts: &StepCounts) {
    let (epochs, steps_per_epoch) = match (step_counts.length, step_counts.steps_per_epoch, step_counts.steps) {
        // Whole epochs need no steps.
        (TrainingLength::Epochs(epochs), _, _) if epochs.fract() == 0.0 => (epochs as u64, None),
        (_, Some(per_epoch), Some(steps)) if steps > per_epoch => {
            let epochs = steps.div_ceil(per_epoch);
            if epochs * per_epoch != steps {
                draft.warn(
                    "training.length",
                    format!("torchtune trains whole epochs beyond the first, so {steps} steps are {epochs} epochs"),
                );
            }
            (epochs, None)
        }
        (_, _, Some(steps)) => (1, Some(steps)),
        (TrainingLength::Epochs(epochs), _, None) => {
            draft.warn(
                "training.length",
                format!("{epochs} epochs are rounded up; set `max_steps_per_epoch`"),
            );
            (epochs.ceil() as u64, None)
        }
        (TrainingLength::Steps(_) | TrainingLength::Tokens(_), _, None) => (1, None),
    };
    draft.key("epochs", epochs.max(1));
    draft.key("max_steps_per_epoch", steps_per_epoch);
    if let Some((_, message)) = step_counts.of_tokens() {
        draft.warn("training.length", message);
    }
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
    draft.yaml.map("lr_scheduler", &keys);
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
    draft.key("compile", false);
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
