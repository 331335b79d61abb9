//! What `trainer` makes of a study: the settings that its trials read, and which of its metrics compare.

use std::borrow::Cow;

use super::Context;
use super::parameter::Parameters;
use crate::space::SpaceError;
use crate::space::file::{ObjectiveEntry, StudyFile};
use crate::space::yaml::Span;
use peft_tune_core::objective::{LOSS, PEAK_MEMORY, REWARD_ACCURACY, REWARD_MARGIN, THROUGHPUT, TOKEN_ACCURACY};
use peft_tune_core::recipe::{Recipe, TrainerKind};
use peft_tune_core::study::{ParamValue, Params};

const NAME: &str = "trainer";

/// Whether a trainer reads a setting.
type IsReader = fn(TrainerKind) -> bool;

impl Context<'_> {
    /// The trainer of all trials, and of the baseline.
    pub(super) fn trainer(&self, parameters: &Parameters, baseline: &Params) -> Result<TrainerKind, SpaceError> {
        let named = |value: &ParamValue| match value {
            ParamValue::Text(name) => TrainerKind::from_name(name),
            _ => None,
        };
        let of_file = parameters.fixed.get(NAME).and_then(named);
        let trainer = of_file.unwrap_or_default();
        let of_baseline = baseline.get(NAME).and_then(named);
        let is_searched = searches(parameters, NAME);
        let several = [
            (is_searched, ["space", NAME]),
            (of_baseline.is_some_and(|other| other != trainer), ["baseline", NAME]),
        ];
        if let Some((_, keys)) = several.into_iter().find(|(is_so, _)| *is_so) {
            return Err(SpaceError::Rejected {
                at: self.document.value(&keys),
                message: "losses and rewards of different trainers do not compare; write one trainer for all trials, and make a study \
                          for each"
                    .into(),
            });
        }
        let reads: [(&str, IsReader); 2] = [
            ("beta", |kind| !kind.is_sft()),
            ("reference", |kind| kind.row().has_reference),
        ];
        let mut unread = reads.into_iter().filter(|(_, is_reader)| !is_reader(trainer));
        match unread.find(|(name, _)| self.document.has(&["space", name])) {
            None => Ok(trainer),
            Some((name, is_reader)) => {
                let readers = TrainerKind::ALL.into_iter().filter(|kind| is_reader(*kind));
                let readers: Vec<_> = readers.map(TrainerKind::name).collect();
                Err(SpaceError::Rejected {
                    at: self.document.key(&["space", name]),
                    message: format!(
                        "`trainer: {trainer}` has no {name}; remove it, or write `trainer` as one of {}",
                        readers.join(", ")
                    ),
                })
            }
        }
    }

    /// The objectives of a file. One that names none trades off a loss, or, where `beta` is searched, what compares in its place.
    pub(super) fn objectives_of<'f>(
        &self,
        file: &'f StudyFile,
        trainer: TrainerKind,
        parameters: &Parameters,
    ) -> Cow<'f, [ObjectiveEntry]> {
        match self.document.has(&["objectives"]) || trainer.is_sft() || !searches(parameters, "beta") {
            true => Cow::Borrowed(&file.objectives),
            false => Cow::Owned(
                [THROUGHPUT, PEAK_MEMORY, REWARD_ACCURACY]
                    .map(ObjectiveEntry::named)
                    .into(),
            ),
        }
    }

    /// Refuses objectives and constraints that the trainer does not measure, or that do not compare over the space.
    pub(super) fn check_metrics_of(
        &self,
        trainer: TrainerKind,
        parameters: &Parameters,
        objectives: &[ObjectiveEntry],
        file: &StudyFile,
    ) -> Result<(), SpaceError> {
        let check = |metric: &str, at: &dyn Fn() -> Box<Span>| {
            let is_of_preferences = [REWARD_ACCURACY, REWARD_MARGIN].contains(&metric);
            let message = if trainer.is_sft() && is_of_preferences {
                format!(
                    "`{metric}` is measured of preferences, and `trainer: sft` learns none; write `trainer: dpo` below `space`, or \
                     measure `{LOSS}`"
                )
            } else if !trainer.is_sft() && metric == TOKEN_ACCURACY {
                format!("`trainer: {trainer}` compares answers and measures no `{metric}`; write `{REWARD_ACCURACY}`")
            } else if searches(parameters, "beta") && [LOSS, REWARD_MARGIN].contains(&metric) {
                format!(
                    "`beta` is searched, and it is the scale of `{metric}`, which does not compare between values of it; write \
                     `{REWARD_ACCURACY}`, or fix `beta`"
                )
            } else {
                return Ok(());
            };
            Err(SpaceError::Rejected { at: at(), message })
        };
        for (index, objective) in objectives.iter().enumerate() {
            check(&objective.0.metric, &|| self.objective_place(index, "metric"))?;
        }
        for metric in file.constraints.names() {
            check(metric, &|| self.document.key(&["constraints", metric]))?;
        }
        Ok(())
    }

    /// Gives the rows of a recipe the layout that its trainer reads.
    pub(super) fn settle_rows(&self, recipe: &mut Recipe) -> Result<(), SpaceError> {
        recipe.settle_rows().map_err(|error| SpaceError::Rejected {
            at: self.document.value(&["data", error.key()]),
            message: error.to_string(),
        })
    }
}

/// Whether trials may differ in a setting.
fn searches(parameters: &Parameters, name: &str) -> bool {
    parameters.space.parameters.iter().any(|one| one.name == name)
}
