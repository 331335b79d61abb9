//! One launch of a kernel: what it runs, and on what.

use candle_core::{DType, Device, Result, Shape, Tensor};

use super::source::Source;

/// A kernel and the threads that run it.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    pub source: &'static Source,
    pub kernel: &'a str,
    pub blocks: [usize; 3],
    pub threads: [usize; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: usize,
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Address of the first element of a contiguous tensor. Kernels write through it, too: whoever launches promises that
    /// nobody else reads or writes what they change, as with any op in place.
    Tensor(&'a Tensor),
    /// Null where there is no tensor.
    Maybe(Option<&'a Tensor>),
    /// Address of memory that is no tensor's.
    Address(u64),
    U32(u32),
    U64(u64),
    F32(f32),
    F64(f64),
}

/// Makes an [`Argument`] of each kind of value.
macro_rules! from {
    ($($of:ty => $kind:ident),*) => {$(
        impl<'a> From<$of> for Argument<'a> {
            fn from(value: $of) -> Self {
                Self::$kind(value)
            }
        }
    )*};
}
from!(&'a Tensor => Tensor, Option<&'a Tensor> => Maybe, u32 => U32, u64 => U64, f32 => F32, f64 => F64);

/// The arguments of a kernel, in its order.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { [$(Argument::from($value)),*] };
}
pub(crate) use arguments;

impl Source {
    /// A kernel of this file without dynamic shared memory.
    pub fn launch<'a>(&'static self, kernel: &'a str, blocks: [usize; 3], threads: [usize; 3]) -> Launch<'a> {
        Launch {
            source: self,
            kernel,
            blocks,
            threads,
            shared_bytes: 0,
        }
    }
}

/// A tensor that the next launch fills entirely.
pub fn empty(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    let shape = shape.into();
    if device.is_cpu() || shape.elem_count() == 0 {
        // The emulator's: what a kernel forgets shows.
        return Tensor::full(f32::NAN, shape, device)?.to_dtype(dtype);
    }
    // SAFETY: the caller's kernel writes every element before anything reads one, in the order of the device's queue.
    unsafe { Tensor::empty(shape, dtype, device) }
}
