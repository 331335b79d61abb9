//! The tables of one profile.

use std::fmt::Write;

use super::gpu::{gpu_line, kernels};
use super::machine::device_line;
use super::trace::trace_lines;
use super::{MOST_OPS, batch, percent, table, time};
use crate::report::{Align, TextTable, bytes, metric_value};
use peft_tune_engine::profile::{
    AdapterCost, DataWaits, EvaluationCost, ModuleTime, OpTime, Profile, Reference, Setting, SpanTiming, SpannedSteps,
    StepFacts, TraceFile,
};

/// Options of a profile's text.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProfileText<'a> {
    /// Columns of characters; as wide as it needs where absent.
    pub width: Option<usize>,
    /// All ops and each layer by itself.
    pub all: bool,
    pub reference: Option<&'a Reference>,
    /// The published rate that the reference is, or why there is none.
    pub published: Option<&'a str>,
}

/// The whole profile but its findings.
pub fn profile_text(profile: &Profile, shown: &ProfileText<'_>) -> String {
    let mut text = heading(profile, shown);
    let tables = [
        Some(phases(profile)),
        (!profile.modules.is_empty()).then(|| modules(profile, shown.all)),
        Some(ops(profile, shown.all)),
        is_memory_known(profile).then(|| memory(profile)),
        profile.gpu.as_ref().map(|gpu| kernels(gpu, shown.all)),
    ];
    for table in tables.into_iter().flatten() {
        text.push('\n');
        text.push_str(&table.to_text(shown.width));
        text.push('\n');
    }
    if !profile.memory.peak_at.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "the peak was in {}", profile.memory.peak_at.join(" > "));
    }
    text
}

/// The kernels that ran, where there were others to choose from.
fn kernels_text(setting: &Setting) -> String {
    let form = match setting.kernels.as_str() {
        "" | "fused" => String::new(),
        form => format!(", kernels {form}"),
    };
    let attention = setting.attention.as_ref();
    form + &attention.map_or_else(String::new, |kernels| format!(", attention in its {kernels} kernels"))
}

/// What was profiled and what it gave, a named line each.
fn heading(profile: &Profile, shown: &ProfileText<'_>) -> String {
    let mut lines: Vec<(&str, Option<String>)> = match &profile.trace {
        Some(trace) => read_lines(profile, trace),
        None => measured_lines(profile),
    };
    lines.extend([
        ("gpu", profile.gpu.as_ref().map(gpu_line)),
        ("reference", shown.reference.map(reference_line)),
        ("published", shown.published.map(str::to_owned)),
        ("evaluation", profile.evaluation.as_ref().map(evaluation_line)),
        (
            "energy",
            profile
                .joules_per_token()
                .map(|joules| format!("{joules:.4} J a token")),
        ),
        ("memory", memory_line(profile)),
        ("machine", device_line(profile)),
    ]);
    let mut text = String::new();
    for (name, value) in lines {
        if let Some(value) = value {
            let _ = writeln!(text, "{name:<12}{value}");
        }
    }
    text
}

/// Lines of a profile whose steps this program has run.
fn measured_lines(profile: &Profile) -> Vec<(&'static str, Option<String>)> {
    let (setting, steps) = (&profile.setting, &profile.steps);
    vec![
        ("setting", Some(setting_line(setting))),
        ("device", Some(hardware_line(setting))),
        ("steps", Some(steps_line(steps))),
        ("throughput", Some(throughput_line(steps))),
        ("arithmetic", Some(arithmetic_line(profile))),
        ("adapters", profile.adapter.as_ref().map(adapter_line)),
        ("data", profile.data.waits.as_ref().map(data_line)),
        ("spans", steps.spanned.as_ref().map(spanned_line)),
    ]
}

/// Lines of a profile that was read from a trace, which may have no tokens and no FLOPs.
fn read_lines(profile: &Profile, trace: &TraceFile) -> Vec<(&'static str, Option<String>)> {
    let (steps, arithmetic) = (&profile.steps, &profile.arithmetic);
    let mut lines = trace_lines(profile, trace);
    lines.extend([
        ("throughput", (steps.tokens_per_s > 0.0).then(|| throughput_line(steps))),
        (
            "arithmetic",
            (arithmetic.hardware_flops > 0.0).then(|| arithmetic_line(profile)),
        ),
    ]);
    lines
}

