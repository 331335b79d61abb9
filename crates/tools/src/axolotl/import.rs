//! axolotl's YAML.

use std::path::PathBuf;

use serde_json::Value;

use super::keys::NO_WARMUP;
use super::memory;
use crate::Tool;
use crate::import::data::{hub_set, located, rename};
use crate::import::{
    Keys, Reader, StackFileError, WarmupCount, adapter, adapter_start, precision, preference, trainer,
};
use peft_tune_core::recipe::{
    DataFormat, DataSettings, HeldOut, LongRows, LossOn, ScheduleKind, TargetModules, TargetPreset, TemplateTargets,
};

const ADAPTER: adapter::AdapterKeys = adapter::AdapterKeys {
    targets: "lora_target_modules",
    modules_to_save: "lora_modules_to_save",
    target_parameters: "lora_target_parameters",
    layers: "peft_layers_to_transform",
    rank_pattern: "lora_rank_pattern",
    alpha_pattern: "lora_alpha_pattern",
    init: "peft_init_lora_weights",
};

const PRECISION: precision::PrecisionKeys = precision::PrecisionKeys {
    dtype: &[],
    loads_as_computed: true,
    is_4_bits: |keys| Ok(keys.text("adapter")?.as_deref() == Some("qlora")),
    is_double: |keys| {
        let within = keys.part("bnb_config_kwargs", "bnb_config_kwargs.");
        let within = within
            .map(|part| part.flag("bnb_4bit_use_double_quant"))
            .transpose()?
            .flatten();
        Ok(within.or(keys.flag("bnb_4bit_use_double_quant")?).unwrap_or(true))
    },
    ..precision::PrecisionKeys::NONE
};

const TRAINER: trainer::TrainerKeys = trainer::TrainerKeys {
    epochs: "num_epochs",
    optimizer: "optimizer",
    scheduler: "lr_scheduler",
    // Versions 0.10 to 0.12 alone take the share.
    no_steps_win: true,
    compiles_by_mode: false,
    ..trainer::TrainerKeys::OF_TRANSFORMERS
};

/// Key of data sets of running text.
const TEXTS: &str = "pretraining_dataset";

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    reader.recipe.model = keys.text("base_model")?.unwrap_or_default();
    reader.recipe.adapter = Some(adapter::default(8, 8.0, 0.0));
    reader.recipe.batch.micro_batch = 1;
    reader.recipe.batch.sequence_length = 512;
    reader.recipe.optimizer.learning_rate = 5e-5;
    reader.recipe.schedule.kind = ScheduleKind::Cosine;
    match keys.text("adapter")?.as_deref() {
        Some("lora" | "qlora") => {}
        None => reader.recipe.adapter = None,
        Some(other) => return Err(keys.wrong("adapter", &other.into(), "write lora or qlora, or leave it out")),
    }
    reader.said("method");
    if let Some(of_trl) = keys.part("trl", "trl.") {
        preference::factor(reader, &of_trl, &["beta"])?;
    }
    if !reader.has_said("beta") {
        preference::factor(reader, keys, &["rl_beta", "orpo_alpha", "dpo_beta"])?;
    }
    preference::reference(reader)?;
    precision::read(reader, &PRECISION)?;
    reader.values(&[Tool::Axolotl])?;
    adapter::read(reader, &ADAPTER)?;
    if let Some(peft) = keys.part("peft", "peft.") {
        adapter_start::loftq(reader, "peft.loftq_config", &peft);
        reader.part_unread(&peft, "peft.");
    }
    all_linear(reader)?;
    if let Some(adapter) = &mut reader.recipe.adapter {
        let folder = keys.text("lora_model_dir")?;
        adapter.adapter_init = folder.map(|folder| located(keys.path(), &folder));
    }
    trainer::read(reader, &TRAINER)?;
    course(reader)?;
    // `unsloth`, `offload` and words that begin so are forms of it.
    let form = keys.text("gradient_checkpointing")?;
    let offloads = form
        .as_ref()
        .is_some_and(|form| form.starts_with("offload") || form == "unsloth");
    let offloading = keys.text("activation_offloading")?.map(|form| form != "false");
    reader.recomputes(
        form.map(|form| form != "false"),
        offloading.or(offloads.then_some(true)),
    );
    let is_in_order = keys.flag("curriculum_sampling")? == Some(true);
    if keys.flag("shuffle_merged_datasets")? == Some(false) || is_in_order {
        reader.recipe.training.shuffle = false;
    }
    special_tokens(reader)?;
    memory::read(reader)?;
    data(reader)?;
    held_out(reader)
}

