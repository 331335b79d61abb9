//! The host: processor time, resident memory and clocks, through sysinfo.

use sysinfo::{CpuRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, RefreshKind, System};

use super::{DeviceSample, DeviceSampler};

/// Samples the host's processor and this process.
#[derive(Debug)]
pub struct HostSampler {
    system: System,
    process: Pid,
}

impl HostSampler {
    /// `None` where the system does not say.
    pub fn new() -> Option<Self> {
        let cpu = CpuRefreshKind::nothing().with_usage().with_frequency();
        let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(cpu)).ok()?;
        let process = Pid::from_u32(std::process::id());
        Some(Self { system, process })
    }

    /// Refreshes and returns the cores that this process has kept busy since the last time.
    fn process_cores(&mut self) -> Option<f64> {
        let wanted = ProcessRefreshKind::nothing().with_cpu().with_memory();
        let process = ProcessesToUpdate::Some(&[self.process]);
        self.system.refresh_processes_specifics(process, false, wanted);
        Some(f64::from(self.system.process(self.process)?.cpu_usage()) / 100.0)
    }
}

impl DeviceSampler for HostSampler {
    fn device(&self) -> &str {
        "cpu"
    }

    fn sample(&mut self) -> DeviceSample {
        self.system.refresh_cpu_usage();
        self.system.refresh_cpu_frequency();
        let process_cores = self.process_cores();
        let cores = self.system.cpus().len() as f64;
        let utilisation = f64::from(self.system.global_cpu_usage()) / 100.0;
        let clocks = self.system.cpus().iter().map(|cpu| cpu.frequency() as f64);
        let clock = clocks.sum::<f64>() / cores.max(1.0);
        let process = self.system.process(self.process);
        DeviceSample {
            utilisation: Some(utilisation),
            process_cores,
            other_cores: process_cores.map(|own| (utilisation * cores - own).max(0.0)),
            resident_bytes: process.map(sysinfo::Process::memory),
            clock_mhz: (clock > 0.0).then_some(clock),
            ..DeviceSample::default()
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_busy_thread_shows_in_the_process() {
        let mut sampler = HostSampler::new().unwrap();
        sampler.sample();
        let started = std::time::Instant::now();
        let (mut sum, mut sample) = (0u64, DeviceSample::default());
        // A busy machine may not let the thread run for a while.
        while sample.process_cores.unwrap_or(0.0) <= 0.0 && started.elapsed().as_secs() < 60 {
            let looked = std::time::Instant::now();
            while looked.elapsed().as_millis() < 300 {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
            sample = sampler.sample();
        }
        assert!(sample.process_cores.unwrap() > 0.0, "{sample:?}");
        assert!(sample.resident_bytes.unwrap() > 1 << 20);
        assert!((0.0..=1.0).contains(&sample.utilisation.unwrap()));
    }
}