/// Whether there is a peak: a trace may have none.
fn is_memory_known(profile: &Profile) -> bool {
    profile.trace.is_none() || profile.memory.peak_bytes > 0
}

fn setting_line(setting: &Setting) -> String {
    let adapter = match setting.rank {
        Some(rank) => format!("rank {rank}, {} trained", millions(setting.trained_parameters)),
        None => "every parameter trains".to_owned(),
    };
    format!(
        "{} ({}), {}, {adapter}, {} of at most {} tokens, {}, checkpointing {}",
        setting.model,
        millions(setting.base_parameters),
        setting.precision,
        batch(setting),
        setting.sequence_length,
        setting.optimizer,
        setting.checkpointing
    )
}

fn hardware_line(setting: &Setting) -> String {
    let kernels = kernels_text(setting);
    let stack = setting.stack.as_ref();
    let stack = stack.map_or_else(String::new, |stack| format!(", in TRL ({stack})"));
    format!(
        "{}, {} threads of {} cores{kernels}{stack}",
        setting.device, setting.threads, setting.cores
    )
}

fn steps_line(steps: &StepFacts) -> String {
    let unsettled = match steps.settled {
        true => "",
        false => " (the time ran out before the interval was small enough)",
    };
    format!(
        "{} measured after {} of warm-up, {:.0} tokens each{unsettled}",
        steps.measured_steps, steps.warmup_steps, steps.tokens_per_step
    )
}

fn throughput_line(steps: &StepFacts) -> String {
    format!(
        "{} tokens/s ± {}, {} a step",
        metric_value(peft_tune_core::objective::THROUGHPUT, steps.tokens_per_s),
        percent(steps.interval),
        time(steps.step_s)
    )
}

fn adapter_line(adapter: &AdapterCost) -> String {
    format!(
        "{} of the step for {} of its FLOPs ({}, of which {} in ops of their own)",
        percent(adapter.share),
        percent(adapter.flops_share),
        time(adapter.seconds),
        time(adapter.alone_seconds)
    )
}

/// Who waits for whom.
fn data_line(waits: &DataWaits) -> String {
    let preparing = format!("{} to prepare a step's rows", time(waits.preparing_s));
    let compute = format!("the model waits for data {} of the time", percent(waits.compute_waits));
    match waits.prefetch_depth {
        0 => format!("{preparing}, within the step, as nothing is read ahead; {compute}"),
        depth => format!(
            "{preparing}, up to {depth} ahead; {compute}, data for the model {}",
            percent(waits.data_waits)
        ),
    }
}

fn spanned_line(spanned: &SpannedSteps) -> String {
    let (what, how) = match spanned.timed_by {
        SpanTiming::Waits => ("phases, modules and ops", "in which each op waited for the GPU"),
        SpanTiming::Events => ("phases, modules and ops", "timed by events in the GPU's own queue"),
        SpanTiming::Profiler => ("ops and memory", "under torch.profiler"),
    };
    format!(
        "{what} are of {} other steps, {how}: they took {:.2} times as long",
        spanned.steps, spanned.slowdown
    )
}

fn evaluation_line(evaluation: &EvaluationCost) -> String {
    format!(
        "{} of {} rows, {} of the training's time",
        time(evaluation.seconds),
        evaluation.rows,
        percent(evaluation.share)
    )
}

fn arithmetic_line(profile: &Profile) -> String {
    let arithmetic = &profile.arithmetic;
    let rate = arithmetic.hardware_flops / profile.steps.step_s.max(f64::MIN_POSITIVE) / 1e9;
    let mut line = format!("{:.2} GFLOP a step, {rate:.0} GFLOP/s", arithmetic.hardware_flops / 1e9);
    if let (Some(mfu), Some(hfu), Some(peak)) = (arithmetic.mfu, arithmetic.hfu, arithmetic.peak_flops_per_s) {
        let _ = write!(
            line,
            ", MFU {}, HFU {} of {:.0} GFLOP/s ({})",
            percent(mfu),
            percent(hfu),
            peak / 1e9,
            arithmetic.peak_from.unwrap_or_default().name()
        );
    }
    line
}

