//! Moments in the work of a device: the clock's on the CPU, events in its queue on a GPU, where nobody waits for them.

use std::time::Instant;

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::WrapErr;
use candle_core::{Device, Result};
#[cfg(feature = "cuda")]
use cudarc::driver::{CudaEvent, sys::CUevent_flags};

/// A moment.
#[derive(Debug)]
pub(crate) enum Mark {
    Host(Instant),
    /// Event of the device, at the time when the device comes to it.
    #[cfg(feature = "cuda")]
    Device(CudaEvent),
}

impl Mark {
    /// Marks the end of everything that `device` was given so far.
    pub(crate) fn new(device: &Device) -> Result<Self> {
        match device {
            #[cfg(feature = "cuda")]
            Device::Cuda(device) => {
                let event = device.cuda_stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
                Ok(Self::Device(event.w()?))
            }
            _ => Ok(Self::Host(Instant::now())),
        }
    }

    /// Marks as [`Mark::new`] does, with the event of a mark that nobody needs any more: making one costs as much as
    /// recording it.
    pub(crate) fn again(self, device: &Device) -> Result<Self> {
        match (self, device) {
            #[cfg(feature = "cuda")]
            (Self::Device(event), Device::Cuda(device)) => {
                event.record(&device.cuda_stream()).w()?;
                Ok(Self::Device(event))
            }
            (_, device) => Self::new(device),
        }
    }

    /// Seconds from this moment to a later one of the same device. Waits for both.
    pub(crate) fn seconds_to(&self, later: &Self) -> Result<f64> {
        match (self, later) {
            #[cfg(feature = "cuda")]
            (Self::Device(first), Self::Device(last)) => Ok(f64::from(first.elapsed_ms(last).w()?) / 1e3),
            #[cfg(feature = "cuda")]
            (Self::Device(_), Self::Host(_)) | (Self::Host(_), Self::Device(_)) => {
                candle_core::bail!("moments of two devices")
            }
            (Self::Host(first), Self::Host(last)) => Ok((*last - *first).as_secs_f64()),
        }
    }
}
