//! One checkpoint: a folder that holds everything the next step depends on.
//!
//! | file | what |
//! |---|---|
//! | `adapter_config.json`, `adapter_model.safetensors` | the adapter in F32, which PEFT loads as it is |
//! | `model.safetensors` (or shards), `config.json`, tokenizer | instead of these, in full fine-tuning: the model in F32 |
//! | `optimizer.safetensors` | the optimizer's state |
//! | `state.json` | the position, the evaluations so far, and the SHA-256 of every other file |
//!
//! A checkpoint appears under its name only when all of it is on the disk. It counts as whole where `state.json` is
//! there and every file matches its hash.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::outcome::RunProgress;
use super::whole_folder::{put_in_place, start_folder};
use super::{RunError, RunInputs};
use crate::adapter;
use crate::adapter::SavedAdapter;
use crate::checkpoint::Checkpoint;
use crate::merge::{TensorEntry, write_tensors};
use crate::{ModelDirectory, TrainError, Trainer, WrittenDtype};
use peft_tune_core::architecture::Dtype;
use peft_tune_core::hexadecimal;
use peft_tune_core::whole_file::write_whole;

const STATE: &str = "state.json";
const OPTIMIZER: &str = "optimizer.safetensors";

/// The content of `state.json`.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    progress: RunProgress,
    /// SHA-256 of each file, in hexadecimal.
    files: BTreeMap<String, String>,
}

/// Writes the checkpoint `folder`; it replaces one of the same name.
pub(super) fn write(
    folder: &Path,
    inputs: &RunInputs,
    trainer: &Trainer,
    progress: &RunProgress,
) -> Result<(), RunError> {
    let partial = start_folder(folder).map_err(RunError::file(folder))?;
    write_trained(&partial, inputs, trainer, WrittenDtype::All(Dtype::F32))?;
    write_optimizer(&partial.join(OPTIMIZER), trainer)?;
    let state = State {
        progress: progress.clone(),
        files: hashes(&partial).map_err(RunError::file(&partial))?,
    };
    write_json(&partial.join(STATE), &state)?;
    put_in_place(folder).map_err(RunError::file(folder))
}

/// Writes what was trained into `folder`: a PEFT adapter, or a whole model directory.
pub(super) fn write_trained(
    folder: &Path,
    inputs: &RunInputs,
    trainer: &Trainer,
    dtype: WrittenDtype,
) -> Result<(), TrainError> {
    match trainer.adapter_plan() {
        Some(plan) => {
            let base = Some(inputs.recipe.model.as_str());
            // First: without it the adapter would load as one of dense weights.
            trainer.base().sparsity().save(folder)?;
            Ok(adapter::write(folder, plan, base, trainer.parameters())?)
        }
        None => ModelDirectory {
            source: &inputs.model_folder,
            dtype,
            shard_bytes: ModelDirectory::SHARD_BYTES,
            quantization: None,
        }
        .write(folder, &trainer.merged()?),
    }
}

/// Writes a value as JSON; the file appears under its name only when it is whole.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), RunError> {
    let text = serde_json::to_string_pretty(value).map_err(|source| RunError::Json {
        path: path.to_owned(),
        source,
    })?;
    write_whole(path, (text + "\n").as_bytes(), true).map_err(RunError::file(path))
}

/// The progress that a checkpoint was written at; `None` where it is not whole.
pub(super) fn read(folder: &Path) -> Option<RunProgress> {
    let text = std::fs::read(folder.join(STATE)).ok()?;
    let state: State = serde_json::from_slice(&text).ok()?;
    (hashes(folder).ok()? == state.files).then_some(state.progress)
}

/// Brings `trainer` to where the checkpoint was written, at the rate that the training had come to.
pub(super) fn restore(folder: &Path, trainer: &mut Trainer, progress: &RunProgress) -> Result<(), RunError> {
    restore_values(folder, trainer)?;
    if let Some(back_off) = progress.back_offs.last() {
        trainer.set_learning_rate(back_off.learning_rate);
    }
    let path = folder.join(OPTIMIZER);
    let state = candle_core::safetensors::load(&path, &Device::Cpu)?;
    let state: Vec<(String, Tensor)> = state.into_iter().collect();
    let restored = trainer.restore(progress.trainer, &state);
    restored.map_err(|source| RunError::Optimizer {
        checkpoint: folder.to_owned(),
        source,
    })
}

/// Brings the values alone to those of the checkpoint.
pub(super) fn restore_values(folder: &Path, trainer: &Trainer) -> Result<(), TrainError> {
    let parameters = trainer.parameters();
    if trainer.adapter_plan().is_some() {
        let saved = SavedAdapter::read(folder)?.for_model(&trainer.trained().plan.architecture)?;
        saved.load_into(parameters)?;
        return Ok(());
    }
    let checkpoint = Checkpoint::open_for(folder, trainer.base().architecture())?;
    for slot in parameters.layout.slots() {
        let value = checkpoint.tensor(&slot.name, &slot.shape, DType::F32, parameters.values.device())?;
        parameters.values.slice_set(&value.flatten_all()?, 0, slot.offset)?;
    }
    Ok(())
}

fn write_optimizer(path: &Path, trainer: &Trainer) -> Result<(), RunError> {
    let state: BTreeMap<String, Tensor> = trainer.state()?.into_iter().collect();
    let entries = state.iter().map(|(name, tensor)| TensorEntry::of(name, tensor));
    let entries: Vec<_> = entries.collect::<candle_core::Result<_>>()?;
    Ok(write_tensors(path, &entries, &mut |name| Ok(state[name].clone()))?)
}

/// SHA-256 of every file in a folder but the state.
fn hashes(folder: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let mut hashes = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != STATE {
            hashes.insert(name, hash(&path)?);
        }
    }
    Ok(hashes)
}

fn hash(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hexadecimal(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}
