//! A GPU's part: other processes on it, and a clock that heat or the hardware holds down.

use crate::profile::DeviceSample;
use crate::profile::sample::HeldBy;

/// Share of a GPU's time that a measurement lost: what others kept busy, or what a clock below its best cost. The power limit
/// is none of it: a large GPU computes at that limit whenever it is busy.
pub fn lost_on_gpu(samples: &[DeviceSample]) -> f64 {
    let others = mean(samples.iter().filter_map(|sample| sample.other_utilisation));
    others.clamp(0.0, 1.0).max(lost_to_clock(samples))
}

/// Share of a GPU's time that a clock below its best cost, where heat or the hardware held it down in some sample.
pub fn lost_to_clock(samples: &[DeviceSample]) -> f64 {
    let clocks = || samples.iter().filter_map(|sample| sample.clock_mhz);
    let best = clocks().fold(0.0, f64::max);
    let held = samples
        .iter()
        .any(|sample| matches!(sample.held_by, Some(HeldBy::Heat | HeldBy::Hardware)));
    match held && best > 0.0 {
        true => (1.0 - mean(clocks()) / best).clamp(0.0, 1.0),
        false => 0.0,
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    match values.len() {
        0 => 0.0,
        count => values.iter().sum::<f64>() / count as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_and_heat_take_time_and_the_power_limit_does_not() {
        let sample = |clock: f64, held_by: Option<HeldBy>, others: f64| DeviceSample {
            clock_mhz: Some(clock),
            held_by,
            other_utilisation: Some(others),
            ..DeviceSample::default()
        };
        assert_eq!(lost_on_gpu(&[]), 0.0);
        let power = Some(HeldBy::Power);
        assert_eq!(
            lost_on_gpu(&[sample(2000.0, power, 0.0), sample(1000.0, power, 0.0)]),
            0.0
        );
        let heat = Some(HeldBy::Heat);
        assert_eq!(
            lost_on_gpu(&[sample(2000.0, None, 0.0), sample(1000.0, heat, 0.0)]),
            0.25
        );
        assert_eq!(
            lost_on_gpu(&[sample(2000.0, None, 0.2), sample(2000.0, None, 0.6)]),
            0.4
        );
    }
}
