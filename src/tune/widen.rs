//! Ranges that widen by themselves: where the best trials sit on an edge, the sampler proposes beyond it from then on.
//!
//! What was widened is stored before the first trial makes use of it, so that a resumed search goes on with it.

use super::{TuneError, Tuner};

impl Tuner<'_> {
    /// Widens the ranges on whose edges the best trials sit. Looks again once another trial has ended.
    pub(super) async fn widen_ranges(&mut self) -> Result<(), TuneError> {
        let finished = self.trials.finished_trials().finished();
        if !self.parts.sampler.follows_best() || !self.problem.is_due(finished) {
            return Ok(());
        }
        while let Some(widening) = self.problem.next(self.trials.all()) {
            self.parts.store.widenings().record(self.parts.id, &widening).await?;
            tracing::info!(
                parameter = widening.parameter,
                low = widening.to.low,
                high = widening.to.high,
                "a range is widened"
            );
            self.problem.widen(&widening);
            self.parts.observer.range_widened(&widening);
        }
        Ok(())
    }
}
