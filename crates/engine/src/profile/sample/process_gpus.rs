//! All GPUs of the machine as the processes of another program use them, by the driver's management library alone.
//!
//! No GPU is opened: a context would take hundreds of megabytes of the memory that is watched.

use std::collections::BTreeSet;

use super::DeviceSample;

/// Samples every GPU for a set of processes; finds none in a program that was not built for GPUs.
#[derive(Debug, Default)]
pub struct ProcessGpus {
    /// Time at which NVML last told of processes' utilisation, by its clock, for each GPU.
    #[cfg(feature = "cuda")]
    told_us: Vec<u64>,
}

impl ProcessGpus {
    /// One look at each GPU. Memory and utilisation of `processes` count as the program's own, whatever else is on the GPU as that of
    /// others; [`DeviceSample::at_s`] is filled in by the caller.
    #[cfg(feature = "cuda")]
    pub fn sample(&mut self, processes: &BTreeSet<u32>) -> Vec<DeviceSample> {
        let samplers = super::gpu::all_gpus();
        self.told_us.resize(samplers.len(), 0);
        let each = samplers.iter().zip(&mut self.told_us);
        each.map(|(gpu, told_us)| super::gpu::sample_for(gpu, processes, told_us))
            .collect()
    }

    /// One look at each GPU, of which this program sees none.
    #[cfg(not(feature = "cuda"))]
    pub fn sample(&mut self, _processes: &BTreeSet<u32>) -> Vec<DeviceSample> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_gpus_has_no_samples() {
        let samples = ProcessGpus::default().sample(&BTreeSet::from([std::process::id()]));
        assert!(cfg!(feature = "cuda") || samples.is_empty());
        assert!(
            samples
                .iter()
                .all(|sample| sample.resident_bytes.is_none_or(|bytes| bytes < 1 << 40))
        );
    }
}
