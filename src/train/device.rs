//! Devices by name.

use candle_core::Device;

use super::DeviceError;

/// Opens the device `name`: `cpu`, `cuda` (the first GPU) or `cuda:N`.
///
/// # Errors
///
/// An unknown name, a program built without the `cuda` feature, or a device that does not answer.
pub fn open(name: &str) -> Result<Device, DeviceError> {
    let unknown = || DeviceError::Unknown { name: name.to_owned() };
    let ordinal = match name.split_once(':') {
        None if name == "cpu" => return Ok(Device::Cpu),
        None if name == "cuda" => 0,
        Some(("cuda", ordinal)) => ordinal.parse().map_err(|_| unknown())?,
        _ => return Err(unknown()),
    };
    if !candle_core::utils::cuda_is_available() {
        return Err(DeviceError::NoCuda);
    }
    Device::new_cuda(ordinal).map_err(|source| DeviceError::Open {
        name: name.to_owned(),
        source,
    })
}

/// Name of the device to use where none is asked for: the first GPU where the program was built for one and finds it,
/// else the CPU.
pub fn default_name() -> &'static str {
    let gpu = candle_core::utils::cuda_is_available() && Device::new_cuda(0).is_ok();
    if gpu { "cuda" } else { "cpu" }
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
}
