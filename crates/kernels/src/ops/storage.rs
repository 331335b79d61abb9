//! Direct access to the elements of tensors on the CPU: read, write in place, and build.

use super::element::{Element, is_element};
use crate::kernels;
use candle_core::{CpuStorage, Error, InplaceOp1, Layout, Result, Storage, StorageRef, Tensor, WithDType};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::{Deref, Range};

pub(super) use peft_tune_core::plan::passes::rows_per_task;

/// Whether the fused form is to run for `tensor`.
pub(super) fn is_fused(tensor: &Tensor) -> bool {
    kernels().are_own() && tensor.device().is_cpu() && is_element(tensor.dtype())
}

/// Read access to the elements of a contiguous tensor, in row-major order.
pub(super) struct Elements<'a, T> {
    storage: StorageRef<'a>,
    range: Range<usize>,
    element: PhantomData<T>,
}

impl<'a, T: WithDType> Elements<'a, T> {
    /// Fails where `tensor` is not contiguous, not on the CPU or of another dtype.
    pub(super) fn new(tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        Self::within(tensor, storage, contiguous(layout)?)
    }

    /// The elements of a matrix whose rows are each contiguous, from the first to the last, with what lies between the
    /// rows; and the elements from one row to the next. Fails as [`Elements::new`].
    pub(super) fn rows(tensor: &'a Tensor) -> Result<(Self, usize)> {
        let (storage, layout) = tensor.storage_and_layout();
        let ((rows, columns), start) = (layout.shape().dims2()?, layout.start_offset());
        let stride = match layout.stride() {
            _ if layout.is_contiguous() => columns,
            [stride, 1] if *stride >= columns => *stride,
            _ => return Err(not_contiguous()),
        };
        let end = if rows * columns == 0 {
            start
        } else {
            start + (rows - 1) * stride + columns
        };
        Ok((Self::within(tensor, storage, start..end)?, stride))
    }

    fn within(tensor: &Tensor, storage: StorageRef<'a>, range: Range<usize>) -> Result<Self> {
        let Storage::Cpu(values) = &*storage else {
            candle_core::bail!("a fused op for the CPU got a tensor on {:?}", tensor.device());
        };
        T::cpu_storage_as_slice(values)?;
        Ok(Self {
            storage,
            range,
            element: PhantomData,
        })
    }
}

impl<T: WithDType> Deref for Elements<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let Storage::Cpu(values) = &*self.storage else {
            unreachable!("checked when it was made");
        };
        &T::cpu_storage_as_slice(values).expect("checked when it was made")[self.range.clone()]
    }
}

/// Calls `write` on the elements of `tensor`, in place: every view of the same buffer sees the change.
///
/// No [`Elements`] of the same buffer may be alive, or this waits for ever.
pub(super) fn update<F>(tensor: &Tensor, name: &'static str, write: F) -> Result<()>
where
    F: Fn(&mut [f32]) -> Result<()>,
{
    struct Update<F>(&'static str, F);
    impl<F: Fn(&mut [f32]) -> Result<()>> InplaceOp1 for Update<F> {
        fn name(&self) -> &'static str {
            self.0
        }

        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
            let CpuStorage::F32(values) = storage else {
                candle_core::bail!("{}: F32 is needed to add in place", self.0);
            };
            self.1(&mut values[contiguous(layout)?])
        }
    }
    tensor.inplace_op1(&Update(name, write))
}

/// Change of the elements of a tensor in place, whatever their type.
pub(super) trait InPlace {
    const NAME: &'static str;

    fn run<T: Element>(&self, values: &mut [T]) -> Result<()>;
}

/// Hands the elements of a contiguous tensor (F32, BF16 or F16) to `op`: every view of the same buffer sees the change.
///
/// No [`Elements`] of the same buffer may be alive, or this waits for ever.
pub(super) fn in_place<O: InPlace>(tensor: &Tensor, op: &O) -> Result<()> {
    struct Op<'a, O>(&'a O);
    impl<O: InPlace> InplaceOp1 for Op<'_, O> {
        fn name(&self) -> &'static str {
            O::NAME
        }

        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
            let range = contiguous(layout)?;
            match storage {
                CpuStorage::F32(values) => self.0.run(&mut values[range]),
                CpuStorage::BF16(values) => self.0.run(&mut values[range]),
                CpuStorage::F16(values) => self.0.run(&mut values[range]),
                _ => candle_core::bail!("{}: the result must be F32, BF16 or F16", O::NAME),
            }
        }
    }
    tensor.inplace_op1(&Op(op))
}

