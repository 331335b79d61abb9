//! The device while it works: utilisation, memory, power, temperature and clocks, read a few times a second.

mod device_sample;
mod energy;
mod host;
mod sampling;

pub use device_sample::{DeviceSample, DeviceSampler};
pub use energy::{EnergyMeter, EnergyUse};
pub use host::HostSampler;
pub use sampling::Sampling;
