//! Looks at a run: its processes, the machine, and the GPUs.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::limits::LimitReader;
use super::process_tree::ProcessTree;
use super::processor_use::ProcessorUse;
use super::sample::{Sample, Samples};
use peft_tune_engine::profile::disturbance::{HostCounters, MachineCounters};
use peft_tune_engine::profile::sample::ProcessGpus;

/// Time that processes may take to end behind the command that started them.
const FAREWELL: Duration = Duration::from_secs(2);
/// Time from one look for them to the next.
const TICK: Duration = Duration::from_millis(50);

/// Samples one run.
pub(super) struct RunSampler {
    began: Instant,
    tree: ProcessTree,
    host: HostCounters,
    /// Processors that the run may use, as far as they are known; empty for those of this program.
    processors: BTreeSet<usize>,
    processor_use: ProcessorUse,
    limits: LimitReader,
    gpus: ProcessGpus,
    pub samples: Samples,
}

impl RunSampler {
    /// Begins with a command that was just started.
    pub(super) fn of(process: u32, began: Instant) -> Self {
        Self {
            began,
            tree: ProcessTree::of(process),
            host: HostCounters::default(),
            processors: BTreeSet::new(),
            processor_use: ProcessorUse::new(),
            limits: LimitReader::new(),
            gpus: ProcessGpus::default(),
            samples: Samples::default(),
        }
    }

    /// Processors that the run may use.
    pub(super) fn cores(&self) -> usize {
        match self.processors.len() {
            0 => self.host.cores(),
            count => count,
        }
    }

    /// Processors that its control group lets it use, where that is limited.
    pub(super) fn limited_processors(&self) -> Option<f64> {
        self.limits.processors()
    }

    /// One look; nothing where no process of the run is left.
    pub(super) fn look(&mut self) {
        let Some(tree) = self.tree.sample() else { return };
        let at_s = self.began.elapsed().as_secs_f64();
        let mut gpus = self.gpus.sample(&tree.processes);
        for gpu in &mut gpus {
            gpu.at_s = at_s;
        }
        if !tree.processors.is_empty() {
            self.processors = tree.processors;
        }
        let sample = Sample {
            at_s,
            processes: tree.processes.len(),
            is_asleep: tree.is_asleep,
            memory_bytes: tree.memory_bytes,
            swap_bytes: tree.swap_bytes,
            used: tree.used,
            queued: tree.queued,
            all_use: self.processor_use.look(&self.processors),
            clock_mhz: self.host.read().clock_mhz,
            pressed: self.limits.read(),
            gpus,
        };
        self.samples.push(sample);
    }

    /// Whether processes of the run go on for more than a moment, now that the command has ended.
    pub(super) fn goes_on(&mut self) -> bool {
        let began = Instant::now();
        while self.tree.sample().is_some() {
            if began.elapsed() >= FAREWELL {
                return true;
            }
            std::thread::sleep(TICK);
        }
        false
    }
}
