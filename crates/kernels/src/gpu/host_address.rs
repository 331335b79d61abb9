//! The address of a tensor in the host's memory.

use candle_core::{CpuStorage, Result, Storage, Tensor};

/// Address of the first element of a contiguous tensor on the CPU.
pub(super) fn host_address(tensor: &Tensor) -> Result<*mut u8> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("expected a tensor on the CPU, got one on {:?}", tensor.device());
    };
    if !layout.is_contiguous() {
        candle_core::bail!("expected a contiguous tensor, got {layout:?}");
    }
    let start: *const u8 = match storage {
        CpuStorage::F32(values) => values.as_ptr().cast(),
        CpuStorage::F64(values) => values.as_ptr().cast(),
        CpuStorage::BF16(values) => values.as_ptr().cast(),
        CpuStorage::F16(values) => values.as_ptr().cast(),
        CpuStorage::U32(values) => values.as_ptr().cast(),
        CpuStorage::U8(values) => values.as_ptr(),
        CpuStorage::I64(values) => values.as_ptr().cast(),
        _ => candle_core::bail!("no address of elements of {:?}", tensor.dtype()),
    };
    // SAFETY: the offset lies within the storage.
    Ok(unsafe { start.add(layout.start_offset() * tensor.dtype().size_in_bytes()) }.cast_mut())
}
