//! A plan for another tool as text and JSON.

use std::fmt::Write;

use serde_json::json;

use crate::report::{Lengths, Padder, bytes, duration, metric_value, printable};
use crate::tools::plan::{Assumed, StackPlan, phases_note};
use peft_tune_core::objective::THROUGHPUT;

/// A plan with the lengths of its rows.
#[derive(Debug)]
pub(super) struct PlanOfRows {
    pub plan: StackPlan,
    /// Lengths of the study's rows, where they could be looked at.
    pub lengths: Option<Lengths>,
}

/// The plan for scripts, with raw numbers.
pub(super) fn to_json(planned: &PlanOfRows) -> String {
    format!("{:#}\n", planned.plan.to_json(json!(planned.lengths)))
}

/// The plan for people.
pub(super) fn to_text(planned: &PlanOfRows, width: Option<usize>) -> String {
    let PlanOfRows { plan, lengths } = planned;
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
    if let Some(note) = phases_note(&memory.phases) {
        line("", &note);
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
    text.extend(lengths.as_ref().map(|lengths| lengths.to_text(Padder::Stack, width)));
    text
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

fn size_of(size: u64) -> String {
    bytes(size as f64)
}
