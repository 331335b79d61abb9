//! Memory in the steps of a trace, by the allocations that the profiler recorded.

use std::collections::BTreeMap;

use super::recorded::{HostEvent, MemoryDevice, MemoryEvent, Recorded};
use super::steps::Steps;
use crate::profile::MemoryFacts;

/// Memory of the device with the highest peak: of GPUs where one is among them, else of the processor. `None` where nothing was
/// recorded within the steps.
pub(super) fn facts_of(recorded: &Recorded, steps: &Steps) -> Option<MemoryFacts> {
    let within = |event: &&MemoryEvent| steps.place(event.at_ns).is_some();
    let mut peaks: BTreeMap<MemoryDevice, &MemoryEvent> = BTreeMap::new();
    for event in recorded.memory.iter().filter(within) {
        let peak = peaks.entry(event.device).or_insert(event);
        if event.bytes > peak.bytes {
            *peak = event;
        }
    }
    let on_gpu = peaks.keys().any(|device| device.kind != 0);
    let of_kind = peaks.into_values().filter(|event| (event.device.kind != 0) == on_gpu);
    let peak = of_kind.max_by_key(|event| event.bytes)?;
    Some(MemoryFacts {
        peak_bytes: peak.bytes,
        mean_bytes: mean(recorded, steps, peak),
        peak_at: around(recorded, peak),
        ..MemoryFacts::default()
    })
}

/// Mean bytes in use over the step with the peak.
fn mean(recorded: &Recorded, steps: &Steps, peak: &MemoryEvent) -> Option<u64> {
    let (start, end) = steps.spans[steps.place(peak.at_ns)?];
    let of_device = recorded.memory.iter().filter(|event| event.device == peak.device);
    let before = of_device.clone().take_while(|event| event.at_ns <= start).last();
    let mut held = before.map(|event| event.bytes);
    let (mut at, mut sum, mut known) = (start, 0.0, 0);
    for event in of_device.filter(|event| event.at_ns > start && event.at_ns <= end) {
        if let Some(bytes) = held {
            sum += bytes as f64 * (event.at_ns - at) as f64;
            known += event.at_ns - at;
        }
        (held, at) = (Some(event.bytes), event.at_ns);
    }
    if let Some(bytes) = held {
        sum += bytes as f64 * (end - at) as f64;
        known += end - at;
    }
    (known > 0).then(|| (sum / known as f64) as u64)
}

/// Names of what ran around the peak on its thread, from the outside in.
fn around(recorded: &Recorded, peak: &MemoryEvent) -> Vec<String> {
    let runs = |event: &&HostEvent| event.thread == peak.thread && (event.start_ns..event.end_ns).contains(&peak.at_ns);
    let names = recorded.host.iter().filter(runs);
    names.map(|event| recorded.name(event.name).to_owned()).collect()
}
