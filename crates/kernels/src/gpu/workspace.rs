//! Memory for partial sums of products.

use candle_core::{Device, Result};

#[cfg(any(test, feature = "emulator"))]
use super::scratch::{WORKSPACE_BYTES, scratch};

/// Address of memory for partial sums, which the library's products have as well: valid until the next product. It is there in any
/// case, so that it adds to no peak.
///
/// # Errors
/// Memory, where no product was made yet.
pub fn workspace(device: &Device) -> Result<u64> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => super::cublaslt::workspace(device),
        #[cfg(any(test, feature = "emulator"))]
        Device::Cpu => {
            let room = scratch(WORKSPACE_BYTES, candle_core::DType::U8, device)?;
            // What a kernel forgets to write shows.
            let start = super::emulator::address(&room)?;
            // SAFETY: the tensor holds so many bytes, and nobody else uses it.
            unsafe { std::ptr::write_bytes(start as *mut u8, 0xff, WORKSPACE_BYTES) };
            Ok(start as u64)
        }
        device => candle_core::bail!("no workspace of own on {device:?}"),
    }
}