/// The flag of all linear layers, to which modules of other names are added.
fn all_linear(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let is_all = keys.flag("lora_target_linear")?.unwrap_or(false);
    let Some(adapter) = reader.recipe.adapter.as_mut().filter(|_| is_all) else {
        return Ok(());
    };
    adapter.target_modules = TargetModules::Preset(TargetPreset::AllLinear);
    reader.expression = None;
    reader.said("target_modules");
    let mut beside = keys.names(ADAPTER.targets)?.unwrap_or_default();
    beside.retain(|name| ["lm_head", "embed_tokens"].contains(&name.as_str()));
    if !beside.is_empty() {
        let names = beside.join(", ");
        reader.note(format!(
            "`lora_target_modules: {names}` beside `lora_target_linear` is not carried over: it has adapters too there"
        ));
    }
    Ok(())
}

/// What axolotl has beside the Trainer's words: a batch of all rows, the lowest learning rate, and evaluations in an epoch.
fn course(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let rows = keys.count("batch_size")?;
    if let Some(rows) = rows.filter(|_| !keys.has("gradient_accumulation_steps")) {
        let batch = &mut reader.recipe.batch;
        // Sizes have 32 bits in a browser.
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        batch.gradient_accumulation = (rows / batch.micro_batch).max(1);
        reader.said("gradient_accumulation");
    }
    let lowest = keys.number("cosine_min_lr_ratio")?.filter(|ratio| *ratio > 0.0);
    if let Some(ratio) = lowest.filter(|_| reader.recipe.schedule.kind == ScheduleKind::Cosine) {
        // A rate that is the highest at its lowest never falls.
        reader.recipe.schedule.kind = match ratio < 1.0 {
            true => ScheduleKind::CosineWithMinLr,
            false => ScheduleKind::Constant,
        };
        reader.recipe.schedule.min_lr_rate = Some(ratio).filter(|ratio| *ratio < 1.0);
        reader.said("schedule");
        reader.said("min_lr_rate");
    }
    reader.later.evaluations_per_epoch = keys.number("evals_per_epoch")?.filter(|times| *times > 0.0);
    warmup(reader)
}

/// Steps that axolotl takes to warm up where they would be fewer, but not none.
const FEWEST_WARMUP_STEPS: u64 = 2;

/// The warm-up as axolotl takes it: of one step it makes two, of a share the whole steps, and where neither key says one it takes 3% of
/// the steps, or 100 where that is less (`core/builders/base.py`).
fn warmup(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let said = reader.recipe.schedule.warmup;
    if said == 1.0 {
        reader.recipe.schedule.warmup = FEWEST_WARMUP_STEPS as f64;
    } else if said <= NO_WARMUP {
        reader.recipe.schedule.warmup = 0.0;
    }
    // The Trainer's schedule of that name has none.
    let has_none = keys.text("lr_scheduler")?.as_deref() == Some("constant");
    let is_said = keys.has("warmup_steps") || keys.has("warmup_ratio") || has_none;
    if !is_said {
        reader.recipe.schedule.warmup = 0.03;
        reader.said("warmup");
    }
    let share = reader.recipe.schedule.warmup;
    reader.later.warmup = (share > 0.0 && share < 1.0).then_some(WarmupCount {
        fewest: FEWEST_WARMUP_STEPS,
        most: (!is_said).then_some(100),
    });
    Ok(())
}

/// Tokens that are other ones there: a token that pads is never learnt.
fn special_tokens(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let Some(part) = reader.keys.part("special_tokens", "special_tokens.") else {
        return Ok(());
    };
    let named = ["bos_token", "eos_token", "additional_special_tokens"]
        .into_iter()
        .filter_map(|key| Some(format!("{key}: {}", part.raw(key)?)));
    let named: Vec<String> = named.collect();
    if !named.is_empty() {
        reader.note(format!(
            "`special_tokens: {{{}}}` is not carried over: the tokenizer's own are taken here",
            named.join(", ")
        ));
    }
    Ok(())
}

