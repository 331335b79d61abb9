//! Speed of a stack's setting on its devices against that on one.

use super::device::StackDevice;
use super::predictor::{StackPrediction, predict};
use super::setting::Sharing;
use super::{ModelShape, StackError, StackSetting};
use crate::predict::{Scaling, StepSpeed};

/// Compares a setting with itself on one device, which has everything; `None` for one device.
///
/// # Errors
/// Errors of [`predict`].
pub fn scaling(shape: &ModelShape, setting: &StackSetting, device: StackDevice) -> Result<Option<Scaling>, StackError> {
    if setting.devices <= 1 {
        return Ok(None);
    }
    let alone = StackSetting {
        devices: 1,
        sharing: Sharing::Copies,
        ..setting.clone()
    };
    let one = predict(shape, &alone, Some(device))?;
    let all = predict(shape, setting, Some(device))?;
    Ok(scaling_of(setting.devices, device, &one, &all))
}

/// Compares predictions for several devices and for one of them.
pub(super) fn scaling_of(
    devices: u64,
    device: StackDevice,
    one: &StackPrediction,
    all: &StackPrediction,
) -> Option<Scaling> {
    let (one, all) = (speed(one)?, speed(all)?);
    Scaling::new(devices, Some(device.sheet.link()), one, all)
}

fn speed(prediction: &StackPrediction) -> Option<StepSpeed> {
    Some(StepSpeed {
        tokens_per_s: prediction.tokens_per_s?,
        step_s: prediction.step_s()?,
        link_s: prediction.link_s,
    })
}
