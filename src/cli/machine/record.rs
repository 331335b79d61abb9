//! The machine that this program runs on, as the database keeps it.

use crate::store::MachineRecord;
use peft_tune_kernels::device::first_gpu;

/// Facts about this machine; empty where the system does not say.
pub(in crate::cli) fn machine() -> MachineRecord {
    use sysinfo::System;
    let wanted = sysinfo::RefreshKind::nothing()
        .with_cpu(sysinfo::CpuRefreshKind::nothing())
        .with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
    let Ok(system) = System::new_with_specifics(wanted) else {
        return MachineRecord::default();
    };
    let (device, device_memory_bytes) = match first_gpu() {
        Some(gpu) => (gpu.name, gpu.memory_bytes),
        None => ("cpu".to_owned(), system.total_memory()),
    };
    MachineRecord {
        host: System::host_name().unwrap_or_default(),
        os: System::long_os_version().unwrap_or_default(),
        cpu: system
            .cpus()
            .first()
            .map(|cpu| cpu.brand().to_owned())
            .unwrap_or_default(),
        cpu_cores: system.cpus().len() as u64,
        memory_bytes: system.total_memory(),
        device,
        device_memory_bytes,
        driver: String::new(),
    }
}

/// Version of the GPU's driver in the kernel, as it says it; `None` where there is none.
pub(super) fn driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Names of the machine's GPUs as their driver has them, whether or not this program was built for GPUs.
pub(in crate::cli) fn gpu_models() -> Vec<String> {
    let first = first_gpu().map(|gpu| gpu.name);
    if first.is_some() {
        return first.into_iter().collect();
    }
    let folders = std::fs::read_dir("/proc/driver/nvidia/gpus")
        .into_iter()
        .flatten()
        .flatten();
    let model = |text: String| {
        let line = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
        Some(line.trim().to_owned())
    };
    folders
        .filter_map(|folder| model(std::fs::read_to_string(folder.path().join("information")).ok()?))
        .collect()
}

/// Bytes of memory that processes here may take together: the machine's, or less where a control group says so. `None` where
/// the system does not say.
pub(in crate::cli) fn usable_memory_bytes() -> Option<u64> {
    let wanted = sysinfo::RefreshKind::nothing().with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
    let system = sysinfo::System::new_with_specifics(wanted).ok()?;
    let group = system.cgroup_limits().map(|limits| limits.total_memory);
    let all = [Some(system.total_memory()), group].into_iter().flatten();
    all.filter(|bytes| *bytes > 0).min()
}