fn reference_line(reference: &Reference) -> String {
    let mut line = format!(
        "{} tokens/s; this is {} of it",
        metric_value(peft_tune_core::objective::THROUGHPUT, reference.tokens_per_s),
        percent(reference.reached)
    );
    if let Some(mfu) = reference.mfu {
        let _ = write!(line, ", which would be an MFU of {} here", percent(mfu));
    }
    if reference.is_beyond_the_peak() {
        line.push_str(": beyond this device's peak, so it was measured on a faster one");
    }
    line
}

/// The peak, and what is in use on average in the step that has it.
fn memory_line(profile: &Profile) -> Option<String> {
    let (peak, mean) = (profile.memory.peak_bytes as f64, profile.memory.mean_bytes? as f64);
    Some(format!(
        "{} at the peak, {} on average in that step",
        bytes(peak),
        bytes(mean)
    ))
}

fn millions(count: u64) -> String {
    match count as f64 / 1e6 {
        millions if millions >= 1000.0 => format!("{:.1} B", millions / 1e3),
        millions => format!("{millions:.1} M"),
    }
}

fn phases(profile: &Profile) -> TextTable {
    use Align::{Left, Right};
    let mut table = table(&[
        ("phase", Left),
        ("time", Right),
        ("±", Right),
        ("share", Right),
        ("in ops", Right),
    ]);
    for phase in &profile.phases {
        let name = if phase.nested {
            format!("  of which {}", phase.phase)
        } else {
            phase.phase.clone()
        };
        table.push([
            name,
            time(phase.seconds),
            percent(phase.interval),
            percent(phase.share),
            time(phase.op_seconds),
        ]);
    }
    table
}

fn modules(profile: &Profile, all: bool) -> TextTable {
    use Align::{Left, Right};
    let mut table = table(&[
        ("module", Left),
        ("time", Right),
        ("share", Right),
        ("forward", Right),
        ("GFLOP/s", Right),
        ("GB", Right),
        ("adapters", Right),
    ]);
    let step = profile.steps.span_step_s().max(f64::MIN_POSITIVE);
    let rows = if all {
        profile.modules.clone()
    } else {
        summed_layers(&profile.modules)
    };
    for module in &rows {
        let depth = module.path.len().saturating_sub(1);
        let name = module.path.last().map_or("", String::as_str);
        table.push([
            format!("{}{name}", "  ".repeat(depth)),
            time(module.seconds),
            percent(module.seconds / step),
            time(module.forward_seconds),
            rate(module.flops, module.seconds),
            format!("{:.2}", module.bytes / 1e9),
            time(module.adapter_seconds),
        ]);
    }
    table
}

/// All layers as one, in the order of the first.
fn summed_layers(modules: &[ModuleTime]) -> Vec<ModuleTime> {
    let mut sums: Vec<ModuleTime> = Vec::new();
    for module in modules {
        let mut path = module.path.clone();
        if let Some(first) = path.first_mut().filter(|first| first.starts_with("layer ")) {
            *first = "layers".to_owned();
        }
        match sums.iter_mut().find(|sum| sum.path == path) {
            Some(sum) => {
                sum.calls += module.calls;
                sum.seconds += module.seconds;
                sum.forward_seconds += module.forward_seconds;
                sum.flops += module.flops;
                sum.bytes += module.bytes;
                sum.adapter_seconds += module.adapter_seconds;
            }
            None => sums.push(ModuleTime { path, ..module.clone() }),
        }
    }
    in_tree_order(sums)
}

/// Each module behind the one that holds it: a part that is first seen in the backward pass comes late otherwise.
fn in_tree_order(modules: Vec<ModuleTime>) -> Vec<ModuleTime> {
    let mut ordered: Vec<ModuleTime> = Vec::with_capacity(modules.len());
    for module in modules {
        let parent = &module.path[..module.path.len().saturating_sub(1)];
        let last_inside = ordered.iter().rposition(|other| other.path.starts_with(parent));
        let place = last_inside.map_or(ordered.len(), |place| place + 1);
        ordered.insert(place, module);
    }
    ordered
}

