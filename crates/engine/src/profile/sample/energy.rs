//! Energy as processors count it: RAPL, through Linux' power capping interface, and an NVIDIA GPU's own counter.
//!
//! Each package has a counter of microjoules (`energy_uj`) that begins again at 0 after `max_energy_range_uj`. Many
//! systems let only the administrator read it, and virtual machines have none; then there is no figure.

use std::path::{Path, PathBuf};

use candle_core::Device;
use serde::{Deserialize, Serialize};

/// Folder in which Linux shows the counters.
const POWERCAP: &str = "/sys/class/powercap";

/// Energy of the measured steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnergyUse {
    pub joules: f64,
    pub seconds: f64,
    /// Tokens that were trained meanwhile.
    pub tokens: u64,
}

/// Reads the energy that the processor's packages have used, and the GPU where one trains.
#[derive(Debug, Default)]
pub struct EnergyMeter {
    packages: Vec<Package>,
    #[cfg(feature = "cuda")]
    gpu: Option<(super::gpu::GpuEnergy, f64)>,
}

#[derive(Debug)]
struct Package {
    counter: PathBuf,
    range_uj: u64,
    last_uj: u64,
}

impl EnergyMeter {
    /// The meter of this machine while `device` trains; `None` where the device that does the work counts nothing, or
    /// where its counter may not be read.
    pub fn open(device: &Device) -> Option<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(_) => {
                let gpu = super::gpu::GpuEnergy::of(device)?;
                let last = gpu.joules()?;
                Some(Self {
                    packages: packages(Path::new(POWERCAP)),
                    gpu: Some((gpu, last)),
                })
            }
            _ => Self::open_at(Path::new(POWERCAP)),
        }
    }

    fn open_at(folder: &Path) -> Option<Self> {
        let packages = packages(folder);
        (!packages.is_empty()).then_some(Self {
            packages,
            #[cfg(feature = "cuda")]
            gpu: None,
        })
    }

    /// Joules since the last call, or since it was opened.
    pub fn joules(&mut self) -> f64 {
        let of_packages: f64 = self.packages.iter_mut().map(Package::joules).sum();
        of_packages + self.gpu_joules()
    }

    #[cfg(feature = "cuda")]
    fn gpu_joules(&mut self) -> f64 {
        let Some((gpu, last)) = &mut self.gpu else { return 0.0 };
        let now = gpu.joules().unwrap_or(*last);
        // A driver that was loaded again counts from zero.
        let used = if now >= *last { now - *last } else { now };
        *last = now;
        used
    }

    #[cfg(not(feature = "cuda"))]
    #[expect(clippy::unused_self, reason = "has a counter where the feature `cuda` is on")]
    fn gpu_joules(&mut self) -> f64 {
        0.0
    }
}

/// The packages whose counters may be read.
fn packages(folder: &Path) -> Vec<Package> {
    let Ok(zones) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    // `intel-rapl:0` is a package; `intel-rapl:0:1` a part of it.
    let is_package = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("intel-rapl:") && name.matches(':').count() == 1
    };
    let paths = zones.filter_map(Result::ok).map(|zone| zone.path());
    paths.filter(is_package).filter_map(Package::open).collect()
}

impl Package {
    fn open(zone: PathBuf) -> Option<Self> {
        let counter = zone.join("energy_uj");
        Some(Self {
            last_uj: number(&counter)?,
            range_uj: number(&zone.join("max_energy_range_uj"))?,
            counter,
        })
    }

    fn joules(&mut self) -> f64 {
        let Some(now) = number(&self.counter) else { return 0.0 };
        let used = match now.checked_sub(self.last_uj) {
            Some(used) => used,
            // It began again.
            None => (self.range_uj - self.last_uj.min(self.range_uj)) + now,
        };
        self.last_uj = now;
        used as f64 / 1e6
    }
}

fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_added_up_over_the_end_of_their_range() {
        let folder = tempfile::tempdir().unwrap();
        let write = |zone: &str, file: &str, value: u64| {
            let zone = folder.path().join(zone);
            std::fs::create_dir_all(&zone).unwrap();
            std::fs::write(zone.join(file), format!("{value}\n")).unwrap();
        };
        for zone in ["intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"] {
            write(zone, "max_energy_range_uj", 10_000_000);
            write(zone, "energy_uj", 9_000_000);
        }
        let mut meter = EnergyMeter::open_at(folder.path()).unwrap();
        write("intel-rapl:0", "energy_uj", 9_500_000);
        write("intel-rapl:1", "energy_uj", 1_000_000);
        assert!((meter.joules() - 2.5).abs() < 1e-12);
        assert_eq!(meter.joules(), 0.0);
    }

    #[test]
    fn a_machine_without_counters_has_no_meter() {
        let folder = tempfile::tempdir().unwrap();
        assert!(EnergyMeter::open_at(folder.path()).is_none());
        assert!(EnergyMeter::open_at(&folder.path().join("missing")).is_none());
    }
}
