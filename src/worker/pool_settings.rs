//! Settings of a pool of workers: where they run, how they measure beside one another, and when one counts as dead.

use std::sync::Arc;
use std::time::Duration;

use super::{Launcher, Placement};
use peft_tune_core::recipe::Recipe;

/// Ways in which profile phases of workers on the same hardware go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measuring {
    /// A profile phase has its hardware to itself: the other workers on it wait.
    #[default]
    Alone,
    /// Profile phases run side by side. What was measured so is marked by the metric `neighbours`.
    Shared,
}

/// Limit on the trials that a worker may have at once.
#[derive(Clone)]
pub struct TrainTogether {
    /// Most trials at once.
    pub most: usize,
    fits: Arc<FitsTogether>,
}

/// Whether the memory holds the trainings of these recipes at once.
type FitsTogether = dyn Fn(&[&Recipe]) -> bool + Send + Sync;

impl TrainTogether {
    /// A limit of so many trials, where `fits` says that the memory holds them.
    pub fn new(most: usize, fits: impl Fn(&[&Recipe]) -> bool + Send + Sync + 'static) -> Self {
        Self {
            most: most.max(1),
            fits: Arc::new(fits),
        }
    }

    pub(super) fn fits(&self, recipes: &[&Recipe]) -> bool {
        (self.fits)(recipes)
    }
}

impl Default for TrainTogether {
    /// One trial at a time.
    fn default() -> Self {
        Self::new(1, |_| false)
    }
}

impl std::fmt::Debug for TrainTogether {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TrainTogether")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

/// Settings by which a pool is made and watched.
#[derive(Clone, Debug)]
pub struct PoolSettings {
    pub launcher: Launcher,
    /// Places of the workers, one each.
    pub slots: Vec<Placement>,
    pub measuring: Measuring,
    pub together: TrainTogether,
    /// Whether a process ends with its trial, for trials that leave behind what nobody can put back.
    pub process_per_trial: bool,
    /// Time between two heartbeats of a worker.
    pub heartbeat: Duration,
    /// Silence after which a worker counts as dead.
    pub silent_after: Duration,
    /// Time without a step, evaluation or phase after which a trial counts as stuck.
    pub stuck_after: Duration,
    /// Time within which a process has to greet.
    pub start_within: Duration,
}

impl PoolSettings {
    /// The usual settings of a pool.
    pub fn new(launcher: Launcher, slots: Vec<Placement>) -> Self {
        Self {
            launcher,
            slots,
            measuring: Measuring::default(),
            together: TrainTogether::default(),
            process_per_trial: false,
            heartbeat: Duration::from_secs(1),
            silent_after: Duration::from_secs(30),
            stuck_after: Duration::from_secs(1800),
            start_within: Duration::from_secs(300),
        }
    }

    /// Whether the worker of a slot has to wait for its turn to measure.
    pub(super) fn takes_turns(&self, slot: &Placement) -> bool {
        let sharing = self.slots.iter().filter(|other| other.hardware == slot.hardware);
        self.measuring == Measuring::Alone && sharing.count() > 1
    }
}
