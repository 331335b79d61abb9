//! Effort that a study may spend on one trial and on being sure: pruning, stopping, confirming.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The rules that stop a poor trial early, by the names that space files and the database use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::EnumString, strum::IntoStaticStr, strum::VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum PrunerKind {
    /// Every trial is finished.
    None,
    /// Stops a trial whose optimistic end is dominated.
    #[default]
    Dominance,
    /// Multi-objective asynchronous successive halving.
    Asha,
    /// Stops a trial that is worse than the median of the others at the same step.
    Median,
}

impl PrunerKind {
    /// All pruners in the order of the documentation.
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// The name that space files use.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The pruner of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

impl fmt::Display for PrunerKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(formatter)
    }
}

/// A pruner with its settings; those that the kind does not have are ignored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrunerChoice {
    pub kind: PrunerKind,
    /// Share of a trial's steps before which `dominance` and `median` stop nothing.
    pub warm_up: f64,
    /// `dominance` also stops what would add less than this share of the hypervolume even if it ended optimistically.
    pub least_gain: f64,
    /// `dominance` also stops what is expected to add less, for each step it has left, than this share of what the sampler
    /// expects of the next trial; at 0 the final front is that of whole trials.
    pub worth: f64,
    /// Reduction factor of `asha`, above 1.
    pub eta: f64,
    /// Steps of the lowest rung of `asha`.
    pub least_steps: u64,
    /// Trials that must have come as far before `median` judges.
    pub least_trials: u64,
}

impl PrunerChoice {
    /// The pruner with the settings that it has by default.
    pub fn new(kind: PrunerKind) -> Self {
        Self {
            kind,
            warm_up: if kind == PrunerKind::Median { 0.1 } else { 0.05 },
            least_gain: 0.0,
            worth: 0.8,
            eta: 3.0,
            least_steps: 1,
            least_trials: 5,
        }
    }
}

/// Ends a study when further trials are expected to bring next to nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StopRule {
    /// Share of the hypervolume below which a gain is nothing.
    pub least_gain: f64,
    /// Trials in a row that must gain less.
    pub patience: u64,
}

impl Default for StopRule {
    fn default() -> Self {
        Self {
            least_gain: 1e-3,
            patience: 10,
        }
    }
}

/// How a recommendation is confirmed before it is final.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfirmPlan {
    /// Trials that may be confirmed: the recommended one, and neighbours that noise could put in its place.
    pub trials: u64,
    /// Repeats that each may take.
    pub repeats: u64,
    /// Repeats that all may take together.
    pub in_all: RepeatsInAll,
    /// Measured steps of each repeat.
    pub steps: u64,
    /// Half width of the 95% interval, as a share of the value, at which a value is confirmed.
    pub interval: f64,
    /// Trainings with other seeds that all trials may take together; an eighth of the study's trainings where absent.
    pub trainings: Option<u64>,
    /// Tokens that longer trainings may take, as a share of those of the study's trainings.
    pub longer: f64,
}

/// The study's trainings for one that confirms.
const TRAININGS_FOR_ONE: u64 = 8;

impl ConfirmPlan {
    /// Trainings with other seeds in a study of so many trainings. A single one says nothing about the noise, so it is not
    /// made.
    pub fn trainings(&self, trained: u64) -> u64 {
        match self.trainings {
            Some(trainings) => trainings,
            None if trained < 2 * TRAININGS_FOR_ONE => 0,
            None => trained / TRAININGS_FOR_ONE,
        }
    }

    /// Tokens of longer trainings in a study of so many trainings of `tokens` each; none where trainings with other seeds
    /// would be none either.
    pub fn longer_tokens(&self, trained: u64, tokens: u64) -> u64 {
        match trained < 2 * TRAININGS_FOR_ONE && self.trainings.is_none() {
            true => 0,
            false => (self.longer * trained as f64 * tokens as f64) as u64,
        }
    }
}

/// How often trials may be repeated in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepeatsInAll {
    /// Repeats as often as there are complete trials: who looks at two settings does not wait for six repeats.
    CompleteTrials,
    /// Repeats as often as each trial may be, since the file says so.
    Unlimited,
}

impl RepeatsInAll {
    /// The limit in a study with so many complete trials. One repeat says nothing about its own spread, so it is not made.
    pub fn limit(self, complete: u64) -> u64 {
        match self {
            Self::CompleteTrials if complete < 2 => 0,
            Self::CompleteTrials => complete,
            Self::Unlimited => u64::MAX,
        }
    }
}

impl Default for ConfirmPlan {
    fn default() -> Self {
        Self {
            trials: 3,
            repeats: 6,
            in_all: RepeatsInAll::CompleteTrials,
            steps: 20,
            interval: 0.02,
            trainings: None,
            longer: 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_study_is_repeated_no_more_often_than_it_has_trials() {
        let limit = |complete| RepeatsInAll::CompleteTrials.limit(complete);
        assert_eq!([0, 1, 2, 40].map(limit), [0, 0, 2, 40]);
        assert_eq!(RepeatsInAll::Unlimited.limit(1), u64::MAX);
    }

    #[test]
    fn a_small_study_is_not_trained_again_unless_it_says_so() {
        let plan = ConfirmPlan::default();
        assert_eq!([0, 15, 16, 60].map(|trained| plan.trainings(trained)), [0, 0, 2, 7]);
        let said = ConfirmPlan {
            trainings: Some(4),
            ..plan
        };
        assert_eq!(said.trainings(2), 4);
    }

    #[test]
    fn names_are_those_of_the_files() {
        for &kind in PrunerKind::ALL {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
            assert_eq!(PrunerKind::from_name(kind.name()), Some(kind));
        }
    }
}
