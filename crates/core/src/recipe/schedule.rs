//! Course of the learning rate; the shapes of it, one row each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KeyValue::{Float, Text};
use super::named::named;
use super::tool_keys::{ToolKeys, keys};

/// Course of the learning rate over the training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ScheduleSettings {
    pub kind: ScheduleKind,
    /// Linear warm-up: a number of steps (1 or more), or a fraction of all steps (below 1).
    pub warmup: f64,
}

impl ScheduleSettings {
    /// Warm-up steps of a training of `total` steps.
    pub fn warmup_steps(&self, total: u64) -> u64 {
        if self.warmup >= 1.0 {
            self.warmup as u64
        } else {
            (self.warmup * total as f64).ceil() as u64
        }
    }
}

/// Shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ScheduleKind {
    Constant,
    Linear,
    #[default]
    Cosine,
}

/// What is to be known of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ScheduleRow {
    #[serde(skip)]
    pub kind: ScheduleKind,
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// What other tools call it.
    pub keys: ToolKeys,
    /// What they call it behind a warm-up, where that differs.
    pub keys_with_warmup: Option<ToolKeys>,
}

/// Keys of a schedule in transformers' `SchedulerType`, with the keys of torchtune.
macro_rules! scheduler {
    ($name:literal, $torchtune:expr) => {
        ToolKeys {
            peft: None,
            trl: keys!("lr_scheduler_type": Text($name)),
            axolotl: keys!("lr_scheduler": Text($name)),
            llamafactory: keys!("lr_scheduler_type": Text($name)),
            torchtune: $torchtune,
            unsloth: keys!("lr_scheduler_type": Text($name)),
        }
    };
}

const TORCHTUNE_COSINE: &str = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup";

const ROWS: &[ScheduleRow] = &[
    ScheduleRow {
        kind: ScheduleKind::Constant,
        name: "constant",
        aliases: &[],
        about: "Stays as it is.",
        // torchtune knows a constant rate as a cosine of no cycles.
        keys: scheduler!(
            "constant",
            keys!("_component_": Text(TORCHTUNE_COSINE), "num_cycles": Float(0.0))
        ),
        keys_with_warmup: Some(scheduler!(
            "constant_with_warmup",
            keys!("_component_": Text(TORCHTUNE_COSINE), "num_cycles": Float(0.0))
        )),
    },
    ScheduleRow {
        kind: ScheduleKind::Linear,
        name: "linear",
        aliases: &[],
        about: "Falls to zero in a straight line.",
        keys: scheduler!(
            "linear",
            keys!("_component_": Text("transformers.get_linear_schedule_with_warmup"))
        ),
        keys_with_warmup: None,
    },
    ScheduleRow {
        kind: ScheduleKind::Cosine,
        name: "cosine",
        aliases: &[],
        about: "Falls to zero along half a cosine.",
        keys: scheduler!("cosine", keys!("_component_": Text(TORCHTUNE_COSINE))),
        keys_with_warmup: None,
    },
];

named!(
    ScheduleKind,
    ScheduleRow,
    ROWS,
    "ScheduleKind",
    "Shape of the learning rate after the warm-up."
);

impl ScheduleSettings {
    /// What other tools call it, with the warm-up or without.
    pub fn keys(&self) -> &'static ToolKeys {
        let row = self.kind.row();
        match &row.keys_with_warmup {
            Some(keys) if self.warmup > 0.0 => keys,
            _ => &row.keys,
        }
    }
}