fn data(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    reader.recipe.data.loss_on = match keys.flag("train_on_inputs")?.unwrap_or(false) {
        true => LossOn::All,
        false => LossOn::Completions,
    };
    long_rows(reader)?;
    let (mut train, mut splits, mut layouts) = (Vec::new(), Vec::new(), Vec::new());
    for set in keys.items("datasets", "datasets.") {
        train.extend(reader.files_of_set(&set, "path", "datasets.path")?);
        splits.push(set.text("split")?);
        rows(reader, &set)?;
        layouts.push(reader.layout_of_set());
        reader.part_unread(&set, "datasets.");
    }
    reader.take_layout("datasets.type", layouts);
    // Running text, which is read as it comes.
    if let Some(id) = keys.raw(TEXTS).and_then(Value::as_str) {
        match hub_set(id, None, None) {
            Some(set) => train.push(set),
            None => reader.not_a_file(TEXTS, id),
        }
    }
    for set in keys.items(TEXTS, "pretraining_dataset.") {
        train.extend(reader.files_of_set(&set, "path", "pretraining_dataset.path")?);
        splits.push(set.text("split")?);
        let data = &mut reader.recipe.data;
        rename(data, "text", set.text("text_column")?);
        let _ = set.has("type");
        reader.part_unread(&set, "datasets.");
    }
    if keys.has(TEXTS) {
        reader.recipe.data.format = DataFormat::Text;
    }
    reader.splits("datasets.split", &splits);
    reader.recipe.data.train = train.into();
    template(reader)
}

/// What becomes of rows that are longer than the sequence length: axolotl leaves them out where nothing else is said.
fn long_rows(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    const KEY: &str = "excess_length_strategy";
    let strategy = reader.keys.text(KEY)?;
    reader.recipe.data.long_rows = match strategy.as_deref() {
        Some("truncate") => LongRows::Cut,
        _ => LongRows::Drop,
    };
    match strategy.as_deref() {
        None | Some("drop" | "truncate") => {}
        Some("raise") => reader.note(format!(
            "`{KEY}: raise` is not carried over: axolotl stops at a row that is too long, and here it is left out \
             (`data.long_rows`)"
        )),
        Some(other) => reader.unknown_word(KEY, other, "`drop`"),
    }
    Ok(())
}

/// What a row of preferences is: its columns, which a type that is written out names too.
fn pairs(reader: &mut Reader<'_>, set: &Keys<'_>) -> Result<(), StackFileError> {
    let own = set.part("type", "datasets.type.");
    let columns = own.as_ref().unwrap_or(set);
    let data = &mut reader.recipe.data;
    for (name, key) in [
        ("prompt", "field_messages"),
        ("prompt", "field_prompt"),
        ("chosen", "field_chosen"),
        ("rejected", "field_rejected"),
        ("completion", "field_completion"),
        ("label", "field_label"),
    ] {
        rename(data, name, columns.text(key)?);
    }
    if own.is_none()
        && let Some(kind) = set.text("type")?.filter(|kind| !kind.starts_with("chat_template"))
    {
        reader.data_note(format!(
            "`datasets.type: {kind}` writes prompts by a template of its own: trials write chats by the model's, and texts as they are"
        ));
    }
    if let Some(own) = own {
        reader.part_unread(&own, "datasets.type.");
    }
    let _ = set.has("message_property_mappings");
    Ok(())
}

/// What a row is, by the `type` of its data set.
fn rows(reader: &mut Reader<'_>, set: &Keys<'_>) -> Result<(), StackFileError> {
    if !reader.recipe.trainer.is_sft() {
        return pairs(reader, set);
    }
    if let Some(own) = set.part("type", "datasets.type.") {
        let data = &mut reader.recipe.data;
        rename(data, "prompt", own.text("field_instruction")?);
        rename(data, "completion", own.text("field_output")?);
        data.format = DataFormat::PromptCompletion;
        reader.part_unread(&own, "datasets.type.");
        return Ok(());
    }
    let kind = set.text("type")?;
    let data = &mut reader.recipe.data;
    match kind.as_deref() {
        Some("chat_template") => {
            chat(data, set)?;
            // Here the template itself shows which tokens end turns.
            let _ = reader.keys.has("eot_tokens");
            trained_turns(reader, set)?;
        }
        Some("sharegpt") => data.format = DataFormat::Sharegpt,
        Some("alpaca") => data.format = DataFormat::Alpaca,
        Some("completion") => {
            data.format = DataFormat::Text;
            rename(data, "text", set.text("field")?);
        }
        None => data.format = DataFormat::Tokenized,
        Some(other) => {
            let other = other.to_owned();
            reader.unknown_word("datasets.type", &other, "what the columns of the first row tell");
        }
    }
    Ok(())
}

