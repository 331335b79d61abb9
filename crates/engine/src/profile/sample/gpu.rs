//! An NVIDIA GPU, as its driver's management library (NVML) sees it.
//!
//! The library comes with the driver and is loaded when it is first needed. What a GPU does not tell is absent: virtual
//! ones often hide power and clocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;

use candle_core::Device;
use cudarc::driver::{result, sys};
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use sys::CUdevice_attribute as Attribute;

use super::{DeviceSample, DeviceSampler, HeldBy};

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

/// Why there is no library.
pub(super) fn missing() -> Option<String> {
    match nvml() {
        Some(_) => None,
        // Asked again for its words: it was only logged.
        None => Nvml::init().err().map(|error| error.to_string()),
    }
}

/// Samples one GPU.
#[derive(Debug)]
pub struct GpuSampler {
    device: nvml_wrapper::Device<'static>,
    name: String,
    /// Time at which NVML last told of processes' utilisation, by its clock.
    told_us: u64,
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
            told_us: 0,
        })
    }
}

impl DeviceSampler for GpuSampler {
    fn device(&self) -> &str {
        &self.name
    }

    fn tells_at_once(&self) -> bool {
        true
    }

    fn sample(&mut self) -> DeviceSample {
        let own = BTreeSet::from([std::process::id()]);
        sample_for(&self.device, &own, &mut self.told_us)
    }
}

/// A GPU as a whole, whoever uses it.
fn whole(device: &nvml_wrapper::Device<'_>) -> DeviceSample {
    let (utilisation, memory) = (device.utilization_rates().ok(), device.memory_info().ok());
    let reasons = device.current_throttle_reasons().ok();
    DeviceSample {
        utilisation: utilisation.map(|rates| f64::from(rates.gpu) / 100.0),
        memory_bytes: memory.as_ref().map(|memory| memory.used),
        total_bytes: memory.map(|memory| memory.total),
        power_w: device.power_usage().ok().map(|milliwatts| f64::from(milliwatts) / 1e3),
        temperature_c: device.temperature(TemperatureSensor::Gpu).ok().map(f64::from),
        clock_mhz: device.clock_info(Clock::SM).ok().map(f64::from),
        throttled: reasons.map(|reasons| held_by(reasons).is_some()),
        held_by: reasons.and_then(held_by),
        ..DeviceSample::default()
    }
}

/// Every GPU that the driver's library knows, in its order.
pub(super) fn all_gpus() -> Vec<nvml_wrapper::Device<'static>> {
    let Some(nvml) = nvml() else { return Vec::new() };
    let count = nvml.device_count().unwrap_or(0);
    (0..count)
        .filter_map(|index| nvml.device_by_index(index).ok())
        .collect()
}

/// A GPU with what `own` processes take of it. Their share is absent where the driver numbers none of them so, as in a container.
/// `told_us` is the time, by the library's clock, up to which it has told of processes.
pub(super) fn sample_for(device: &nvml_wrapper::Device<'_>, own: &BTreeSet<u32>, told_us: &mut u64) -> DeviceSample {
    let running = device.running_compute_processes().unwrap_or_default();
    let ours: Vec<&ProcessInfo> = running.iter().filter(|process| own.contains(&process.pid)).collect();
    let bytes: Vec<u64> = ours
        .iter()
        .filter_map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        })
        .collect();
    let told = match ours.is_empty() {
        true => None,
        false => device.process_utilization_stats(*told_us).ok(),
    };
    let other_utilisation = told.map(|told| {
        *told_us = told.iter().map(|one| one.timestamp).max().unwrap_or(*told_us);
        others(told.iter().map(|one| (one.pid, one.sm_util)), own)
    });
    DeviceSample {
        resident_bytes: (!bytes.is_empty()).then(|| bytes.iter().sum()),
        other_utilisation,
        ..whole(device)
    }
}

/// Joules that a GPU has used since its driver was loaded.
#[derive(Debug)]
pub(super) struct GpuEnergy(nvml_wrapper::Device<'static>);

impl GpuEnergy {
    /// `None` for other devices, and for GPUs that do not count (before Volta, and many virtual ones).
    pub(super) fn of(device: &Device) -> Option<Self> {
        let energy = Self(managed(device)?);
        energy.joules().map(|_| energy)
    }

    pub(super) fn joules(&self) -> Option<f64> {
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

/// Limit that holds the clocks down, if anything does. Being idle or having been set to a clock does not count.
fn held_by(reasons: ThrottleReasons) -> Option<HeldBy> {
    let of = |kinds: ThrottleReasons| reasons.intersects(kinds);
    if of(ThrottleReasons::SW_THERMAL_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN) {
        return Some(HeldBy::Heat);
    }
    if of(ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN) {
        return Some(HeldBy::Power);
    }
    of(ThrottleReasons::HW_SLOWDOWN).then_some(HeldBy::Hardware)
}

/// Part of a GPU that processes other than `own` kept busy, from (process, percent) of several moments.
fn others(told: impl Iterator<Item = (u32, u32)>, own: &BTreeSet<u32>) -> f64 {
    let mut of_each: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
    for (process, percent) in told.filter(|(process, _)| !own.contains(process)) {
        let sum = of_each.entry(process).or_default();
        *sum = (sum.0 + f64::from(percent), sum.1 + 1.0);
    }
    let means = of_each.values().map(|(sum, count)| sum / count / 100.0);
    means.sum::<f64>().min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_clocks_are_not_held_down() {
        let idle = ThrottleReasons::GPU_IDLE | ThrottleReasons::APPLICATIONS_CLOCKS_SETTING;
        assert_eq!(held_by(idle), None);
        assert_eq!(held_by(idle | ThrottleReasons::SW_POWER_CAP), Some(HeldBy::Power));
        let hot = ThrottleReasons::HW_SLOWDOWN | ThrottleReasons::HW_THERMAL_SLOWDOWN;
        assert_eq!(held_by(hot), Some(HeldBy::Heat));
        assert_eq!(held_by(ThrottleReasons::HW_SLOWDOWN), Some(HeldBy::Hardware));
    }

    #[test]
    fn others_are_added_up_by_their_means() {
        let told = [(7, 90), (8, 20), (8, 40), (9, 10)];
        let own = BTreeSet::from([7]);
        assert!((others(told.into_iter(), &own) - 0.4).abs() < 1e-12);
        assert_eq!(others([(7, 90)].into_iter(), &own), 0.0);
    }

    #[test]
    fn the_cpu_is_no_gpu() {
        assert!(GpuSampler::of(&Device::Cpu).is_none());
    }
}
