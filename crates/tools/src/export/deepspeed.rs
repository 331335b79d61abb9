//! `deepspeed.json`: updates on the host, for the tools whose trainer is transformers' (TRL, axolotl, LLaMA-Factory).
//!
//! Their own files know no such thing: they name a file of DeepSpeed's, whose ZeRO 2 has `offload_optimizer`. What it says else is `auto`,
//! which transformers fills in from the tool's file. DeepSpeed updates on the host by AdamW with F32 states alone.

use serde_json::json;

use super::draft::Draft;
use peft_tune_core::predict::stack::deepspeed_refuses;

/// Name of the file.
pub const DEEPSPEED_FILE: &str = "deepspeed.json";
const FIELD: &str = "optimizer.offload";

impl Draft<'_> {
    /// Says where updates are computed, and returns the file of DeepSpeed's that says it, where one is needed. What DeepSpeed cannot do is
    /// told.
    pub(crate) fn offload_file(&mut self) -> Option<(&'static str, String)> {
        let recipe = self.recipe();
        if recipe.optimizer.offload.is_none() {
            return None;
        }
        if let Some(reason) = deepspeed_refuses(recipe) {
            self.warn(FIELD, format!("{reason}; change that, or train with `peft-tune train`"));
            return None;
        }
        self.key("deepspeed", DEEPSPEED_FILE);
        self.warn(
            FIELD,
            format!("needs the deepspeed package and {DEEPSPEED_FILE} in the folder that the tool is started in; it updates when all gradients are there"),
        );
        let auto = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), json!("auto"))).collect();
        let parameters: serde_json::Map<_, _> = auto(&["lr", "betas", "eps", "weight_decay"]);
        let mut file = json!({
            "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}},
            "optimizer": {"type": "AdamW", "params": parameters},
            "bf16": {"enabled": "auto"},
            "fp16": {"enabled": "auto"},
        });
        if let Some(file) = file.as_object_mut() {
            file.extend(auto(&[
                "gradient_accumulation_steps",
                "gradient_clipping",
                "train_batch_size",
                "train_micro_batch_size_per_gpu",
            ]));
        }
        Some((
            DEEPSPEED_FILE,
            serde_json::to_string_pretty(&file).unwrap_or_default() + "\n",
        ))
    }
}
