//! Launches that a device repeats as a whole: CUDA graphs.
//!
//! A graph is made by capture: what a function puts into the device's queue is recorded instead of done, with the arguments and addresses
//! that it has then. Launching the graph does all of it. So a captured function must
//!
//! - read what changes from launch to launch from memory that stays, and write what is read behind the launch to such memory,
//! - neither wait for the device nor copy from or to the host,
//! - release all that it allocates (the driver makes such memory part of the graph) and nothing else.
//!
//! candle uploads the shapes of strided tensors with each op. Under its cache for graphs they are uploaded once: a [`warm_up`] fills that
//! cache, and a capture that lacks something in it fails. In tests a graph calls the function again, with whatever of the host it held when it
//! was captured: what does not come from the device's memory is stale then, as it is on a GPU.

use std::cell::RefCell;

use candle_core::{Device, Result, Tensor};

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{CudaDevice, WrapErr};
#[cfg(feature = "cuda")]
use cudarc::driver::{CudaGraph, result, sys};

thread_local! {
    /// Memory that outlives single launches and is read by what is captured, while this thread captures.
    static READ: RefCell<Option<Vec<Tensor>>> = const { RefCell::new(None) };
}

/// Graph of the launches that were captured.
#[derive(Debug)]
pub struct Graph {
    #[cfg(feature = "cuda")]
    on_gpu: Option<OnGpu>,
    /// Memory that stays as long as the graph, whoever else releases it.
    _read: Vec<Tensor>,
}

/// Whether `device` can capture: it is a GPU, or the tests emulate one.
pub fn has_graphs(device: &Device) -> bool {
    super::has_transfer_stream(device)
}

/// Calls `body` so that a capture of the same finds all that candle uploads in it.
pub fn warm_up<R>(device: &Device, body: impl FnOnce() -> R) -> R {
    #[cfg(feature = "cuda")]
    let _uploads = match device {
        Device::Cuda(device) => Some(device.enable_cuda_graph_htod_cache()),
        _ => None,
    };
    #[cfg(not(feature = "cuda"))]
    let _ = device;
    body()
}

/// Notes that what is being captured, if anything is, reads `tensor`, which others may release.
pub(super) fn reads(tensor: &Tensor) {
    READ.with_borrow_mut(|read| read.iter_mut().for_each(|read| read.push(tensor.clone())));
}

/// Whether this thread captures.
#[cfg(feature = "cuda")]
pub(super) fn is_capturing() -> bool {
    READ.with_borrow(Option::is_some)
}

/// Fails while this thread captures: `what` would be part of the graph, or read the host's memory once and never again.
pub fn refuse_capture(what: &str) -> Result<()> {
    match READ.with_borrow(Option::is_some) {
        true => candle_core::bail!("{what} cannot be part of a CUDA graph"),
        false => Ok(()),
    }
}

impl Graph {
    /// Captures what `body` gives `device`, which does nothing of it yet.
    ///
    /// # Errors
    /// Whatever `body` fails with, and those of the driver. The device is as it was.
    pub fn capture(device: &Device, body: impl FnOnce() -> Result<()>) -> Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let (graph, read) = OnGpu::capture(device, body)?;
                Ok(Self {
                    on_gpu: Some(graph),
                    _read: read,
                })
            }
            // An emulated one.
            Device::Cpu => {
                drop(body);
                Ok(Self {
                    #[cfg(feature = "cuda")]
                    on_gpu: None,
                    _read: Vec::new(),
                })
            }
            device => candle_core::bail!("{device:?} has no graphs"),
        }
    }

    /// Puts all that was captured at the end of the device's queue. The tests' emulation calls `again` for that, which is the captured function
    /// with all that it held of the host's memory.
    ///
    /// # Errors
    /// Those of the driver; nothing has been done then.
    pub fn launch(&self, again: impl FnOnce() -> Result<()>) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(graph) = &self.on_gpu {
            return graph.launch();
        }
        again()
    }
}

#[cfg(feature = "cuda")]
struct OnGpu {
    /// Graph that was captured; absent only while it is dropped.
    graph: Option<CudaGraph>,
    device: CudaDevice,
}

#[cfg(feature = "cuda")]
impl std::fmt::Debug for OnGpu {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("OnGpu").finish_non_exhaustive()
    }
}

#[cfg(feature = "cuda")]
impl OnGpu {
    fn capture(device: &CudaDevice, body: impl FnOnce() -> Result<()>) -> Result<(Self, Vec<Tensor>)> {
        let stream = device.cuda_stream();
        stream.synchronize().w()?;
        give_back(device);
        // Calls that a capture forbids are refused to this thread only.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).w()?;
        READ.set(Some(Vec::new()));
        let uploads = device.enable_cuda_graph_htod_cache();
        let done = body();
        drop(uploads);
        let read = READ.take().unwrap_or_default();
        let ended = stream.end_capture(sys::CUgraphInstantiate_flags(0));
        // What could not be freed within a capture that failed is noted there, and would be the next call's error.
        let noted = stream.context().check_err();
        done?;
        let graph = ended.w()?;
        noted.w()?;
        let Some(graph) = graph else {
            candle_core::bail!("the driver captured nothing");
        };
        let graph = Self {
            graph: Some(graph),
            device: device.clone(),
        };
        Ok((graph, read))
    }

    fn launch(&self) -> Result<()> {
        match &self.graph {
            Some(graph) => graph.launch().w(),
            None => candle_core::bail!("a graph that has been dropped"),
        }
    }
}

#[cfg(feature = "cuda")]
impl Drop for OnGpu {
    fn drop(&mut self) {
        // It may be under way.
        if let Err(error) = self.device.cuda_stream().synchronize() {
            tracing::warn!(%error, "the device did not finish before a graph was dropped");
        }
        drop(self.graph.take());
        let ordinal = self.device.cuda_stream().context().cu_device();
        // SAFETY: the device is that of a live context.
        if let Err(error) = unsafe { sys::cuDeviceGraphMemTrim(ordinal) }.result() {
            tracing::warn!(%error, "the memory of a graph stays reserved");
        }
    }
}

/// Gives memory back that the device's pool keeps for the next allocations: a graph has memory of its own, and what the same launches had
/// outside of it would stand beside that.
#[cfg(feature = "cuda")]
fn give_back(device: &CudaDevice) {
    let ordinal = device.cuda_stream().context().cu_device();
    let mut pool = std::mem::MaybeUninit::uninit();
    // SAFETY: `pool` is written before it is read, or the call fails; the device is that of a live context.
    let trimmed = unsafe {
        sys::cuDeviceGetDefaultMemPool(pool.as_mut_ptr(), ordinal)
            .result()
            .and_then(|()| result::mem_pool::trim_to(pool.assume_init(), 0))
    };
    if let Err(error) = trimmed {
        tracing::warn!(%error, "the device's pool keeps memory that graphs could use");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_noted_while_a_capture_is_under_way_only() {
        let tensor = Tensor::new(&[1u32], &Device::Cpu).unwrap();
        reads(&tensor);
        refuse_capture("nothing").unwrap();
        READ.set(Some(Vec::new()));
        reads(&tensor);
        let error = refuse_capture("an upload").unwrap_err().to_string();
        assert!(error.contains("an upload cannot be part of a CUDA graph"), "{error}");
        assert_eq!(READ.take().unwrap().len(), 1);
    }
}
