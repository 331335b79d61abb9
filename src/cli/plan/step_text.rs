//! A step on paper as text and JSON.

use std::fmt::Write;
use std::path::PathBuf;

use serde_json::json;

use crate::report::{Align, TextTable, bytes, duration, metric_value, printable};
use peft_tune_core::objective::{MFU, THROUGHPUT};
use peft_tune_core::predict::{Bytes, KindCosts, OpKind, StepCosts};

/// The machine that a step is predicted for.
pub(super) struct PlannedMachine {
    pub name: String,
    /// Share of its speed that other programs may have taken while it was measured.
    pub disturbed: f64,
}

/// Facts that are told of a step.
pub(super) struct PlannedStep<'a> {
    pub recipes: &'a [PathBuf],
    /// Setting of each recipe.
    pub settings: Vec<String>,
    /// Whether a precision schedule has some steps in F32, which are none of this one.
    pub has_schedule: bool,
    pub machine: &'a PlannedMachine,
    pub costs: &'a StepCosts,
    /// Bytes at the highest moment.
    pub peak_bytes: Bytes,
    /// FLOPs of a step that the model needs, on all devices.
    pub model_flops: f64,
    /// FLOP/s of all devices, where a data sheet has them.
    pub peak_flops_per_s: Option<f64>,
}

impl PlannedStep<'_> {
    /// Tokens a second, where the machine's speed is known.
    fn tokens_per_s(&self) -> Option<f64> {
        let seconds = self.costs.seconds();
        (seconds > 0.0).then(|| self.costs.tokens / seconds)
    }

    fn mfu(&self) -> Option<f64> {
        let (peak, seconds) = (self.peak_flops_per_s?, self.costs.seconds());
        (seconds > 0.0).then(|| self.model_flops / (seconds * peak))
    }
}

/// The step for people: facts, a table of its parts, and one of the kinds of its ops.
pub(super) fn to_text(step: &PlannedStep<'_>, width: Option<usize>) -> String {
    let names: Vec<String> = step.recipes.iter().map(|path| path.display().to_string()).collect();
    let mut text = format!("a step of {}, on paper\n", printable(&names.join(", ")));
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<14}{}", printable(&value));
    };
    for setting in &step.settings {
        line("setting", setting.clone());
    }
    if step.settings.len() > 1 {
        line(
            "together",
            format!("{} recipes, in the same passes", step.settings.len()),
        );
    }
    if step.has_schedule {
        line(
            "schedule",
            "the steps of `precision_schedule` in fp32 are others".to_owned(),
        );
    }
    line("machine", step.machine.name.clone());
    line("tokens", format!("{:.0}", step.costs.tokens));
    line("peak memory", bytes(step.peak_bytes.total() as f64));
    if let Some(speed) = step.tokens_per_s() {
        let mfu = step.mfu().map(|mfu| format!(", MFU {}", metric_value(MFU, mfu)));
        let doubt = match step.machine.disturbed {
            0.0 => String::new(),
            share => format!(
                "; up to {:.0}% less time on this machine alone, which was measured beside other programs",
                100.0 * share
            ),
        };
        line(
            "least time",
            format!(
                "{}: {} tokens/s{}{}",
                duration(step.costs.seconds()),
                metric_value(THROUGHPUT, speed),
                mfu.unwrap_or_default(),
                doubt
            ),
        );
    }
    let scale = Scale::of(step.costs);
    for table in [of_parts(step.costs, &scale), of_kinds(step.costs, &scale)] {
        let _ = write!(text, "\n{}\n", table.to_text(width));
    }
    text
}

/// Units that a step's numbers are told in, and what shares are of.
struct Scale {
    flops: (f64, &'static str),
    seconds: f64,
    has_launches: bool,
}

impl Scale {
    fn of(costs: &StepCosts) -> Self {
        const UNITS: [(f64, &str); 3] = [(1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP")];
        let all = KindCosts::sum(OpKind::Passes, costs.kinds().iter());
        let unit = UNITS.into_iter().find(|(size, _)| all.flops >= 10.0 * size);
        Self {
            flops: unit.unwrap_or(UNITS[2]),
            seconds: costs.seconds(),
            has_launches: all.launches > 0.0,
        }
    }

    fn headings(&self) -> [(String, Align); 6] {
        ["ops", self.flops.1, "moved", "launches", "ms", "share"].map(|name| (name.to_owned(), Align::Right))
    }

    fn cells(&self, costs: &KindCosts) -> [String; 6] {
        let known = |is_known: bool, text: String| if is_known { text } else { "-".to_owned() };
        let knows_speed = self.seconds > 0.0;
        [
            format!("{:.0}", costs.ops),
            format!("{:.2}", costs.flops / self.flops.0),
            bytes(costs.bytes),
            known(self.has_launches, format!("{:.0}", costs.launches)),
            known(knows_speed, format!("{:.2}", 1e3 * costs.seconds)),
            known(knows_speed, format!("{:.1}%", 100.0 * costs.seconds / self.seconds)),
        ]
    }
}

fn of_parts(costs: &StepCosts, scale: &Scale) -> TextTable {
    let text = |name: &str| (name.to_owned(), Align::Left);
    let number = |name: &str| (name.to_owned(), Align::Right);
    let columns = [
        text("part"),
        number("times"),
        number("kept"),
        number("rise"),
        text("kind"),
    ];
    let mut table = TextTable::new(columns.into_iter().chain(scale.headings()));
    for part in &costs.parts {
        let signed = |size: i64| match size {
            ..0 => format!("-{}", bytes(size.unsigned_abs() as f64)),
            _ => bytes(size as f64),
        };
        let mut first = vec![
            part.part.to_string(),
            format!("{:.0}", part.times),
            signed(part.kept_bytes),
            bytes(part.rise_bytes as f64),
        ];
        for kind in &part.kinds {
            first.push(kind.kind.name().to_owned());
            table.push(first.into_iter().chain(scale.cells(kind)));
            // The part is named once.
            first = vec![String::new(); 4];
        }
        if part.kinds.is_empty() {
            table.push(first);
        }
    }
    table
}

fn of_kinds(costs: &StepCosts, scale: &Scale) -> TextTable {
    let columns = [("kind".to_owned(), Align::Left)];
    let mut table = TextTable::new(columns.into_iter().chain(scale.headings()));
    let kinds = costs.kinds();
    for kind in &kinds {
        table.push(std::iter::once(kind.kind.name().to_owned()).chain(scale.cells(kind)));
    }
    let all = KindCosts::sum(OpKind::Passes, kinds.iter());
    table.push(std::iter::once("all".to_owned()).chain(scale.cells(&all)));
    table
}

/// The step with raw numbers.
pub(super) fn to_json(step: &PlannedStep<'_>) -> serde_json::Result<String> {
    let seconds = Some(step.costs.seconds()).filter(|seconds| *seconds > 0.0);
    serde_json::to_string_pretty(&json!({
        "recipes": step.recipes,
        "settings": step.settings,
        "fp32_steps_left_out": step.has_schedule,
        "machine": step.machine.name,
        "machine_disturbed": step.machine.disturbed,
        "tokens_per_step": step.costs.tokens,
        "step_s": seconds,
        "tokens_per_s": step.tokens_per_s(),
        "model_flops": step.model_flops,
        "mfu": step.mfu(),
        "peak_memory": step.peak_bytes.total(),
        "parts": step.costs.parts,
        "kinds": step.costs.kinds(),
    }))
}
