//! The learning rate over the course of a training, as transformers' `get_*_schedule_with_warmup`.

use std::f64::consts::PI;

use peft_tune_core::recipe::{ScheduleKind, ScheduleSettings};

/// Learning rate of the step that follows `done` steps, in a training of `total` steps with the peak rate `base`.
///
/// With w warm-up steps: base * done / max(1, w) while done < w, so the first step of a warm-up has rate 0. Then, with
/// q = (done - w) / max(1, total - w): constant 1, linear max(0, 1 - q), cosine max(0, (1 + cos(pi q)) / 2).
pub fn learning_rate(settings: &ScheduleSettings, base: f64, done: u64, total: u64) -> f64 {
    let warmup = settings.warmup_steps(total);
    if done < warmup {
        return base * done as f64 / warmup.max(1) as f64;
    }
    let decay_steps = total.saturating_sub(warmup).max(1) as f64;
    base * match settings.kind {
        ScheduleKind::Constant => 1.0,
        ScheduleKind::Linear => (total as f64 - done as f64).max(0.0) / decay_steps,
        ScheduleKind::Cosine => {
            let progress = (done - warmup) as f64 / decay_steps;
            (0.5 * (1.0 + (PI * progress).cos())).max(0.0)
        }
    }
}
