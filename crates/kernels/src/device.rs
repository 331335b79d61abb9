//! Devices by name.

pub use candle_core::Device;

use crate::gpu::{Capability, HOPPER, capability};
use crate::{Kernels, kernels};

/// A device that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("`{name}` is not a device; write `cpu`, `cuda`, `cuda:1` or `auto`")]
    Unknown { name: String },

    #[error("this program was built without NVIDIA support; build it with `--features cuda`, or take `cpu`")]
    NoCuda,

    #[error(
        "cannot open device `{name}`: {reason}; `nvidia-smi` shows which devices there are, and docs/gpu.md what else is needed"
    )]
    Open { name: String, reason: candle_core::Error },

    #[error(
        "device `{name}` ({gpu}) has compute capability {}.{}, and the kernels need {}.{}: an Ampere GPU (A100, RTX 30) or a later one; \
         T4, V100 and RTX 20 are too old. Name another device, or `cpu`",
        capability.0, capability.1, OLDEST.0, OLDEST.1
    )]
    TooOld {
        name: String,
        gpu: String,
        capability: Capability,
    },

    #[error("{device} cannot run `--kernels {kernels}`, which needs {needs}; take `auto`, which runs everywhere")]
    UnfitKernels {
        device: String,
        kernels: &'static str,
        needs: &'static str,
    },
}

/// The lowest compute capability that the kernels run on: BF16 on tensor cores and copies in the background (`mma`, `cp.async`), and
/// candle's PTX, which is compiled for it.
pub const OLDEST: Capability = (8, 0);

/// Whether a GPU's capability will do for the kernels.
#[cfg(any(feature = "cuda", test))]
fn check_capability(name: &str, gpu: impl FnOnce() -> String, capability: Capability) -> Result<(), DeviceError> {
    if capability >= OLDEST {
        return Ok(());
    }
    Err(DeviceError::TooOld {
        name: name.to_owned(),
        gpu: gpu(),
        capability,
    })
}

/// Opens the device `name`: `cpu`, `cuda` (the first GPU), `cuda:N`, or `auto` (the first GPU where the program was built
/// for one and finds it, else the CPU).
///
/// A GPU is opened once for the process: all that is made on it shares one queue, so that nothing waits for an event.
///
/// # Errors
/// An unknown name, a program built without the `cuda` feature, a GPU older than Ampere, a device that does not answer, or one that
/// has not the kernels that the process wants ([`crate::set_kernels`]).
pub fn open(name: &str) -> Result<Device, DeviceError> {
    let device = match ordinal_of(name)? {
        Some(ordinal) => gpu(ordinal, name)?,
        None if name == "auto" => gpu(0, name).unwrap_or_else(|error| cpu_instead(&error)),
        None => Device::Cpu,
    };
    let told = || facts(&device).map_or_else(|| name.to_owned(), |facts| facts.name);
    check_form(kernels(), name, told, capability(&device))?;
    Ok(device)
}

/// Whether a device is there, and has the kernels that the process wants. Nothing is opened.
///
/// # Errors
/// An unknown name, a program built without the `cuda` feature, a GPU that the driver does not find, one older than Ampere, or one
/// without those kernels.
pub fn check(name: &str) -> Result<(), DeviceError> {
    check_kernels(name, kernels())
}

/// Checks a device as [`check`] does, for these kernels.
///
/// # Errors
/// Those of [`check`].
pub fn check_kernels(name: &str, kernels: Kernels) -> Result<(), DeviceError> {
    let found = match ordinal_of(name)? {
        Some(ordinal) => Some(find(ordinal, name)?),
        None if name == "auto" => find(0, name).ok(),
        None => None,
    };
    let (gpu, capability) = found.unzip();
    check_form(kernels, name, || gpu.unwrap_or_default(), capability)
}

/// Whether the device `name`, of which the driver tells its own name, has these kernels. What is no GPU has no capability.
fn check_form(
    kernels: Kernels,
    name: &str,
    told: impl FnOnce() -> String,
    capability: Option<Capability>,
) -> Result<(), DeviceError> {
    let needs = match (kernels, capability) {
        (Kernels::Tiled, None) => "an NVIDIA GPU",
        (Kernels::Hopper, found) if found != Some(HOPPER) => "compute capability 9.0 (H100, H200)",
        _ => return Ok(()),
    };
    let device = match capability {
        Some((major, minor)) => format!("device `{name}` ({}, compute capability {major}.{minor})", told()),
        None => "the CPU".to_owned(),
    };
    Err(DeviceError::UnfitKernels {
        device,
        kernels: kernels.name(),
        needs,
    })
}

