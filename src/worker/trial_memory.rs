//! Memory of a trial on its device.

use peft_tune_engine::profile::DeviceMemory;

/// Memory that a trial takes of its device: all that is in use there, without what others than the engine held before it.
pub(super) struct TrialMemory {
    device: DeviceMemory,
    beside_bytes: u64,
}

impl TrialMemory {
    /// Memory of a trial on `device`, of which others hold `beside_bytes`.
    pub(super) fn new(device: DeviceMemory, beside_bytes: u64) -> Self {
        Self { device, beside_bytes }
    }

    /// Sets the bytes up to which the trial may allocate; `None` lifts the limit.
    pub(super) fn set_limit(&self, limit_bytes: Option<u64>) {
        let limit_bytes = limit_bytes.map(|limit| limit.saturating_add(self.beside_bytes));
        self.device.set_limit(limit_bytes);
    }

    /// Bytes in use.
    pub(super) fn in_use_bytes(&self) -> u64 {
        self.device.in_use_bytes().saturating_sub(self.beside_bytes)
    }

    /// Most bytes in use since the peak was reset.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.device.peak_bytes().saturating_sub(self.beside_bytes)
    }

    /// Most bytes that the allocator kept since the peak was reset, where it tells.
    pub(super) fn peak_reserved_bytes(&self) -> Option<u64> {
        self.device.peak_reserved_bytes()
    }

    /// Begins the peak anew.
    pub(super) fn reset_peak(&self) {
        self.device.reset_peak();
    }
}