/// Rows of conversations.
fn chat(data: &mut DataSettings, set: &Keys<'_>) -> Result<(), StackFileError> {
    let mapping = set.part("message_property_mappings", "message_property_mappings.");
    let role = mapping.map(|mapping| mapping.text("role")).transpose()?.flatten();
    // Earlier versions have a key for it.
    let role = role.or(set.text("message_field_role")?);
    let (format, name) = match role.as_deref() {
        Some("from") => (DataFormat::Sharegpt, "conversations"),
        _ => (DataFormat::Messages, "messages"),
    };
    data.format = format;
    data.template_targets = TemplateTargets::StopTokens;
    rename(data, name, set.text("field_messages")?);
    Ok(())
}

/// Which turns of a conversation are trained on: the answers with their ends, as axolotl does where nothing else is said,
/// or all. What is trained otherwise there is told.
fn trained_turns(reader: &mut Reader<'_>, set: &Keys<'_>) -> Result<(), StackFileError> {
    if let Some(roles) = set.names("roles_to_train")? {
        let has = |names: &[&str]| roles.iter().any(|role| names.contains(&role.as_str()));
        let (questions, answers) = (has(&["user", "human"]), has(&["assistant", "gpt"]));
        // `export` writes all three roles for all tokens.
        let (loss_on, is_same) = match questions && answers {
            true => (LossOn::All, has(&["system"])),
            false => (LossOn::Completions, answers && roles.len() == 1),
        };
        reader.recipe.data.loss_on = loss_on;
        if !is_same {
            let (all, taken) = (roles.join(", "), trained_here(loss_on));
            reader.note(format!(
                "`roles_to_train: [{all}]` is not carried over: axolotl trains on the turns of these roles alone, and here \
                 {taken} (`data.loss_on`)"
            ));
        }
    }
    let loss_on = reader.recipe.data.loss_on;
    for key in ["train_on_eos", "train_on_eot"] {
        // Older files have it beside the data sets.
        let Some(ends) = set.text(key)?.or(reader.keys.text(key)?) else {
            continue;
        };
        let there = match (ends.as_str(), loss_on) {
            ("turn", _) | ("all", LossOn::All) => continue,
            ("all", LossOn::Completions) => "on the end of every turn, those of questions too",
            ("last", _) => "on the end of the last turn alone",
            ("none" | "false", _) => "on no end of a turn",
            _ => "on ends of turns by a rule that is not known here",
        };
        let taken = match loss_on {
            LossOn::Completions => "each answer is trained on with its end",
            LossOn::All => trained_here(loss_on),
        };
        reader.note(format!(
            "`{key}: {ends}` is not carried over: axolotl trains {there}, and here {taken}"
        ));
    }
    Ok(())
}

fn trained_here(loss_on: LossOn) -> &'static str {
    match loss_on {
        LossOn::Completions => "the answers are trained on",
        LossOn::All => "the turns of all roles are trained on",
    }
}

fn template(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let name = keys.text("chat_template")?;
    match name.as_deref() {
        None => {}
        // One is named for tokenizers without a template of their own.
        Some(name) if name.starts_with("tokenizer_default") => {}
        Some("jinja") => match keys.text("chat_template_jinja")? {
            Some(path) if !path.contains('{') => {
                reader.recipe.data.chat_template = Some(located(keys.path(), &path));
            }
            _ => reader.note("the text of `chat_template_jinja` is left out: write it to a file, and name it in `data.chat_template`"),
        },
        Some(other) => {
            let other = other.to_owned();
            reader.unknown_word("chat_template", &other, "the tokenizer's own template");
        }
    }
    Ok(())
}

fn held_out(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let keys = reader.keys;
    let mut all: Vec<PathBuf> = Vec::new();
    for set in keys.items("test_datasets", "test_datasets.") {
        all.extend(reader.files_of_set(&set, "path", "test_datasets.path")?);
    }
    let share = reader.held_out_share(keys, "val_set_size")?;
    reader.recipe.data.held_out = share.map_or_else(|| all.into(), HeldOut::Fraction);
    Ok(())
}
