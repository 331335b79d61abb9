//! Training losses of a trial: whether they are sound, and what they tell of the cause where they are none any more.

use peft_tune_core::study::SpikeCause;

/// Nats above the first loss at which a training counts as diverged. A uniform guess over a vocabulary of a million is
/// at 14 nats, so a healthy training never climbs this far.
const DIVERGED_NATS: f64 = 10.0;

/// The losses of a training so far.
#[derive(Debug, Default)]
pub(super) struct Losses {
    first: Option<f64>,
    lowest: Option<f64>,
    last: Option<f64>,
}

impl Losses {
    /// Whether a training with this loss of its next step goes on.
    pub(super) fn are_sound(&mut self, loss: f64) -> bool {
        let first = *self.first.get_or_insert(loss);
        loss.is_finite() && loss < first + DIVERGED_NATS
    }

    /// Takes in the loss of a step that was sound.
    pub(super) fn take(&mut self, loss: f64) {
        self.last = Some(loss);
        self.lowest = Some(self.lowest.map_or(loss, |lowest| lowest.min(loss)));
    }

    /// The last sound loss.
    pub(super) fn last(&self) -> Option<f64> {
        self.last
    }

    /// The rate, where the loss had climbed before it was no number any more: no single batch explains that.
    pub(super) fn cause(&self) -> Option<SpikeCause> {
        let climbed = self.last? - self.lowest? > SpikeCause::NATS;
        climbed.then_some(SpikeCause::Rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cause that these losses tell, the last of which is not sound.
    fn cause(sound: &[f64], last: f64) -> Option<SpikeCause> {
        let mut losses = Losses::default();
        for loss in sound {
            assert!(losses.are_sound(*loss));
            losses.take(*loss);
        }
        assert!(!losses.are_sound(last));
        assert_eq!(losses.last(), sound.last().copied());
        losses.cause()
    }

    #[test]
    fn a_loss_that_climbed_before_it_was_none_is_the_rates() {
        assert_eq!(cause(&[2.0, 1.5, 2.5, 11.9], 12.0), Some(SpikeCause::Rate));
        assert_eq!(cause(&[4.0, 2.0, 4.5], f64::NAN), Some(SpikeCause::Rate));
        assert_eq!(cause(&[4.0, 3.0, 3.5], f64::NAN), None);
        assert_eq!(cause(&[], f64::NAN), None);
    }
}
