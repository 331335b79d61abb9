//! Ranks that have an NVIDIA GPU each: their tensors are added up by NCCL, over NVLink or PCIe.
//!
//! What is not a tensor, and the meeting before each sum, goes through the memory that the processes share: there a rank
//! that is gone is noticed, which a kernel of NCCL that waits for it would never do.

use std::ffi::c_char;
use std::sync::Mutex;

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::{
    CpuStorage, CudaStorage, DType, Device, InplaceOp1, InplaceOp2, Layout, Result as CandleResult, Tensor, bail,
};
use cudarc::nccl::{Comm, Id, NcclType, ReduceOp, result::NcclError};

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

    fn all_gather(&self, own: &Tensor, all: &Tensor) -> Result<(), CollectiveError> {
        let (given, room) = (own.elem_count(), all.elem_count());
        if own.dtype() != all.dtype() || given * self.ranks() != room {
            let message = format!(
                "a gather of {given} elements of {:?} from each of {} ranks into {room} of {:?}",
                own.dtype(),
                self.ranks(),
                all.dtype()
            );
            return Err(candle_core::Error::Msg(message).into());
        }
        // NCCL would wait for ever for a rank that gives another number.
        let bytes = (given * own.dtype().size_in_bytes()) as f64;
        let mut sizes = vec![0.0; self.ranks()];
        sizes[self.rank()] = bytes;
        self.meeting.sum_numbers(&mut sizes)?;
        if let Some(rank) = sizes.iter().position(|size| *size != sizes[0]) {
            return Err(CollectiveError::Size {
                rank,
                ranks: self.ranks(),
                got: sizes[rank] as u64,
                expected: sizes[0] as u64,
            });
        }
        let links = self.links.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Ok(all.inplace_op2(own, &Gather { links: &links })?)
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        self.meeting.barrier()
    }
}

/// Exchange of a tensor.
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

/// A gather into the first tensor of what each rank has in the second.
struct Gather<'a> {
    links: &'a Links,
}

impl InplaceOp2 for Gather<'_> {
    fn name(&self) -> &'static str {
        "gather from all ranks"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout, _: &CpuStorage, _: &Layout) -> CandleResult<()> {
        bail!("NCCL links GPUs; the tensor is on the CPU")
    }

    fn cuda_fwd(
        &self,
        all: &mut CudaStorage,
        all_layout: &Layout,
        own: &CudaStorage,
        own_layout: &Layout,
    ) -> CandleResult<()> {
        let (Some(to), Some(from)) = (all_layout.contiguous_offsets(), own_layout.contiguous_offsets()) else {
            bail!("expected contiguous tensors, got {all_layout:?} and {own_layout:?}")
        };
        match all.dtype() {
            DType::U8 => self.run::<u8>((all, to), (own, from)),
            DType::BF16 => self.run::<half::bf16>((all, to), (own, from)),
            DType::F16 => self.run::<half::f16>((all, to), (own, from)),
            DType::F32 => self.run::<f32>((all, to), (own, from)),
            other => bail!("weights of {other:?} cannot be gathered"),
        }
    }
}

impl Gather<'_> {
    fn run<T: CudaDType + NcclType>(
        &self,
        (all, to): (&mut CudaStorage, (usize, usize)),
        (own, from): (&CudaStorage, (usize, usize)),
    ) -> CandleResult<()> {
        let own = own.as_cuda_slice::<T>()?.slice(from.0..from.1);
        let mut all = all.as_cuda_slice_mut::<T>()?.slice_mut(to.0..to.1);
        let done = self.links.0.all_gather(&own, &mut all);
        done.map(|_| ()).map_err(|error| candle_core::Error::msg(failed(error)))
    }
}

fn failed(error: NcclError) -> CollectiveError {
    CollectiveError::Library {
        message: format!("{error:?}"),
    }
}
