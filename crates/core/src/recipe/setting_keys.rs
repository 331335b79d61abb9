//! Keys of single settings in the files of other tools, where a setting is one key with the same value there.

use serde::Serialize;

/// A tool's key for a setting; `None` where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SettingKeys {
    pub peft: Option<&'static str>,
    pub trl: Option<&'static str>,
    pub axolotl: Option<&'static str>,
    pub llamafactory: Option<&'static str>,
    pub torchtune: Option<&'static str>,
    pub unsloth: Option<&'static str>,
}

/// A setting, and its keys in the order of [`SettingKeys`]; `-` where the tool has none.
const ROWS: &[(&str, [&str; 6])] = &[
    ("method", ["-", "-", "-", "finetuning_type", "-", "-"]),
    ("rank", ["r", "lora_r", "lora_r", "lora_rank", "lora_rank", "r"]),
    ("alpha", ["lora_alpha"; 6]),
    ("dropout", ["lora_dropout"; 6]),
    (
        "target_modules",
        [
            "target_modules",
            "lora_target_modules",
            "lora_target_modules",
            "lora_target",
            "lora_attn_modules",
            "target_modules",
        ],
    ),
    (
        "rslora",
        [
            "use_rslora",
            "use_rslora",
            "peft_use_rslora",
            "use_rslora",
            "-",
            "use_rslora",
        ],
    ),
    (
        "dora",
        [
            "use_dora",
            "use_dora",
            "peft_use_dora",
            "use_dora",
            "use_dora",
            "use_dora",
        ],
    ),
    ("bias", ["bias", "-", "-", "-", "-", "bias"]),
    ("lora_bias", ["lora_bias", "-", "-", "-", "-", "-"]),
    (
        "sequence_length",
        [
            "-",
            "max_length",
            "sequence_len",
            "cutoff_len",
            "max_seq_len",
            "max_length",
        ],
    ),
    (
        "packing",
        ["-", "packing", "sample_packing", "packing", "packed", "packing"],
    ),
    ("group_by_length", ["-", "-", "group_by_length", "-", "-", "-"]),
    (
        "micro_batch",
        [
            "-",
            "per_device_train_batch_size",
            "micro_batch_size",
            "per_device_train_batch_size",
            "batch_size",
            "per_device_train_batch_size",
        ],
    ),
    (
        "gradient_accumulation",
        [
            "-",
            "gradient_accumulation_steps",
            "gradient_accumulation_steps",
            "gradient_accumulation_steps",
            "gradient_accumulation_steps",
            "gradient_accumulation_steps",
        ],
    ),
    ("optimizer", ["-", "optim", "optimizer", "optim", "optimizer", "optim"]),
    (
        "learning_rate",
        [
            "-",
            "learning_rate",
            "learning_rate",
            "learning_rate",
            "lr",
            "learning_rate",
        ],
    ),
    (
        "schedule",
        [
            "-",
            "lr_scheduler_type",
            "lr_scheduler",
            "lr_scheduler_type",
            "lr_scheduler",
            "lr_scheduler_type",
        ],
    ),
    (
        "warmup",
        [
            "-",
            "warmup_steps",
            "warmup_steps",
            "warmup_steps",
            "num_warmup_steps",
            "warmup_steps",
        ],
    ),
    (
        "weight_decay",
        [
            "-",
            "weight_decay",
            "weight_decay",
            "weight_decay",
            "weight_decay",
            "weight_decay",
        ],
    ),
    ("momentum", ["-", "-", "-", "-", "momentum", "-"]),
    ("nesterov", ["-", "-", "-", "-", "nesterov", "-"]),
    (
        "beta1",
        ["-", "adam_beta1", "adam_beta1", "adam_beta1", "-", "adam_beta1"],
    ),
    (
        "beta2",
        ["-", "adam_beta2", "adam_beta2", "adam_beta2", "-", "adam_beta2"],
    ),
    (
        "epsilon",
        [
            "-",
            "adam_epsilon",
            "adam_epsilon",
            "adam_epsilon",
            "eps",
            "adam_epsilon",
        ],
    ),
    (
        "max_grad_norm",
        [
            "-",
            "max_grad_norm",
            "max_grad_norm",
            "max_grad_norm",
            "clip_grad_norm",
            "max_grad_norm",
        ],
    ),
    (
        "loraplus_ratio",
        ["-", "-", "loraplus_lr_ratio", "loraplus_lr_ratio", "-", "-"],
    ),
];

/// The keys of a setting; none of a setting that is no single key anywhere.
pub fn setting_keys(setting: &str) -> SettingKeys {
    let Some((_, keys)) = ROWS.iter().find(|(name, _)| *name == setting) else {
        return SettingKeys::default();
    };
    let [peft, trl, axolotl, llamafactory, torchtune, unsloth] = keys.map(|key| (key != "-").then_some(key));
    SettingKeys {
        peft,
        trl,
        axolotl,
        llamafactory,
        torchtune,
        unsloth,
    }
}
