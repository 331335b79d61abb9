//! Ranked devices as text and JSON.

use std::fmt::Write;

use serde_json::json;

use super::ranked_device::RankedDevice;
use crate::report::{Align, TextTable, bytes, dollars, duration, metric_value, params_text, printable};
use crate::space::Study;
use peft_tune_core::objective::THROUGHPUT;

/// The ranking for people: a table, whose prices they are, and what fits nowhere.
pub(super) fn to_text(study: &Study, devices: &[RankedDevice], width: Option<usize>) -> String {
    let mut text = format!("devices for study {}, the least cost first\n", printable(&study.name));
    let (usable, too_small): (Vec<_>, Vec<_>) = devices.iter().partition(|device| device.best.is_some());
    if !usable.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n{}\n", table(&usable).to_text(width));
    }
    let mut lines = prices(devices);
    let unpriced: Vec<&str> = usable
        .iter()
        .filter(|device| device.price.is_none())
        .map(|device| device.sheet.name)
        .collect();
    if let Some(first) = unpriced.first() {
        lines.push(format!(
            "no price is known of {}: give one with `--price \"{first}=0.70/h\"`",
            unpriced.join(", ")
        ));
    }
    if !too_small.is_empty() {
        let names: Vec<&str> = too_small.iter().map(|device| device.sheet.name).collect();
        let least = too_small
            .iter()
            .filter_map(|device| device.least_bytes)
            .reduce(f64::min);
        let least = least.map_or_else(String::new, |least| {
            format!("; the most frugal setting needs {}", bytes(least))
        });
        lines.push(format!("no setting fits {}{least}", names.join(", ")));
    }
    if study.finds_length {
        lines.push("the search is to find the length of the full training: one epoch stands in for it".to_owned());
    }
    for line in lines {
        let _ = write!(text, "\n{line}\n");
    }
    text
}

fn table(devices: &[&RankedDevice]) -> TextTable {
    let right = [
        "memory",
        "fit",
        "tokens/s",
        "1M tokens",
        "full training",
        "cost",
        "an hour",
    ];
    let right = right.map(|name| (name.to_owned(), Align::Right));
    let first = [("device".to_owned(), Align::Left)].into_iter();
    let mut table = TextTable::new(first.chain(right).chain([("setting".to_owned(), Align::Left)]));
    for device in devices {
        let Some(best) = &device.best else { continue };
        let dash = || "-".to_owned();
        let usd = |usd: Option<f64>| usd.map_or_else(dash, dollars);
        let price = device.price.as_ref();
        table.push([
            device.sheet.name.to_owned(),
            bytes(device.sheet.memory_bytes as f64),
            format!("{:.0}%", 100.0 * device.fitting),
            metric_value(THROUGHPUT, best.setting.tokens_per_s.value),
            usd(best.usd_per_million),
            best.training.map_or_else(dash, |training| duration(training.seconds)),
            usd(best.training_usd(price)),
            usd(price.map(|price| price.usd_per_h)),
            params_text(&best.setting.params),
        ]);
    }
    table
}

/// Whose the prices are, a line each.
fn prices(devices: &[RankedDevice]) -> Vec<String> {
    let mut sources: Vec<(&str, Vec<&str>)> = Vec::new();
    for device in devices.iter().filter(|device| device.best.is_some()) {
        let Some(price) = &device.price else { continue };
        match sources.iter_mut().find(|(source, _)| *source == price.source) {
            Some((_, names)) => names.push(device.sheet.name),
            None => sources.push((price.source.as_str(), vec![device.sheet.name])),
        }
    }
    let line = |(source, names): (&str, Vec<&str>)| format!("{source}: {}", names.join(", "));
    sources.into_iter().map(line).collect()
}

/// The ranking with raw numbers.
pub(super) fn to_json(study: &Study, devices: &[RankedDevice]) -> serde_json::Result<String> {
    let one = |device: &RankedDevice| {
        let best = device.best.as_ref();
        let training = best.and_then(|best| best.training);
        json!({
            "device": device.sheet.name,
            "memory_bytes": device.sheet.memory_bytes,
            "fitting": device.fitting,
            "least_bytes": device.least_bytes,
            "price": device.price,
            "params": best.map(|best| &best.setting.params),
            "throughput": best.map(|best| best.setting.tokens_per_s),
            "peak_memory": best.map(|best| best.setting.peak_bytes),
            "usd_per_million_tokens": best.and_then(|best| best.usd_per_million),
            "full_training_s": training.map(|training| training.seconds),
            "full_training_devices": training.map(|training| training.devices),
            "full_training_usd": best.and_then(|best| best.training_usd(device.price.as_ref())),
        })
    };
    let devices: Vec<_> = devices.iter().map(one).collect();
    serde_json::to_string_pretty(&json!({
        "study": study.name,
        "length_is_found": study.finds_length,
        "devices": devices,
    }))
}
