//! Culprits of lost devices, told from the names of the driver's errors.

/// The part that cost a process its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Culprit {
    /// A kernel that failed, hung, or touched memory that is not its own.
    Kernel,
    /// The device: its memory, its links, its bus.
    Device,
}

impl Culprit {
    /// The culprit of an error of this text, behind which the driver answers nothing more; `None` for any other error.
    pub(super) fn of(text: &str) -> Option<Self> {
        let of = |(culprit, names): &(Self, &[&str])| names.iter().any(|name| text.contains(name)).then_some(*culprit);
        STICKY.iter().find_map(of)
    }
}

/// Errors behind which the driver answers nothing more to a process, by their names: candle passes them on as text.
const STICKY: [(Culprit, &[&str]); 2] = [
    (
        Culprit::Kernel,
        &[
            "CUDA_ERROR_ASSERT",
            "CUDA_ERROR_HARDWARE_STACK_ERROR",
            "CUDA_ERROR_ILLEGAL_ADDRESS",
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            "CUDA_ERROR_INVALID_PC",
            "CUDA_ERROR_LAUNCH_FAILED",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "CUDA_ERROR_MISALIGNED_ADDRESS",
            "CUDA_ERROR_TENSOR_MEMORY_LEAK",
            "CUBLAS_STATUS_EXECUTION_FAILED",
            "CUBLAS_STATUS_INTERNAL_ERROR",
            "CUBLAS_STATUS_MAPPING_ERROR",
        ],
    ),
    (
        Culprit::Device,
        &[
            "CUDA_ERROR_CONTAINED",
            "CUDA_ERROR_CONTEXT_IS_DESTROYED",
            "CUDA_ERROR_DEVICE_UNAVAILABLE",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "CUDA_ERROR_EXTERNAL_DEVICE",
            "CUDA_ERROR_NO_DEVICE",
            "CUDA_ERROR_NVLINK_UNCORRECTABLE",
            // What the driver says of a device that is no longer on its bus.
            "CUDA_ERROR_UNKNOWN",
        ],
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TrainError;

    #[test]
    fn a_kernels_fault_is_told_from_a_devices_and_from_too_little_memory() {
        let of = |text: &str| {
            let error = TrainError::Candle(candle_core::Error::msg(format!("DriverError({text}, \"..\")")));
            (error.lost_device(), error.is_kernel_fault(), error.out_of_memory())
        };
        for name in [
            "CUDA_ERROR_ILLEGAL_INSTRUCTION",
            "CUDA_ERROR_LAUNCH_TIMEOUT",
            "CUBLAS_STATUS_INTERNAL_ERROR",
        ] {
            assert_eq!(of(name), (true, true, false), "{name}");
        }
        for name in [
            "CUDA_ERROR_UNKNOWN",
            "CUDA_ERROR_ECC_UNCORRECTABLE",
            "CUDA_ERROR_NO_DEVICE",
        ] {
            assert_eq!(of(name), (true, false, false), "{name}");
        }
        assert_eq!(of("CUDA_ERROR_OUT_OF_MEMORY"), (false, false, true));
        assert_eq!(of("CUDA_ERROR_INVALID_VALUE"), (false, false, false));
        assert_eq!(STICKY.map(|(_, names)| names.len()), [13, 8]);
    }
}
