//! Own kernels on an NVIDIA GPU: their sources, how they are compiled, and how they are launched.
//!
//! A kernel is a `.cu` file beside the op that it serves. It is compiled by NVRTC for the device that is there when it is
//! first needed, and kept on disk. What launches it (grid, arguments, the choice of the form) is plain Rust that knows no
//! CUDA: in tests the same code runs the same kernels on the CPU, where the file is compiled as C++ behind an emulation
//! of a GPU's threads (`emulation.h`).

mod byte_gemm;
#[cfg(any(feature = "cuda", test))]
mod cache;
#[cfg(feature = "cuda")]
mod compiler;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
mod cublaslt;
mod dispatch;
mod emulation;
#[cfg(any(test, feature = "emulator"))]
#[expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "only tests run it: a panic is how they report"
)]
mod emulator;
mod faster_form;
mod gemm;
mod graph;
mod host_address;
mod host_work;
mod launch;
mod overwrite;
mod pack;
mod pinned_memory;
mod product;
#[cfg(any(feature = "cuda", test))]
mod product_choices;
#[cfg(feature = "cuda")]
mod runtime;
mod scratch;
mod source;
mod transfer_stream;
mod workspace;

pub use byte_gemm::multiply_bytes;
pub use faster_form::{Way, is_other_faster};
pub use gemm::{Gemm, Matrix};
pub use graph::{Graph, has_graphs, refuse_capture, warm_up};
pub use host_work::{HostWork, RoundTrips};
pub(crate) use launch::arguments;
pub use launch::{Argument, Launch, empty};
pub use overwrite::overwrite;
pub use pack::{element_name, pack_size};
pub use pinned_memory::PinnedMemory;
pub use scratch::{WORKSPACE_BYTES, constant, pointers, scratch};
pub(crate) use source::source;
pub use source::{BYTES, GROUPS, Header, OPERANDS, STAGES, Source, WARPGROUP};
pub use transfer_stream::{Copied, Pinned, TransferStream};
pub use workspace::workspace;

use crate::kernels;
use candle_core::{DType, Device, Tensor};
use emulation::is_emulated;

/// Whether own kernels take `tensor`: it lies on a GPU (or the tests emulate one) and the process wants fused forms.
pub fn takes(tensor: &Tensor) -> bool {
    is_for(tensor.device(), tensor.dtype())
}

/// Whether own kernels are for tensors of `dtype` on `device`; see [`takes`].
pub fn is_for(device: &Device, dtype: DType) -> bool {
    kernels().are_own() && (device.is_cuda() || is_emulated()) && element_name(dtype).is_some()
}

/// A GPU's compute capability: major and minor number.
pub type Capability = (i32, i32);

/// Compute capability of the GPUs that multiply by warpgroups.
pub const HOPPER: Capability = (9, 0);

/// The compute capability of `device`; `None` of what is no GPU.
pub fn capability(device: &Device) -> Option<Capability> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => runtime::capability(device),
        _ => None,
    }
}

/// Whether `device` multiplies by warpgroups: it is a GPU of the Hopper generation.
pub fn has_warpgroups(device: &Device) -> bool {
    capability(device) == Some(HOPPER)
}

/// Whether copies between the host and `device` go beside its computing: it is a GPU (or the tests emulate one) and the
/// process wants fused forms.
pub fn has_transfer_stream(device: &Device) -> bool {
    kernels().are_own() && (device.is_cuda() || is_emulated())
}

/// Timing of products that this thread meets for the first time, as long as it lives: by each algorithm that may be the
/// fastest, in a training's first steps, which nobody measures. What was found out is kept on disk when it goes.
#[derive(Debug)]
pub struct TimedProducts(());

impl TimedProducts {
    /// Lets products be timed where `wanted`, as far as it goes.
    #[must_use]
    pub fn begin(wanted: bool) -> Option<Self> {
        #[cfg(feature = "cuda")]
        cublaslt::time_new_shapes(wanted);
        wanted.then_some(Self(()))
    }
}

impl Drop for TimedProducts {
    fn drop(&mut self) {
        #[cfg(feature = "cuda")]
        cublaslt::time_new_shapes(false);
    }
}

/// Releases all memory that is kept from one launch to the next, so that it counts in what needs it next.
pub fn forget_scratch() {
    scratch::forget_scratch();
    pinned_memory::forget();
}

/// Allocates what libraries keep on `device` for the calls of this thread.
pub fn prepare(device: &Device) -> candle_core::Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cublaslt::prepare(device),
        _ => Ok(()),
    }
}

/// Address of the first element of a contiguous tensor on a GPU, for kernels that find their operands in a table.
///
/// # Errors
/// A tensor elsewhere.
pub fn address(tensor: &Tensor) -> candle_core::Result<u64> {
    match tensor.device() {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => runtime::address(device, tensor),
        #[cfg(any(test, feature = "emulator"))]
        Device::Cpu => Ok(emulator::address(tensor)? as u64),
        device => candle_core::bail!("no addresses on {device:?}"),
    }
}

#[cfg(any(test, feature = "emulator"))]
pub use emulation::{emulated, not_emulated};
#[cfg(any(test, feature = "emulator"))]
pub use emulator::has_compiler;
