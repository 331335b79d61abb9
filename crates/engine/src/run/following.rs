//! A rank beside the first, in a training on several devices. It computes its share of what rank 0 does, and writes nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::identity::Identity;
use super::next::{self, Next};
use super::spike_rows::batches_of;
use super::training::{held_out_of, source_of};
use super::{RunError, RunInputs, RunProgress, checkpoint, folder};
use crate::Trainer;
use crate::data::{BatchSource, MicroBatch, Prefetch};
use crate::parallel::Collective;

/// One rank's share of a training that [`TrainingRun`](super::TrainingRun) leads.
pub struct FollowingRun {
    trainer: Trainer,
    source: Arc<BatchSource>,
    held_out: Vec<MicroBatch>,
    total_steps: u64,
    collective: Arc<dyn Collective>,
    /// Folder that rank 0 writes checkpoints to.
    output: PathBuf,
    micro_batch: usize,
}

impl FollowingRun {
    /// Meets rank 0, and makes everything ready for its next step. A training that resumes has its checkpoints in `output`.
    ///
    /// # Errors
    /// Other data than rank 0 has; a checkpoint that is gone; a rank that is gone; whatever keeps the engine from starting.
    pub fn open(inputs: &RunInputs, output: &Path, collective: Arc<dyn Collective>) -> Result<Self, RunError> {
        let source = Arc::new(source_of(inputs)?);
        let total_steps = source.steps(inputs.recipe.training.length);
        let identity = Identity::new(&inputs.recipe, &inputs.data, total_steps);
        let resumed = match next::meet(collective.as_ref(), &identity.numbers(), None)? {
            None => None,
            Some(step) => Some(checkpoint_of(output, step)?),
        };
        let trainer = super::training::start(inputs, resumed.as_ref(), total_steps)?;
        Ok(Self {
            trainer: trainer.with_collective(Arc::clone(&collective))?,
            held_out: held_out_of(inputs),
            source,
            total_steps,
            collective,
            output: output.to_owned(),
            micro_batch: inputs.recipe.batch.micro_batch,
        })
    }

    /// Does what rank 0 does, until that is over.
    ///
    /// # Errors
    /// Those of the engine; a rank that is gone.
    pub fn run(mut self) -> Result<(), RunError> {
        let mut batches = self.batches()?;
        loop {
            match Next::hear(self.collective.as_ref())? {
                Next::Step => {
                    let batch = batches.next().expect("there is data for every step of the training");
                    self.trainer.step(&batch)?;
                }
                Next::Evaluate => {
                    self.trainer.evaluate(&self.held_out)?;
                }
                Next::Rows { first, last } => {
                    self.collective.broadcast(&self.trainer.parameters().values)?;
                    let rows = batches_of(&self.source, first..=last, self.micro_batch);
                    self.trainer.evaluate_rows(&rows, &mut ())?;
                }
                Next::Return { step } => {
                    let (path, progress) = checkpoint_of(&self.output, step)?;
                    checkpoint::restore(&path, &mut self.trainer, &progress)?;
                    batches = self.batches()?;
                }
                Next::End => return Ok(()),
            }
        }
    }

    fn batches(&self) -> Result<Prefetch, RunError> {
        Ok(Prefetch::start(
            Arc::clone(&self.source),
            self.trainer.steps()..self.total_steps,
        )?)
    }
}

/// The checkpoint of a step, which is there and whole: rank 0 has looked.
fn checkpoint_of(output: &Path, step: u64) -> Result<(PathBuf, RunProgress), RunError> {
    let path = folder::checkpoint_folder(output, step);
    match checkpoint::read(&path) {
        Some(progress) => Ok((path, progress)),
        None => Err(RunError::CheckpointGone { path }),
    }
}
