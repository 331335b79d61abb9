//! How busy the machine was: one line.

use std::fmt::Write;

use super::percent;
use crate::report::bytes;
use peft_tune_engine::profile::{DeviceSample, Profile, median};

/// Medians of the samples; `None` where nothing tells how busy the device was.
pub(super) fn device_line(profile: &Profile) -> Option<String> {
    let middle = |value: fn(&DeviceSample) -> Option<f64>| median(profile.samples.iter().filter_map(value));
    let resident = profile.samples.iter().filter_map(|sample| sample.resident_bytes).max();
    let mut line = match middle(|sample| sample.process_cores) {
        Some(own) => {
            let others = middle(|sample| sample.other_cores).unwrap_or(0.0);
            format!("{own:.1} cores busy with this, {others:.1} with others")
        }
        // A GPU tells of itself as a whole.
        None => format!(
            "the GPU busy {} of the time",
            percent(middle(|sample| sample.utilisation)?)
        ),
    };
    if let Some(resident) = resident {
        let _ = write!(line, ", {} resident", bytes(resident as f64));
    }
    if let Some(clock) = middle(|sample| sample.clock_mhz) {
        let _ = write!(line, ", {clock:.0} MHz");
    }
    if let Some(power) = middle(|sample| sample.power_w) {
        let _ = write!(line, ", {power:.0} W");
    }
    if let Some(temperature) = middle(|sample| sample.temperature_c) {
        let _ = write!(line, ", {temperature:.0} C");
    }
    Some(line)
}
