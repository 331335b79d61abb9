//! Devices by name.

pub use candle_core::Device;

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
}

/// Opens the device `name`: `cpu`, `cuda` (the first GPU), `cuda:N`, or `auto` (the first GPU where the program was built
/// for one and finds it, else the CPU).
///
/// A GPU is opened once for the process: all that is made on it shares one queue, so that nothing waits for an event.
///
/// # Errors
/// An unknown name, a program built without the `cuda` feature, or a device that does not answer.
pub fn open(name: &str) -> Result<Device, DeviceError> {
    let unknown = || DeviceError::Unknown { name: name.to_owned() };
    let ordinal = match name.split_once(':') {
        None if name == "cpu" => return Ok(Device::Cpu),
        None if name == "auto" => return Ok(gpu(0, name).unwrap_or(Device::Cpu)),
        None if name == "cuda" => 0,
        Some(("cuda", ordinal)) => ordinal.parse().map_err(|_| unknown())?,
        _ => return Err(unknown()),
    };
    gpu(ordinal, name)
}

/// What the driver tells of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Its product's name.
    pub name: String,
    pub memory_bytes: u64,
}

/// What the driver tells of `device`; `None` of the CPU, and where it does not answer.
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

/// What the driver tells of the first GPU; `None` where the program was not built for one, and where the driver finds none.
///
/// Nothing is opened: a context takes hundreds of megabytes of the GPU, in each process that has one.
pub fn first_gpu() -> Option<DeviceFacts> {
    #[cfg(feature = "cuda")]
    {
        use cudarc::driver::result;

        result::init().ok()?;
        let handle = result::device::get(0).ok()?;
        Some(DeviceFacts {
            name: result::device::get_name(handle).ok()?,
            // SAFETY: the handle is that of a device which is there.
            memory_bytes: unsafe { result::device::total_mem(handle) }.ok()? as u64,
        })
    }
    #[cfg(not(feature = "cuda"))]
    None
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
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn without_the_feature_auto_is_the_cpu_and_a_gpu_is_refused() {
        assert!(open("auto").unwrap().is_cpu());
        let error = open("cuda:1").unwrap_err().to_string();
        assert!(error.contains("--features cuda"), "{error}");
    }
}
