//! One look at a run, and what happened between two of them.

use super::limits::Pressed;
use super::process_stat::Used;
use super::processor_use::AllUse;
use super::thread_turns::Queued;
use peft_tune_engine::profile::DeviceSample;
use peft_tune_engine::profile::sample::DeviceUse;

/// A run at one moment. What is counted is counted since some moment in the past.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Seconds since the command began.
    pub at_s: f64,
    pub processes: usize,
    /// Whether the main thread of the busiest process waited for something other than a processor.
    pub is_asleep: bool,
    /// Memory of all processes; of samples that stand for several the highest.
    pub memory_bytes: u64,
    pub swap_bytes: u64,
    pub used: Used,
    /// Time that the run's threads waited for processors, where the kernel counts it.
    pub queued: Option<Queued>,
    /// Use of the processors that the run may use, by all programs.
    pub all_use: Option<AllUse>,
    /// Mean clock of the processors now, where the system tells it.
    pub clock_mhz: Option<f64>,
    pub pressed: Pressed,
    pub gpus: Vec<DeviceSample>,
}

impl Sample {
    /// Memory of the run on the GPU that it has most on; `None` where it has none.
    pub(super) fn gpu_bytes(&self) -> Option<u64> {
        self.gpus.iter().filter_map(|gpu| gpu.resident_bytes).max()
    }

    /// Memory of the device that trains: a GPU's where the run has any there.
    pub(super) fn device_bytes(&self) -> u64 {
        self.gpu_bytes().unwrap_or(self.memory_bytes)
    }

    /// Mean utilisation of the GPUs that the run is on; `None` where it is on none.
    pub(super) fn gpu_utilisation(&self) -> Option<f64> {
        let own = self.gpus.iter().filter(|gpu| gpu.resident_bytes.is_some());
        let own: Vec<DeviceSample> = own.copied().collect();
        DeviceUse::of(&own).utilisation
    }
}

/// What happened between two samples, for each second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Span {
    pub from_s: f64,
    pub seconds: f64,
    /// Processors that the run kept busy.
    pub cores: f64,
    /// Threads of the run that were ready and waited for a processor, where the kernel counts them.
    pub queued: Option<f64>,
    /// Share of the time in which the thread that waited longest of those that computed did so.
    pub longest_queued: Option<f64>,
    /// Processors that other programs kept busy, and that the hypervisor gave to other machines. Ticks are coarse: one span may say less
    /// than nothing.
    pub others: Option<f64>,
    pub stolen: Option<f64>,
    /// Processes that waited for blocks of a disk, and bytes that were read, where the kernel counts them.
    pub blocked: Option<f64>,
    pub read_per_s: Option<f64>,
    pub written_per_s: f64,
    pub received_per_s: f64,
    /// Share of the time in which something on the machine waited for a disk.
    pub disk_pressure: Option<f64>,
    /// Share of the time in which the control group was kept from its processors.
    pub held_back: Option<f64>,
    pub gpu_utilisation: Option<f64>,
}

impl Span {
    /// What happened between each sample and the next.
    pub(super) fn all(samples: &[Sample]) -> Vec<Self> {
        let pairs = samples.windows(2);
        pairs.filter_map(|pair| Self::between(&pair[0], &pair[1])).collect()
    }

    fn between(first: &Sample, last: &Sample) -> Option<Self> {
        let seconds = last.at_s - first.at_s;
        if seconds <= 0.0 {
            return None;
        }
        let rate = |of: fn(&Sample) -> f64| ((of(last) - of(first)) / seconds).max(0.0);
        let counted = |of: fn(&Used) -> Option<f64>| {
            let passed = of(&last.used)? - of(&first.used)?;
            Some((passed / seconds).max(0.0))
        };
        let passed = |of: fn(&Sample) -> Option<f64>| Some((of(last)? - of(first)?) / seconds);
        let cores = rate(|sample| sample.used.cpu_s);
        let all = passed(|sample| sample.all_use.map(|all| all.busy_s));
        let share = |of: fn(&Pressed) -> Option<f64>| {
            let passed = of(&last.pressed)? - of(&first.pressed)?;
            Some((passed / seconds).clamp(0.0, 1.0))
        };
        Some(Self {
            from_s: first.at_s,
            seconds,
            cores,
            queued: passed(|sample| sample.queued.map(|queued| queued.all_s)),
            longest_queued: passed(|sample| sample.queued.map(|queued| queued.longest_s)),
            others: all.map(|all| all - cores),
            stolen: passed(|sample| sample.all_use.map(|all| all.stolen_s)),
            blocked: counted(|used| used.blocked_s),
            read_per_s: counted(|used| used.read_bytes.map(|bytes| bytes as f64)),
            written_per_s: rate(|sample| sample.used.written_bytes.unwrap_or(0) as f64),
            received_per_s: rate(|sample| sample.pressed.received_bytes.unwrap_or(0) as f64),
            disk_pressure: share(|pressed| pressed.disk_s),
            held_back: share(|pressed| pressed.held_back_s),
            gpu_utilisation: last.gpu_utilisation(),
        })
    }
}

