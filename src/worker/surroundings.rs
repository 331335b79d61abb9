//! What else the machine does while a trial's steps are measured.

use super::trial::TrialRun;
use peft_tune_core::study::{Metrics, Phase};
use peft_tune_engine::profile::disturbance::{
    Busy, Disturbance, DisturbanceWatch, HostCounters, Load, MachineCounters, lost_on_gpu,
};
use peft_tune_engine::profile::sample::{Sampling, sampler_of};

/// From one look at a GPU to the next.
const SAMPLE_EVERY: std::time::Duration = std::time::Duration::from_millis(100);

/// A machine that is watched.
pub(super) enum Surroundings {
    Host(Box<DisturbanceWatch>),
    /// A GPU, where its driver tells of it: what takes the host's processors hardly slows it down.
    Gpu(Option<Sampling>),
}

impl Surroundings {
    /// Begins to watch the device that a trial runs on.
    pub(super) fn watch(run: &TrialRun<'_>) -> Self {
        let device = run.loaded.base.device();
        let busy = run.fault.makes_busy(run.request, Phase::Profile);
        if !device.is_cpu() && !busy {
            let sampling =
                sampler_of(device).map(|sampler| Sampling::start(sampler, std::time::Instant::now(), SAMPLE_EVERY));
            return Self::Gpu(sampling.and_then(Result::ok));
        }
        let host = HostCounters::default();
        let load = Load {
            threads: rayon::current_num_threads(),
            cores: host.cores(),
            ranks: run.collective.ranks(),
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

    /// Writes the readings down; the share of the throughput that may have been lost.
    pub(super) fn finish(self, metrics: &mut Metrics) -> f64 {
        let disturbance = match self {
            Self::Host(watch) => watch.finish(),
            Self::Gpu(sampling) => Disturbance {
                lost: lost_on_gpu(&sampling.map(Sampling::finish).unwrap_or_default()),
                threads: 1,
                ..Disturbance::default()
            },
        };
        disturbance.keep(metrics);
        disturbance.share()
    }
}
