//! Timing one op: a few runs, and the time that a quiet run takes.

use std::time::Instant;

use candle_core::Result;

/// How much time a measurement may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few seconds.
    Full,
    /// Fewer points: for programs that were built without optimisation, and for tests.
    Coarse,
}

impl Effort {
    /// Effort that measuring with this build of the program is worth.
    pub fn of_this_build() -> Self {
        if cfg!(debug_assertions) {
            Self::Coarse
        } else {
            Self::Full
        }
    }

    /// The points of an axis: all, or the first two.
    pub(super) fn points(self, all: &[usize]) -> Vec<usize> {
        match self {
            Self::Full => all.to_vec(),
            Self::Coarse => all.iter().take(2).copied().collect(),
        }
    }

    fn seconds(self) -> f64 {
        match self {
            Self::Full => 1.5e-3,
            Self::Coarse => 2e-4,
        }
    }
}

/// Runs of one op.
const FEWEST: usize = 3;
const MOST: usize = 40;
/// A run that takes so many seconds is repeated once: what interrupts it is short beside it, and on a slow processor, or one
/// that is emulated, the whole would take minutes.
const LONG_S: f64 = 0.05;

/// Seconds of one call of `run`: the lower quartile of several after one that warms up. Interruptions only ever add time,
/// and the median of few runs would keep some of it. Of a long call the faster of two.
pub(super) fn seconds(effort: Effort, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let begun = Instant::now();
    run()?;
    let first = begun.elapsed().as_secs_f64();
    if first >= LONG_S {
        let begun = Instant::now();
        run()?;
        return Ok(first.min(begun.elapsed().as_secs_f64()));
    }
    let (begun, mut times) = (Instant::now(), Vec::with_capacity(MOST));
    while times.len() < FEWEST || (times.len() < MOST && begun.elapsed().as_secs_f64() < effort.seconds()) {
        let started = Instant::now();
        run()?;
        times.push(started.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    // Never zero: the value's logarithm is taken.
    Ok(times[times.len() / 4].max(1e-8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Calls that a measurement makes of something that sleeps so long.
    fn calls(sleep: Duration) -> usize {
        let mut calls = 0;
        let run = || {
            calls += 1;
            std::thread::sleep(sleep);
            Ok(())
        };
        let told = seconds(Effort::Full, run).unwrap();
        assert!(told >= sleep.as_secs_f64(), "{told}");
        calls
    }

    #[test]
    fn a_long_run_is_repeated_once_and_a_short_one_some_times() {
        assert_eq!(calls(Duration::from_millis(60)), 2);
        assert!(calls(Duration::from_millis(1)) > FEWEST);
    }
}
