//! Precision in which a training's steps compute: all in the recipe's own, or some of them in F32.
//!
//! Frozen weights stay in their 16-bit storage, whatever a step computes in: products widen what they pack. So a step in
//! F32 costs activations of twice the size and slower products, and no second copy of the weights. Adapters, gradients
//! and optimizer states are F32 in every step, so nothing is converted at a switch.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Precision, Recipe};

/// Steps of a training that compute in F32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PrecisionSchedule {
    /// All steps compute in the recipe's precision.
    #[default]
    None,
    /// The first steps compute in F32, all others in the recipe's precision.
    Fp32First(NonZeroU64),
    /// The first so many steps compute in F32. After these and after every so many further ones it is decided anew, by
    /// the noise of the gradients and by overflows.
    Adaptive(NonZeroU64),
}

/// Why a recipe's schedule cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPrecisionSchedule {
    #[error(
        "`precision_schedule: {schedule}` needs `precision` bf16 or fp16: {why}; take one of these, or \
         `precision_schedule: none`"
    )]
    Precision {
        schedule: PrecisionSchedule,
        why: &'static str,
    },
    #[error(
        "`precision_schedule: {schedule}` is as long as the training or longer, which has {steps} steps: no step would \
         compute in {precision}; lower it, train longer, or write `precision: fp32`"
    )]
    TooLong {
        schedule: PrecisionSchedule,
        steps: u64,
        precision: &'static str,
    },
}

impl PrecisionSchedule {
    /// Regular expression of the names, for schemas.
    pub const PATTERN: &str = "^(none|(fp32|adaptive)_[1-9][0-9]*)$";

    /// The words that say which names there are.
    pub const LEGAL: &str = "none, fp32_N (the first N steps in fp32: fp32_20, ...) or adaptive_N (decided every N steps: \
                             adaptive_20, ...)";

    /// The schedule with this name: `none`, `fp32_N` or `adaptive_N`, N at least 1.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "none" {
            return Some(Self::None);
        }
        let (kind, digits) = name.split_once('_')?;
        let canonical = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
        let steps: NonZeroU64 = canonical.then(|| digits.parse().ok())??;
        match kind {
            "fp32" => Some(Self::Fp32First(steps)),
            "adaptive" => Some(Self::Adaptive(steps)),
            _ => None,
        }
    }

    /// Whether all steps compute in one precision.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Whether gradients decide.
    pub fn is_adaptive(self) -> bool {
        matches!(self, Self::Adaptive(_))
    }

    /// Steps at the beginning that compute in F32 whatever happens.
    pub fn first_fp32_steps(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Fp32First(steps) | Self::Adaptive(steps) => steps.get(),
        }
    }

    /// Part of a training of `steps` steps that computes in F32 at least, from 0 to 1.
    pub fn fp32_share(self, steps: f64) -> f64 {
        match self.first_fp32_steps() {
            0 => 0.0,
            first if steps > 0.0 => (first as f64 / steps).min(1.0),
            _ => 1.0,
        }
    }

    /// Checks that frozen weights of `precision` can be computed with in both ways.
    ///
    /// # Errors
    /// A precision that computes in F32 anyway, or that stores codes.
    pub fn check(self, precision: Precision) -> Result<(), BadPrecisionSchedule> {
        let why = match precision {
            _ if self.is_none() => return Ok(()),
            Precision::Bf16 | Precision::Fp16 => return Ok(()),
            Precision::Fp32 => "fp32 computes all steps in fp32 already",
            Precision::Int8 => "int8 rounds the weights far more than bf16 rounds a step",
            Precision::Nf4 => "nf4 rounds the weights far more than bf16 rounds a step",
            Precision::Nf4Double => "nf4_double rounds the weights far more than bf16 rounds a step",
        };
        Err(BadPrecisionSchedule::Precision { schedule: self, why })
    }
}

impl Recipe {
    /// Checks the schedule of the precision against the precision, and against the training's `steps` where they are known.
    ///
    /// # Errors
    /// A precision that has no schedule; a schedule that never reaches the recipe's precision.
    pub fn check_precision_schedule(&self, steps: Option<u64>) -> Result<(), BadPrecisionSchedule> {
        let schedule = self.precision_schedule;
        schedule.check(self.precision)?;
        match steps {
            Some(steps) if !schedule.is_none() && schedule.first_fp32_steps() >= steps => {
                Err(BadPrecisionSchedule::TooLong {
                    schedule,
                    steps,
                    precision: self.precision.name(),
                })
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for PrecisionSchedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => formatter.write_str("none"),
            Self::Fp32First(steps) => write!(formatter, "fp32_{steps}"),
            Self::Adaptive(steps) => write!(formatter, "adaptive_{steps}"),
        }
    }
}

impl Serialize for PrecisionSchedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PrecisionSchedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        Self::from_name(&name)
            .ok_or_else(|| D::Error::custom(format!("unknown precision_schedule `{name}`; write {}", Self::LEGAL)))
    }
}

impl JsonSchema for PrecisionSchedule {
    fn schema_name() -> Cow<'static, str> {
        "PrecisionSchedule".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "Which steps compute in fp32 instead of the recipe's bf16 or fp16: none, the first N (fp32_N), or the first N and then as the gradients' noise and overflows say, decided every N steps (adaptive_N).",
            "type": "string",
            "pattern": Self::PATTERN,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::DataSettings;

    #[test]
    fn schedules_have_one_name_each() {
        for name in ["none", "fp32_1", "fp32_200", "adaptive_50"] {
            assert_eq!(PrecisionSchedule::from_name(name).unwrap().to_string(), name);
        }
        for name in [
            "",
            "fp32",
            "fp32_",
            "fp32_0",
            "fp32_01",
            "fp32_+1",
            "bf16_3",
            "adaptive",
            "adaptive_-2",
        ] {
            assert_eq!(PrecisionSchedule::from_name(name), None, "{name}");
        }
    }

    #[test]
    fn only_16_bit_precisions_have_a_schedule() {
        let schedule = PrecisionSchedule::from_name("adaptive_5").unwrap();
        for precision in Precision::ALL {
            let is_16_bit = matches!(precision, Precision::Bf16 | Precision::Fp16);
            assert_eq!(schedule.check(precision).is_ok(), is_16_bit, "{precision:?}");
            assert!(PrecisionSchedule::None.check(precision).is_ok());
        }
    }

    #[test]
    fn a_schedule_ends_before_the_training_does() {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.precision_schedule = PrecisionSchedule::from_name("fp32_10").unwrap();
        assert!(recipe.check_precision_schedule(None).is_ok());
        assert!(recipe.check_precision_schedule(Some(11)).is_ok());
        let text = recipe.check_precision_schedule(Some(10)).unwrap_err().to_string();
        assert!(text.contains("has 10 steps") && text.contains("bf16"), "{text}");
        assert_eq!(recipe.precision_schedule.fp32_share(40.0), 0.25);
    }
}
