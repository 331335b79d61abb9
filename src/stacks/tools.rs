//! What the keys of each tool mean, and what it takes where a key is missing.

use super::StackFileError;
use super::config::StackConfig;
use super::keys::Keys;
use crate::tools::Tool;
use peft_tune_core::predict::stack::{
    AttentionForm, LossForm, Number, OptimizerForm, ROLES, Recompute, Role, Sharing, StackSetting, Trains, WeightForm,
    optimizer_form,
};
use peft_tune_core::recipe::OptimizerKind;

/// Parts of keys that leave memory and speed of a step alone: data, schedules, logs, files.
const HARMLESS: &[&str] = &[
    "data",
    "learning_rate",
    "lr",
    "warmup",
    "schedul",
    "weight_decay",
    "log",
    "save",
    "output",
    "seed",
    "report",
    "wandb",
    "mlflow",
    "epoch",
    "max_steps",
    "eval",
    "val_",
    "template",
    "chat",
    "train_on",
    "alpha",
    "rslora",
    "special_tokens",
    "tokens",
    "beta",
    "eps",
    "shuffle",
    "split",
    "excess_length",
    "type",
    "path",
    "strict",
    "hub",
    "resume",
    "group_by",
    "workers",
    "loss_only",
    "do_train",
    "plot",
    "overwrite",
    "metric",
    "tokenizer",
    "clip",
    "max_grad_norm",
    "name",
    "revision",
    "trust",
    "bias",
    "task",
    "init",
    "fan_in",
    "merge",
    "roles",
    "field",
    "system",
    "pad_to",
    "drop",
    "stage",
    "timeout",
    "checkpointer",
    "device",
    "profiler",
    "packing_strategy",
    "remove_unused",
    "completion_only",
    "assistant_only",
    "auto_mapping",
    "inference_mode",
    "pattern",
];

/// # Errors
/// A value that the tool would not take.
pub(super) fn setting(stack: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let mut config = match stack {
        Tool::Trl | Tool::Unsloth => trl(stack, keys)?,
        Tool::Axolotl => axolotl(keys)?,
        Tool::LlamaFactory => llamafactory(keys)?,
        Tool::Torchtune if keys.has("model") => torchtune(keys)?,
        Tool::Torchtune | Tool::Peft => adapter(stack, keys)?,
    };
    if keys.has("peft_type") {
        config = adapter(stack, keys)?;
    }
    config.setting.dora = has_dora(stack, keys)? && config.setting.trains != Trains::Everything;
    config.unread = keys.unread(HARMLESS);
    Ok(config)
}

/// Whether adapters have magnitudes, which tools call by other names.
fn has_dora(stack: Tool, keys: &Keys<'_>) -> Result<bool, StackFileError> {
    let model = match stack {
        Tool::Torchtune => keys.part("model", "model."),
        _ => None,
    };
    let keys = model.as_ref().unwrap_or(keys);
    let named = [keys.flag("use_dora")?, keys.flag("peft_use_dora")?];
    Ok(named.contains(&Some(true)))
}

fn config(setting: StackSetting, model: Option<String>) -> StackConfig {
    StackConfig {
        setting,
        model,
        unread: Vec::new(),
        notes: Vec::new(),
    }
}

fn adapter(stack: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let mut setting = StackSetting::new(stack.behaviour(), WeightForm::Numbers);
    setting.loads = Number::Half;
    setting.trains = adapters(
        keys,
        ["r", "lora_dropout", "modules_to_save"],
        8,
        keys.names("target_modules")?,
    )?;
    let mut config = config(setting, keys.text("base_model_name_or_path")?);
    config.notes.push(
        "an adapter's config says nothing of batch, length and dtype: one row of 1024 tokens in bf16 is assumed".into(),
    );
    Ok(config)
}