/// The number of the GPU that a name asks for; `None` for the CPU, and where it may be the CPU.
fn ordinal_of(name: &str) -> Result<Option<usize>, DeviceError> {
    match name.split_once(':') {
        None if name == "cpu" || name == "auto" => Ok(None),
        None if name == "cuda" => Ok(Some(0)),
        Some(("cuda", ordinal)) if ordinal.parse::<usize>().is_ok() => Ok(ordinal.parse().ok()),
        _ => Err(DeviceError::Unknown { name: name.to_owned() }),
    }
}

/// The CPU, where there is no GPU. One that is there and passed over is worth a warning.
fn cpu_instead(error: &DeviceError) -> Device {
    if matches!(error, DeviceError::TooOld { .. }) {
        tracing::warn!("{error}; the CPU is used");
    }
    Device::Cpu
}

/// Facts that the driver tells of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Name of the product.
    pub name: String,
    pub memory_bytes: u64,
}

/// Facts that the driver tells of `device`; `None` of the CPU, and where it does not answer.
pub fn facts(device: &Device) -> Option<DeviceFacts> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => {
            let stream = device.cuda_stream();
            let context = stream.context();
            Some(DeviceFacts {
                name: context.name().ok()?,
                memory_bytes: context.total_mem().ok()? as u64,
            })
        }
        _ => None,
    }
}

/// Versions of what multiplies on `device`, for people and as a key; `None` of the CPU.
pub fn libraries(device: &Device) -> Option<String> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(_) => {
            let mut driver = 0;
            // SAFETY: `driver` outlives the call; the other function only reads a number.
            let products = unsafe {
                cudarc::driver::sys::cuDriverGetVersion(&raw mut driver);
                cudarc::cublaslt::sys::cublasLtGetVersion()
            };
            Some(format!(
                "CUDA {}.{}, cuBLASLt {products}",
                driver / 1000,
                driver % 1000 / 10
            ))
        }
        _ => None,
    }
}

/// Facts that the driver tells of the first GPU; `None` where the program was not built for one, and where the driver
/// finds none.
///
/// Nothing is opened: a context takes hundreds of megabytes of the GPU, in each process that has one.
pub fn first_gpu() -> Option<DeviceFacts> {
    facts_of(0)
}

/// Facts that the driver tells of the GPU of a name such as `cuda:1`, as [`first_gpu`] has them; `None` of what is no GPU.
pub fn named_gpu(name: &str) -> Option<DeviceFacts> {
    facts_of(ordinal_of(name).ok()??)
}

#[cfg(not(feature = "cuda"))]
fn facts_of(_ordinal: usize) -> Option<DeviceFacts> {
    None
}

#[cfg(feature = "cuda")]
fn facts_of(ordinal: usize) -> Option<DeviceFacts> {
    use cudarc::driver::result;

    result::init().ok()?;
    let handle = result::device::get(i32::try_from(ordinal).ok()?).ok()?;
    Some(DeviceFacts {
        name: result::device::get_name(handle).ok()?,
        // SAFETY: the handle is that of a device which is there.
        memory_bytes: unsafe { result::device::total_mem(handle) }.ok()? as u64,
    })
}

/// GPUs that this process may use; 0 where the program was not built for any.
pub fn gpu_count() -> usize {
    #[cfg(feature = "cuda")]
    {
        use cudarc::driver::result;

        let count = result::init().and_then(|()| result::device::get_count());
        count.map_or(0, |count| usize::try_from(count).unwrap_or(0))
    }
    #[cfg(not(feature = "cuda"))]
    0
}

/// Name of the device to use where none is asked for: the first GPU where the program was built for one and finds it,
/// else the CPU.
pub fn default_name() -> &'static str {
    if first_gpu().is_some() { "cuda" } else { "cpu" }
}

/// Allocates what libraries keep on `device` for good, for the calls of this thread: whoever counts what a trial needs calls it
/// before, or the first trial would be charged with it and no other.
pub fn prepare(device: &Device) -> candle_core::Result<()> {
    super::gpu::prepare(device)
}

/// Releases the memory that ops keep from one call to the next: what a trial needs of it then counts as its own.
pub fn forget_scratch() {
    super::gpu::forget_scratch();
    super::ops::forget_scratch();
}

#[cfg(not(feature = "cuda"))]
fn find(_ordinal: usize, _name: &str) -> Result<(String, Capability), DeviceError> {
    Err(DeviceError::NoCuda)
}

/// The name and the capability of a GPU that will do.
#[cfg(feature = "cuda")]
fn find(ordinal: usize, name: &str) -> Result<(String, Capability), DeviceError> {
    let (gpu, capability) = named(ordinal).map_err(|error| DeviceError::Open {
        name: name.to_owned(),
        reason: candle_core::Error::msg(error),
    })?;
    check_capability(name, || gpu.clone(), capability)?;
    Ok((gpu, capability))
}

