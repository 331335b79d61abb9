//! Memory of the device that trains, under one face: exact bytes in use and their peak.
//!
//! On the CPU the process's allocator counts ([`HostMemory`]). On an NVIDIA GPU candle allocates from the device's
//! default memory pool, which keeps its own high-water marks; the pool is told never to give memory back to the driver,
//! so that steady-state steps pay for no allocation. What CUDA graphs allocate comes from memory of their own, with marks of its own.

use candle_core::Device;

use super::HostMemory;

/// The counters of one device.
#[derive(Clone, Debug)]
pub enum DeviceMemory {
    Host,
    #[cfg(feature = "cuda")]
    Cuda(cuda::Pool),
}

impl DeviceMemory {
    /// The counters of `device`.
    ///
    /// # Errors
    /// Where the driver does not give access to the device's memory pool.
    pub fn of(device: &Device) -> candle_core::Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => Ok(Self::Cuda(cuda::Pool::of(device)?)),
            _ => Ok(Self::Host),
        }
    }

    /// Bytes in use now.
    pub fn in_use_bytes(&self) -> u64 {
        match self {
            Self::Host => HostMemory::in_use_bytes(),
            #[cfg(feature = "cuda")]
            Self::Cuda(pool) => pool.in_use_bytes(),
        }
    }

    /// Highest bytes in use since the last [`DeviceMemory::reset_peak`].
    pub fn peak_bytes(&self) -> u64 {
        match self {
            Self::Host => HostMemory::peak_bytes(),
            #[cfg(feature = "cuda")]
            Self::Cuda(pool) => pool.peak_bytes(),
        }
    }

    /// Highest bytes that were reserved from the driver, or the highest resident set on the CPU; `None` where neither is
    /// known.
    pub fn peak_reserved_bytes(&self) -> Option<u64> {
        match self {
            Self::Host => super::peak_resident_bytes(),
            #[cfg(feature = "cuda")]
            Self::Cuda(pool) => Some(pool.peak_reserved_bytes()),
        }
    }

    /// Starts new peaks from what is in use now.
    pub fn reset_peak(&self) {
        match self {
            Self::Host => {
                HostMemory::reset_peak();
                super::reset_peak_resident();
            }
            #[cfg(feature = "cuda")]
            Self::Cuda(pool) => pool.reset_peak(),
        }
    }

    /// Sets the bytes above which a trial is out of memory. On the CPU the allocator enforces it at once; on a GPU it is
    /// for the caller to compare with [`DeviceMemory::peak_bytes`] after each step.
    pub fn set_limit(&self, limit_bytes: Option<u64>) {
        match self {
            Self::Host => HostMemory::set_limit(limit_bytes),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => {}
        }
    }
}

/// The highest bytes of pool and graphs together. While graphs hold memory the pool holds what it does between steps, as now; its own mark
/// is that of steps that were launched op by op.
#[cfg(any(feature = "cuda", test))]
fn highest(pool_mark: u64, pool_now: u64, graphs_mark: u64) -> u64 {
    pool_mark.max(pool_now + graphs_mark)
}

#[cfg(feature = "cuda")]
mod cuda {
    use candle_core::cuda_backend::{CudaDevice, WrapErr};
    use cudarc::driver::{result, sys};
    use sys::{CUgraphMem_attribute as OfGraphs, CUmemPool_attribute as Attribute};

    /// A device's default memory pool, from which candle allocates.
    #[derive(Clone, Debug)]
    pub struct Pool {
        pool: sys::CUmemoryPool,
        device: sys::CUdevice,
    }

    // SAFETY: the handle is only a name for the driver, whose functions may be called from any thread.
    unsafe impl Send for Pool {}
    // SAFETY: as above.
    unsafe impl Sync for Pool {}

    impl Pool {
        pub(super) fn of(device: &CudaDevice) -> candle_core::Result<Self> {
            let ordinal = device.cuda_stream().context().cu_device();
            let mut pool = std::mem::MaybeUninit::uninit();
            // SAFETY: `pool` is written before it is read, or the call fails; the device is that of a live context.
            let pool = unsafe {
                sys::cuDeviceGetDefaultMemPool(pool.as_mut_ptr(), ordinal)
                    .result()
                    .w()?;
                pool.assume_init()
            };
            let pool = Self { pool, device: ordinal };
            pool.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX);
            Ok(pool)
        }

        pub(super) fn in_use_bytes(&self) -> u64 {
            self.read(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
                + self.read_graphs(OfGraphs::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)
        }

        pub(super) fn peak_bytes(&self) -> u64 {
            super::highest(
                self.read(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH),
                self.read(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
                self.read_graphs(OfGraphs::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH),
            )
        }

        pub(super) fn peak_reserved_bytes(&self) -> u64 {
            super::highest(
                self.read(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
                self.read(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
                self.read_graphs(OfGraphs::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH),
            )
        }

        pub(super) fn reset_peak(&self) {
            // The driver takes only zero here, and then counts from what is in use.
            self.set(Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
            self.set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
            self.reset_graphs(OfGraphs::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH);
            self.reset_graphs(OfGraphs::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH);
        }

        fn read(&self, attribute: Attribute) -> u64 {
            let mut value = 0u64;
            // SAFETY: these attributes are 64-bit counters, and `value` outlives the call.
            let read = unsafe { result::mem_pool::get_attribute(self.pool, attribute, (&raw mut value).cast()) };
            if let Err(error) = read {
                tracing::warn!(%error, "cannot read the memory pool");
            }
            value
        }

        fn set(&self, attribute: Attribute, mut value: u64) {
            // SAFETY: as for `read`.
            let set = unsafe { result::mem_pool::set_attribute(self.pool, attribute, (&raw mut value).cast()) };
            if let Err(error) = set {
                tracing::warn!(%error, "cannot set the memory pool");
            }
        }

        fn read_graphs(&self, attribute: OfGraphs) -> u64 {
            let mut value = 0u64;
            // SAFETY: these attributes are 64-bit counters, and `value` outlives the call; the device is that of a live context.
            let read = unsafe { sys::cuDeviceGetGraphMemAttribute(self.device, attribute, (&raw mut value).cast()) };
            if let Err(error) = read.result() {
                tracing::warn!(%error, "cannot read the memory of graphs");
            }
            value
        }

        fn reset_graphs(&self, attribute: OfGraphs) {
            let mut zero = 0u64;
            // SAFETY: as for `read_graphs`.
            let set = unsafe { sys::cuDeviceSetGraphMemAttribute(self.device, attribute, (&raw mut zero).cast()) };
            if let Err(error) = set.result() {
                tracing::warn!(%error, "cannot reset the mark of the memory of graphs");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_graphs_stands_beside_what_the_pool_holds_between_steps() {
        // Weights of 10, activations of 5, in the pool and then in a graph.
        assert_eq!(highest(15, 10, 0), 15);
        assert_eq!(highest(15, 10, 5), 15);
        assert_eq!(highest(10, 10, 5), 15);
        assert_eq!(highest(15, 10, 6), 16);
    }

    #[test]
    fn a_tensor_on_the_cpu_shows_in_the_peak() {
        let memory = DeviceMemory::of(&Device::Cpu).unwrap();
        // Tests beside this one may free memory in between.
        let shows = |_| {
            memory.reset_peak();
            let before = memory.in_use_bytes();
            let tensor = candle_core::Tensor::zeros((1 << 20, 8), candle_core::DType::F32, &Device::Cpu).unwrap();
            let peak = memory.peak_bytes();
            drop(tensor);
            peak >= before + (32 << 20)
        };
        assert!((0..20).any(shows));
    }
}
