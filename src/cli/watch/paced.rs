//! Looks that may take long, spaced so that they take a small part of a processor.

use std::time::{Duration, Instant};

/// Times that a look takes, which the next one waits for.
pub(super) const SPARING: u32 = 50;

/// Paces one kind of looks.
#[derive(Debug)]
pub(super) struct Paced {
    times: u32,
    /// End of the last look, and what it took.
    last: Option<(Instant, Duration)>,
}

impl Paced {
    /// Waits so many times as long as the last look took.
    pub(super) fn new(times: u32) -> Self {
        Self { times, last: None }
    }

    /// Whether a look is due: the last one is `least` ago, and long enough for what it took.
    pub(super) fn is_due(&self, least: Duration) -> bool {
        let waits = |took: Duration| least.max(took.saturating_mul(self.times));
        self.last.is_none_or(|(ended, took)| ended.elapsed() >= waits(took))
    }

    /// Time since the last look; `None` before the first one.
    pub(super) fn since(&self) -> Option<Duration> {
        self.last.map(|(ended, _)| ended.elapsed())
    }

    /// Looks.
    pub(super) fn look<T>(&mut self, look: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let found = look();
        self.last = Some((Instant::now(), began.elapsed()));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_long_is_not_due_at_once() {
        let (mut sparing, mut at_once) = (Paced::new(1_000_000), Paced::new(0));
        assert!(sparing.is_due(Duration::ZERO) && sparing.since().is_none());
        let pause = || std::thread::sleep(Duration::from_millis(2));
        sparing.look(pause);
        at_once.look(pause);
        assert!(!sparing.is_due(Duration::ZERO) && sparing.since().is_some());
        assert!(at_once.is_due(Duration::ZERO) && !at_once.is_due(Duration::from_secs(3600)));
    }
}
