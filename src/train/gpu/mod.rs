//! Own kernels on an NVIDIA GPU: their sources, how they are compiled, and how they are launched.
//!
//! A kernel is a `.cu` file beside the op that it serves. It is compiled by NVRTC for the device that is there when it is
//! first needed, and kept on disk. What launches it (grid, arguments, the choice of the form) is plain Rust that knows no
//! CUDA: in tests the same code runs the same kernels on the CPU, where the file is compiled as C++ behind an emulation
//! of a GPU's threads (`emulation.h`).

#[cfg(feature = "cuda")]
mod compiler;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
mod cublaslt;
#[cfg(test)]
mod emulator;
mod gemm;
mod graph;
mod host_room;
mod launch;
mod overwrite;
mod pack;
#[cfg(feature = "cuda")]
mod runtime;
mod scratch;
mod side_queue;
mod source;

pub(in crate::train) use gemm::{Gemm, Matrix};
pub(in crate::train) use graph::{Graph, has_graphs, refuse_capture, rehearsal};
pub(in crate::train) use host_room::HostRoom;
pub(in crate::train) use launch::{Argument, Launch, arguments, empty};
pub(in crate::train) use overwrite::overwrite;
pub(in crate::train) use pack::{element_name, pack_size};
pub(in crate::train) use scratch::{constant, scratch};
pub(in crate::train) use side_queue::{Copied, Pinned, SideQueue};
pub(in crate::train) use source::{Header, OPERANDS, Source, WARPGROUP, source};

use super::ops::kernels;
use candle_core::{DType, Device, Tensor};

/// Whether own kernels take `tensor`: it lies on a GPU (or the tests emulate one) and the process wants fused forms.
pub(in crate::train) fn takes(tensor: &Tensor) -> bool {
    is_for(tensor.device(), tensor.dtype())
}

/// As [`takes`], for tensors of `dtype` on `device`.
pub(in crate::train) fn is_for(device: &Device, dtype: DType) -> bool {
    kernels().are_own() && (device.is_cuda() || is_emulated()) && element_name(dtype).is_some()
}

/// Whether `device` multiplies by warpgroups: it is a GPU of the Hopper generation.
pub(in crate::train) fn has_warpgroups(device: &Device) -> bool {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => runtime::has_warpgroups(device),
        _ => false,
    }
}

/// Whether copies between the host and `device` go beside its computing: it is a GPU (or the tests emulate one) and the
/// process wants fused forms.
pub(in crate::train) fn has_side_queue(device: &Device) -> bool {
    kernels().are_own() && (device.is_cuda() || is_emulated())
}

/// Lets go of all memory that is kept from one launch to the next, so that it counts in what needs it next.
pub(in crate::train) fn forget_scratch() {
    scratch::forget_scratch();
    host_room::forget();
}

/// Allocates what libraries keep on `device` for the calls of this thread.
pub(in crate::train) fn prepare(device: &Device) -> candle_core::Result<()> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => cublaslt::prepare(device),
        _ => Ok(()),
    }
}

/// Whether kernels run on the emulator, on this thread.
#[cfg(not(test))]
fn is_emulated() -> bool {
    false
}

#[cfg(test)]
use emulator::is_emulated;
#[cfg(test)]
pub(in crate::train) use emulator::{emulated, has_compiler, not_emulated};