fn trl(stack: Tool, keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let weights = bitsandbytes(keys, "use_bnb_nested_quant")?;
    let mut setting = StackSetting::new(stack.behaviour(), weights);
    let dtype = keys.text("dtype")?.or(keys.text("torch_dtype")?);
    numbers(keys, &mut setting, dtype.as_deref())?;
    setting.micro_batch = keys.count("per_device_train_batch_size")?.unwrap_or(8);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    setting.sequence_length = keys
        .count("max_length")?
        .or(keys.count("max_seq_length")?)
        .unwrap_or(1024);
    let own = keys.text("use_gradient_checkpointing")?;
    let is_on = keys
        .flag("gradient_checkpointing")?
        .unwrap_or(own.as_deref() != Some("false"));
    let is_offloaded = keys
        .flag("activation_offloading")?
        .unwrap_or(own.as_deref() == Some("unsloth"));
    setting.recompute = recompute(is_on, is_offloaded);
    let uses_adapters = keys.flag("use_peft")?.unwrap_or(keys.has("lora_r"));
    let is_script = keys.has("r") && !keys.has("lora_r");
    setting.trains = match uses_adapters || is_script {
        true if is_script => adapters(
            keys,
            ["r", "lora_dropout", "modules_to_save"],
            16,
            keys.names("target_modules")?,
        )?,
        true => {
            let targets = keys.names("lora_target_modules")?;
            adapters(keys, ["lora_r", "lora_dropout", "lora_modules_to_save"], 16, targets)?
        }
        false => Trains::Everything,
    };
    setting.optimizer = optimizer(keys, "optim", "adamw_torch_fused")?;
    attention(&mut setting, keys.text("attn_implementation")?.as_deref());
    setting.fused |= keys.flag("use_liger_kernel")?.unwrap_or(false);
    sharing(keys, &mut setting)?;
    let model = keys.text("model_name_or_path")?.or(keys.text("model_name")?);
    let mut config = config(setting, model);
    if dtype.is_none() && stack == Tool::Trl && weights == WeightForm::Numbers {
        config
            .notes
            .push("no `dtype`: trl sft loads the weights in F32, which takes twice the memory; write bfloat16".into());
    }
    packing_note(keys, "packing", &mut config)?;
    Ok(config)
}

fn axolotl(keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let weights = bitsandbytes(keys, "bnb_4bit_use_double_quant")?;
    // `adapter: qlora` quantizes with double quantization where nothing else is said.
    let is_qlora = keys.text("adapter")?.as_deref() == Some("qlora");
    let weights = match weights {
        WeightForm::Nf4 => WeightForm::Nf4Double,
        WeightForm::Numbers if is_qlora => WeightForm::Nf4Double,
        other => other,
    };
    let mut setting = StackSetting::new(Tool::Axolotl.behaviour(), weights);
    numbers(keys, &mut setting, None)?;
    setting.micro_batch = keys.count("micro_batch_size")?.unwrap_or(1);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    setting.sequence_length = keys.count("sequence_len")?.unwrap_or(512);
    let form = keys.text("gradient_checkpointing")?.unwrap_or_else(|| "false".into());
    let is_offloaded = form.starts_with("offload") || keys.flag("activation_offloading")?.unwrap_or(false);
    setting.recompute = recompute(form != "false", is_offloaded);
    let targets = match keys.flag("lora_target_linear")?.unwrap_or(false) {
        true => Some(vec!["all-linear".to_owned()]),
        false => keys.names("lora_target_modules")?,
    };
    setting.trains = match keys.has("adapter") {
        true => adapters(keys, ["lora_r", "lora_dropout", "lora_modules_to_save"], 8, targets)?,
        false => Trains::Everything,
    };
    setting.optimizer = optimizer(keys, "optimizer", "adamw_torch_fused")?;
    attention(&mut setting, keys.text("attn_implementation")?.as_deref());
    if keys.flag("flash_attention")?.unwrap_or(false) {
        setting.attention = AttentionForm::Flash;
    }
    let plugins = keys.names("plugins")?.unwrap_or_default().join(" ");
    if plugins.contains("cut_cross_entropy") || keys.flag("liger_fused_linear_cross_entropy")?.unwrap_or(false) {
        setting.loss = LossForm::FusedLinear;
        setting.holds_logits = false;
    }
    setting.fused |= plugins.contains("liger");
    setting.fused_lora =
        keys.flag("lora_qkv_kernel")?.unwrap_or(false) && keys.flag("lora_mlp_kernel")?.unwrap_or(false);
    sharing(keys, &mut setting)?;
    let mut config = config(setting, keys.text("base_model")?);
    packing_note(keys, "sample_packing", &mut config)?;
    Ok(config)
}

