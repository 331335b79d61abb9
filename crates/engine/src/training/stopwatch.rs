//! Laps of work that a device does: by the clock on the CPU, by marks in its queue on a GPU, where nobody waits between them.

use std::time::Instant;

use candle_core::{Device, Result};

use crate::span::Mark;

/// Measures consecutive laps, each under a label; several may have the same.
#[derive(Debug)]
pub(crate) struct Stopwatch<L> {
    device: Device,
    start: Instant,
    first: Mark,
    laps: Vec<(L, Mark)>,
}

/// Laps that are over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Laps<L> {
    each: Vec<(L, f64)>,
    /// Seconds from the start until all was done, the host's time included.
    pub(crate) total_s: f64,
}

impl<L: Copy + PartialEq> Stopwatch<L> {
    /// Starts once `device` has finished what it was given before.
    pub(crate) fn start(device: &Device) -> Result<Self> {
        device.synchronize()?;
        Ok(Self {
            device: device.clone(),
            start: Instant::now(),
            first: Mark::new(device)?,
            laps: Vec::new(),
        })
    }

    /// Ends a lap: what the device was given since the last one belongs to it.
    pub(crate) fn lap(&mut self, label: L) -> Result<()> {
        self.laps.push((label, Mark::new(&self.device)?));
        Ok(())
    }

    /// Waits for the device, and reads the laps.
    ///
    /// # Errors
    /// Those of the device, of which some only tell now what failed before.
    pub(crate) fn finish(self) -> Result<Laps<L>> {
        self.device.synchronize()?;
        let total_s = self.start.elapsed().as_secs_f64();
        let mut each = Vec::with_capacity(self.laps.len());
        let mut before = self.first;
        for (label, mark) in self.laps {
            each.push((label, before.seconds_to(&mark)?));
            before = mark;
        }
        Ok(Laps { each, total_s })
    }
}

impl<L: PartialEq> Laps<L> {
    /// Seconds of all laps under a label.
    pub(crate) fn seconds(&self, label: L) -> f64 {
        let of_label = self.each.iter().filter(|(one, _)| *one == label);
        of_label.map(|(_, seconds)| seconds).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn laps_of_a_label_are_added_up_and_lie_within_the_whole() {
        let mut clock = Stopwatch::start(&Device::Cpu).unwrap();
        for label in ["forward", "backward", "forward"] {
            std::thread::sleep(Duration::from_millis(2));
            clock.lap(label).unwrap();
        }
        let laps = clock.finish().unwrap();
        assert!(laps.seconds("forward") >= 4e-3 && laps.seconds("backward") >= 2e-3);
        assert_eq!(laps.seconds("optimizer"), 0.0);
        assert!(laps.seconds("forward") + laps.seconds("backward") <= laps.total_s);
    }
}
