//! An NVIDIA GPU, as its driver's management library (NVML) sees it.
//!
//! The library comes with the driver and is loaded when it is first needed. What a GPU does not tell is absent: virtual
//! ones often hide power and clocks.

use std::sync::OnceLock;

use candle_core::Device;
use cudarc::driver::{result, sys};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use sys::CUdevice_attribute as Attribute;

use super::{DeviceSample, DeviceSampler};

/// The library, once for the process; `None` where it is missing or finds no driver.
fn nvml() -> Option<&'static Nvml> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let nvml = NVML.get_or_init(|| {
        let opened = Nvml::init();
        opened
            .inspect_err(|error| tracing::info!(%error, "no samples of the GPU"))
            .ok()
    });
    nvml.as_ref()
}

/// Samples one GPU.
#[derive(Debug)]
pub struct GpuSampler {
    device: nvml_wrapper::Device<'static>,
    name: String,
}

impl GpuSampler {
    /// The sampler of a GPU that candle has open; `None` for other devices and where NVML does not know it.
    pub fn of(device: &Device) -> Option<Self> {
        Some(Self {
            device: managed(device)?,
            name: match device.location() {
                candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
                _ => return None,
            },
        })
    }

    /// Bytes of the GPU's memory that the driver counts for this process.
    fn process_bytes(&self) -> Option<u64> {
        let own = std::process::id();
        let processes = self.device.running_compute_processes().ok()?;
        let process = processes.into_iter().find(|process| process.pid == own)?;
        match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        }
    }
}

impl DeviceSampler for GpuSampler {
    fn device(&self) -> &str {
        &self.name
    }

    fn sample(&mut self) -> DeviceSample {
        let device = &self.device;
        let utilisation = device.utilization_rates().ok();
        DeviceSample {
            utilisation: utilisation.map(|rates| f64::from(rates.gpu) / 100.0),
            resident_bytes: self.process_bytes(),
            memory_bytes: device.memory_info().ok().map(|memory| memory.used),
            power_w: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
            temperature_c: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
            clock_mhz: device.clock_info(Clock::SM).ok().map(f64::from),
            throttled: device.current_throttle_reasons().ok().map(is_held_down),
            ..DeviceSample::default()
        }
    }
}

/// Joules that a GPU has used since its driver was loaded.
#[derive(Debug)]
pub(super) struct GpuEnergy(nvml_wrapper::Device<'static>);

impl GpuEnergy {
    /// `None` for other devices, and for GPUs that do not count (before Volta, and many virtual ones).
    pub fn of(device: &Device) -> Option<Self> {
        let energy = Self(managed(device)?);
        energy.joules().map(|_| energy)
    }

    pub fn joules(&self) -> Option<f64> {
        let millijoules = self.0.total_energy_consumption().ok()?;
        Some(millijoules as f64 / 1e3)
    }
}

/// NVML's view of a GPU. CUDA may number GPUs otherwise (`CUDA_VISIBLE_DEVICES`), so that they are told apart by their
/// place on the bus.
fn managed(device: &Device) -> Option<nvml_wrapper::Device<'static>> {
    let Device::Cuda(device) = device else { return None };
    let handle = device.cuda_stream().context().cu_device();
    // SAFETY: the handle is that of a live context.
    let read = |attribute| unsafe { result::device::get_attribute(handle, attribute) }.ok();
    let domain = read(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = read(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let slot = read(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    let place = format!("{domain:08x}:{bus:02x}:{slot:02x}.0");
    let found = nvml()?.device_by_pci_bus_id(place.as_str());
    found
        .inspect_err(|error| tracing::info!(%error, %place, "no samples of the GPU"))
        .ok()
}

/// Whether power or heat holds the clocks down. Being idle or having been set to a clock does not count.
fn is_held_down(reasons: ThrottleReasons) -> bool {
    reasons.intersects(
        ThrottleReasons::SW_POWER_CAP
            | ThrottleReasons::HW_SLOWDOWN
            | ThrottleReasons::SW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_THERMAL_SLOWDOWN
            | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_clocks_are_not_held_down() {
        assert!(!is_held_down(
            ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING
        ));
        assert!(is_held_down(ThrottleReasons::GPU_IDLE | ThrottleReasons::SW_POWER_CAP));
    }

    #[test]
    fn the_cpu_is_no_gpu() {
        assert!(GpuSampler::of(&Device::Cpu).is_none());
    }
}
