//! The output folder of a training: what is in it, and what may begin or continue there.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::checkpoint;
use super::identity::Identity;
use super::outcome::{Outcome, RunProgress};
use super::whole_folder::{put_in_place, recover_folder, remove, start_folder};
use super::{RunError, RunInputs, RunSettings, Start};
use crate::base::SPARSITY_FILE;
use crate::{ModelDirectory, SpikeReport, Trainer, WrittenDtype};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::whole_file::make_folder;

const IDENTITY: &str = "run.json";
const RESULT: &str = "result.json";
const CHECKPOINTS: &str = "checkpoints";
const BEST: &str = "best";
const SPIKES: &str = "spikes.jsonl";

/// Everything else that a training may leave in its folder.
const LEFT: &[&str] = &[
    "recipe.yaml",
    "tensorboard",
    "adapter_config.json",
    "adapter_model.safetensors",
    SPARSITY_FILE,
    "config.json",
];

/// An output folder that belongs to one training.
#[derive(Debug)]
pub(super) struct OutputFolder {
    path: PathBuf,
    /// Lock that is held as long as the training runs; the system lets go of it with the process, however that ends.
    _lock: File,
}

/// State that a folder holds of the training that is to continue in it.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Outcome of a training that is over.
    pub outcome: Option<Outcome>,
    /// The latest whole checkpoint.
    pub checkpoint: Option<(PathBuf, RunProgress)>,
    /// Checkpoints behind the latest whole one, which are damaged.
    pub damaged: Vec<PathBuf>,
}

impl RunSettings {
    /// Finds what is wrong before anything is loaded.
    ///
    /// # Errors
    /// An output folder that is in use, and settings that do not go with the recipe.
    pub fn check(&self, recipe: &Recipe) -> Result<(), RunError> {
        if self.patience.is_some() && recipe.training.evaluate_every.is_none() {
            return Err(RunError::NothingToBePatientWith);
        }
        check(self)
    }
}

/// Fails where the folder of `settings` is in use.
pub(super) fn check(settings: &RunSettings) -> Result<(), RunError> {
    let folder = settings.output.clone();
    if is_empty(&folder)? {
        return Ok(());
    }
    match settings.start {
        Start::Force => Ok(()),
        Start::New => Err(RunError::NotEmpty { folder }),
        Start::Resume if folder.join(IDENTITY).is_file() => Ok(()),
        Start::Resume => Err(RunError::NothingToResume { folder }),
    }
}

/// Makes the folder where it is not there, and keeps every other training out of it.
fn lock(folder: &Path) -> Result<File, RunError> {
    make_folder(folder).map_err(RunError::file(folder))?;
    let file = File::open(folder).map_err(RunError::file(folder))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(RunError::InUse {
            folder: folder.to_owned(),
        }),
        Err(TryLockError::Error(error)) => {
            // Some network file systems have no locks.
            tracing::warn!(%error, folder = %folder.display(), "the output folder cannot be locked");
            Ok(file)
        }
    }
}

impl OutputFolder {
    /// Makes the folder ready for the training `identity`, and says what is there of it.
    pub(super) fn open(
        settings: &RunSettings,
        identity: &Identity,
        model_folder: &Path,
    ) -> Result<(Self, Found), RunError> {
        check(settings)?;
        let path = settings.output.clone();
        refuse_model(&path, model_folder)?;
        let lock = lock(&path)?;
        // Another training may have come here since the first look.
        check(settings)?;
        let folder = Self { path, _lock: lock };
        let begun = folder.path.join(IDENTITY);
        if settings.start == Start::Resume && begun.is_file() {
            Identity::read(&begun)?.check(identity, &folder.path)?;
            recover_folder(&folder.best()).map_err(RunError::file(&folder.path))?;
            let found = folder.find()?;
            return Ok((folder, found));
        }
        folder.clear()?;
        checkpoint::write_json(&begun, identity)?;
        Ok((folder, Found::default()))
    }

    /// Writes a checkpoint and removes those that are too many.
    pub(super) fn checkpoint(
        &self,
        inputs: &RunInputs,
        trainer: &Trainer,
        progress: &RunProgress,
        keep: usize,
    ) -> Result<PathBuf, RunError> {
        let folder = checkpoint_folder(&self.path, trainer.steps());
        checkpoint::write(&folder, inputs, trainer, progress)?;
        let checkpoints = checkpoints(&self.path)?;
        let too_many = checkpoints.len().saturating_sub(keep.max(1));
        for (_, old) in checkpoints.iter().take(too_many).filter(|(_, old)| *old != folder) {
            remove(old).map_err(RunError::file(old))?;
        }
        Ok(folder)
    }

    /// Removes the checkpoint of a step, if there is one.
    pub(super) fn remove_checkpoint(&self, step: u64) -> Result<(), RunError> {
        let folder = checkpoint_folder(&self.path, step);
        remove(&folder).map_err(RunError::file(&folder))
    }

    /// Keeps what is trained now as the best.
    pub(super) fn keep_best(&self, inputs: &RunInputs, trainer: &Trainer) -> Result<(), RunError> {
        let best = self.best();
        let partial = start_folder(&best).map_err(RunError::file(&best))?;
        checkpoint::write_trained(&partial, inputs, trainer, WrittenDtype::AsStored)?;
        put_in_place(&best).map_err(RunError::file(&best))
    }

