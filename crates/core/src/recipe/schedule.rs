//! Course of the learning rate; the shapes of it, one row each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::named::named;
use crate::quantity::{self, StepsOrShare};

/// Course of the learning rate over the training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    pub kind: ScheduleKind,
    /// Linear warm-up: a number of steps (1 or more), or a fraction of all steps (below 1).
    #[serde(deserialize_with = "quantity::steps_or_share")]
    #[schemars(with = "StepsOrShare")]
    pub warmup: f64,
    /// Steps at the end over which `wsd` falls: a number (1 or more), or a fraction of all steps (below 1).
    /// 0.1 where absent.
    #[serde(
        deserialize_with = "quantity::optional_steps_or_share",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(with = "Option<StepsOrShare>")]
    pub decay: Option<f64>,
    /// How `wsd` falls. Absent: `cosine`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_type: Option<DecayType>,
    /// Lowest learning rate over the peak, of `cosine_with_min_lr` and `wsd`. Absent: 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_lr_rate: Option<f64>,
}

impl ScheduleSettings {
    /// Warm-up steps of a training of `total` steps.
    pub fn warmup_steps(&self, total: u64) -> u64 {
        steps_of(self.warmup, total)
    }

    /// Steps over which `wsd` falls at the end of a training of `total` steps.
    pub fn decay_steps(&self, total: u64) -> u64 {
        steps_of(self.decay(), total)
    }

    /// Share or number of the steps that `wsd` falls in: as it is set, or a tenth of all steps.
    pub fn decay(&self) -> f64 {
        self.decay.unwrap_or(0.1)
    }

    /// How `wsd` falls.
    pub fn decay_type(&self) -> DecayType {
        self.decay_type.unwrap_or_default()
    }

    /// The lowest learning rate over the peak, of schedules that have one.
    pub fn min_lr_rate(&self) -> f64 {
        self.min_lr_rate.unwrap_or(0.1)
    }
}

/// A number of steps (1 or more), or a fraction of all of them.
fn steps_of(value: f64, total: u64) -> u64 {
    if value >= 1.0 {
        value as u64
    } else {
        (value * total as f64).ceil() as u64
    }
}

/// How the learning rate falls where it falls at the end only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecayType {
    /// Falls along half a cosine.
    #[default]
    Cosine,
    /// Falls in a straight line.
    Linear,
    /// Falls by the square root of the share of its steps (arXiv:2405.18392).
    #[serde(rename = "1-sqrt")]
    OneMinusSqrt,
}

impl DecayType {
    /// Names in recipes, study files and transformers.
    pub const NAMES: [&'static str; 3] = ["cosine", "linear", "1-sqrt"];
}

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    Constant,
    Linear,
    #[default]
    Cosine,
    CosineWithMinLr,
    Wsd,
}

/// Row of the table of schedules.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScheduleRow {
    #[serde(skip)]
    pub kind: ScheduleKind,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Arguments of transformers' function for it beside the warm-up, with the settings that they are.
    pub arguments: &'static [(&'static str, &'static str)],
}

const ROWS: &[ScheduleRow] = &[
    ScheduleRow {
        kind: ScheduleKind::Constant,
        name: "constant",
        aliases: &[],
        about: "Stays as it is.",
        arguments: &[],
    },
    ScheduleRow {
        kind: ScheduleKind::Linear,
        name: "linear",
        aliases: &[],
        about: "Falls to zero in a straight line.",
        arguments: &[],
    },
    ScheduleRow {
        kind: ScheduleKind::Cosine,
        name: "cosine",
        aliases: &[],
        about: "Falls to zero along half a cosine.",
        arguments: &[],
    },
    ScheduleRow {
        kind: ScheduleKind::CosineWithMinLr,
        name: "cosine_with_min_lr",
        aliases: &[],
        about: "Falls to `min_lr_rate` of the peak along half a cosine.",
        arguments: &[("min_lr_rate", "min_lr_rate")],
    },
    ScheduleRow {
        kind: ScheduleKind::Wsd,
        name: "wsd",
        aliases: &["warmup_stable_decay"],
        about: "Stays as it is, and falls to `min_lr_rate` of the peak in the last steps (arXiv:2404.06395).",
        arguments: &[
            ("num_decay_steps", "lr_decay"),
            ("decay_type", "lr_decay_type"),
            ("min_lr_ratio", "min_lr_rate"),
        ],
    },
];

named!(
    ScheduleKind,
    ScheduleRow,
    ROWS,
    "ScheduleKind",
    "Shape of the learning rate after the warm-up."
);
