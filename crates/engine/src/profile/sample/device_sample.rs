//! One look at a device, and who can take one.

use serde::{Deserialize, Serialize};

/// A device at one moment; what it does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Seconds since sampling began.
    pub at_s: f64,
    /// Part of the device that was busy since the last look, in [0, 1]; on the CPU, of all cores together.
    pub utilisation: Option<f64>,
    /// Cores that this process kept busy.
    pub process_cores: Option<f64>,
    /// Cores that other processes kept busy.
    pub other_cores: Option<f64>,
    /// Memory of this process: its resident set, or the GPU's memory that the driver counts for it.
    pub resident_bytes: Option<u64>,
    /// Memory of the device that is taken, by whomever.
    pub memory_bytes: Option<u64>,
    /// All memory of the device.
    pub total_bytes: Option<u64>,
    /// Part of the device that other processes kept busy, in [0, 1]; GPUs only.
    pub other_utilisation: Option<f64>,
    pub power_w: Option<f64>,
    pub temperature_c: Option<f64>,
    /// Clock of the device; on the CPU the mean of its cores.
    pub clock_mhz: Option<f64>,
    /// Whether the device says that it holds its clock down.
    pub throttled: Option<bool>,
    /// Limit that holds the clock down, where the device says that too.
    pub held_by: Option<HeldBy>,
}

/// Limit that can hold a clock down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBy {
    /// The power limit, or what the power supply gives.
    Power,
    Heat,
    /// Power or heat: the hardware does not say which.
    Hardware,
}

/// Looks at one device. What stands behind it: the host's own counters, or a GPU's driver.
pub trait DeviceSampler: Send {
    /// Name of the device as samples are stored under it.
    fn device(&self) -> &str;

    /// Whether one look tells something by itself. Most counters tell what happened since the last one.
    fn tells_at_once(&self) -> bool {
        false
    }

    /// One look; [`DeviceSample::at_s`] is filled in by the caller.
    fn sample(&mut self) -> DeviceSample;
}
