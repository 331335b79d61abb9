//! A plan for another tool as text and JSON.

use std::fmt::Write;

use serde_json::json;

use super::stack_plan::{Assumed, StackPlan};
use crate::report::{Padder, bytes, duration, metric_value, printable};
use peft_tune_core::objective::THROUGHPUT;
use peft_tune_core::predict::stack::{
    AttentionForm, Comparison, EVALUATION, Recompute, Sharing, StackSetting, Trains, WeightForm,
};

/// The plan for people.
pub(super) fn to_text(plan: &StackPlan, width: Option<usize>) -> String {
    let mut text = format!("plan for {}\n", plan.stack);
    let mut line = |name: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<14}{}", printable(value));
    };
    let size = match plan.parameters as f64 {
        small if small < 1e8 => format!("{:.1} million", small / 1e6),
        large => format!("{:.2} billion", large / 1e9),
    };
    line("model", &format!("{}, {size} parameters", plan.model));
    line("setting", &plan.setting_text);
    let memory = &plan.prediction.memory;
    match plan.device.zip(plan.prediction.verdict) {
        None => line("verdict", "none without --device"),
        Some((device, verdict)) => {
            let usable = size_of(verdict.usable_bytes);
            line("device", &format!("{}, {usable} for programs", device.sheet.name));
            let reserve = size_of(verdict.reserve_bytes);
            let least = size_of(verdict.least_bytes);
            let words = verdict.fit.words();
            let needs = if verdict.unproven.is_some() {
                "needs about"
            } else {
                "at least"
            };
            line(
                "verdict",
                &format!("{words}: {needs} {least} of {usable}, and {reserve} must be left for the prediction's error"),
            );
            if let Some(reason) = verdict.unproven {
                line("unproven", reason);
            }
        }
    }
    let Assumed { tool, rows, device } = &plan.assumed;
    for (of, value) in [("tool", tool), ("rows", rows), ("device", device)] {
        line("assumed", &format!("{of}: {value}"));
    }
    line("peak", &peak(plan));
    let phases = memory
        .phases
        .iter()
        .map(|phase| format!("{} {}", phase.phase, size_of(phase.tensors_bytes)));
    line("phases", &phases.collect::<Vec<_>>().join(", "));
    if memory.phases.iter().any(|phase| phase.phase == EVALUATION) {
        line(
            "",
            &format!("{EVALUATION} is at this micro-batch, and no part of the peak"),
        );
    }
    for (name, size) in memory.components.iter().filter(|(_, size)| *size > 0) {
        line("component", &format!("{name} {}", size_of(*size)));
    }
    if let Some((speed, step)) = plan.prediction.tokens_per_s.zip(plan.prediction.step_s()) {
        line(
            "speed",
            &format!(
                "{} tokens/s, padding counted; {} a step",
                metric_value(THROUGHPUT, speed),
                duration(step)
            ),
        );
    }
    if let Some(scaling) = plan.scaling {
        line("devices", &scaling.to_string());
    }
    if let Some(limits) = plan.limits {
        line(
            "largest",
            &format!("micro-batch {}, all else as it is", limits.largest_micro_batch),
        );
        line(
            "longest",
            &format!("rows of {} tokens, all else as it is", limits.longest_sequence),
        );
    }
    for point in &plan.frontier {
        let speed = point.tokens_per_s.map_or_else(String::new, |speed| {
            format!(", {} tokens/s", metric_value(THROUGHPUT, speed))
        });
        line(
            "frontier",
            &format!(
                "rows of {}: micro-batch {}{speed}",
                point.sequence_length, point.micro_batch
            ),
        );
    }
    for lever in &plan.levers {
        let fit = lever.fit.map_or_else(String::new, |fit| format!(", {}", fit.words()));
        let speed = lever
            .speed
            .map_or_else(String::new, |speed| format!(", speed x{speed:.2}"));
        line(
            "lever",
            &format!("{}: {} less{fit}{speed}", lever.name, size_of(lever.saves_bytes)),
        );
    }
    text.extend(
        plan.lengths
            .as_ref()
            .map(|lengths| lengths.to_text(Padder::Stack, width)),
    );
    text
}

/// The plan for scripts, with raw numbers.
pub(super) fn to_json(plan: &StackPlan) -> String {
    let frontier: Vec<_> = plan
        .frontier
        .iter()
        .map(|point| {
            json!({
                "sequence_length": point.sequence_length,
                "micro_batch": point.micro_batch,
                "tokens_per_s": point.tokens_per_s,
            })
        })
        .collect();
    let components: serde_json::Map<_, _> = plan
        .prediction
        .memory
        .components
        .iter()
        .map(|(name, size)| ((*name).to_owned(), json!(size)))
        .collect();
    let value = json!({
        "stack": plan.stack,
        "model": plan.model,
        "parameters": plan.parameters,
        "setting": plan.setting,
        "device": plan.device.map(|device| device.sheet.name),
        "verdict": plan.prediction.verdict,
        "peak_tensors_bytes": plan.prediction.memory.tensors_bytes,
        "peak_reserved_bytes": plan.prediction.memory.reserved_bytes,
        "peak_process_bytes": plan.prediction.process_bytes,
        "phases": plan.prediction.memory.phases,
        "components": components,
        "step_s": plan.prediction.step_s(),
        "tokens_per_s": plan.prediction.tokens_per_s,
        "scaling": plan.scaling,
        "limits": plan.limits,
        "frontier": frontier,
        "levers": plan.levers,
        "data": plan.lengths,
        "assumed": plan.assumed,
        "notes": plan.notes,
    });
    format!("{value:#}\n")
}

/// Tensors, and the process with the allocator's cached blocks.
pub(super) fn peak(plan: &StackPlan) -> String {
    let prediction = &plan.prediction;
    format!(
        "tensors {}, process {} with cached blocks and the {} of the driver and libraries",
        size_of(prediction.memory.tensors_bytes),
        size_of(prediction.process_bytes),
        size_of(prediction.outside_bytes)
    )
}

/// A setting in one line.
pub(super) fn setting_text(setting: &StackSetting) -> String {
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

/// Form of weights in words.
pub(super) fn weights_text(form: WeightForm) -> &'static str {
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

fn size_of(size: u64) -> String {
    bytes(size as f64)
}
