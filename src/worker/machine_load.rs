//! Load of the machine by others while a trial's steps are measured.

use std::time::{Duration, Instant};

use peft_tune_core::study::Metrics;
use peft_tune_engine::profile::disturbance::{
    Busy, Disturbance, DisturbanceWatch, HostCounters, Load, MachineCounters, lost_on_gpu,
};
use peft_tune_engine::profile::sample::{DeviceUse, EnergyMeter, Sampling, sampler_of};
use peft_tune_kernels::device::Device;

/// Time from one look at a GPU to the next.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

/// Load of a machine by others than the trial, while it is watched.
pub(super) enum MachineLoad {
    Host(Box<DisturbanceWatch>),
    /// A GPU, as far as its driver tells of it: what takes the host's processors hardly slows it down.
    Gpu(Box<GpuWatch>),
}

/// A GPU that is watched.
pub(super) struct GpuWatch {
    sampling: Option<Sampling>,
    energy: Option<EnergyMeter>,
    started: Instant,
}

/// Readings of the machine beside a measurement.
pub(super) struct MachineReadings {
    /// Share of the throughput that may have been lost.
    pub(super) lost: f64,
    /// Energy that this process's GPU took, and the processor where that may be read.
    pub(super) joules: Option<f64>,
}

impl MachineLoad {
    /// Begins to watch the device that a trial on so many ranks runs on; a machine that is `busy` is made up, for tests.
    pub(super) fn watch(device: &Device, ranks: usize, busy: bool) -> Self {
        if !device.is_cpu() && !busy {
            return Self::Gpu(Box::new(GpuWatch::start(device)));
        }
        let host = HostCounters::default();
        let load = Load {
            threads: rayon::current_num_threads(),
            cores: host.cores(),
            ranks,
        };
        let counters: Box<dyn MachineCounters> = match busy {
            true => Box::new(Busy::default()),
            false => Box::new(host),
        };
        Self::Host(Box::new(DisturbanceWatch::start(counters, load)))
    }

    pub(super) fn step_ended(&mut self) {
        if let Self::Host(watch) = self {
            watch.step_ended();
        }
    }

    /// Ends the watch, and writes its readings into the metrics.
    pub(super) fn finish(self, metrics: &mut Metrics) -> MachineReadings {
        let (disturbance, joules) = match self {
            Self::Host(watch) => (watch.finish(), None),
            Self::Gpu(watch) => watch.finish(metrics),
        };
        disturbance.keep(metrics);
        MachineReadings {
            lost: disturbance.share(),
            joules,
        }
    }
}

impl GpuWatch {
    fn start(device: &Device) -> Self {
        let started = Instant::now();
        let sampling = sampler_of(device).map(|sampler| Sampling::start(sampler, started, SAMPLE_EVERY));
        Self {
            sampling: sampling.and_then(Result::ok),
            energy: EnergyMeter::open(device),
            started,
        }
    }

    fn finish(mut self, metrics: &mut Metrics) -> (Disturbance, Option<f64>) {
        let seconds = self.started.elapsed().as_secs_f64();
        let counted = self.energy.as_mut().map(EnergyMeter::joules);
        let samples = self.sampling.map(Sampling::finish).unwrap_or_default();
        let device_use = DeviceUse::of(&samples);
        device_use.keep(metrics);
        let disturbance = Disturbance {
            lost: lost_on_gpu(&samples),
            threads: 1,
            ..Disturbance::default()
        };
        // A GPU that does not count its energy may still tell its power.
        let joules = counted.or_else(|| device_use.power_w.map(|power| power * seconds));
        (disturbance, joules)
    }
}