fn ops(profile: &Profile, all: bool) -> TextTable {
    use Align::{Left, Right};
    let known = profile.ops.iter().any(|op| op.roofline_share.is_some());
    let mut columns = vec![
        ("op", Left),
        ("phase", Left),
        ("shape", Left),
        ("storage", Left),
        ("calls", Right),
        ("time", Right),
        ("share", Right),
        ("GFLOP/s", Right),
        ("GB/s", Right),
    ];
    if known {
        columns.push(("roofline", Right));
    }
    let mut table = table(&columns);
    let most = if all { usize::MAX } else { MOST_OPS };
    for op in profile.ops.iter().take(most) {
        let mut row = vec![
            op.name.clone(),
            op.phase.clone(),
            op.shape.clone(),
            op.storage.clone(),
            format!("{:.0}", op.calls),
            time(op.seconds),
            percent(op.share),
            rate(op.flops, op.seconds),
            bandwidth(op),
        ];
        if known {
            row.push(op.roofline_share.map_or_else(|| "-".to_owned(), percent));
        }
        table.push(row);
    }
    if profile.ops.len() > most {
        let rest = &profile.ops[most..];
        let share: f64 = rest.iter().map(|op| op.share).sum();
        let seconds: f64 = rest.iter().map(|op| op.seconds).sum();
        let name = format!("{} more", rest.len());
        let blank = String::new;
        table.push([name, blank(), blank(), blank(), blank(), time(seconds), percent(share)]);
    }
    table
}

/// Bytes a second of an op; a dash where its bytes are not known.
fn bandwidth(op: &OpTime) -> String {
    match op.bytes > 0.0 {
        true => format!("{:.1}", op.gb_per_s()),
        false => "-".to_owned(),
    }
}

fn rate(flops: f64, seconds: f64) -> String {
    match flops > 0.0 && seconds > 0.0 {
        true => format!("{:.0}", flops / seconds / 1e9),
        false => "-".to_owned(),
    }
}

fn memory(profile: &Profile) -> TextTable {
    use Align::{Left, Right};
    let memory = &profile.memory;
    let mut table = table(&[("memory at the peak", Left), ("bytes", Right), ("share", Right)]);
    for part in &memory.parts {
        let share = part.bytes as f64 / memory.peak_bytes.max(1) as f64;
        table.push([part.part.clone(), bytes(part.bytes as f64), percent(share)]);
    }
    table.push(["all".to_owned(), bytes(memory.peak_bytes as f64), percent(1.0)]);
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_engine::profile::fixtures::sound_profile;

    fn module(path: &[&str], seconds: f64) -> ModuleTime {
        ModuleTime {
            path: path.iter().map(|name| (*name).to_owned()).collect(),
            seconds,
            ..ModuleTime::default()
        }
    }

    #[test]
    fn layers_are_summed_and_stand_in_the_order_of_the_tree() {
        let modules = [
            module(&["embedding"], 1.0),
            module(&["layer 0"], 2.0),
            module(&["layer 0", "mlp"], 1.5),
            module(&["layer 1"], 3.0),
            module(&["head"], 4.0),
            module(&["layer 1", "mlp"], 2.5),
            module(&["layer 1", "mlp", "down"], 0.5),
        ];
        let summed = summed_layers(&modules);
        let shown: Vec<_> = summed
            .iter()
            .map(|module| (module.path.join("/"), module.seconds))
            .collect();
        let expected = [
            ("embedding", 1.0),
            ("layers", 5.0),
            ("layers/mlp", 4.0),
            ("layers/mlp/down", 0.5),
            ("head", 4.0),
        ];
        assert_eq!(shown, expected.map(|(path, seconds)| (path.to_owned(), seconds)));
    }

    #[test]
    fn a_profile_fits_the_terminal() {
        let text = profile_text(
            &sound_profile(),
            &ProfileText {
                width: Some(70),
                ..ProfileText::default()
            },
        );
        assert!(text.contains("10,000 tokens/s ± 1.0%, 100.00 ms a step"), "{text}");
        assert!(text.contains("matmul_nn") && text.contains("idle"), "{text}");
    }
}
