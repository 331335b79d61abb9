//! The setting of a row, as the stack of its source runs it.

use peft_tune_core::predict::stack::{
    AttentionForm, LossForm, Number, OptimizerForm, ROLES, Raised, Recompute, Role, Sharing, StackSetting, Trains,
    WeightForm,
};

use peft_tune::tools::Tool;

use super::row::Row;

/// # Errors
/// What the row says that no stack here can run, in words.
pub(crate) fn of(row: &Row) -> Result<StackSetting, String> {
    if row.source.starts_with("torchtune") && row.packing == Some(false) {
        return Err("rows are not packed and have lengths of their own, which the row does not say".into());
    }
    if let Some(other) = ["litgpt", "nemo"].iter().find(|other| row.source.starts_with(**other)) {
        return Err(format!("{other} is none of the stacks that are described here"));
    }
    let weights = weights(row)?;
    let stack = stack_of(&row.source);
    let mut setting = StackSetting::new(stack.behaviour(), weights);
    setting.micro_batch = row.micro_batch;
    setting.gradient_accumulation = row.grad_accum.unwrap_or(1);
    setting.sequence_length = row.sequence_length;
    setting.rows_differ = row.rows_differ;
    setting.devices = row.num_gpus.max(1);
    setting.trains = trains(row)?;
    if row.precision.as_deref() == Some("fp32") {
        (setting.loads, setting.computes) = (Number::F32, Number::F32);
    } else if row.precision.is_some() {
        setting.loads = Number::Half;
    }
    setting.optimizer = optimizer(row, setting.optimizer);
    if let Some(attention) = &row.attention {
        setting.attention = match attention.to_lowercase() {
            form if form.contains("eager") => AttentionForm::Eager,
            form if form.contains("flash") => AttentionForm::Flash,
            _ => AttentionForm::Sdpa,
        };
    }
    match row.checkpointing {
        Some(true) => setting.recompute = Recompute::Layers,
        Some(false) => setting.recompute = Recompute::Nothing,
        None => {}
    }
    of_source(row, &mut setting);
    Ok(setting)
}

fn stack_of(source: &str) -> Tool {
    let lower = source.to_lowercase();
    let known = [
        ("torchtune", Tool::Torchtune),
        ("axolotl", Tool::Axolotl),
        ("unsloth", Tool::Unsloth),
        ("llama-factory", Tool::LlamaFactory),
        ("llamafactory", Tool::LlamaFactory),
        ("trl", Tool::Trl),
    ];
    let found = known.iter().find(|(part, _)| lower.contains(part));
    found.map_or(Tool::Peft, |(_, stack)| *stack)
}

fn weights(row: &Row) -> Result<WeightForm, String> {
    let Some(text) = row.quantization.as_deref().map(str::to_lowercase) else {
        return match row.method.as_str() {
            "qlora" => Ok(WeightForm::Nf4),
            _ => Ok(WeightForm::Numbers),
        };
    };
    let is_double = text.contains("double") || text.contains("torchao") || text.contains("dq");
    match text.as_str() {
        text if text.contains("gptq") && text.contains('8') => Ok(WeightForm::Gptq8),
        text if text.contains("gptq") => Ok(WeightForm::Gptq4),
        text if text.contains("int8") || text.contains("8bit") => Ok(WeightForm::Int8),
        _ if is_double => Ok(WeightForm::Nf4Double),
        text if text.contains('4') => Ok(WeightForm::Nf4),
        other => Err(format!("weights quantized as `{other}` are not known")),
    }
}

fn trains(row: &Row) -> Result<Trains, String> {
    if row.method == "full" {
        return Ok(Trains::Everything);
    }
    let named: Vec<Role> = row.targets.iter().flat_map(|name| modules(name)).collect();
    Ok(Trains::Adapters {
        rank: row.rank.ok_or("the row has no rank")?,
        targets: if named.is_empty() { ROLES.to_vec() } else { named },
        has_dropout: false,
        whole_embeddings: row.targets.iter().any(|name| name.contains("lm_head")),
    })
}

fn modules(name: &str) -> Vec<Role> {
    if name.starts_with("DEFAULT") {
        return vec![Role::Query, Role::Key, Role::Value];
    }
    Role::of_module(name).to_vec()
}

fn optimizer(row: &Row, default: OptimizerForm) -> OptimizerForm {
    let is_8bit = row.optimizer.contains("8bit");
    let is_4bit = row.optimizer.contains("4bit");
    OptimizerForm {
        states: if is_8bit || is_4bit { 0 } else { default.states },
        bytes: match (is_8bit, is_4bit) {
            (true, _) => 2,
            (_, true) => 1,
            _ => 0,
        },
        is_paged: row.optimizer.contains("paged"),
        foreach: default.foreach && !is_8bit && !is_4bit,
        in_backward: row.optimizer.contains("in_bwd") || row.is_on("optimizer_in_backward"),
    }
}

/// Settings of runs that the sources of rows say in words.
fn of_source(row: &Row, setting: &mut StackSetting) {
    if row.source.starts_with("fms-") {
        let has_kernels = row.framework.contains("foak") || row.framework.contains("liger");
        setting.fused = has_kernels;
        if has_kernels && setting.devices == 1 {
            setting.loss = LossForm::FusedCrossEntropy;
        }
        // `accelerated-peft` leaves out the preparation that raises what is not quantized.
        let is_prepared = row.framework.starts_with("baseline") && setting.devices == 1;
        setting.raises = if is_prepared { Raised::Norms } else { Raised::Nothing };
        if setting.weights == WeightForm::Nf4 {
            setting.weights = WeightForm::Nf4Double;
        }
        setting.autocast = row.has_autocast.unwrap_or(false);
        setting.sharing = if setting.devices > 1 {
            Sharing::Full
        } else {
            Sharing::Copies
        };
        setting.raises_outputs = setting.devices > 1;
    }
    if row.source.starts_with("torchtune") {
        // The shipped recipe of all parameters on eight devices keeps what is shared out in the host's memory.
        setting.offloads = setting.devices > 1 && row.method == "full";
        setting.compiled = row.is_on("compile") || row.source == "torchtune-readme-models";
        if row.source == "torchtune-readme-flags" && !row.is_on("chunked_ce") {
            setting.loss = LossForm::Full;
        }
        if row.is_on("activation_offloading") {
            setting.recompute = Recompute::LayersOffloaded;
        }
        setting.sharing = if setting.devices > 1 {
            Sharing::Full
        } else {
            Sharing::Copies
        };
    }
    if row.source.starts_with("qwen1") {
        setting.sharing = Sharing::Zero2;
        setting.autocast = true;
        setting.optimizer.foreach = false;
    }
    if row.source.starts_with("axolotl") {
        let plugins = row.extra.get("plugins").map(ToString::to_string).unwrap_or_default();
        if plugins.contains("cut_cross_entropy") {
            setting.loss = LossForm::FusedLinear;
        }
        setting.fused |= plugins.contains("liger");
    }
    if row.is_on("linear_cut_cross_entropy") {
        setting.loss = LossForm::FusedLinear;
    }
}
