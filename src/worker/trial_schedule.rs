//! Course of the learning rate in a training that is shorter than the one it stands for.

use peft_tune_core::recipe::ScheduleSettings;

/// The schedule of a training of `steps` steps that stands for one of `full` steps: what is given in steps takes as large
/// a share of it as of the full one, a step at least. Warm-up steps of a training fourteen times as long would leave a
/// trial at rates that are not its own.
pub(crate) fn schedule_in_part(schedule: &ScheduleSettings, steps: u64, full: u64) -> ScheduleSettings {
    if steps >= full {
        return schedule.clone();
    }
    let share = steps as f64 / full as f64;
    ScheduleSettings {
        warmup: in_part(schedule.warmup, share),
        decay: schedule.decay.map(|decay| in_part(decay, share)),
        ..schedule.clone()
    }
}

/// Steps, or a share of all, of a part of the schedule in this share of the full training.
fn in_part(value: f64, share: f64) -> f64 {
    match value >= 1.0 {
        true => (value.trunc() * share).round().max(1.0),
        false => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn schedule(warmup: f64, decay: Option<f64>) -> ScheduleSettings {
        ScheduleSettings {
            warmup,
            decay,
            ..ScheduleSettings::default()
        }
    }

    #[test]
    fn steps_are_as_large_a_share_of_a_shorter_training() {
        let of_part = schedule_in_part(&schedule(100.0, Some(50.0)), 29, 420);
        assert_eq!((of_part.warmup, of_part.decay), (7.0, Some(3.0)));
        assert_eq!(schedule_in_part(&schedule(1.0, None), 29, 420).warmup, 1.0);
        // A share is one of any training, and the full training has what was given.
        assert_eq!(
            schedule_in_part(&schedule(0.03, Some(0.1)), 29, 420),
            schedule(0.03, Some(0.1))
        );
        assert_eq!(schedule_in_part(&schedule(100.0, None), 420, 420).warmup, 100.0);
    }

    proptest! {
        /// A warm-up that ends within the full training ends within a part of it.
        #[test]
        fn a_part_warms_up_within_its_steps(full in 2u64..10_000, steps in 1u64..10_000, warmup in 1u64..10_000) {
            prop_assume!(warmup <= full && steps <= full);
            let of_part = schedule_in_part(&schedule(warmup as f64, None), steps, full);
            prop_assert!(of_part.warmup_steps(steps) <= steps);
        }
    }
}