fn llamafactory(keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let is_double = keys.flag("double_quantization")?.unwrap_or(true);
    let weights = match keys.count("quantization_bit")? {
        None => WeightForm::Numbers,
        Some(4) if is_double => WeightForm::Nf4Double,
        Some(4) => WeightForm::Nf4,
        Some(8) => WeightForm::Int8,
        Some(bits) => return Err(keys.wrong("quantization_bit", &bits.into(), "write 4 or 8")),
    };
    let mut setting = StackSetting::new(Tool::LlamaFactory.behaviour(), weights);
    numbers(keys, &mut setting, None)?;
    setting.micro_batch = keys.count("per_device_train_batch_size")?.unwrap_or(8);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    setting.sequence_length = keys.count("cutoff_len")?.unwrap_or(2048);
    let is_on = !keys.flag("disable_gradient_checkpointing")?.unwrap_or(false);
    setting.recompute = recompute(is_on, keys.flag("use_unsloth_gc")?.unwrap_or(false));
    let form = keys.text("finetuning_type")?.unwrap_or_else(|| "lora".into());
    setting.trains = match form.as_str() {
        "full" => Trains::Everything,
        "lora" => adapters(
            keys,
            ["lora_rank", "lora_dropout", "additional_target"],
            8,
            keys.names("lora_target")?,
        )?,
        _ => {
            return Err(keys.wrong(
                "finetuning_type",
                &form.into(),
                "write lora or full: nothing else is predicted",
            ));
        }
    };
    setting.optimizer = optimizer(keys, "optim", "adamw_torch")?;
    attention(&mut setting, keys.text("flash_attn")?.as_deref());
    if keys.flag("enable_liger_kernel")?.unwrap_or(false) {
        setting.fused = true;
        setting.loss = LossForm::FusedLinear;
        setting.holds_logits = false;
    }
    sharing(keys, &mut setting)?;
    let mut config = config(setting, keys.text("model_name_or_path")?);
    packing_note(keys, "packing", &mut config)?;
    Ok(config)
}

fn torchtune(keys: &Keys<'_>) -> Result<StackConfig, StackFileError> {
    let Some(model) = keys.part("model", "model.") else {
        return Err(keys.wrong("model", &serde_json::Value::Null, "write the model's `_component_`"));
    };
    let component = model.text("_component_")?.unwrap_or_default();
    let is_quantized = component.contains("qlora") || model.flag("quantize_base")?.unwrap_or(false);
    let weights = if is_quantized {
        WeightForm::Nf4Double
    } else {
        WeightForm::Numbers
    };
    let mut setting = StackSetting::new(Tool::Torchtune.behaviour(), weights);
    numbers(keys, &mut setting, keys.text("dtype")?.as_deref())?;
    setting.micro_batch = keys.count("batch_size")?.unwrap_or(1);
    setting.gradient_accumulation = keys.count("gradient_accumulation_steps")?.unwrap_or(1);
    let tokenizer = keys.part("tokenizer", "tokenizer.");
    let length = tokenizer
        .map(|tokenizer| tokenizer.count("max_seq_len"))
        .transpose()?
        .flatten();
    setting.sequence_length = length.unwrap_or(2048);
    setting.recompute = recompute(
        keys.flag("enable_activation_checkpointing")?.unwrap_or(false),
        keys.flag("enable_activation_offloading")?.unwrap_or(false),
    );
    setting.trains = Trains::Everything;
    if model.has("lora_rank") || component.contains("lora") {
        let mut targets = model.names("lora_attn_modules")?.unwrap_or_default();
        if model.flag("apply_lora_to_mlp")?.unwrap_or(false) {
            targets.push("mlp".into());
        }
        setting.trains = adapters(&model, ["lora_rank", "lora_dropout", "no_such_key"], 8, Some(targets))?;
    }
    let optimizer_part = keys.part("optimizer", "optimizer.");
    let class = optimizer_part
        .map(|part| part.text("_component_"))
        .transpose()?
        .flatten();
    setting.optimizer = class.map_or(setting.optimizer, |class| optimizer_of(&class, false));
    setting.compiled = keys.flag("compile")?.unwrap_or(false);
    setting.optimizer.in_backward = keys.flag("optimizer_in_bwd")?.unwrap_or(false);
    let folder = keys.part("checkpointer", "checkpointer.");
    let folder = folder.map(|part| part.text("checkpoint_dir")).transpose()?.flatten();
    let mut config = config(setting, folder);
    if length.is_none() {
        config
            .notes
            .push("no `tokenizer.max_seq_len`: rows of 2048 tokens are assumed".into());
    }
    Ok(config)
}

fn recompute(is_on: bool, is_offloaded: bool) -> Recompute {
    match (is_on, is_offloaded) {
        (false, _) => Recompute::Nothing,
        (true, false) => Recompute::Layers,
        (true, true) => Recompute::LayersOffloaded,
    }
}

fn bitsandbytes(keys: &Keys<'_>, nested: &str) -> Result<WeightForm, StackFileError> {
    if keys.flag("load_in_8bit")?.unwrap_or(false) {
        return Ok(WeightForm::Int8);
    }
    let is_nested = keys.flag(nested)?.unwrap_or(false);
    Ok(match (keys.flag("load_in_4bit")?.unwrap_or(false), is_nested) {
        (false, _) => WeightForm::Numbers,
        (true, false) => WeightForm::Nf4,
        (true, true) => WeightForm::Nf4Double,
    })
}