/// Samples of a run, thinned out as it goes on.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    kept: Vec<Sample>,
    /// Looks that one kept sample stands for; looks since the last one that was kept.
    stride: usize,
    waiting: Vec<Sample>,
    highest: Option<Sample>,
}

/// Most samples that are kept.
const MOST: usize = 4096;

impl Samples {
    pub(super) fn push(&mut self, sample: Sample) {
        let is_highest = |highest: &Sample| sample.device_bytes() > highest.device_bytes();
        if self.highest.as_ref().is_none_or(is_highest) {
            self.highest = Some(sample.clone());
        }
        self.waiting.push(sample);
        if self.waiting.len() >= self.stride.max(1) {
            self.kept.extend(merged(std::mem::take(&mut self.waiting)));
        }
        if self.kept.len() >= MOST {
            self.stride = 2 * self.stride.max(1);
            let pairs: Vec<Vec<Sample>> = self.kept.chunks(2).map(<[Sample]>::to_vec).collect();
            self.kept = pairs.into_iter().filter_map(merged).collect();
        }
    }

    /// Samples that are kept, and one for the looks since.
    pub(super) fn all(&self) -> Vec<Sample> {
        let waiting = merged(self.waiting.clone());
        self.kept.iter().cloned().chain(waiting).collect()
    }

    /// The sample with the most memory of the device that trains.
    pub(super) fn highest(&self) -> Option<&Sample> {
        self.highest.as_ref()
    }

    pub(super) fn last(&self) -> Option<&Sample> {
        self.waiting.last().or(self.kept.last())
    }
}

/// One sample for several: the last one, with the highest memory of all.
fn merged(samples: Vec<Sample>) -> Option<Sample> {
    let most = |of: fn(&Sample) -> u64| samples.iter().map(of).max().unwrap_or(0);
    let (memory_bytes, swap_bytes) = (most(|sample| sample.memory_bytes), most(|sample| sample.swap_bytes));
    let gpus = samples.iter().max_by_key(|sample| sample.gpu_bytes());
    let gpus = gpus.map(|sample| sample.gpus.clone()).unwrap_or_default();
    let last = samples.into_iter().next_back()?;
    Some(Sample {
        memory_bytes,
        swap_bytes,
        gpus,
        ..last
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: usize, memory_bytes: u64) -> Sample {
        Sample {
            at_s: second as f64,
            memory_bytes,
            used: Used {
                cpu_s: 2.0 * second as f64,
                ..Used::default()
            },
            ..Sample::default()
        }
    }

    #[test]
    fn long_runs_are_thinned_out_and_keep_their_highest_memory() {
        let mut samples = Samples::default();
        for second in 0..20_000 {
            samples.push(at(second, if second == 12_345 { 999 } else { 10 }));
        }
        assert!(
            (MOST / 2..MOST).contains(&samples.all().len()),
            "{}",
            samples.all().len()
        );
        assert_eq!(samples.all().iter().map(|sample| sample.memory_bytes).max(), Some(999));
        assert_eq!(samples.highest().map(|sample| sample.at_s), Some(12_345.0));
        assert_eq!(samples.last().map(|sample| sample.at_s), Some(19_999.0));
        assert!(samples.all().windows(2).all(|pair| pair[0].at_s < pair[1].at_s));
        assert!(
            Span::all(&samples.all())
                .iter()
                .all(|span| (span.cores - 2.0).abs() < 1e-9)
        );
    }

    #[test]
    fn the_last_looks_count_before_they_are_thinned_out() {
        let mut samples = Samples::default();
        for second in 0..20_003 {
            samples.push(at(second, if second == 20_002 { 999 } else { 10 }));
        }
        let all = samples.all();
        assert_eq!(
            all.last().map(|last| (last.at_s, last.memory_bytes)),
            Some((20_002.0, 999))
        );
        let spans = Span::all(&all);
        assert_eq!(spans.last().map(|last| last.from_s + last.seconds), Some(20_002.0));
    }

    #[test]
    fn a_gpu_stands_before_the_host_where_the_run_is_on_it() {
        let mut sample = at(1, 100);
        assert_eq!((sample.device_bytes(), sample.gpu_utilisation()), (100, None));
        let gpu = |resident_bytes, utilisation| DeviceSample {
            resident_bytes,
            utilisation: Some(utilisation),
            ..DeviceSample::default()
        };
        sample.gpus = vec![gpu(None, 1.0), gpu(Some(7), 0.5), gpu(Some(9), 0.7)];
        assert_eq!(sample.device_bytes(), 9);
        assert!((sample.gpu_utilisation().unwrap() - 0.6).abs() < 1e-9);
    }
}
