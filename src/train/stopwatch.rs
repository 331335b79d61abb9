//! Wall-clock laps that wait for the device, so that a lap holds the work it began.

use std::time::Instant;

use candle_core::{Device, Result};

/// Measures consecutive laps in seconds.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    device: Device,
    start: Instant,
    lap: Instant,
}

impl Stopwatch {
    /// Starts once `device` has finished what it was given before.
    pub(crate) fn start(device: &Device) -> Result<Self> {
        device.synchronize()?;
        let now = Instant::now();
        Ok(Self {
            device: device.clone(),
            start: now,
            lap: now,
        })
    }

    /// Seconds since the last lap, the device's work included.
    pub(crate) fn lap_s(&mut self) -> Result<f64> {
        self.device.synchronize()?;
        let now = Instant::now();
        let seconds = (now - self.lap).as_secs_f64();
        self.lap = now;
        Ok(seconds)
    }

    /// Seconds from the start to the last lap.
    pub(crate) fn total_s(&self) -> f64 {
        (self.lap - self.start).as_secs_f64()
    }
}
