//! Pruning, stopping and confirming.

use std::num::NonZeroU64;

use super::Context;
use crate::space::file::{ConfirmEntry, PrunerDetails, PrunerEntry, StopEntry};
use crate::space::{SpaceError, StudyFile};
use peft_tune_core::objective::{Constraint, OF_LEARNING, Objective, THROUGHPUT};
use peft_tune_core::space::{ConfirmPlan, PrunerChoice, PrunerKind, RepeatsInAll, StopRule};
use peft_tune_core::study::TrialPlan;

/// Evaluations of a study that asks for a pruner and does not say how often to evaluate.
const PRUNED_EVALUATIONS: u64 = 8;

/// Trials that may be confirmed, and repeats that each may take, at most.
const MOST_CONFIRMED: u64 = 1000;

impl Context<'_> {
    /// The pruner, and with it the number of evaluations in `plan` where the file leaves both to each other.
    pub(super) fn pruner(&self, file: &StudyFile, plan: &mut TrialPlan) -> Result<PrunerChoice, SpaceError> {
        let Some(PrunerEntry(details)) = &file.pruner else {
            // With few evaluations it judges by what the surrogate expects after the profile phase only.
            return Ok(PrunerChoice::new(PrunerKind::Dominance));
        };
        if let (Some(train), None, true) = (
            &mut plan.train,
            file.trial.evaluation.times,
            details.kind != PrunerKind::None,
        ) {
            train.evaluations = PRUNED_EVALUATIONS;
        }
        let compares = matches!(details.kind, PrunerKind::Asha | PrunerKind::Median);
        if compares && plan.train.as_ref().is_some_and(|train| train.evaluations < 2) {
            return Err(SpaceError::Rejected {
                at: self.document.value(&["trial", "evaluation", "times"]),
                message: format!(
                    "pruner `{}` judges by evaluations on the way, and there is none; raise this, or take `pruner: none`",
                    details.kind
                ),
            });
        }
        self.pruner_settings(details)
    }

    fn pruner_settings(&self, details: &PrunerDetails) -> Result<PrunerChoice, SpaceError> {
        use PrunerKind::{Asha, Dominance, Median};
        let of: [(&str, bool, &[PrunerKind]); 6] = [
            ("warm_up", details.warm_up.is_some(), &[Dominance, Median]),
            ("least_gain", details.least_gain.is_some(), &[Dominance]),
            ("worth", details.worth.is_some(), &[Dominance]),
            ("eta", details.eta.is_some(), &[Asha]),
            ("least_steps", details.least_steps.is_some(), &[Asha]),
            ("least_trials", details.least_trials.is_some(), &[Median]),
        ];
        if let Some((key, _, kinds)) = of
            .iter()
            .find(|(_, given, kinds)| *given && !kinds.contains(&details.kind))
        {
            let names: Vec<String> = kinds.iter().map(|kind| format!("`{kind}`")).collect();
            return Err(SpaceError::Rejected {
                at: self.document.key(&["pruner", key]),
                message: format!(
                    "pruner `{}` has no such setting, only {} has; remove it",
                    details.kind,
                    names.join(" and ")
                ),
            });
        }
        let share = |key, value| self.share(&["pruner", key], value);
        let eta = details
            .eta
            .map(|eta| self.above_one(&["pruner", "eta"], eta))
            .transpose()?;
        let default = PrunerChoice::new(details.kind);
        Ok(PrunerChoice {
            warm_up: share("warm_up", details.warm_up)?.unwrap_or(default.warm_up),
            least_gain: share("least_gain", details.least_gain)?.unwrap_or(default.least_gain),
            worth: share("worth", details.worth)?.unwrap_or(default.worth),
            eta: eta.unwrap_or(default.eta),
            least_steps: details.least_steps.map_or(default.least_steps, u64::from),
            least_trials: details.least_trials.map_or(default.least_trials, u64::from),
            kind: details.kind,
        })
    }

    pub(super) fn stop_rule(&self, entry: &StopEntry) -> Result<Option<StopRule>, SpaceError> {
        let StopEntry::Rule(details) = entry else {
            return Ok(None);
        };
        let default = StopRule::default();
        let least_gain = self.share(&["stop", "least_gain"], details.least_gain)?;
        Ok(Some(StopRule {
            least_gain: least_gain.unwrap_or(default.least_gain),
            patience: details.patience.map_or(default.patience, u64::from),
        }))
    }

    /// How recommendations are confirmed. By default those of trained recipes are where throughput or loss matter; a
    /// command's trials may cost anything, so theirs are only where the file asks for it.
    pub(super) fn confirm(
        &self,
        entry: Option<&ConfirmEntry>,
        objectives: &[Objective],
        constraints: &[Constraint],
        trains_recipes: bool,
    ) -> Result<Option<ConfirmPlan>, SpaceError> {
        let default = ConfirmPlan::default();
        let details = match entry {
            Some(ConfirmEntry::None) => return Ok(None),
            Some(ConfirmEntry::Plan(details)) => details,
            None => {
                let noisy = |metric: &str| metric == THROUGHPUT || OF_LEARNING.contains(&metric);
                let matters = objectives.iter().any(|objective| noisy(&objective.metric))
                    || constraints.iter().any(|constraint| noisy(&constraint.metric));
                return Ok((trains_recipes && matters).then_some(default));
            }
        };
        let interval = self.share(&["confirm", "interval"], details.interval)?;
        let trials = self.confirmed(&["confirm", "trials"], details.trials)?;
        let repeats = self.confirmed(&["confirm", "repeats"], details.repeats)?;
        Ok(Some(ConfirmPlan {
            trials: trials.unwrap_or(default.trials),
            repeats: repeats.unwrap_or(default.repeats),
            in_all: match details.repeats {
                Some(_) => RepeatsInAll::Unlimited,
                None => RepeatsInAll::CompleteTrials,
            },
            steps: details.steps.map_or(default.steps, u64::from),
            interval: interval.unwrap_or(default.interval),
            trainings: details.trainings,
            longer: match details.longer {
                Some(longer) if !(0.0..=1000.0).contains(&longer) => {
                    return Err(SpaceError::WrongValue {
                        at: self.document.value(&["confirm", "longer"]),
                        found: longer.to_string(),
                        expected: "0 or more times the tokens of the study's trainings, such as 0.5".into(),
                    });
                }
                longer => longer.unwrap_or(default.longer),
            },
        }))
    }

    /// A number of trials or repeats that may be confirmed.
    fn confirmed(&self, keys: &[&str], value: Option<NonZeroU64>) -> Result<Option<u64>, SpaceError> {
        match value.map(u64::from) {
            Some(value) if value > MOST_CONFIRMED => Err(SpaceError::WrongValue {
                at: self.document.value(keys),
                found: value.to_string(),
                expected: format!("a whole number from 1 to {MOST_CONFIRMED}"),
            }),
            value => Ok(value),
        }
    }

    /// A number from 0 to below 1.
    fn share(&self, keys: &[&str], value: Option<f64>) -> Result<Option<f64>, SpaceError> {
        match value {
            Some(value) if !(0.0..1.0).contains(&value) => Err(SpaceError::WrongValue {
                at: self.document.value(keys),
                found: value.to_string(),
                expected: "a share from 0 to below 1, such as 0.02".into(),
            }),
            value => Ok(value),
        }
    }

    fn above_one(&self, keys: &[&str], value: f64) -> Result<f64, SpaceError> {
        if value > 1.0 && value.is_finite() {
            return Ok(value);
        }
        Err(SpaceError::WrongValue {
            at: self.document.value(keys),
            found: value.to_string(),
            expected: "a number above 1, such as 3".into(),
        })
    }
}
