//! How much of its quality a model keeps in a low precision: the same trained parameters on the base weights as the
//! precision stores them, and on the base weights in F32.

use crate::data::MicroBatch;
use crate::{TrainError, Trainer};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// A model in its precision against the same in F32, on held-out data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossKept {
    /// Mean cross-entropy per target token in the precision, in nats.
    pub loss: f64,
    /// Mean cross-entropy per target token in F32, in nats.
    pub loss_f32: f64,
    /// Share of target positions at which both find the same token most likely, in [0, 1].
    pub agreement: f64,
}

impl LossKept {
    /// F32's loss over the precision's, in percent: 100 where nothing is lost, and more where rounding helped.
    pub fn percent(&self) -> f64 {
        100.0 * self.loss_f32 / self.loss
    }

    /// Compares `trainer` with `reference`, which has the same parameters on another base, on `batches`.
    ///
    /// # Errors
    /// Those of [`Trainer::evaluate`]; parameters that are not the same in number.
    pub fn measure(trainer: &mut Trainer, reference: &mut Trainer, batches: &[MicroBatch]) -> Result<Self, TrainError> {
        let values = &trainer.parameters().values;
        let (got, expected) = (
            reference.parameters().layout.elements(),
            trainer.parameters().layout.elements(),
        );
        if got != expected {
            let message = format!("the F32 model trains {got} parameters instead of {expected}");
            return Err(candle_core::Error::Msg(message).into());
        }
        reference.parameters().values.slice_set(values, 0, 0)?;
        let (mut alike, mut targets) = (0, 0);
        for batch in batches {
            let own = trainer.most_likely(batch)?;
            let exact = reference.most_likely(batch)?;
            let pairs = own.iter().zip(&exact).zip(&batch.targets);
            for ((own, exact), _) in pairs.filter(|(_, target)| **target != IGNORE) {
                alike += u64::from(own == exact);
                targets += 1_u64;
            }
        }
        Ok(Self {
            loss: trainer.evaluate(batches)?.loss,
            loss_f32: reference.evaluate(batches)?.loss,
            agreement: alike as f64 / targets.max(1) as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_higher_loss_keeps_less_than_all() {
        let kept = LossKept {
            loss: 2.5,
            loss_f32: 2.0,
            agreement: 0.9,
        };
        assert!((kept.percent() - 80.0).abs() < 1e-12);
    }
}
