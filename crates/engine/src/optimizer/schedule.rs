//! The learning rate over the course of a training, as transformers' `get_*_schedule_with_warmup` and
//! `get_wsd_schedule`.

use std::f64::consts::PI;

use peft_tune_core::recipe::{DecayType, ScheduleKind, ScheduleSettings};

/// Learning rate of the step that follows `done` steps, in a training of `total` steps with the peak rate `base`.
///
/// With w warm-up steps: base * done / max(1, w) while done < w, so the first step of a warm-up has rate 0. Then, with
/// q = (done - w) / max(1, total - w): constant 1, linear max(0, 1 - q), cosine max(0, h(q)) with
/// h(q) = (1 + cos(pi q)) / 2.
///
/// With m the lowest rate over the peak: cosine_with_min_lr is m + (1 - m) h(q). wsd rises from m in place of 0, stays
/// at 1 until the last d steps and falls by m + (1 - m) f(p), p = (done - total + d) / max(1, d), with f(p) = h(p),
/// 1 - p or 1 - sqrt(p).
pub fn learning_rate(settings: &ScheduleSettings, base: f64, done: u64, total: u64) -> f64 {
    let lowest = settings.min_lr_rate();
    let above_lowest = |factor: f64| base * (factor * (1.0 - lowest) + lowest).max(0.0);
    let warmup = settings.warmup_steps(total);
    if done < warmup {
        return match settings.kind {
            ScheduleKind::Wsd => above_lowest(done as f64 / warmup as f64),
            _ => base * done as f64 / warmup as f64,
        };
    }
    let decay_steps = total.saturating_sub(warmup).max(1) as f64;
    let progress = (done - warmup) as f64 / decay_steps;
    match settings.kind {
        ScheduleKind::Constant => base,
        ScheduleKind::Linear => base * ((total as f64 - done as f64).max(0.0) / decay_steps),
        ScheduleKind::Cosine => base * half_cosine(progress).max(0.0),
        ScheduleKind::CosineWithMinLr => above_lowest(half_cosine(progress)),
        ScheduleKind::Wsd => above_lowest(fall(settings, done, total)),
    }
}

/// Rate for optimizers that are [schedule-free](peft_tune_core::recipe::OptimizerKind::is_schedule_free), as they set
/// it themselves: base * (done + 1) / w in the w steps of a warm-up, so that the first one has a rate, and then `base`.
pub fn schedule_free_rate(settings: &ScheduleSettings, base: f64, done: u64, total: u64) -> f64 {
    let warmup = settings.warmup_steps(total);
    match done < warmup {
        true => base * ((done + 1) as f64 / warmup as f64),
        false => base,
    }
}

/// Factor of wsd behind its warm-up, before the lowest rate is put under it.
fn fall(settings: &ScheduleSettings, done: u64, total: u64) -> f64 {
    let steps = settings.decay_steps(total);
    let Some(fallen) = (done + steps).checked_sub(total) else {
        return 1.0;
    };
    if fallen >= steps {
        return 0.0;
    }
    let progress = fallen as f64 / steps as f64;
    match settings.decay_type() {
        DecayType::Cosine => half_cosine(progress),
        DecayType::Linear => 1.0 - progress,
        DecayType::OneMinusSqrt => 1.0 - progress.sqrt(),
    }
}

fn half_cosine(progress: f64) -> f64 {
    0.5 * (1.0 + (PI * progress).cos())
}
