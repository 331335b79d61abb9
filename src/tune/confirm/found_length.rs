//! Length of the full training, where the study leaves it to the search: what the longer trainings of the recommended
//! setting say of it, and which setting is recommended at that length.

use super::finalists::Finalists;
use super::repeated::Repeated;
use crate::tune::schedule::Schedule;
use peft_tune_core::study::{Confirmations, TrialNumber};

/// Rounds in which the setting that is recommended at a length may change the length.
const ROUNDS: usize = 4;

impl Schedule<'_> {
    /// Values that longer trainings give to all trials that would train the same.
    pub(super) fn longer_said(&self, repeated: &Repeated) -> Confirmations {
        let finalists = self.finalists(repeated);
        let Some(longer) = self.longer(&finalists, repeated) else {
            return Confirmations::new();
        };
        let mut said = longer.confirmed(None);
        let Some(trained) = self.confirmation.trained().filter(|_| self.study.finds_length) else {
            return said;
        };
        let mut found = None;
        for _ in 0..ROUNDS {
            let recommended = recommended_with(&finalists, &said);
            let next = recommended.and_then(|number| longer.found_length(number, trained.tokens as f64));
            if next == found {
                break;
            }
            found = next;
            said = longer.confirmed(found.as_ref());
        }
        said
    }
}

/// The trial that is recommended with these values beside what was confirmed before.
fn recommended_with(finalists: &Finalists<'_>, said: &Confirmations) -> Option<TrialNumber> {
    let mut confirmations = finalists.confirmations.clone();
    for (number, confirmed) in said {
        let known = confirmations.entry(*number).or_default();
        known.extend(confirmed.iter().map(|(metric, one)| (metric.clone(), *one)));
    }
    let with_said = Finalists {
        confirmations: &confirmations,
        ..*finalists
    };
    with_said.recommended()
}
