//! What PEFT's `LoraConfig` calls what recipes have.

use crate::keys::{ToolKeys, words};
use peft_tune_core::recipe::AdapterInit;

pub(crate) const KEYS: ToolKeys = ToolKeys {
    settings: &[
        ("rank", "r"),
        ("alpha", "lora_alpha"),
        ("dropout", "lora_dropout"),
        ("target_modules", "target_modules"),
        ("rslora", "use_rslora"),
        ("dora", "use_dora"),
        ("init", "init_lora_weights"),
        ("bias", "bias"),
        ("lora_bias", "lora_bias"),
    ],
    init: |init| match init {
        AdapterInit::Kaiming => words!("init_lora_weights": true),
        AdapterInit::Gaussian => words!("init_lora_weights": "gaussian"),
        AdapterInit::Pissa => words!("init_lora_weights": "pissa"),
    },
    ..ToolKeys::NONE
};
