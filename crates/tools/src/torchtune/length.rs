//! How long torchtune trains.
//!
//! It trains whole epochs, of whole steps, and counts steps within an epoch. So a training that ends within a later epoch, or whose
//! rows do not fill the last step of one, is one epoch of rows that the data set hands out several times over, each time with a last
//! step that is made whole. Where its component cannot do that, it is as many whole epochs as have those steps.

use crate::export::draft::Draft;
use peft_tune_core::recipe::{DataFormat, EpochSteps, TrainingLength};

/// The keys that say when a training ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    epochs: u64,
    max_steps_per_epoch: Option<u64>,
    /// How often one epoch goes through the rows, where the data set sees to it.
    pub repeats: Option<Repeats>,
}

/// How often the data set goes through the rows in its one epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    Passes(u64),
    /// Passes until packs fill so many steps: how many packs the rows make is not known before.
    Fills {
        steps: u64,
    },
}

const FIELD: &str = "training.length";
/// What to do where only rows of token ids can be repeated.
const WRITE_ROWS: &str = "let the rows be written for it, without --no-data";

impl Length {
    /// The length of a draft's recipe.
    pub(super) fn of(draft: &Draft<'_>) -> Self {
        let counts = draft.input.step_counts();
        let batch = &draft.recipe().batch;
        let repeats = draft.input.data_format() == DataFormat::Tokenized;
        let ends_whole = |epoch: EpochSteps| !repeats || epoch.full_per_epoch() == epoch.per_epoch();
        match (counts.length, counts.steps, counts.epoch) {
            (_, Some(steps), _) if repeats && batch.packing => Self::part(steps, Some(Repeats::Fills { steps })),
            (TrainingLength::Epochs(epochs), _, epoch) if epochs.fract() == 0.0 && epoch.is_none_or(ends_whole) => {
                Self::whole(epochs as u64)
            }
            (_, Some(steps), Some(epoch)) if steps > epoch.full_per_epoch() => match repeats {
                true => Self::part(steps, Some(Repeats::Passes(steps.div_ceil(epoch.per_epoch())))),
                false => Self::whole(steps.div_ceil(epoch.full_per_epoch().max(1))),
            },
            (_, Some(steps), _) => Self::part(steps, None),
            (TrainingLength::Epochs(epochs), None, _) => Self::whole(epochs.ceil() as u64),
            (TrainingLength::Steps(_) | TrainingLength::Tokens(_), None, _) => Self::whole(1),
        }
    }

    fn whole(epochs: u64) -> Self {
        Self {
            epochs: epochs.max(1),
            max_steps_per_epoch: None,
            repeats: None,
        }
    }

    /// Steps of an epoch.
    fn part(steps: u64, repeats: Option<Repeats>) -> Self {
        Self {
            epochs: 1,
            max_steps_per_epoch: Some(steps),
            repeats,
        }
    }

    /// Whether torchtune trains the steps of the trials, however many rows an epoch has there.
    pub(super) fn is_in_steps(self) -> bool {
        self.max_steps_per_epoch.is_some()
    }

    /// Writes the keys, and says what is different there.
    pub(super) fn write(self, draft: &mut Draft<'_>) {
        let counts = draft.input.step_counts();
        draft.said(&[FIELD]);
        draft.key("epochs", self.epochs);
        draft.key("max_steps_per_epoch", self.max_steps_per_epoch);
        let told = match (counts.length, counts.steps, counts.epoch) {
            (_, Some(steps), Some(epoch)) => self.other_steps(draft, steps, epoch),
            (TrainingLength::Epochs(epochs), None, _) if epochs.fract() != 0.0 => {
                Some(format!("{epochs} epochs are rounded up; set `max_steps_per_epoch`"))
            }
            _ => None,
        };
        let of_tokens = counts.of_tokens().map(|(_, message)| message);
        for message in told.into_iter().chain(of_tokens) {
            draft.warn(FIELD, message);
        }
    }

    /// What is told of a training of `steps` steps, where those of torchtune are others.
    fn other_steps(self, draft: &Draft<'_>, steps: u64, epoch: EpochSteps) -> Option<String> {
        let is_packed = draft.recipe().batch.packing;
        // Of packed rows their own warning says that an epoch has other steps.
        let is_certain = !is_packed;
        let theirs = self.epochs * epoch.full_per_epoch();
        let differs = self.max_steps_per_epoch.is_none() && theirs != steps && is_certain;
        differs.then(|| match theirs {
            0 => format!("the rows fill no global batch, so torchtune trains nothing; {WRITE_ROWS}"),
            _ => {
                format!("torchtune trains whole epochs of whole steps, so {steps} steps become {theirs}; {WRITE_ROWS}")
            }
        })
    }
}
