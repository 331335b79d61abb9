//! Choice between two ways to the same result on a GPU: timed once for a shape, and kept with the choice of products.

use candle_core::{Device, Result};

/// A way to a result, which may be gone any number of times.
pub type Way<'a> = &'a dyn Fn() -> Result<()>;

/// Whether the second of two ways is the faster on `device`. Where that is not known and [`super::TimedProducts`] lets shapes be timed,
/// both are gone some times, to the same result; else the first one is taken. `name` tells the shape from others.
///
/// # Errors
/// Those of the ways, a device that has failed.
pub fn is_other_faster(device: &Device, name: impl FnOnce() -> String, ways: [Way<'_>; 2]) -> Result<bool> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => timed::is_other_faster(device, &name(), ways),
        _ => {
            // Nothing has a time on the emulator, and the first way is what runs everywhere else.
            let _ = (name, ways);
            Ok(super::emulation::is_emulated())
        }
    }
}

#[cfg(feature = "cuda")]
mod timed {
    use std::time::Instant;

    use candle_core::Result;
    use candle_core::cuda_backend::{CudaDevice, WrapErr};
    use cudarc::driver::sys as driver;

    use super::super::cublaslt::{GAIN, RUNS, SHAPE_BUDGET, keep_way, known_way};
    use super::super::product_choices::WayTimes;
    use super::Way;

    pub(super) fn is_other_faster(device: &CudaDevice, name: &str, ways: [Way<'_>; 2]) -> Result<bool> {
        if let Some(known) = known_way(device, name)? {
            return Ok(known);
        }
        // Kernels are loaded and the algorithms of products chosen before anything is timed.
        ways.iter().try_for_each(|way| way())?;
        let began = Instant::now();
        let mut times = [milliseconds(device, ways[0], 1)?, milliseconds(device, ways[1], 1)?];
        if began.elapsed() < SHAPE_BUDGET {
            times = [
                milliseconds(device, ways[0], RUNS)?,
                milliseconds(device, ways[1], RUNS)?,
            ];
        }
        let is_other = times[1] < times[0] * (1.0 - GAIN);
        let microseconds = times.map(|time| 1e3 * time);
        tracing::debug!(name, ?microseconds, is_other, "timed two ways to a sum");
        let times = WayTimes { microseconds, is_other };
        keep_way(device, name, times, began.elapsed())?;
        Ok(is_other)
    }

    /// Milliseconds of each of so many runs.
    fn milliseconds(device: &CudaDevice, way: Way<'_>, runs: u32) -> Result<f32> {
        let stream = device.cuda_stream();
        let mark = || stream.record_event(Some(driver::CUevent_flags::CU_EVENT_DEFAULT)).w();
        let first = mark()?;
        (0..runs).try_for_each(|_| way())?;
        Ok(first.elapsed_ms(&mark()?).w()? / runs as f32)
    }
}
