//! What a training learns of its rows: answers as they stand, or which of two is the better one. A row for each of TRL's
//! trainers that a recipe can name, and one for what a reference says.

use serde::Serialize;

use super::named::named;
use super::{DataFormat, LossOn, Recipe};

/// Trainer of a recipe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TrainerKind {
    #[default]
    Sft,
    Dpo,
    Kto,
    Orpo,
}

/// Row of the table of trainers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainerRow {
    #[serde(skip)]
    pub kind: TrainerKind,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Layout of the rows that it compares; `None` where any that holds answers will do.
    pub rows: Option<DataFormat>,
    /// Whether a frozen reference says what it learns away from.
    pub has_reference: bool,
    /// Rows that a micro-batch has at the least: more than one where its rows are compared with one another.
    pub least_micro_batch: usize,
}

const TRAINERS: &[TrainerRow] = &[
    TrainerRow {
        kind: TrainerKind::Sft,
        name: "sft",
        aliases: &[],
        about: "Supervised fine-tuning: answers as they stand.",
        rows: None,
        has_reference: false,
        least_micro_batch: 1,
    },
    TrainerRow {
        kind: TrainerKind::Dpo,
        name: "dpo",
        aliases: &[],
        about: "Direct preference optimization on pairs of answers (arXiv:2305.18290). TRL alone.",
        rows: Some(DataFormat::Preference),
        has_reference: true,
        least_micro_batch: 1,
    },
    TrainerRow {
        kind: TrainerKind::Kto,
        name: "kto",
        aliases: &[],
        about: "Kahneman-Tversky optimization on answers that are good or bad (arXiv:2402.01306). TRL alone.",
        rows: Some(DataFormat::UnpairedPreference),
        has_reference: true,
        least_micro_batch: 2,
    },
    TrainerRow {
        kind: TrainerKind::Orpo,
        name: "orpo",
        aliases: &[],
        about: "Odds-ratio preference optimization on pairs of answers, without a reference (arXiv:2403.07691). TRL alone.",
        rows: Some(DataFormat::Preference),
        has_reference: false,
        least_micro_batch: 1,
    },
];

named!(
    TrainerKind,
    TrainerRow,
    TRAINERS,
    "TrainerKind",
    "What a training learns of its rows."
);

/// Trainers of TRL that no recipe names, each with the reason.
const REFUSED: [(&[&str], &str); 2] = [
    (
        &["grpo", "rloo", "ppo", "online_dpo", "nash_md", "xpo", "gkd"],
        "writes answers while it trains, which trials do not",
    ),
    (
        &["reward", "prm"],
        "trains a model that scores answers, and none that writes them",
    ),
];

impl TrainerKind {
    /// Whether answers are learnt as they stand.
    pub fn is_sft(&self) -> bool {
        *self == Self::Sft
    }

    /// Sequences of a row: both answers of a pair, each with its prompt.
    pub fn sequences(self) -> usize {
        match self.row().rows {
            Some(DataFormat::Preference) => 2,
            _ => 1,
        }
    }

    /// Why a trainer of TRL of this name is none of these, where there is a reason.
    pub fn why_not(name: &str) -> Option<&'static str> {
        let name = name.to_lowercase();
        let mut refused = REFUSED.iter();
        refused
            .find(|(names, _)| names.contains(&name.as_str()))
            .map(|(_, reason)| *reason)
    }
}

/// Moment at which the frozen reference says how likely it finds the answers of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ReferencePass {
    #[default]
    EachStep,
    Precomputed,
}

/// Row of the table of reference passes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReferencePassRow {
    #[serde(skip)]
    pub kind: ReferencePass,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
}

const PASSES: &[ReferencePassRow] = &[
    ReferencePassRow {
        kind: ReferencePass::EachStep,
        name: "each_step",
        aliases: &[],
        about: "In each step, by the model with its adapter off, or by a frozen copy where the whole model trains.",
    },
    ReferencePassRow {
        kind: ReferencePass::Precomputed,
        name: "precomputed",
        aliases: &[],
        about: "Before the first step, for all rows.",
    },
];

named!(
    ReferencePass,
    ReferencePassRow,
    PASSES,
    "ReferencePass",
    "When the reference of `dpo` and `kto` is asked."
);

impl ReferencePass {
    /// Whether each step asks the reference, as where nothing is said.
    pub fn is_each_step(&self) -> bool {
        *self == Self::EachStep
    }
}

/// Factor of a preference's loss where a recipe says none, as TRL's is.
const USUAL_BETA: f64 = 0.1;

/// A trainer that the built-in engine does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`trainer: {trainer}` runs in TRL alone, and the built-in engine neither trains nor predicts it; search with `--backend trl`, or \
     export the recipe with `--format trl`"
)]
pub struct OnlyInTrl {
    pub trainer: TrainerKind,
}

