//! Writing words to a tensor that stays where it is.

use candle_core::{DType, Device, Result, Tensor};

/// Puts a copy of `words` into all of `tensor` (U32, contiguous) at the end of the device's queue; on the CPU at once.
///
/// # Errors
/// A tensor of another length or dtype, and those of the driver.
pub fn overwrite(tensor: &Tensor, words: &[u32]) -> Result<()> {
    if tensor.dtype() != DType::U32 || tensor.elem_count() != words.len() || !tensor.is_contiguous() {
        candle_core::bail!(
            "{} words do not fill a tensor of {:?} {:?}",
            words.len(),
            tensor.dims(),
            tensor.dtype()
        );
    }
    match tensor.device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => on_gpu(device, tensor, words),
        Device::Cpu => {
            let place = super::host_address::host_address(tensor)?.cast::<u32>();
            // SAFETY: the tensor holds so many words, and is written by the thread that uses it.
            unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), place, words.len()) };
            Ok(())
        }
        device => candle_core::bail!("nothing to write to on {device:?}"),
    }
}

#[cfg(feature = "cuda")]
fn on_gpu(device: &candle_core::cuda_backend::CudaDevice, tensor: &Tensor, words: &[u32]) -> Result<()> {
    use candle_core::cuda_backend::WrapErr;
    use cudarc::driver::result;

    let stream = device.cuda_stream();
    stream.context().bind_to_thread().w()?;
    let place = super::runtime::address(device, tensor)?;
    // SAFETY: the tensor holds so many words. They lie in memory that is not pinned, which the driver has copied when the call
    // returns.
    unsafe { result::memcpy_htod_async(place, words, stream.cu_stream()) }.w()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_of_a_tensor_see_what_was_written() {
        let tensor = Tensor::zeros(6, DType::U32, &Device::Cpu).unwrap();
        let view = tensor.narrow(0, 2, 3).unwrap();
        overwrite(&tensor, &[1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(view.to_vec1::<u32>().unwrap(), [3, 4, 5]);
        overwrite(&view, &[7, 8, 9]).unwrap();
        assert_eq!(tensor.to_vec1::<u32>().unwrap(), [1, 2, 7, 8, 9, 6]);
        assert!(overwrite(&tensor, &[1]).is_err());
    }
}
