//! Ceilings of the device: the roofline that ops and steps are held against.

use serde::{Deserialize, Serialize};

/// Ceilings of one device at one number type.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// FLOP/s of large products.
    pub flops_per_s: f64,
    /// Bytes per second of a pass over memory.
    pub bytes_per_s: f64,
    pub from: CeilingSource,
}

/// Source of a ceiling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CeilingSource {
    /// The engine's own ops reached them on this device.
    #[default]
    Measured,
    /// The maker publishes them.
    DataSheet,
}

impl CeilingSource {
    /// Name as people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::DataSheet => "data sheet",
        }
    }
}

impl Ceiling {
    /// Seconds that so many FLOPs and bytes take at least: the longer of the two, since they overlap.
    pub fn least_seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / self.flops_per_s).max(bytes / self.bytes_per_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_arithmetic_and_memory_decides() {
        let ceiling = Ceiling {
            flops_per_s: 100.0,
            bytes_per_s: 10.0,
            from: CeilingSource::Measured,
        };
        assert_eq!(ceiling.least_seconds(200.0, 1.0), 2.0);
        assert_eq!(ceiling.least_seconds(1.0, 50.0), 5.0);
    }
}
