//! How the rows of an epoch are dealt out in steps. Whoever counts steps, or the rows of one, counts them here.
//!
//! | symbol | meaning |
//! |---|---|
//! | n | rows of an epoch |
//! | g | rows of a global batch |
//! | s | steps of an epoch: n / g, rounded up |
//!
//! An epoch takes every row once and begins with a step of its own, so its last step holds the n - (s - 1) g rows that are left. The
//! Trainer of transformers counts the same: it divides the rows by a micro-batch and the micro-batches by the accumulation,
//! rounding up both times, which is n / g rounded up once.

use std::ops::Range;

use super::BatchSettings;

/// The steps of epochs that have so many rows each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochSteps {
    /// Rows of an epoch, at least 1.
    rows: u64,
    /// Rows of a step, at least 1.
    global_batch: u64,
}

impl EpochSteps {
    /// Steps of epochs of `rows` rows, in the global batches of `batch`.
    pub fn new(rows: u64, batch: &BatchSettings) -> Self {
        Self {
            rows: rows.max(1),
            global_batch: (batch.global_batch() as u64).max(1),
        }
    }

    /// Steps of an epoch.
    pub fn per_epoch(self) -> u64 {
        self.rows.div_ceil(self.global_batch)
    }

    /// Steps of an epoch that hold a whole global batch.
    pub fn full_per_epoch(self) -> u64 {
        self.rows / self.global_batch
    }

    /// Rows of a step that is not cut short by the end of its epoch: all rows, where an epoch is one step.
    pub fn rows_per_full_step(self) -> u64 {
        self.rows.min(self.global_batch)
    }

    /// Steps of a training of so many epochs, at least one. A part of an epoch is that part of its steps, rounded up.
    pub fn of_epochs(self, epochs: f64) -> u64 {
        ((epochs * self.per_epoch() as f64).ceil() as u64).max(1)
    }

    /// Fewest steps that take the first `rows` rows of all epochs, at least one.
    pub fn of_rows(self, rows: u64) -> u64 {
        let (whole, begun) = (rows / self.rows, rows % self.rows);
        let steps = whole * self.per_epoch() + begun.div_ceil(self.global_batch);
        steps.max(1)
    }

    /// Rows of step `step`, which counts from 0: their places among those of all epochs.
    pub fn rows_of(self, step: u64) -> Range<u64> {
        let (epoch, within) = (step / self.per_epoch(), step % self.per_epoch());
        let first = within * self.global_batch;
        let end = first.saturating_add(self.global_batch).min(self.rows);
        let before = epoch.saturating_mul(self.rows);
        before.saturating_add(first)..before.saturating_add(end)
    }

    /// Epochs that so many steps take.
    pub fn epochs_of(self, steps: u64) -> f64 {
        let (whole, within) = (steps / self.per_epoch(), steps % self.per_epoch());
        whole as f64 + (within * self.global_batch) as f64 / self.rows as f64
    }

    /// The step that is number `number`, from 0, of those that no end of an epoch cuts short.
    pub fn full_step(self, number: u64) -> u64 {
        match self.full_per_epoch() {
            // An epoch is one step.
            0 => number,
            full => {
                let before = (number / full).saturating_mul(self.per_epoch());
                before.saturating_add(number % full)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn steps(rows: u64, global_batch: usize) -> EpochSteps {
        let batch = BatchSettings {
            micro_batch: global_batch,
            ..BatchSettings::default()
        };
        EpochSteps::new(rows, &batch)
    }

    proptest! {
        #[test]
        fn every_row_of_an_epoch_has_its_step_and_no_step_has_rows_of_two_epochs(
            rows in 1_u64..200,
            global_batch in 1_usize..100,
        ) {
            let steps = steps(rows, global_batch);
            let mut next = 0;
            for step in 0..3 * steps.per_epoch() {
                let of_step = steps.rows_of(step);
                prop_assert_eq!(of_step.start, next);
                prop_assert!(!of_step.is_empty());
                prop_assert_eq!(of_step.start / rows, (of_step.end - 1) / rows);
                let is_last = (step + 1).is_multiple_of(steps.per_epoch());
                prop_assert!(is_last || of_step.end - of_step.start == global_batch as u64);
                // Counting back: these rows take so many steps, and one more takes another.
                prop_assert_eq!(steps.of_rows(of_step.start + 1), step + 1);
                prop_assert_eq!(steps.of_rows(of_step.end), step + 1);
                prop_assert!((steps.epochs_of(step) - of_step.start as f64 / rows as f64).abs() < 1e-9);
                next = of_step.end;
            }
            prop_assert_eq!(next, 3 * rows);
        }

        #[test]
        fn full_steps_are_those_that_nothing_cuts_short(rows in 1_u64..200, global_batch in 1_usize..100) {
            let steps = steps(rows, global_batch);
            let full = (0..5 * steps.per_epoch()).filter(|step| {
                let of_step = steps.rows_of(*step);
                of_step.end - of_step.start == steps.rows_per_full_step()
            });
            for (number, step) in full.enumerate() {
                prop_assert_eq!(steps.full_step(number as u64), step);
            }
        }

        #[test]
        fn full_steps_of_an_epoch_have_whole_batches(
            rows in 1_u64..200,
            global_batch in 1_usize..100,
        ) {
            let steps = steps(rows, global_batch);
            let full = (0..steps.per_epoch()).filter(|step| {
                let of_step = steps.rows_of(*step);
                of_step.end - of_step.start == global_batch as u64
            });
            prop_assert_eq!(steps.full_per_epoch(), full.count() as u64);
        }

        #[test]
        fn micro_batches_counted_first_give_the_same_steps(
            rows in 1_u64..2000,
            micro_batch in 1_usize..20,
            gradient_accumulation in 1_usize..20,
        ) {
            let batch = BatchSettings { micro_batch, gradient_accumulation, ..BatchSettings::default() };
            let micro_batches = rows.div_ceil(micro_batch as u64);
            let expected = micro_batches.div_ceil(gradient_accumulation as u64);
            prop_assert_eq!(EpochSteps::new(rows, &batch).per_epoch(), expected);
        }
    }

    #[test]
    fn three_rows_in_a_batch_of_64_are_a_step_an_epoch() {
        let steps = steps(3, 64);
        assert_eq!(
            (steps.per_epoch(), steps.of_epochs(1.0), steps.of_epochs(3.0)),
            (1, 1, 3)
        );
        assert_eq!((steps.rows_of(0), steps.rows_of(2)), (0..3, 6..9));
        assert_eq!(steps.epochs_of(3), 3.0);
    }

    #[test]
    fn a_part_of_an_epoch_is_rounded_up_to_steps() {
        // Steps of 4, 4 and 2 rows.
        let steps = steps(10, 4);
        let counts = [0.01, 0.5, 1.0, 1.1, 2.0].map(|epochs| steps.of_epochs(epochs));
        assert_eq!(counts, [1, 2, 3, 4, 6]);
        assert_eq!(steps.epochs_of(2), 0.8);
    }

    #[test]
    fn nothing_overflows() {
        let steps = steps(u64::MAX, usize::MAX);
        assert_eq!(steps.rows_of(u64::MAX), u64::MAX..u64::MAX);
        assert_eq!((steps.of_rows(u64::MAX), steps.full_step(u64::MAX)), (1, u64::MAX));
        assert!(
            EpochSteps::new(0, &BatchSettings::default())
                .epochs_of(u64::MAX)
                .is_finite()
        );
    }
}
