//! The keys `pruner`, `stop` and `confirm` as they are written.

use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU64;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};

use super::name_or_map::name_or_map;
use peft_tune_core::quantity::{self, PositiveCount};
use peft_tune_core::space::PrunerKind;

/// A pruner: its name, or its name with settings.
#[derive(Clone, Debug, PartialEq)]
pub struct PrunerEntry(pub PrunerDetails);

/// A pruner with settings.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PrunerDetails {
    /// Name of the pruner.
    pub kind: PrunerKind,
    /// Share of a trial's steps before which `dominance` and `median` stop nothing; default 0.05 and 0.1.
    pub warm_up: Option<f64>,
    /// Share of the hypervolume: `dominance` also stops what would add less; default 0.
    pub least_gain: Option<f64>,
    /// Share of what the next trial is expected to add: `dominance` also stops what is expected to add less for each
    /// step that it has left; default 0.8, and 0 never does.
    pub worth: Option<f64>,
    /// Trials of which one passes a rung of `asha`; default 3.
    pub eta: Option<f64>,
    /// Steps of the lowest rung of `asha`; default 1.
    #[serde(default, deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub least_steps: Option<NonZeroU64>,
    /// Trials that must have come as far before `median` stops one; default 5.
    pub least_trials: Option<NonZeroU64>,
}

impl PrunerDetails {
    fn named(kind: PrunerKind) -> Self {
        Self {
            kind,
            warm_up: None,
            least_gain: None,
            worth: None,
            eta: None,
            least_steps: None,
            least_trials: None,
        }
    }
}

/// Rule by which a study ends before its budget, if any.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum StopEntry {
    /// Only the budget ends it.
    #[default]
    None,
    Rule(StopDetails),
}

/// Ends the study when the last `patience` trials brought, and the next is expected to bring, next to nothing.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StopDetails {
    /// Share of the hypervolume below which a gain is nothing; default 0.001.
    pub least_gain: Option<f64>,
    /// Trials in a row that must gain less; default 10.
    pub patience: Option<NonZeroU64>,
}

/// How a recommendation is confirmed.
#[derive(Clone, Debug, PartialEq)]
pub enum ConfirmEntry {
    /// No confirmation.
    None,
    Plan(ConfirmDetails),
}

/// Runs the recommended trial, and those that noise could put in its place, again and longer before it is final.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ConfirmDetails {
    /// Trials that may be confirmed; default 3.
    pub trials: Option<NonZeroU64>,
    /// Repeats that each may take; default 6, and in all no more than there are complete trials.
    pub repeats: Option<NonZeroU64>,
    /// Measured steps of each repeat; default 20.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub steps: Option<NonZeroU64>,
    /// Half width of the 95% interval, as a share of the value, that is enough; default 0.02.
    pub interval: Option<f64>,
    /// Trainings with other seeds that all trials may take together; default an eighth of the study's trainings.
    pub trainings: Option<u64>,
    /// Tokens that longer trainings of the finalists may take, as a share of those of all the study's trainings; default 1,
    /// 0 for none.
    pub longer: Option<f64>,
}

name_or_map!(
    PrunerEntry,
    "one of none, dominance, asha, median, or {kind: .., eta: ..}",
    |name| PrunerKind::from_name(name).map(|kind| PrunerEntry(PrunerDetails::named(kind))),
    PrunerEntry,
    "Pruner",
    |kind: PrunerKind, details: PrunerDetails| {"anyOf": [kind, details]}
);

name_or_map!(
    StopEntry,
    "none, or {least_gain: .., patience: ..}",
    |name| (name == "none").then_some(StopEntry::None),
    StopEntry::Rule,
    "Stop",
    |details: StopDetails| {"anyOf": [{"const": "none"}, details], "default": "none"}
);

name_or_map!(
    ConfirmEntry,
    "none, or {trials: .., repeats: .., steps: .., interval: ..}",
    |name| (name == "none").then_some(ConfirmEntry::None),
    ConfirmEntry::Plan,
    "Confirm",
    |details: ConfirmDetails| {"anyOf": [{"const": "none"}, details]}
);
