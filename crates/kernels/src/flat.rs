//! Slices of a flat CPU tensor, to read or to change in place.

use std::cell::RefCell;

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Storage, Tensor, bail};

/// Elements that one thread takes at a time: 64 KiB of F32, which stays in its cache.
pub const CHUNK: usize = 16 * 1024;

/// Hands the elements of a contiguous F32 tensor on the CPU to `change`, which may alter them.
///
/// # Errors
/// A tensor on another device, of another dtype or not contiguous, and those of `change`.
pub fn with_f32_mut<R>(tensor: &Tensor, change: impl FnOnce(&mut [f32]) -> Result<R>) -> Result<R> {
    with_mut(tensor, |storage, layout| match storage {
        CpuStorage::F32(values) => change(&mut values[bounds(layout)?]),
        _ => bail!("expected an F32 tensor, got {:?}", layout.shape()),
    })
}

/// [`with_f32_mut`] for several tensors at once.
///
/// # Errors
/// Errors of [`with_f32_mut`].
pub fn with_f32_muts<const N: usize, R>(
    tensors: &[Tensor; N],
    change: impl FnOnce([&mut [f32]; N]) -> Result<R>,
) -> Result<R> {
    open(tensors, Vec::with_capacity(N), Box::new(change))
}

/// Change of N slices; boxed, or the recursion of [`open`] would make ever new types.
type Change<'a, const N: usize, R> = Box<dyn FnOnce([&mut [f32]; N]) -> Result<R> + 'a>;

/// Opens one tensor after the other and hands on what is open.
fn open<const N: usize, R>(tensors: &[Tensor], opened: Vec<&mut [f32]>, change: Change<'_, N, R>) -> Result<R> {
    let Some((first, rest)) = tensors.split_first() else {
        return match opened.try_into() {
            Ok(opened) => change(opened),
            Err(_) => bail!("expected one slice for each tensor"),
        };
    };
    with_f32_mut(first, |slice| {
        let mut opened: Vec<&mut [f32]> = opened;
        opened.push(slice);
        open(rest, opened, change)
    })
}

/// Hands the elements of a contiguous U8 tensor on the CPU to `change`, which may alter them.
pub fn with_u8_mut<R>(tensor: &Tensor, change: impl FnOnce(&mut [u8]) -> Result<R>) -> Result<R> {
    with_mut(tensor, |storage, layout| match storage {
        CpuStorage::U8(values) => change(&mut values[bounds(layout)?]),
        _ => bail!("expected a U8 tensor, got {:?}", layout.shape()),
    })
}

/// Hands the elements of a contiguous F32 tensor on the CPU to `read`.
pub fn with_f32<R>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => read(&storage.as_slice::<f32>()?[bounds(layout)?]),
        _ => bail!("expected a tensor on the CPU"),
    }
}

/// Hands the bytes of a contiguous U8, BF16, F16 or F32 tensor on the CPU to `read`.
///
/// # Errors
/// A tensor on another device, of another dtype or not contiguous, and those of `read`.
pub fn with_bytes<R>(tensor: &Tensor, read: impl FnOnce(&[u8]) -> Result<R>) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let bounds = bounds(layout)?;
    match &*storage {
        Storage::Cpu(CpuStorage::U8(values)) => read(&values[bounds]),
        Storage::Cpu(CpuStorage::BF16(values)) => read(bytemuck::cast_slice(&values[bounds])),
        Storage::Cpu(CpuStorage::F16(values)) => read(bytemuck::cast_slice(&values[bounds])),
        Storage::Cpu(CpuStorage::F32(values)) => read(bytemuck::cast_slice(&values[bounds])),
        _ => bail!("expected a U8, BF16, F16 or F32 tensor on the CPU"),
    }
}

/// Lets `change` alter the bytes of a tensor, which it gets as [`with_bytes`] shows them.
///
/// # Errors
/// Errors of [`with_bytes`], and those of `change`.
pub fn with_bytes_mut<R>(tensor: &Tensor, change: impl FnOnce(&mut [u8]) -> Result<R>) -> Result<R> {
    with_mut(tensor, |storage, layout| {
        let bounds = bounds(layout)?;
        match storage {
            CpuStorage::U8(values) => change(&mut values[bounds]),
            CpuStorage::BF16(values) => change(bytemuck::cast_slice_mut(&mut values[bounds])),
            CpuStorage::F16(values) => change(bytemuck::cast_slice_mut(&mut values[bounds])),
            CpuStorage::F32(values) => change(bytemuck::cast_slice_mut(&mut values[bounds])),
            _ => bail!("expected a U8, BF16, F16 or F32 tensor"),
        }
    })
}

fn bounds(layout: &Layout) -> Result<std::ops::Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => bail!("expected a contiguous tensor, got {layout:?}"),
    }
}

fn with_mut<R>(tensor: &Tensor, change: impl FnOnce(&mut CpuStorage, &Layout) -> Result<R>) -> Result<R> {
    let mut result = None;
    let access = Access(RefCell::new(Some(|storage: &mut CpuStorage, layout: &Layout| {
        result = Some(change(storage, layout)?);
        Ok(())
    })));
    tensor.inplace_op1(&access)?;
    drop(access);
    result.ok_or_else(|| candle_core::Error::Msg("in-place access did not run".into()))
}

/// An in-place op that hands its storage to a closure, once.
struct Access<F>(RefCell<Option<F>>);

impl<F: FnOnce(&mut CpuStorage, &Layout) -> Result<()>> InplaceOp1 for Access<F> {
    fn name(&self) -> &'static str {
        "in-place access"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        match self.0.take() {
            Some(change) => change(storage, layout),
            None => bail!("in-place access ran twice"),
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    #[test]
    fn bytes_of_any_width_are_read_and_changed_in_place() {
        for (dtype, width) in [(DType::U8, 1), (DType::BF16, 2), (DType::F16, 2), (DType::F32, 4)] {
            let whole = Tensor::zeros(6, dtype, &Device::Cpu).unwrap();
            let part = whole.narrow(0, 2, 3).unwrap();
            with_bytes_mut(&part, |bytes| {
                assert_eq!(bytes.len(), 3 * width);
                bytes.fill(0x3c);
                Ok(())
            })
            .unwrap();
            let expected = [vec![0; 2 * width], vec![0x3c; 3 * width], vec![0; width]].concat();
            with_bytes(&whole, |bytes| {
                assert_eq!(bytes, expected, "{dtype:?}");
                Ok(())
            })
            .unwrap();
        }
        let wide = Tensor::zeros((2, 2), DType::F64, &Device::Cpu).unwrap();
        assert!(with_bytes(&wide, |_| Ok(())).is_err());
        let crossed = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap().t().unwrap();
        assert!(with_bytes(&crossed, |_| Ok(())).is_err() && with_bytes_mut(&crossed, |_| Ok(())).is_err());
    }
}
