//! The machine that a study is drafted for.

/// The device that trials will run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    pub device: String,
    pub is_gpu: bool,
    /// Memory that trials may use: what the device has, without a part for everything else.
    pub usable_bytes: u64,
    /// Memory of a GPU, all of it; 0 of the processor.
    pub device_bytes: u64,
}

impl Machine {
    /// Looks for a GPU that this program can use; else it is the processor.
    pub(crate) fn look() -> Self {
        if let Some(gpu) = peft_tune_kernels::device::first_gpu() {
            return Self {
                device: gpu.name,
                is_gpu: true,
                usable_bytes: gpu.memory_bytes / 100 * 94,
                device_bytes: gpu.memory_bytes,
            };
        }
        let wanted = sysinfo::MemoryRefreshKind::nothing().with_ram();
        let system = sysinfo::System::new_with_specifics(sysinfo::RefreshKind::nothing().with_memory(wanted));
        let total = system.map_or(0, |system| system.total_memory());
        Self {
            device: "cpu".to_owned(),
            is_gpu: false,
            usable_bytes: total / 100 * 70,
            device_bytes: 0,
        }
    }
}
