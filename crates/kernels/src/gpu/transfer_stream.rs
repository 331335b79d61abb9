//! Copies between the host's memory and a device, beside the computing.
//!
//! A device computes in one queue. Copies that it need not wait for go through a second one: a copy begins behind all that
//! the device had been given until then, and [`Copied::wait`] makes the device continue only after the copy. The host
//! waits for neither. Its end of a copy lies in memory that the driver has pinned; without that the driver copies
//! through a buffer of its own while the host waits, to the same result. On the CPU a copy is done when it is asked
//! for; the tests' emulation does it as late as it may, so that a missing wait shows.

use candle_core::{Device, Result, Tensor};

use super::host_address::host_address;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::{CudaDevice, WrapErr};
#[cfg(feature = "cuda")]
use cudarc::driver::{CudaEvent, CudaStream, sys};
#[cfg(feature = "cuda")]
use std::sync::Arc;

/// A tensor of the host that a device copies from and to by itself.
#[derive(Debug)]
pub struct Pinned {
    tensor: Tensor,
    /// Device that the memory is pinned for.
    #[cfg(feature = "cuda")]
    device: Option<CudaDevice>,
}

impl Pinned {
    /// Pins the memory of `tensor`, which lies on the CPU, for `device`. Memory that cannot be pinned will do as it is.
    ///
    /// # Errors
    /// A tensor elsewhere or not contiguous.
    pub fn new(tensor: Tensor, device: &Device) -> Result<Self> {
        #[cfg(not(feature = "cuda"))]
        let _ = device;
        host_address(&tensor)?;
        Ok(Self {
            #[cfg(feature = "cuda")]
            device: pin(&tensor, device)?,
            tensor,
        })
    }

    /// The tensor, whose elements are those of the last copy that somebody waited for.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

#[cfg(feature = "cuda")]
fn pin(tensor: &Tensor, device: &Device) -> Result<Option<CudaDevice>> {
    let Device::Cuda(device) = device else { return Ok(None) };
    device.cuda_stream().context().bind_to_thread().w()?;
    let (start, length) = (host_address(tensor)?, bytes(tensor));
    // SAFETY: the memory is the tensor's, which outlives the registration: `Pinned` owns both.
    let pinned = unsafe { sys::cuMemHostRegister_v2(start.cast(), length, 0) }.result();
    if let Err(error) = &pinned {
        tracing::warn!(%error, bytes = length, "memory cannot be pinned: copies of it wait for the host");
    }
    Ok(pinned.is_ok().then(|| device.clone()))
}

#[cfg(feature = "cuda")]
impl Drop for Pinned {
    fn drop(&mut self) {
        let (Some(device), Ok(start)) = (&self.device, host_address(&self.tensor)) else {
            return;
        };
        let context = device.cuda_stream().context().clone();
        // A copy may be under way.
        if let Err(error) = context.synchronize() {
            tracing::warn!(%error, "the device did not finish before its host memory was freed");
        }
        // SAFETY: registered by `pin`, once; nothing uses it any more.
        if let Err(error) = unsafe { sys::cuMemHostUnregister(start.cast()) }.result() {
            tracing::warn!(%error, "host memory stays pinned");
        }
    }
}

/// A queue of a device beside the one that computes.
#[derive(Clone, Debug)]
pub struct TransferStream {
    #[cfg(feature = "cuda")]
    on_gpu: Option<OnGpu>,
}

#[cfg(feature = "cuda")]
#[derive(Clone, Debug)]
struct OnGpu {
    device: CudaDevice,
    stream: Arc<CudaStream>,
}

/// A copy under way. Dropping it waits as well: whoever fails on the way leaves nothing behind that is written to later.
#[derive(Debug)]
#[must_use = "the device goes on before the copy is done"]
pub struct Copied {
    /// The device's end, which stays until the copy is done.
    device_end: Tensor,
    #[cfg(feature = "cuda")]
    done: Option<(CudaEvent, CudaDevice)>,
    #[cfg(any(test, feature = "emulator"))]
    late: Option<u64>,
}

impl TransferStream {
    /// The queue of `device`: one for the process.
    pub fn of(device: &Device) -> Result<Self> {
        Self::numbered(device, 0)
    }

    /// The queue on which what host threads made goes back to `device`, beside what comes from it: one for the process.
    pub(super) fn back_to(device: &Device) -> Result<Self> {
        Self::numbered(device, 1)
    }

    fn numbered(device: &Device, number: usize) -> Result<Self> {
        #[cfg(not(feature = "cuda"))]
        let _ = (device, number);
        Ok(Self {
            #[cfg(feature = "cuda")]
            on_gpu: OnGpu::of(device, number)?,
        })
    }

