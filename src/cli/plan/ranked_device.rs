//! [`RankedDevice`]: a device with a data sheet, and what a study's training costs there.
//!
//! Each device has the setting that trains a token at the least cost: of those that fit, the one with the most tokens a second of each
//! device that is paid.

use std::cmp::Ordering;

use crate::tune::{CostSurvey, Forecast, FullTraining, SurveyedSetting};
use peft_tune_core::predict::{DataSheet, DevicePrice};

/// Tokens that costs are compared by.
const COMPARED_TOKENS: f64 = 1e6;

/// A device with what the study would be there.
pub(super) struct RankedDevice {
    pub sheet: &'static DataSheet,
    pub price: Option<DevicePrice>,
    /// Share of the settings that fit as predicted.
    pub fitting: f64,
    /// Bytes of the setting that needs the least.
    pub least_bytes: Option<f64>,
    /// The setting that trains a token at the least cost, where one fits.
    pub best: Option<BestSetting>,
}

/// The setting of a device that trains a token at the least cost.
pub(super) struct BestSetting {
    pub setting: SurveyedSetting,
    /// US dollars of a million tokens, where the device has a price.
    pub usd_per_million: Option<f64>,
    /// Seconds of a device for a million tokens.
    device_s_per_million: f64,
    /// The training that the study is for, where its length in tokens is known.
    pub training: Option<FullTraining>,
}

impl RankedDevice {
    /// A device with the costs of a study there.
    pub(super) fn new(
        sheet: &'static DataSheet,
        price: Option<DevicePrice>,
        survey: &CostSurvey,
        forecast: &Forecast,
    ) -> Self {
        let fitting = survey.settings.iter().filter(|one| one.fits);
        let timed = fitting.filter(|one| one.tokens_per_s.value > 0.0);
        let timed = timed.map(|setting| (setting.tokens_per_device_s(forecast), setting));
        let best = timed.max_by(|(one, _), (other, _)| one.total_cmp(other));
        let best = best.map(|(speed, setting)| BestSetting::new(setting, speed, price.as_ref(), forecast));
        let bytes = survey.settings.iter().map(|one| one.peak_bytes.value);
        Self {
            sheet,
            price,
            fitting: survey.fitting as f64 / survey.looked_at.max(1) as f64,
            least_bytes: bytes.reduce(f64::min),
            best,
        }
    }

    /// The order of two devices: those with a price come first, the cheapest first; then those without, the fastest first; then those on
    /// which nothing fits.
    pub(super) fn ranked(&self, other: &Self) -> Ordering {
        let key = |device: &Self| match &device.best {
            Some(best) => match best.usd_per_million {
                Some(usd) => (0, usd),
                None => (1, best.device_s_per_million),
            },
            None => (2, -(device.sheet.memory_bytes as f64)),
        };
        let (own, other) = (key(self), key(other));
        own.0.cmp(&other.0).then(own.1.total_cmp(&other.1))
    }
}

impl BestSetting {
    fn new(
        setting: &SurveyedSetting,
        tokens_per_device_s: f64,
        price: Option<&DevicePrice>,
        forecast: &Forecast,
    ) -> Self {
        let device_s_per_million = COMPARED_TOKENS / tokens_per_device_s;
        Self {
            usd_per_million: price.map(|price| price.usd(device_s_per_million)),
            device_s_per_million,
            training: setting.full_training(forecast),
            setting: setting.clone(),
        }
    }

    /// US dollars of the full training on devices of this price.
    pub(super) fn training_usd(&self, price: Option<&DevicePrice>) -> Option<f64> {
        Some(self.training?.usd(price?))
    }
}
