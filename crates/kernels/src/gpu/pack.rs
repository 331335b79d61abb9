//! How many neighbouring elements a thread takes at once.

use candle_core::{DType, Tensor};

/// Name of the element type in the names of kernels; `None` where no kernel takes it.
pub fn element_name(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F32 => Some("f32"),
        DType::BF16 => Some("bf16"),
        DType::F16 => Some("f16"),
        _ => None,
    }
}

/// Elements of 16 bytes where rows of `width` elements and the starts of all `tensors` allow them, else 1.
///
/// Buffers begin at multiples of 256 bytes, so that an offset within one decides.
pub fn pack_size(width: usize, tensors: &[&Tensor]) -> usize {
    let Some(first) = tensors.first() else { return 1 };
    let pack = 16 / first.dtype().size_in_bytes();
    let aligned = |tensor: &&Tensor| tensor.layout().start_offset().is_multiple_of(pack);
    if width.is_multiple_of(pack) && tensors.iter().all(aligned) {
        pack
    } else {
        1
    }
}