fn contiguous(layout: &Layout) -> Result<Range<usize>> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(start..end),
        None => Err(not_contiguous()),
    }
}

/// An error that holds the stack, which takes as long as a small op: only for what does fail.
fn not_contiguous() -> Error {
    Error::RequiresContiguous { op: "fused op" }.bt()
}

/// The values of a small tensor (a weight vector, statistics) in F32.
pub(super) fn small(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_dtype(candle_core::DType::F32)?.to_vec1()
}

/// Elements of a tensor to be, not written yet: clearing them first would cost a pass over memory.
pub(super) struct Unwritten<T>(Vec<T>);

impl<T: Element> Unwritten<T> {
    pub(super) fn new(elements: usize) -> Self {
        let mut values = Vec::with_capacity(elements);
        if cfg!(debug_assertions) {
            // An element that an op forgets shows as not-a-number in the tests.
            values.resize(elements, T::narrow(f32::NAN));
            values.clear();
        }
        Self(values)
    }

    /// The places to write to.
    pub(super) fn slots(&mut self) -> &mut [MaybeUninit<T>] {
        self.0.spare_capacity_mut()
    }

    /// The elements as a tensor on the CPU.
    ///
    /// # Safety
    /// Every one of the slots up to the number of elements of `shape` has been written.
    pub(super) unsafe fn into_tensor(self, shape: &[usize]) -> Result<Tensor> {
        // SAFETY: the caller's promise is the same.
        let values = unsafe { self.into_vec(shape.iter().product()) };
        Tensor::from_vec(values, shape, &candle_core::Device::Cpu)
    }

    /// The first `elements` elements.
    ///
    /// # Safety
    /// Every one of the slots up to `elements` has been written.
    pub(super) unsafe fn into_vec(mut self, elements: usize) -> Vec<T> {
        assert!(elements <= self.0.capacity());
        // SAFETY: the capacity is there, and the caller has written the elements.
        unsafe { self.0.set_len(elements) };
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    #[test]
    fn a_view_is_read_and_written_within_its_bounds() {
        let buffer = Tensor::arange(0f32, 10.0, &Device::Cpu).unwrap();
        let view = buffer.narrow(0, 2, 6).unwrap().reshape((2, 3)).unwrap();
        assert_eq!(*Elements::<f32>::new(&view).unwrap(), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        update(&view, "test", |values| {
            values.fill(-1.0);
            Ok(())
        })
        .unwrap();
        assert_eq!(
            buffer.to_vec1::<f32>().unwrap(),
            [0.0, 1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, 8.0, 9.0]
        );
    }

    #[test]
    fn columns_of_a_matrix_are_read_in_place() {
        let whole = Tensor::arange(0f32, 12.0, &Device::Cpu)
            .unwrap()
            .reshape((3, 4))
            .unwrap();
        let part = whole.narrow(1, 1, 2).unwrap();
        let (elements, stride) = Elements::<f32>::rows(&part).unwrap();
        assert_eq!((elements.len(), stride), (10, 4));
        assert_eq!(elements[2 * stride..], [9.0, 10.0]);
        let (elements, stride) = Elements::<f32>::rows(&whole).unwrap();
        assert_eq!((elements.len(), stride), (12, 4));
        assert!(Elements::<f32>::rows(&whole.t().unwrap()).is_err());
    }

    #[test]
    fn a_transposed_tensor_and_another_dtype_are_refused() {
        let tensor = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).unwrap();
        assert!(Elements::<f32>::new(&tensor.t().unwrap()).is_err());
        assert!(Elements::<half::bf16>::new(&tensor).is_err());
    }
}