#[cfg(not(feature = "cuda"))]
fn gpu(_ordinal: usize, _name: &str) -> Result<Device, DeviceError> {
    Err(DeviceError::NoCuda)
}

#[cfg(feature = "cuda")]
fn gpu(ordinal: usize, name: &str) -> Result<Device, DeviceError> {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, PoisonError};

    // Design note: process-wide, as the driver's context is.
    static OPEN: LazyLock<Mutex<HashMap<usize, Device>>> = LazyLock::new(Mutex::default);

    let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(device) = all.get(&ordinal) {
        return Ok(device.clone());
    }
    // Before anything is made on it: the driver would say of an old one's kernels that their PTX is invalid.
    if let Ok((gpu, capability)) = named(ordinal) {
        check_capability(name, || gpu, capability)?;
    }
    let device = Device::new_cuda_with_stream(ordinal).map_err(|error| DeviceError::Open {
        name: name.to_owned(),
        reason: without_backtrace(error),
    })?;
    if let Device::Cuda(device) = &device {
        // SAFETY: events order the use of memory by several queues; here is one queue, and it orders everything. Without
        // them an allocation costs half as much.
        unsafe { device.disable_event_tracking() };
    }
    all.insert(ordinal, device.clone());
    Ok(device)
}

/// A GPU's name and compute capability. Nothing is opened.
#[cfg(feature = "cuda")]
fn named(ordinal: usize) -> Result<(String, Capability), cudarc::driver::DriverError> {
    use cudarc::driver::result;
    use cudarc::driver::sys::CUdevice_attribute_enum as Attribute;

    result::init()?;
    let handle = result::device::get(i32::try_from(ordinal).unwrap_or(i32::MAX))?;
    // SAFETY: the handle is that of a device which is there.
    let read = |attribute| unsafe { result::device::get_attribute(handle, attribute) };
    let major = read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = read(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok((result::device::get_name(handle)?, (major, minor)))
}

/// candle adds a backtrace to what the driver says where `RUST_BACKTRACE` is set.
#[cfg(feature = "cuda")]
fn without_backtrace(error: candle_core::Error) -> candle_core::Error {
    match error {
        candle_core::Error::WithBacktrace { inner, .. } => without_backtrace(*inner),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_device_are_refused() {
        assert!(open("cpu").unwrap().is_cpu());
        for name in ["gpu", "cuda:", "cuda:x", "cpu:0", ""] {
            assert!(matches!(open(name), Err(DeviceError::Unknown { .. })), "{name}");
            assert!(matches!(check(name), Err(DeviceError::Unknown { .. })), "{name}");
        }
    }

    #[test]
    fn gpus_before_ampere_are_refused_by_name() {
        let check = |capability| check_capability("cuda:1", || "Tesla T4".to_owned(), capability);
        for capability in [(8, 0), (8, 6), (9, 0), (12, 0)] {
            assert!(check(capability).is_ok(), "{capability:?}");
        }
        for capability in [(7, 0), (7, 5)] {
            assert!(
                matches!(check(capability), Err(DeviceError::TooOld { .. })),
                "{capability:?}"
            );
        }
        let message = check((7, 5)).unwrap_err().to_string();
        assert!(
            message.starts_with("device `cuda:1` (Tesla T4) has compute capability 7.5, and the kernels need 8.0"),
            "{message}"
        );
    }

    #[test]
    fn kernels_that_a_device_has_not_are_refused_by_name() {
        let check = |kernels, capability| check_form(kernels, "cuda:0", || "A100".to_owned(), capability);
        for kernels in [Kernels::Fused, Kernels::Reference, Kernels::Graphs] {
            assert!(check(kernels, None).is_ok(), "{kernels:?}");
        }
        assert!(check(Kernels::Tiled, Some((8, 0))).is_ok());
        assert!(check(Kernels::Hopper, Some((9, 0))).is_ok());
        let message = |kernels, capability| check(kernels, capability).unwrap_err().to_string();
        assert_eq!(
            message(Kernels::Hopper, Some((8, 0))),
            "device `cuda:0` (A100, compute capability 8.0) cannot run `--kernels hopper`, which needs compute capability 9.0 \
             (H100, H200); take `auto`, which runs everywhere"
        );
        assert!(message(Kernels::Hopper, Some((12, 0))).contains("hopper"));
        assert!(
            message(Kernels::Tiled, None)
                .starts_with("the CPU cannot run `--kernels tiled`, which needs an NVIDIA GPU")
        );
        assert!(check_kernels("cpu", Kernels::Hopper).is_err());
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn without_the_feature_auto_is_the_cpu_and_a_gpu_is_refused() {
        assert!(open("auto").unwrap().is_cpu());
        let error = open("cuda:1").unwrap_err().to_string();
        assert!(error.contains("--features cuda"), "{error}");
    }
}
