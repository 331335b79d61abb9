//! Energy as the processor counts it: RAPL, through Linux' power capping interface.
//!
//! Each package has a counter of microjoules (`energy_uj`) that begins again at 0 after `max_energy_range_uj`. Many
//! systems let only the administrator read it, and virtual machines have none; then there is no figure.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where Linux shows the counters.
const POWERCAP: &str = "/sys/class/powercap";

/// Energy of the measured steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EnergyUse {
    pub joules: f64,
    pub seconds: f64,
    /// Tokens that were trained meanwhile.
    pub tokens: u64,
}

/// Reads the energy that the packages have used.
#[derive(Debug)]
pub struct EnergyMeter(Vec<Package>);

#[derive(Debug)]
struct Package {
    counter: PathBuf,
    range_uj: u64,
    last_uj: u64,
}

impl EnergyMeter {
    /// The meter of this machine; `None` where there is none or it may not be read.
    pub fn open() -> Option<Self> {
        Self::open_at(Path::new(POWERCAP))
    }

    fn open_at(folder: &Path) -> Option<Self> {
        let zones = std::fs::read_dir(folder).ok()?.filter_map(Result::ok);
        // `intel-rapl:0` is a package; `intel-rapl:0:1` a part of it.
        let is_package = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("intel-rapl:") && name.matches(':').count() == 1
        };
        let packages = zones
            .map(|zone| zone.path())
            .filter(is_package)
            .filter_map(Package::open);
        let packages: Vec<Package> = packages.collect();
        (!packages.is_empty()).then_some(Self(packages))
    }

    /// Joules since the last call, or since it was opened.
    pub fn joules(&mut self) -> f64 {
        self.0.iter_mut().map(Package::joules).sum()
    }
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
