//! A setting of a tool in words.

use peft_tune_core::predict::stack::{
    AttentionForm, Comparison, EVALUATION, PhasePeak, Recompute, Sharing, StackSetting, Trains, WeightForm,
};

/// A setting in one line.
pub fn setting_text(setting: &StackSetting) -> String {
    let trained = match &setting.trains {
        Trains::Everything => "all parameters".to_owned(),
        Trains::Adapters { rank, targets, .. } => {
            let form = if setting.dora { "DoRA adapters" } else { "adapters" };
            format!("{form} of rank {rank} on {} linear layers a block", targets.len())
        }
    };
    let again = match setting.recompute {
        Recompute::Nothing => "no checkpointing",
        Recompute::Layers => "checkpointing",
        Recompute::LayersOffloaded => "checkpointing with offload",
    };
    let devices = match setting.devices {
        1 => String::new(),
        devices => format!(", {devices} devices ({})", sharing_name(setting.sharing)),
    };
    let compared = match setting.comparison {
        Comparison::NONE => "",
        Comparison { sequences: 1, .. } => ", answers that are compared",
        _ => ", two sequences a row",
    };
    let referred = match setting.comparison {
        Comparison { has_copy: true, .. } => ", a copy as reference in each step",
        Comparison {
            reference_passes: 0, ..
        } => "",
        _ => ", a reference in each step",
    };
    let weights = weights_text(setting.weights);
    let attention = match setting.attention {
        AttentionForm::Eager => "eager",
        AttentionForm::Sdpa => "sdpa",
        AttentionForm::Flash => "flash",
    };
    format!(
        "{trained}, weights {weights}, micro-batch {} x accumulation {}, rows of {} tokens{compared}{referred}, {again}, attention \
         {attention}{devices}",
        setting.micro_batch, setting.gradient_accumulation, setting.sequence_length
    )
}

/// Words to print beside the peaks of phases, where an evaluation is one of them.
pub fn phases_note(phases: &[PhasePeak]) -> Option<String> {
    let evaluates = phases.iter().any(|phase| phase.phase == EVALUATION);
    evaluates.then(|| format!("{EVALUATION} is at this micro-batch, and no part of the peak"))
}

/// Form of weights in words.
pub fn weights_text(form: WeightForm) -> &'static str {
    match form {
        WeightForm::Numbers => "not quantized",
        WeightForm::Int8 => "int8",
        WeightForm::Nf4 => "nf4",
        WeightForm::Nf4Double => "nf4, double",
        WeightForm::Gptq4 => "GPTQ of 4 bits",
        WeightForm::Gptq8 => "GPTQ of 8 bits",
    }
}

fn sharing_name(sharing: Sharing) -> String {
    match sharing {
        Sharing::Copies => "DDP".to_owned(),
        Sharing::Zero1 => "ZeRO 1".to_owned(),
        Sharing::Zero2 => "ZeRO 2".to_owned(),
        Sharing::Zero3 => "ZeRO 3".to_owned(),
        Sharing::Full => "FSDP".to_owned(),
        Sharing::Hybrid(devices) => format!("FSDP in nodes of {devices}"),
    }
}