/// The dtypes that a file says: of the weights, and of products.
fn numbers(keys: &Keys<'_>, setting: &mut StackSetting, dtype: Option<&str>) -> Result<(), StackFileError> {
    let half = keys.flag("bf16")?.or(keys.flag("pure_bf16")?);
    let fp16 = keys.flag("fp16")?.unwrap_or(false);
    match dtype {
        Some("float32" | "fp32") => setting.loads = Number::F32,
        Some(_) => setting.loads = Number::Half,
        None if setting.weights.is_quantized() => setting.loads = Number::Half,
        None => {}
    }
    if half == Some(false) && !fp16 {
        setting.autocast = false;
        setting.computes = setting.loads;
    }
    Ok(())
}

fn adapters(
    keys: &Keys<'_>,
    [rank, dropout, whole]: [&str; 3],
    default_rank: u64,
    targets: Option<Vec<String>>,
) -> Result<Trains, StackFileError> {
    let names = targets.unwrap_or_else(|| vec!["q_proj".into(), "v_proj".into()]);
    let mut targets: Vec<Role> = names.iter().flat_map(|name| Role::of_module(name)).copied().collect();
    // A regular expression over modules: adapters on all of them are the safe reading.
    if targets.is_empty() && !names.is_empty() {
        targets = ROLES.to_vec();
    }
    let whole = keys.names(whole)?.unwrap_or_default();
    Ok(Trains::Adapters {
        rank: keys.count(rank)?.unwrap_or(default_rank),
        targets,
        has_dropout: keys.number(dropout)?.unwrap_or(0.0) > 0.0,
        whole_embeddings: whole.iter().any(|name| name.contains("embed") || name.contains("head")),
    })
}

fn optimizer(keys: &Keys<'_>, key: &str, default: &str) -> Result<OptimizerForm, StackFileError> {
    let name = keys.text(key)?.unwrap_or_else(|| default.to_owned());
    let arguments = keys.text("optim_args")?.unwrap_or_default();
    let form = optimizer_of(&name, name == "adamw_torch");
    // The Trainer's SGD has no momentum, and so no states, unless it is asked for.
    let is_plain = name.eq_ignore_ascii_case("sgd") && !arguments.contains("momentum");
    Ok(OptimizerForm {
        states: if is_plain { 0 } else { form.states },
        ..form
    })
}

fn optimizer_of(name: &str, foreach: bool) -> OptimizerForm {
    let lower = name.to_lowercase();
    let is_small = lower.contains("8bit") || lower.contains("4bit");
    let kind = match lower.as_str() {
        name if name.contains("lion") => OptimizerKind::Lion,
        name if name.contains("sgd") => OptimizerKind::Sgd,
        name if name.contains("adafactor") => OptimizerKind::Adafactor,
        name if name.contains("muon") => OptimizerKind::Muon,
        _ => OptimizerKind::AdamW,
    };
    let form = optimizer_form(kind, foreach);
    OptimizerForm {
        states: if is_small { 0 } else { form.states },
        bytes: if is_small { form.states } else { 0 },
        is_paged: lower.contains("paged") || lower.contains("cpuoffload"),
        ..form
    }
}

fn attention(setting: &mut StackSetting, name: Option<&str>) {
    setting.attention = match name {
        Some("eager" | "disabled") => AttentionForm::Eager,
        Some(name) if name.contains("flash") || name == "fa2" => AttentionForm::Flash,
        Some("sdpa") => AttentionForm::Sdpa,
        _ => setting.attention,
    };
}

/// DeepSpeed's and FSDP's stage, by the name of the file that is given or by the keys.
fn sharing(keys: &Keys<'_>, setting: &mut StackSetting) -> Result<(), StackFileError> {
    let uses_fsdp = keys.has("fsdp") || keys.has("fsdp_config");
    let stage = match keys.has("deepspeed") {
        true => keys.text("deepspeed").unwrap_or_default().unwrap_or_default(),
        false => String::new(),
    };
    setting.sharing = match stage.as_str() {
        stage if stage.contains("zero1") || stage.contains("z1") => Sharing::Zero1,
        stage if stage.contains("zero2") || stage.contains("z2") => Sharing::Zero2,
        stage if stage.contains("zero3") || stage.contains("z3") => Sharing::Zero3,
        _ if uses_fsdp => Sharing::Full,
        _ => setting.sharing,
    };
    setting.offloads = stage.contains("offload");
    Ok(())
}

fn packing_note(keys: &Keys<'_>, key: &str, config: &mut StackConfig) -> Result<(), StackFileError> {
    if !keys.flag(key)?.unwrap_or(false) {
        config.notes.push(
            "rows are not packed: the figures are those of a batch whose longest row is as long as allowed".into(),
        );
    }
    Ok(())
}
