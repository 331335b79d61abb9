//! Largest micro-batches at row lengths around that of a setting.

use serde::Serialize;

use peft_tune_core::predict::stack::{self, ModelShape, StackDevice, StackError, StackSetting};

/// The largest micro-batch at one length, and its speed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FrontierPoint {
    pub sequence_length: u64,
    pub micro_batch: u64,
    pub tokens_per_s: Option<f64>,
}

/// Half, once, twice and four times a length, as far as the model has positions.
pub fn lengths_around(length: u64, most: u64) -> impl Iterator<Item = u64> {
    let all = [
        length.div_ceil(2),
        length,
        length.saturating_mul(2),
        length.saturating_mul(4),
    ];
    all.into_iter().filter(move |one| *one <= most.max(length))
}

/// The largest micro-batch that fits at row lengths around that of a setting, as far as model and stack take them.
///
/// # Errors
/// Errors of [`stack::predict`].
pub(super) fn frontier(
    shape: &ModelShape,
    setting: &StackSetting,
    device: StackDevice,
) -> Result<Vec<FrontierPoint>, StackError> {
    let most = shape.max_positions.unwrap_or(u64::MAX);
    let mut points = Vec::new();
    for sequence_length in lengths_around(setting.sequence_length, most) {
        let mut one = StackSetting {
            sequence_length,
            ..setting.clone()
        };
        if one.check(shape).is_err() {
            continue;
        }
        let micro_batch = stack::largest_micro_batch(shape, &one, device)?;
        one.micro_batch = micro_batch.max(1);
        let tokens_per_s = stack::predict(shape, &one, Some(device))?.tokens_per_s;
        points.push(FrontierPoint {
            sequence_length,
            micro_batch,
            tokens_per_s: tokens_per_s.filter(|_| micro_batch > 0),
        });
    }
    Ok(points)
}
