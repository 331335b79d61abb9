//! What readers of the memory that a file needs share: keys that several tools have.

use super::{Keys, StackConfig, StackFileError};
use peft_tune_core::predict::stack::{
    AttentionForm, Number, OptimizerForm, ROLES, Recompute, Role, Sharing, StackSetting, Trains, WeightForm,
    optimizer_form,
};
use peft_tune_core::recipe::OptimizerKind;

/// Parts of keys that leave memory and speed of a step alone: data, schedules, logs, files.
pub(in crate::tools) const HARMLESS: &[&str] = &[
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

/// What a file says, where `adapter` are the keys of its adapter.
///
/// # Errors
/// A value that is neither true nor false.
pub(in crate::tools) fn config(
    mut setting: StackSetting,
    model: Option<String>,
    adapter: &Keys<'_>,
) -> Result<StackConfig, StackFileError> {
    // Whether adapters have magnitudes, which tools call by other names.
    let named = [adapter.flag("use_dora")?, adapter.flag("peft_use_dora")?];
    setting.dora = named.contains(&Some(true)) && setting.trains != Trains::Everything;
    Ok(StackConfig {
        setting,
        model,
        unread: Vec::new(),
        notes: Vec::new(),
    })
}

/// What is recomputed, where layers are or are not, and their inputs are in the host's memory or are not.
pub(in crate::tools) fn recompute(is_on: bool, is_offloaded: bool) -> Recompute {
    match (is_on, is_offloaded) {
        (false, _) => Recompute::Nothing,
        (true, false) => Recompute::Layers,
        (true, true) => Recompute::LayersOffloaded,
    }
}

/// The form of weights that bitsandbytes stores; `nested` is the key of double quantization.
///
/// # Errors
/// A value that is neither true nor false.
pub(in crate::tools) fn bitsandbytes(keys: &Keys<'_>, nested: &str) -> Result<WeightForm, StackFileError> {
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
///
/// # Errors
/// A value that is neither true nor false.
pub(in crate::tools) fn numbers(
    keys: &Keys<'_>,
    setting: &mut StackSetting,
    dtype: Option<&str>,
) -> Result<(), StackFileError> {
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

/// Adapters by the keys of their rank, their dropout and the modules that are trained whole.
///
/// # Errors
/// A value of another kind.
pub(in crate::tools) fn adapters(
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

/// What an optimizer of transformers keeps, by its name under `key`.
///
/// # Errors
/// A value that is no text.
pub(in crate::tools) fn optimizer(keys: &Keys<'_>, key: &str, default: &str) -> Result<OptimizerForm, StackFileError> {
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

/// What an optimizer keeps, by any name or class.
pub(in crate::tools) fn optimizer_of(name: &str, foreach: bool) -> OptimizerForm {
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

/// Takes the form of attention by its name.
pub(in crate::tools) fn attention(setting: &mut StackSetting, name: Option<&str>) {
    setting.attention = match name {
        Some("eager" | "disabled") => AttentionForm::Eager,
        Some(name) if name.contains("flash") || name == "fa2" => AttentionForm::Flash,
        Some("sdpa") => AttentionForm::Sdpa,
        _ => setting.attention,
    };
}

/// DeepSpeed's and FSDP's stage, by the name of the file that is given or by the keys.
///
/// # Errors
/// A value that is no text.
pub(in crate::tools) fn sharing(keys: &Keys<'_>, setting: &mut StackSetting) -> Result<(), StackFileError> {
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

/// Says what figures mean where rows are not packed.
///
/// # Errors
/// A value that is neither true nor false.
pub(in crate::tools) fn packing_note(
    keys: &Keys<'_>,
    key: &str,
    config: &mut StackConfig,
) -> Result<(), StackFileError> {
    if !keys.flag(key)?.unwrap_or(false) {
        config.notes.push(
            "rows are not packed: the figures are those of a batch whose longest row is as long as allowed".into(),
        );
    }
    Ok(())
}
