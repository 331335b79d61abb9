//! Price of the devices that something runs on, and what its seconds then cost.
//!
//! | symbol | meaning |
//! |---|---|
//! | p | US dollars of a device's hour |
//! | n | devices that are held at once |
//! | t | seconds for which they are held |
//!
//! cost = p n t / 3600

use serde::{Deserialize, Serialize};

use super::list_price::list_price;
use crate::quantity::HourlyPrice;

/// Seconds of an hour.
const HOUR_S: f64 = 3600.0;

/// Price of a device's hour, and who says so.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DevicePrice {
    /// US dollars.
    pub usd_per_h: f64,
    /// Whoever says so, in words: the study file, an option, or the built-in list with provider and day.
    pub source: String,
}

/// Price of a worker's hour: that of a device, for all devices that it holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerPrice {
    #[serde(flatten)]
    pub device: DevicePrice,
    /// Devices that the worker holds, whichever of its trials runs.
    pub devices: u64,
}

impl DevicePrice {
    /// A price that someone gave, in the place that `source` names.
    pub fn given(price: HourlyPrice, source: &str) -> Self {
        Self {
            usd_per_h: price.0,
            source: source.to_owned(),
        }
    }

    /// The listed price of the device that the table of data sheets has under this name; `None` where none is listed.
    pub fn listed(device: &str) -> Option<Self> {
        let row = list_price(device)?;
        Some(Self {
            usd_per_h: row.usd_per_h,
            source: format!(
                "{}'s price as reported by others on {}, not checked; yours may differ",
                row.provider, row.date
            ),
        })
    }

    /// US dollars of so many seconds of one device.
    pub fn usd(&self, device_s: f64) -> f64 {
        self.usd_per_h * device_s / HOUR_S
    }
}

impl WorkerPrice {
    /// US dollars of so many seconds of the worker.
    pub fn usd(&self, seconds: f64) -> f64 {
        self.device.usd(seconds * self.devices as f64)
    }

    /// Seconds of the worker that so many US dollars pay.
    pub fn seconds(&self, usd: f64) -> f64 {
        usd * HOUR_S / (self.device.usd_per_h * self.devices as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_devices_of_a_worker_are_paid() {
        let device = DevicePrice::given(HourlyPrice(2.5), "--price");
        assert_eq!(device.usd(1800.0), 1.25);
        let worker = WorkerPrice { device, devices: 4 };
        assert_eq!((worker.usd(1800.0), worker.seconds(5.0)), (5.0, 1800.0));
        let text = serde_json::to_string(&worker).unwrap();
        assert_eq!(text, r#"{"usd_per_h":2.5,"source":"--price","devices":4}"#);
        assert_eq!(serde_json::from_str::<WorkerPrice>(&text).unwrap(), worker);
    }

    #[test]
    fn a_listed_price_says_whose_and_of_when_it_is_and_that_nobody_checked_it() {
        let listed = DevicePrice::listed("H100 SXM").unwrap();
        assert_eq!(
            listed.source,
            "Lambda's price as reported by others on 2026-09-20, not checked; yours may differ"
        );
        assert_eq!(DevicePrice::listed("this machine"), None);
    }
}
