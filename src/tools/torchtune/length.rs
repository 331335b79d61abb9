//! How long torchtune trains.
//!
//! It trains whole epochs, of whole steps, and counts steps within an epoch. So a training that ends within a later epoch, or whose
//! rows do not fill the last step of one, is one epoch of rows that the data set hands out several times over. Where its component
//! cannot do that, it is as many whole epochs as have those steps.

use crate::tools::export::draft::Draft;
use peft_tune_core::recipe::{DataFormat, EpochSteps, TrainingLength};

/// The keys that say when a training ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Length {
    epochs: u64,
    max_steps_per_epoch: Option<u64>,
    /// How often an epoch goes through the rows.
    pub passes: u64,
}

const FIELD: &str = "training.length";

impl Length {
    /// The length of a draft's recipe.
    pub(super) fn of(draft: &Draft<'_>) -> Self {
        let counts = draft.input.step_counts();
        let repeats = draft.input.data_format() == DataFormat::Tokenized;
        // How many rows packing makes is not known before.
        let is_packed = draft.recipe().batch.packing;
        let fills = |epoch: EpochSteps| epoch.full_per_epoch() == epoch.per_epoch();
        match (counts.length, counts.steps, counts.epoch) {
            (TrainingLength::Epochs(epochs), _, epoch)
                if epochs.fract() == 0.0 && (!repeats || is_packed || epoch.is_none_or(fills)) =>
            {
                Self::whole(epochs as u64)
            }
            (_, Some(steps), Some(epoch)) if steps > epoch.full_per_epoch() => match repeats {
                true => Self::part(steps, epoch.epochs_that_fill(steps)),
                false => Self::whole(steps.div_ceil(epoch.full_per_epoch().max(1))),
            },
            (_, Some(steps), _) => Self::part(steps, 1),
            (TrainingLength::Epochs(epochs), None, _) => Self::whole(epochs.ceil() as u64),
            (TrainingLength::Steps(_) | TrainingLength::Tokens(_), None, _) => Self::whole(1),
        }
    }

    fn whole(epochs: u64) -> Self {
        Self {
            epochs: epochs.max(1),
            max_steps_per_epoch: None,
            passes: 1,
        }
    }

    /// So many steps of an epoch.
    fn part(steps: u64, passes: u64) -> Self {
        Self {
            epochs: 1,
            max_steps_per_epoch: Some(steps),
            passes,
        }
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
        let (full, all) = (epoch.full_per_epoch(), epoch.per_epoch());
        let is_packed = draft.recipe().batch.packing;
        if self.passes > 1 && full < all && !is_packed {
            let last = epoch.rows_of(all - 1);
            return Some(format!(
                "the last step of an epoch, of {} rows here, is filled up with rows of the next one there; nothing to do where that is little",
                last.end - last.start
            ));
        }
        // Of packed rows their own warning says that an epoch has other steps.
        let is_certain = !(is_packed && matches!(draft.recipe().training.length, TrainingLength::Epochs(_)));
        let theirs = self.epochs * full;
        let differs = self.max_steps_per_epoch.is_none() && theirs != steps && is_certain;
        differs.then(|| match theirs {
            0 => "the rows fill no global batch, so torchtune trains nothing; lower `gradient_accumulation_steps`".to_owned(),
            _ => format!(
                "torchtune trains whole epochs of whole steps, so {steps} steps are {theirs} there, in {} epochs; lower `epochs`, \
                 or train with `peft-tune train`",
                self.epochs
            ),
        })
    }
}