/// Rows that a recipe's trainer does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTrainerRows {
    #[error(
        "`data.format: {format}` holds no rows for `trainer: {trainer}`, which reads {wanted}; remove `data.format`, or name another \
         trainer"
    )]
    Format {
        trainer: TrainerKind,
        format: String,
        wanted: &'static str,
    },
    #[error(
        "`data.format: {format}` holds preferences, and `trainer: sft` learns answers as they stand; set `trainer: {better}` and \
         search with `--backend trl`"
    )]
    Preferences { format: String, better: &'static str },
    #[error("`data.{key}` says which tokens are learnt, and `trainer: {trainer}` compares whole answers; remove it")]
    Targets { trainer: TrainerKind, key: &'static str },
}

impl BadTrainerRows {
    /// Key below `data` that is at fault.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Format { .. } | Self::Preferences { .. } => "format",
            Self::Targets { key, .. } => key,
        }
    }
}

impl Recipe {
    /// Factor of the preference's loss: as it is set, or TRL's own.
    pub fn beta(&self) -> f64 {
        self.beta.unwrap_or(USUAL_BETA)
    }

    /// Refuses a recipe that the built-in engine cannot train.
    ///
    /// # Errors
    /// A trainer of preferences.
    pub fn check_trained_here(&self) -> Result<(), OnlyInTrl> {
        match self.trainer {
            TrainerKind::Sft => Ok(()),
            trainer => Err(OnlyInTrl { trainer }),
        }
    }

    /// Gives the rows the layout that the trainer reads, where nothing is said of it.
    ///
    /// # Errors
    /// Another layout, or a choice of tokens that the trainer does not have.
    pub fn settle_rows(&mut self) -> Result<(), BadTrainerRows> {
        let (trainer, data) = (self.trainer, &mut self.data);
        let format = data.format;
        let Some(wanted) = trainer.row().rows else {
            let trained = TrainerKind::ALL
                .into_iter()
                .find(|kind| kind.row().rows == Some(format));
            return match trained {
                None => Ok(()),
                Some(better) => Err(BadTrainerRows::Preferences {
                    format: format.name().to_owned(),
                    better: better.name(),
                }),
            };
        };
        if format != DataFormat::Auto && format != wanted {
            return Err(BadTrainerRows::Format {
                trainer,
                format: format.name().to_owned(),
                wanted: wanted.name(),
            });
        }
        let targets = [
            (data.loss_on == LossOn::All, "loss_on"),
            (!data.template_targets.is_all(), "template_targets"),
        ];
        if let Some((_, key)) = targets.into_iter().find(|(is_set, _)| *is_set) {
            return Err(BadTrainerRows::Targets { trainer, key });
        }
        data.format = wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::DataSettings;

    fn settled(trainer: TrainerKind, change: impl FnOnce(&mut DataSettings)) -> Result<DataFormat, BadTrainerRows> {
        let mut recipe = Recipe::new("model", DataSettings::default());
        recipe.trainer = trainer;
        change(&mut recipe.data);
        recipe.settle_rows().map(|()| recipe.data.format)
    }

    #[test]
    fn a_trainer_decides_the_layout_of_rows_that_say_none() {
        assert_eq!(settled(TrainerKind::Sft, |_| {}), Ok(DataFormat::Auto));
        assert_eq!(settled(TrainerKind::Dpo, |_| {}), Ok(DataFormat::Preference));
        assert_eq!(settled(TrainerKind::Kto, |_| {}), Ok(DataFormat::UnpairedPreference));
        assert_eq!(
            settled(TrainerKind::Orpo, |data| data.format = DataFormat::Preference),
            Ok(DataFormat::Preference)
        );
    }

    #[test]
    fn rows_of_another_trainer_and_choices_of_tokens_are_refused() {
        let told = |trainer, change: fn(&mut DataSettings)| settled(trainer, change).unwrap_err().to_string();
        let pairs = told(TrainerKind::Kto, |data| data.format = DataFormat::Preference);
        assert!(pairs.contains("unpaired_preference"), "{pairs}");
        let plain = told(TrainerKind::Sft, |data| data.format = DataFormat::Preference);
        assert!(plain.contains("`trainer: dpo`"), "{plain}");
        let tokens = told(TrainerKind::Orpo, |data| data.loss_on = LossOn::All);
        assert!(tokens.contains("`data.loss_on`"), "{tokens}");
    }

    #[test]
    fn trainers_that_write_answers_are_refused_with_the_reason() {
        assert!(TrainerKind::why_not("GRPO").is_some_and(|reason| reason.contains("while it trains")));
        assert_eq!(TrainerKind::why_not("dpo"), None);
        assert_eq!(TrainerKind::from_name("grpo"), None);
    }
}
