//! Ranks that have an NVIDIA GPU each: their tensors are added up by NCCL, over NVLink or PCIe.
//!
//! What is not a tensor, and the meeting before each sum, goes through the memory that the processes share: there a rank
//! that is gone is noticed, which a kernel of NCCL that waits for it would never do.

use std::ffi::c_char;
use std::sync::Mutex;

use candle_core::{CpuStorage, CudaStorage, Device, InplaceOp1, Layout, Result as CandleResult, Tensor, bail};
use cudarc::nccl::{Comm, Id, ReduceOp, result::NcclError};

use super::{Collective, CollectiveError, SharedMemory};

/// Bytes of the name under which ranks find each other.
const NAME_BYTES: usize = 128;

/// One rank, with a GPU of its own.
#[derive(Debug)]
pub struct Nccl {
    meeting: SharedMemory,
    links: Mutex<Links>,
}

/// NCCL's handle.
struct Links(Comm);

// SAFETY: NCCL's handles may be used from any thread, one at a time, which the mutex around it sees to.
unsafe impl Send for Links {}

impl std::fmt::Debug for Links {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Links({} of {})", self.0.rank(), self.0.world_size())
    }
}

impl Nccl {
    /// Links the GPU `device` of this rank with those of the ranks that `meeting` connects.
    ///
    /// # Errors
    /// A device that is no GPU; a library that is not there or refuses; a rank that is gone.
    pub fn new(meeting: SharedMemory, device: &Device) -> Result<Self, CollectiveError> {
        let (rank, ranks) = (meeting.rank(), meeting.ranks());
        let stream = device.as_cuda_device()?.cuda_stream();
        let mut name = [0.0; NAME_BYTES];
        if rank == 0 {
            let id = Id::new().map_err(failed)?;
            for (number, byte) in name.iter_mut().zip(id.internal()) {
                *number = f64::from(*byte);
            }
        }
        meeting.sum_numbers(&mut name)?;
        let id = Id::uninit(name.map(|byte| byte as c_char));
        let links = Comm::from_rank(stream, rank, ranks, id).map_err(failed)?;
        Ok(Self {
            meeting,
            links: Mutex::new(Links(links)),
        })
    }

    fn run(&self, tensor: &Tensor, what: What) -> Result<(), CollectiveError> {
        self.meeting.barrier()?;
        let links = self.links.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(tensor.inplace_op1(&Exchange { links: &links, what })?)
    }
}

impl Collective for Nccl {
    fn rank(&self) -> usize {
        self.meeting.rank()
    }

    fn ranks(&self) -> usize {
        self.meeting.ranks()
    }

    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.run(tensor, What::Sum)
    }

    fn sum_numbers(&self, numbers: &mut [f64]) -> Result<(), CollectiveError> {
        self.meeting.sum_numbers(numbers)
    }

    fn broadcast(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.run(tensor, What::FirstToAll)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.meeting.barrier()
    }
}

/// What happens to a tensor.
#[derive(Clone, Copy)]
enum What {
    Sum,
    FirstToAll,
}

/// One exchange, in place.
struct Exchange<'a> {
    links: &'a Links,
    what: What,
}

impl InplaceOp1 for Exchange<'_> {
    fn name(&self) -> &'static str {
        "exchange between ranks"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> CandleResult<()> {
        bail!("NCCL links GPUs; the tensor is on the CPU")
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, layout: &Layout) -> CandleResult<()> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("expected a contiguous tensor, got {layout:?}")
        };
        let values = storage.as_cuda_slice_mut::<f32>()?;
        let mut values = values.slice_mut(start..end);
        let links = &self.links.0;
        let done = match self.what {
            What::Sum => links.all_reduce_in_place(&mut values, &ReduceOp::Sum),
            What::FirstToAll => links.broadcast_in_place(&mut values, 0),
        };
        done.map(|_| ()).map_err(|error| candle_core::Error::msg(failed(error)))
    }
}

fn failed(error: NcclError) -> CollectiveError {
    CollectiveError::Library {
        message: format!("{error:?}"),
    }
}