    /// Writes what was trained, and that the training is over.
    pub(super) fn finish(&self, inputs: &RunInputs, trainer: &Trainer, outcome: &Outcome) -> Result<(), RunError> {
        checkpoint::write_trained(&self.path, inputs, trainer, WrittenDtype::AsStored)?;
        checkpoint::write_json(&self.path.join(RESULT), outcome)
    }

    /// Folder of the best adapter or model, if it has been kept.
    pub(super) fn kept_best(&self) -> Option<PathBuf> {
        Some(self.best()).filter(|best| best.is_dir())
    }

    /// The latest checkpoint, whole or not.
    pub(super) fn latest(&self) -> Result<Option<PathBuf>, RunError> {
        latest_checkpoint(&self.path)
    }

    /// The latest whole checkpoint of a step before `step`.
    pub(super) fn whole_before(&self, step: u64) -> Result<Option<(PathBuf, RunProgress)>, RunError> {
        let before = checkpoints(&self.path)?.into_iter().rev().filter(|(at, _)| *at < step);
        let mut whole = before.filter_map(|(_, folder)| Some((checkpoint::read(&folder)?, folder)));
        Ok(whole.next().map(|(progress, folder)| (folder, progress)))
    }

    /// Removes the checkpoints of later steps than `step`.
    pub(super) fn remove_behind(&self, step: u64) -> Result<(), RunError> {
        for (_, folder) in checkpoints(&self.path)?.into_iter().filter(|(at, _)| *at > step) {
            remove(&folder).map_err(RunError::file(&folder))?;
        }
        Ok(())
    }

    /// Adds a report to the file of them.
    pub(super) fn note_spike(&self, report: &SpikeReport) -> Result<(), RunError> {
        let path = self.path.join(SPIKES);
        let mut line = serde_json::to_vec(report).map_err(|source| RunError::Json {
            path: path.clone(),
            source,
        })?;
        line.push(b'\n');
        let file = File::options().create(true).append(true).open(&path);
        file.and_then(|mut file| file.write_all(&line))
            .map_err(RunError::file(&path))
    }

    fn best(&self) -> PathBuf {
        self.path.join(BEST)
    }

    fn find(&self) -> Result<Found, RunError> {
        let result = self.path.join(RESULT);
        let mut found = Found::default();
        if result.is_file() {
            let text = std::fs::read(&result).map_err(RunError::file(&result))?;
            let outcome = serde_json::from_slice(&text);
            found.outcome = Some(outcome.map_err(|source| RunError::Json { path: result, source })?);
        }
        for (_, folder) in checkpoints(&self.path)?.into_iter().rev() {
            match checkpoint::read(&folder) {
                Some(progress) => {
                    found.checkpoint = Some((folder, progress));
                    break;
                }
                None => found.damaged.push(folder),
            }
        }
        Ok(found)
    }

    /// Removes an earlier training, and nothing that is not known to be one's.
    fn clear(&self) -> Result<(), RunError> {
        if !self.path.join(IDENTITY).is_file() {
            return Ok(());
        }
        let names = [CHECKPOINTS, BEST, RESULT, SPIKES].iter().chain(LEFT);
        for name in names {
            let path = self.path.join(name);
            remove(&path).map_err(RunError::file(&path))?;
        }
        for entry in std::fs::read_dir(&self.path).map_err(RunError::file(&self.path))? {
            let path = entry.map_err(RunError::file(&self.path))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if ModelDirectory::is_weight_file(&name) {
                remove(&path).map_err(RunError::file(&path))?;
            }
        }
        Ok(())
    }
}

/// The folder of the checkpoint that is written behind a step.
pub(super) fn checkpoint_folder(output: &Path, step: u64) -> PathBuf {
    output.join(CHECKPOINTS).join(format!("step-{step:08}"))
}

/// The latest checkpoint in an output folder, whole or not.
///
/// # Errors
/// A folder that cannot be read.
pub fn latest_checkpoint(output: &Path) -> Result<Option<PathBuf>, RunError> {
    Ok(checkpoints(output)?.pop().map(|(_, folder)| folder))
}

/// Checkpoints in an output folder by step, in order.
fn checkpoints(output: &Path) -> Result<Vec<(u64, PathBuf)>, RunError> {
    let folder = output.join(CHECKPOINTS);
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut checkpoints = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(RunError::file(&folder))? {
        let path = entry.map_err(RunError::file(&folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(step) = name.strip_prefix("step-").and_then(|step| step.parse().ok()) {
            checkpoints.push((step, path));
        }
    }
    checkpoints.sort();
    Ok(checkpoints)
}

/// The model's own directory must not be written to: its weights are mapped into memory.
fn refuse_model(output: &Path, model_folder: &Path) -> Result<(), RunError> {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    if real(output).is_some_and(|path| Some(path) == real(model_folder)) {
        let folder = output.to_owned();
        return Err(RunError::OutputIsModel { folder });
    }
    Ok(())
}

/// Whether there is nothing at `folder`, or an empty folder.
fn is_empty(folder: &Path) -> Result<bool, RunError> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(RunError::file(folder)(error)),
    }
}
