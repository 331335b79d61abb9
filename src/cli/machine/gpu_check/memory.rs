//! Out of memory on purpose, and whether the device is as good as before behind it.

use std::fmt;

use serde::Serialize;

use super::setting::Setting;
use peft_tune_engine::TrainError;
use peft_tune_engine::profile::DeviceMemory;
use peft_tune_kernels::device::Device;

/// Outcome of running out of memory on purpose.
#[derive(Debug, Default, Serialize)]
pub(super) struct Outcome {
    /// Whether the step that cannot fit was recognised as out of memory; absent on the CPU, which has no such limit.
    recognised: Option<bool>,
    /// Reason why the step was not recognised.
    message: Option<String>,
    /// Loss of a small step before and behind it.
    loss_before: Option<f64>,
    loss_behind: Option<f64>,
    /// Bytes in use before and behind it.
    in_use_before: u64,
    in_use_behind: u64,
}

impl Outcome {
    pub(super) fn passed(&self) -> bool {
        self.recognised != Some(false) && self.loss_before.is_some() && self.loss_before == self.loss_behind
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.passed() { "ok" } else { "FAIL" };
        write!(
            f,
            "{state}: recognised {:?}, losses {:?} and {:?}, {} and {} bytes in use{}",
            self.recognised,
            self.loss_before,
            self.loss_behind,
            self.in_use_before,
            self.in_use_behind,
            self.message
                .as_ref()
                .map(|message| format!("; {message}"))
                .unwrap_or_default()
        )
    }
}

/// A small step, one of a length that no device has memory for, and the small step again.
pub(super) fn run(device: &Device) -> Outcome {
    let mut outcome = Outcome::default();
    if let Err(error) = try_all(device, &mut outcome) {
        outcome.message = Some(error.to_string());
    }
    outcome
}

fn try_all(device: &Device, outcome: &mut Outcome) -> Result<(), TrainError> {
    let memory = DeviceMemory::of(device)?;
    let small = || Setting::tiny().loss(device);
    outcome.loss_before = Some(small()?);
    outcome.in_use_before = memory.in_use_bytes();
    if !device.is_cpu() {
        let error = Setting::huge().loss(device);
        outcome.recognised = Some(matches!(&error, Err(error) if error.out_of_memory()));
        outcome.message = error.err().map(|error| error.to_string());
    }
    outcome.in_use_behind = memory.in_use_bytes();
    outcome.loss_behind = Some(small()?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_step_has_the_same_loss_each_time() {
        let outcome = run(&Device::Cpu);
        assert!(outcome.passed(), "{outcome}");
    }
}
