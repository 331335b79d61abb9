//! Launches on a real device.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use candle_core::cuda_backend::{CudaDevice, CudaStorageSlice, WrapErr};
use candle_core::{Result, Storage, Tensor};
use cudarc::driver::{CudaFunction, CudaModule, DevicePtr, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

use super::compiler;
use super::launch::{Argument, Launch};
use super::{Capability, HOPPER, Source};

/// Kernels that have been loaded. Design note: process-wide, as the driver's context that it belongs to.
#[derive(Default)]
struct Loaded {
    modules: HashMap<(usize, &'static str), Arc<CudaModule>>,
    functions: HashMap<(usize, String), CudaFunction>,
}

static LOADED: LazyLock<Mutex<Loaded>> = LazyLock::new(Mutex::default);

/// The compute capability of `device`, where it tells.
pub(super) fn capability(device: &CudaDevice) -> Option<Capability> {
    device.cuda_stream().context().compute_capability().ok()
}

pub(super) fn launch(device: &CudaDevice, launch: &Launch<'_>, arguments: &[Argument<'_>]) -> Result<()> {
    let function = function(device, launch)?;
    let stream = device.cuda_stream();
    let values: Vec<u64> = arguments
        .iter()
        .map(|argument| value(device, argument))
        .collect::<Result<_>>()?;
    let mut builder = stream.launch_builder(&function);
    for value in &values {
        // The driver reads as many bytes as the kernel's parameter has; on a little-endian host these are the lower ones.
        builder.arg(value);
    }
    let dim = |[x, y, z]: [usize; 3]| (x as u32, y as u32, z as u32);
    let config = LaunchConfig {
        grid_dim: dim(launch.blocks),
        block_dim: dim(launch.threads),
        shared_mem_bytes: launch.shared_bytes as u32,
    };
    // SAFETY: each kernel is launched by the one function beside it, whose arguments the tests check on the emulator.
    unsafe { builder.launch(config) }.w()?;
    Ok(())
}

/// The kernel, compiled and loaded where this is the first use of its file.
fn function(device: &CudaDevice, launch: &Launch<'_>) -> Result<CudaFunction> {
    // A lock for each launch costs 20 ns; the driver's launch itself takes 2 us.
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let ordinal = device.cuda_stream().context().ordinal();
    let key = (ordinal, launch.kernel.to_owned());
    if let Some(function) = loaded.functions.get(&key) {
        return Ok(function.clone());
    }
    let module = match loaded.modules.get(&(ordinal, launch.source.name)) {
        Some(module) => module.clone(),
        None => {
            let module = load(device, launch.source)?;
            loaded.modules.insert((ordinal, launch.source.name), module.clone());
            module
        }
    };
    let function = module.load_function(launch.kernel).w()?;
    if launch.shared_bytes > 48 << 10 {
        let attribute = sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        function.set_attribute(attribute, launch.shared_bytes as i32).w()?;
    }
    loaded.functions.insert(key, function.clone());
    Ok(function)
}

fn load(device: &CudaDevice, source: &'static Source) -> Result<Arc<CudaModule>> {
    let context = device.cuda_stream().context().clone();
    let (major, minor) = context.compute_capability().w()?;
    // With the instructions that no later GPU has, either.
    let own = if (major, minor) == HOPPER { "a" } else { "" };
    let binary = compiler::binary(source, &format!("sm_{major}{minor}{own}")).map_err(candle_core::Error::wrap)?;
    context.load_module(Ptx::from_binary(binary)).w()
}

fn value(device: &CudaDevice, argument: &Argument<'_>) -> Result<u64> {
    Ok(match argument {
        Argument::Tensor(tensor) | Argument::Maybe(Some(tensor)) => address(device, tensor)?,
        Argument::Maybe(None) => 0,
        Argument::U32(value) => u64::from(*value),
        Argument::Address(value) | Argument::U64(value) => *value,
        Argument::F32(value) => u64::from(value.to_bits()),
        Argument::F64(value) => value.to_bits(),
    })
}

/// Address of the first element of a tensor on `device`.
///
/// The pointer outlives the guard that it was read under: memory that is freed later is freed in the order of the queue,
/// behind whatever was launched with it.
pub(super) fn address(device: &CudaDevice, tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        candle_core::bail!("a kernel got a tensor on {:?}", tensor.device());
    };
    let stream = device.cuda_stream();
    let start = match &storage.slice {
        CudaStorageSlice::F32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F64(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::BF16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::F16(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::U32(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::U8(slice) => slice.device_ptr(&stream).0,
        CudaStorageSlice::I64(slice) => slice.device_ptr(&stream).0,
        _ => candle_core::bail!("no kernel takes elements of {:?}", tensor.dtype()),
    };
    Ok(start + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
}