    /// Copies all of `from`, a tensor on the device, to the first bytes of `to`, a tensor on the CPU.
    ///
    /// # Errors
    /// Tensors elsewhere, not contiguous or too small, and those of the driver.
    pub fn send(&self, from: &Tensor, to: &Tensor) -> Result<Copied> {
        self.copy(from, to, Direction::Home, Begin::BehindComputing)
    }

    /// Fills `to`, a tensor on the device, from the first bytes of `from`, a tensor on the CPU.
    ///
    /// # Errors
    /// Errors of [`TransferStream::send`].
    pub fn fetch(&self, from: &Tensor, to: &Tensor) -> Result<Copied> {
        self.copy(to, from, Direction::ToDevice, Begin::BehindComputing)
    }

    /// Fetches as [`TransferStream::fetch`] does, without waiting for what the device has been given: the caller knows
    /// that nothing of it reads or writes `to` any more.
    ///
    /// # Errors
    /// Errors of [`TransferStream::send`].
    pub(super) fn fetch_at_once(&self, from: &Tensor, to: &Tensor) -> Result<Copied> {
        self.copy(to, from, Direction::ToDevice, Begin::AtOnce)
    }

    fn copy(&self, on_device: &Tensor, at_home: &Tensor, direction: Direction, begin: Begin) -> Result<Copied> {
        #[cfg(not(feature = "cuda"))]
        let _ = begin;
        let (home, length) = (host_address(at_home)?, bytes(on_device));
        if length > bytes(at_home) || !on_device.is_contiguous() {
            candle_core::bail!(
                "a copy of {length} bytes from {:?} to {:?}",
                on_device.layout(),
                at_home.layout()
            );
        }
        #[cfg(feature = "cuda")]
        if let Some(queue) = &self.on_gpu {
            return queue.copy(on_device, home, length, direction, begin);
        }
        let device_end = host_address(on_device)?;
        let (from, to) = match direction {
            Direction::Home => (device_end, home),
            Direction::ToDevice => (home, device_end),
        };
        let (from, to) = (from as usize, to as usize);
        // SAFETY: both ends hold so many bytes, live as long as the copy, and are not the same tensor's.
        let copy = move || unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length) };
        #[cfg(any(test, feature = "emulator"))]
        if super::emulation::is_emulated() {
            let keeps = (on_device.clone(), at_home.clone());
            return Ok(Copied {
                device_end: on_device.clone(),
                #[cfg(feature = "cuda")]
                done: None,
                late: Some(late::push(Box::new(move || {
                    copy();
                    drop(keeps);
                }))),
            });
        }
        copy();
        Ok(Copied {
            device_end: on_device.clone(),
            #[cfg(feature = "cuda")]
            done: None,
            #[cfg(any(test, feature = "emulator"))]
            late: None,
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    Home,
    ToDevice,
}

/// Moment that a copy waits for beside those before it in its queue.
#[derive(Clone, Copy, Debug)]
enum Begin {
    /// End of all that the device has been given to compute.
    BehindComputing,
    AtOnce,
}

impl Copied {
    /// Makes this thread of the host wait until the copy is done.
    ///
    /// # Errors
    /// Those of the driver.
    pub(super) fn arrive(&self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some((event, _)) = &self.done {
            event.synchronize().w()?;
        }
        Ok(())
    }

    /// Makes the device continue after the copy, and returns the device's end.
    pub fn wait(mut self) -> Result<Tensor> {
        self.finish()?;
        Ok(self.device_end.clone())
    }

    fn finish(&mut self) -> Result<()> {
        #[cfg(any(test, feature = "emulator"))]
        if let Some(number) = self.late.take() {
            late::run_to(number);
        }
        #[cfg(feature = "cuda")]
        if let Some((event, device)) = self.done.take() {
            device.cuda_stream().wait(&event).w()?;
        }
        Ok(())
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "a copy that nobody waits for");
        }
    }
}

#[cfg(feature = "cuda")]
impl OnGpu {
    fn of(device: &Device, number: usize) -> Result<Option<Self>> {
        use std::collections::HashMap;
        use std::sync::{LazyLock, Mutex, PoisonError};

        /// Queues by ordinal of the device and number of the queue.
        type Queues = HashMap<(usize, usize), Arc<CudaStream>>;
        // Design note: process-wide, as the device's first queue is.
        static QUEUES: LazyLock<Mutex<Queues>> = LazyLock::new(Mutex::default);

        let Device::Cuda(device) = device else { return Ok(None) };
        let context = device.cuda_stream().context().clone();
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (context.ordinal(), number);
        let stream = match queues.get(&key) {
            Some(stream) => stream.clone(),
            None => context.new_stream().w()?,
        };
        queues.insert(key, stream.clone());
        Ok(Some(Self {
            device: device.clone(),
            stream,
        }))
    }

