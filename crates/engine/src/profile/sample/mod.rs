//! The device while it works: utilisation, memory, power, temperature and clocks, read a few times a second.

use candle_core::Device;

mod device_sample;
mod device_use;
mod energy;
#[cfg(feature = "cuda")]
mod gpu;
mod host;
mod process_gpus;
mod sampling;

pub use device_sample::{DeviceSample, DeviceSampler, HeldBy};
pub use device_use::DeviceUse;
pub use energy::{EnergyMeter, EnergyUse};
#[cfg(feature = "cuda")]
pub use gpu::GpuSampler;
pub use host::HostSampler;
pub use process_gpus::ProcessGpus;
pub use sampling::Sampling;

/// Sampler of `device`: the GPU's driver, or the host's own counters. `None` where nothing tells.
pub fn sampler_of(device: &Device) -> Option<Box<dyn DeviceSampler>> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => Some(Box::new(GpuSampler::of(device)?)),
        _ => Some(Box::new(HostSampler::new()?)),
    }
}

/// Why trials on a GPU of this machine will not tell of its utilisation, power and clocks; `None` where they will, and where the
/// program was not built for GPUs.
pub fn why_no_gpu_samples() -> Option<String> {
    #[cfg(feature = "cuda")]
    {
        gpu::missing()
    }
    #[cfg(not(feature = "cuda"))]
    None
}
