//! Published measurements of settings like one that is planned, beside what is predicted of them.
//!
//! Only rows that are near are shown, as far as there are any: of the same method, and within [`NEAR`] times in parameters and in the
//! device's peak. Among them the distance is counted in steps that are as far as each other: another stack, another form of weights,
//! another device, and each doubling of the parameters, of the tokens of a micro-batch, of the devices. Checkpointing or not is half a
//! step, and another method is one, where no row is near.

use serde::Serialize;
use serde_json::{Value, json};

use peft_tune_core::predict::stack::{Recompute, StackDevice, StackSetting, Trains};
use peft_tune_core::predict::{self, NEAR, is_near};
use peft_tune_tools::plan::Predicted;

/// The table, which `just published` writes; no field of it holds a comma.
const TABLE: &str = include_str!("../../../docs/benchmarks/stacks.csv");
/// Sources of the table, by the beginning of their names, and where each was published.
const ORIGINS: [(&str, &str); 5] = [
    (
        "qwen1-readme",
        "https://github.com/QwenLM/Qwen/blob/2df8e8ac450fa185c421a08b0090ef81826caa6e/README.md",
    ),
    (
        "fms-a100",
        "https://github.com/foundation-model-stack/fms-acceleration/blob/876e2ed6fc4e966785e3f4315f5ee3cdf8e3d097/scripts/benchmarks/refs/a100_80gb.csv",
    ),
    (
        "ms-swift",
        "https://github.com/modelscope/ms-swift/blob/e419fe1f0/docs/source_en/LLM/Benchmark.md",
    ),
    (
        "torchtune-readme",
        "https://github.com/pytorch/torchtune/blob/bd2a0fc7c31430972728494fa01aaeeb0ebf1ba1/README.md",
    ),
    ("fitcheck-t4", "fitcheck-llm 0.3.1, data/measurements"),
];
/// Rows that are shown.
const SHOWN: usize = 5;

/// A published measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PublishedRow {
    pub source: &'static str,
    /// Address of the publication, or its name in words.
    pub origin: &'static str,
    pub stack: &'static str,
    pub model: &'static str,
    pub parameters: u64,
    pub device: &'static str,
    pub devices: u64,
    pub method: &'static str,
    pub weights: &'static str,
    pub rank: Option<u64>,
    pub micro_batch: u64,
    pub sequence_length: u64,
    pub checkpointing: Option<bool>,
    /// Whether the source had a part in choosing constants of the prediction.
    pub calibrated: bool,
    pub tensors_gib: Pair,
    pub process_gib: Pair,
    pub tokens_per_s: Pair,
}

/// A number that was published, and the one that is predicted of the same setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Pair {
    pub published: Option<f64>,
    pub predicted: Option<f64>,
}

/// Measurements to show beside a setting.
#[derive(Debug, Serialize)]
pub(crate) struct Nearest {
    /// The nearest first.
    pub rows: Vec<PublishedRow>,
    /// Reason why these rows are far, in words; `None` where they are near.
    pub far: Option<String>,
}

/// The rows that are nearest to a setting: of those that are near, or of all where none is.
pub(crate) fn nearest(predicted: &Predicted) -> Nearest {
    let sought = Sought::of(predicted);
    let mut all: Vec<(f64, PublishedRow)> = rows().map(|row| (sought.distance(&row), row)).collect();
    all.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let all = all.into_iter().map(|(_, row)| row);
    // The nearest of all may be too far in one thing, and the next one in none.
    let (near, far): (Vec<_>, Vec<_>) = all.partition(|row| sought.is_near(row));
    let is_far = near.is_empty();
    let mut rows = if is_far { far } else { near };
    rows.truncate(SHOWN);
    let method = sought.method;
    Nearest {
        rows,
        far: is_far.then(|| {
            format!(
                "No measurement is near: of the same method ({method}), and within {NEAR} times in parameters and in the device's peak. \
                 These are the nearest."
            )
        }),
    }
}

/// A setting that was predicted, in the words of the table.
struct Sought<'a> {
    setting: &'a StackSetting,
    device: Option<StackDevice>,
    parameters: u64,
    method: &'static str,
    weights: Value,
}

impl<'a> Sought<'a> {
    fn of(predicted: &'a Predicted) -> Self {
        let setting = &predicted.setting;
        Self {
            setting,
            device: predicted.device,
            parameters: predicted.shape.parameters(),
            method: match (&setting.trains, setting.weights.is_quantized()) {
                (Trains::Everything, _) => "full",
                (Trains::Adapters { .. }, false) => "lora",
                (Trains::Adapters { .. }, true) => "qlora",
            },
            weights: json!(setting.weights),
        }
    }

    fn is_near(&self, row: &PublishedRow) -> bool {
        let parameters = row.parameters as f64 / self.parameters.max(1) as f64;
        let has_near_peak = self.device.is_none_or(|device| {
            let of_row = predict::device(row.device).ok();
            of_row.is_some_and(|sheet| is_near(sheet.matrix / device.sheet.matrix))
        });
        row.method == self.method && is_near(parameters) && has_near_peak
    }

    /// Steps between a row's setting and this one.
    fn distance(&self, row: &PublishedRow) -> f64 {
        let setting = self.setting;
        let doublings = |one: u64, other: u64| (one.max(1) as f64 / other.max(1) as f64).log2().abs();
        let differs = |differs: bool| f64::from(u8::from(differs));
        let recomputes = setting.recompute != Recompute::Nothing;
        differs(row.stack != setting.stack.name)
            + differs(self.weights != row.weights)
            + differs(self.device.is_some_and(|device| device.sheet.name != row.device))
            + differs(row.method != self.method)
            + doublings(row.parameters, self.parameters)
            + doublings(row.micro_batch * row.sequence_length, setting.tokens())
            + doublings(row.devices, setting.devices)
            + 0.5 * differs(row.checkpointing.is_some_and(|is_on| is_on != recomputes))
    }
}

/// All rows of the table.
pub(crate) fn rows() -> impl Iterator<Item = PublishedRow> {
    let mut lines = TABLE.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    lines.filter_map(move |line| row(&names, line))
}

fn row(names: &[&str], line: &'static str) -> Option<PublishedRow> {
    let fields: Vec<&'static str> = line.split(',').collect();
    let text = |name: &str| -> &'static str {
        let at = names.iter().position(|one| *one == name);
        at.and_then(|at| fields.get(at)).copied().unwrap_or_default()
    };
    let pair = |name: &str| Pair {
        published: text(&format!("published_{name}")).parse().ok(),
        predicted: text(&format!("predicted_{name}")).parse().ok(),
    };
    Some(PublishedRow {
        source: text("source"),
        origin: origin_of(text("source"))?,
        stack: text("stack"),
        model: text("model"),
        parameters: text("parameters").parse().ok()?,
        device: text("device"),
        devices: text("num_gpus").parse().ok()?,
        method: text("method"),
        weights: text("weights"),
        rank: text("rank").parse().ok(),
        micro_batch: text("micro_batch").parse().ok()?,
        sequence_length: text("sequence_length").parse().ok()?,
        checkpointing: text("checkpointing").parse().ok(),
        calibrated: text("calibrated").eq_ignore_ascii_case("true"),
        tensors_gib: pair("tensors_gib"),
        process_gib: pair("process_gib"),
        tokens_per_s: pair("tokens_per_s"),
    })
}

fn origin_of(source: &str) -> Option<&'static str> {
    let found = ORIGINS.iter().find(|(name, _)| source.starts_with(name));
    found.map(|(_, origin)| *origin)
}