    fn copy(
        &self,
        on_device: &Tensor,
        home: *mut u8,
        length: usize,
        direction: Direction,
        begin: Begin,
    ) -> Result<Copied> {
        let address = super::runtime::address(&self.device, on_device)?;
        if let Begin::BehindComputing = begin {
            let given = self.device.cuda_stream().record_event(None).w()?;
            self.stream.wait(&given).w()?;
        }
        self.device.cuda_stream().context().bind_to_thread().w()?;
        let stream = self.stream.cu_stream();
        // SAFETY: both ends hold so many bytes. The device's end is kept by `Copied` until its queue waits for the copy; the
        // host's is pinned memory, which waits for the device before it goes.
        let queued = unsafe {
            match direction {
                Direction::Home => sys::cuMemcpyDtoHAsync_v2(home.cast(), address, length, stream),
                Direction::ToDevice => sys::cuMemcpyHtoDAsync_v2(address, home.cast(), length, stream),
            }
        };
        queued.result().w()?;
        Ok(Copied {
            device_end: on_device.clone(),
            done: Some((self.stream.record_event(None).w()?, self.device.clone())),
            #[cfg(any(test, feature = "emulator"))]
            late: None,
        })
    }
}

/// Bytes of all elements.
fn bytes(tensor: &Tensor) -> usize {
    tensor.elem_count() * tensor.dtype().size_in_bytes()
}

/// Copies, and work of the host between them, that are done as late as they may: in their order, when somebody waits for one or for a
/// later one.
#[cfg(any(test, feature = "emulator"))]
pub(super) mod late {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    type Copy = Box<dyn FnOnce()>;

    #[derive(Default)]
    struct Queue {
        first: u64,
        copies: VecDeque<Copy>,
    }

    thread_local! {
        static QUEUE: RefCell<Queue> = RefCell::default();
    }

    pub(in super::super) fn push(copy: Copy) -> u64 {
        QUEUE.with_borrow_mut(|queue| {
            queue.copies.push_back(copy);
            queue.first + queue.copies.len() as u64 - 1
        })
    }

    pub(in super::super) fn run_to(number: u64) {
        QUEUE.with_borrow_mut(|queue| {
            while queue.first <= number {
                let Some(copy) = queue.copies.pop_front() else { return };
                queue.first += 1;
                copy();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::emulated;

    fn tensor(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec1().unwrap()
    }

    #[test]
    fn what_is_sent_home_comes_back() {
        let queue = TransferStream::of(&Device::Cpu).unwrap();
        let home = Pinned::new(tensor(&[0.0; 4]), &Device::Cpu).unwrap();
        let part = home.tensor().narrow(0, 1, 2).unwrap();
        queue.send(&tensor(&[1.0, 2.0]), &part).unwrap().wait().unwrap();
        assert_eq!(values(home.tensor()), [0.0, 1.0, 2.0, 0.0]);
        let back = queue.fetch(&part, &tensor(&[9.0, 9.0])).unwrap().wait().unwrap();
        assert_eq!(values(&back), [1.0, 2.0]);
    }

    #[test]
    fn in_emulation_a_copy_is_done_when_it_or_a_later_one_is_waited_for() {
        emulated(|| {
            let queue = TransferStream::of(&Device::Cpu).unwrap();
            let (first, second) = (tensor(&[0.0]), tensor(&[0.0]));
            let copies = [
                queue.send(&tensor(&[1.0]), &first).unwrap(),
                queue.send(&tensor(&[2.0]), &second).unwrap(),
            ];
            assert_eq!((values(&first), values(&second)), (vec![0.0], vec![0.0]));
            let [before, last] = copies;
            last.wait().unwrap();
            assert_eq!((values(&first), values(&second)), (vec![1.0], vec![2.0]));
            drop(before);
            // What nothing waits for is done when it is dropped.
            drop(queue.send(&tensor(&[3.0]), &first).unwrap());
            assert_eq!(values(&first), [3.0]);
        });
    }

    #[test]
    fn a_copy_that_does_not_fit_is_refused() {
        let queue = TransferStream::of(&Device::Cpu).unwrap();
        assert!(queue.send(&tensor(&[1.0, 2.0]), &tensor(&[0.0])).is_err());
        let turned = Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu)
            .unwrap()
            .t()
            .unwrap();
        assert!(queue.send(&turned, &tensor(&[0.0; 6])).is_err());
    }
}
