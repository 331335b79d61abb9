//! Use of a GPU while something was measured on it, as numbers for the database.

use super::DeviceSample;
use peft_tune_core::objective::{GPU_CLOCK_MHZ, GPU_POWER_W, GPU_TEMPERATURE_C, GPU_UTILISATION};
use peft_tune_core::study::Metrics;

/// A GPU over one measurement; what it does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DeviceUse {
    /// Mean part of the time in which it was busy, in [0, 1].
    pub utilisation: Option<f64>,
    /// Mean power.
    pub power_w: Option<f64>,
    /// The highest.
    pub temperature_c: Option<f64>,
    /// Mean clock.
    pub clock_mhz: Option<f64>,
}

impl DeviceUse {
    /// Summarises samples of a GPU.
    pub fn of(samples: &[DeviceSample]) -> Self {
        let values = |value: fn(&DeviceSample) -> Option<f64>| samples.iter().filter_map(value).collect::<Vec<f64>>();
        let mean = |value| {
            let values = values(value);
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        Self {
            utilisation: mean(|sample| sample.utilisation),
            power_w: mean(|sample| sample.power_w),
            temperature_c: values(|sample| sample.temperature_c).into_iter().max_by(f64::total_cmp),
            clock_mhz: mean(|sample| sample.clock_mhz),
        }
    }

    /// Writes them down.
    pub fn keep(&self, metrics: &mut Metrics) {
        let all = [
            (GPU_UTILISATION, self.utilisation),
            (GPU_POWER_W, self.power_w),
            (GPU_TEMPERATURE_C, self.temperature_c),
            (GPU_CLOCK_MHZ, self.clock_mhz),
        ];
        for (name, value) in all {
            if let Some(value) = value {
                metrics.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_and_the_highest_temperature_are_kept_and_what_is_not_told_is_absent() {
        let sample = |utilisation, temperature_c| DeviceSample {
            utilisation: Some(utilisation),
            temperature_c: Some(temperature_c),
            power_w: Some(300.0),
            ..DeviceSample::default()
        };
        let mut metrics = Metrics::default();
        DeviceUse::of(&[sample(0.5, 60.0), sample(1.0, 71.0)]).keep(&mut metrics);
        let kept: Vec<_> = metrics.iter().collect();
        assert_eq!(
            kept,
            [
                ("gpu_power_w", 300.0),
                ("gpu_temperature_c", 71.0),
                ("gpu_utilisation", 0.75)
            ]
        );
        assert_eq!(DeviceUse::of(&[]), DeviceUse::default());
    }
}
