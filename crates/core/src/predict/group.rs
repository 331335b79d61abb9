//! Memory of several trainings that share the passes over one base.
//!
//! The base is there once. Of values, gradients, optimizer states and the objects of adapted layers each training has its own. What a
//! pass keeps and holds is that of one micro-batch as long as all of theirs: half of it for two trainings of which one keeps twice as
//! much for its adapters is the mean of both. The loss head takes the trainings one after the other.

use super::memory_category::{Bytes, MemoryCategory};
use super::prediction::{Predictor, Setting};
use super::stream::{Documents, StreamShape};
use super::{PredictError, Workload};

/// Whose rows a micro-batch has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharers {
    /// Trainings, each with as many rows.
    pub trainings: usize,
    /// Whether each linear layer has an adapter of one of them, so that its products take the rows of each by themselves.
    pub adapts_all: bool,
}

impl Sharers {
    /// A training that shares with nobody.
    pub(super) const ALONE: Self = Self {
        trainings: 1,
        adapts_all: false,
    };
}

impl Predictor {
    /// Bytes by category at the highest moment of a step of all `settings`, which train together.
    ///
    /// # Errors
    /// Settings that do not fit the model, or cannot train together.
    pub fn predict_group(&self, settings: &[Setting<'_>]) -> Result<Bytes, PredictError> {
        let count = settings.len();
        match settings {
            [] => return Ok(Bytes::default()),
            [only] => return Ok(self.predict(only)?.bytes),
            several => check_group(several)?,
        }
        let (mut sums, mut bytes) = (Bytes::default(), Bytes::default());
        let mut sharers = Sharers {
            trainings: count,
            adapts_all: false,
        };
        for setting in settings {
            sharers.adapts_all |= self.adapts_all(setting.recipe)?;
        }
        for setting in settings {
            let longest = times(&setting.workload.longest, count);
            let workload = Workload {
                longest,
                ..setting.workload.clone()
            };
            let together = Setting {
                workload: &workload,
                ..*setting
            };
            let of_all = self.bytes_in_group(&together, sharers)?;
            of_all.iter().for_each(|(category, bytes)| sums.add(category, bytes));
        }
        for (category, sum) in sums.iter() {
            bytes.add(
                category,
                match category {
                    MemoryCategory::Adapters | MemoryCategory::Gradients | MemoryCategory::OptimizerState => sum,
                    _ => sum / count as u64,
                },
            );
        }
        Ok(bytes)
    }

    /// Whether so many bytes hold `settings` at once, with room for the prediction's error.
    ///
    /// # Errors
    /// As for [`Predictor::predict_group`].
    pub fn holds_group(&self, settings: &[Setting<'_>], memory_bytes: f64) -> Result<bool, PredictError> {
        let most = memory_bytes / (1.0 + self.machine().memory_margin());
        Ok(self.predict_group(settings)?.total() as f64 <= most)
    }
}

/// Refuses settings that cannot train together.
pub(super) fn check_group(settings: &[Setting<'_>]) -> Result<(), PredictError> {
    let [first, _, ..] = settings else { return Ok(()) };
    for setting in settings {
        setting.recipe.check_in_group()?;
        setting.recipe.check_shares_base(first.recipe)?;
    }
    Ok(())
}

/// `count` micro-batches of this shape as one.
fn times(stream: &StreamShape, count: usize) -> StreamShape {
    let times = count as f64;
    let documents = stream.documents.iter();
    StreamShape {
        documents: documents
            .map(|documents| Documents {
                count: times * documents.count,
                ..*documents
            })
            .collect(),
        targets: times * stream.targets,
    }
}
