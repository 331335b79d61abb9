//! Writing a Hugging Face model directory: weights, `config.json` and the tokenizer's files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::{Map, Value, json};

use super::quantized_weights::{QuantizedWeights, WeightQuantization, is_companion, name_of};
use super::tensor_file::{EntryDtype, TensorEntry, write_tensors};
use crate::base::{CONFIG, mxfp4_owner};
use crate::checkpoint::Checkpoint;
use crate::{BaseModel, MergedModel, TrainError, WeightsError};
use peft_tune_core::architecture::{Architecture, Dtype, EMBEDDING, LM_HEAD, name_within};
use peft_tune_core::python_json;
use peft_tune_core::recipe::Precision;
use peft_tune_core::whole_file::{make_folder, remove_file, write_whole};

/// Files that a model directory may hold besides weights and `config.json`.
const COPIED: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
];

/// Dtype of the weights in a directory that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenDtype {
    /// Each tensor as the model that it came from stores it; what is quantized there as its `config.json` says.
    AsStored,
    /// All in this one.
    All(Dtype),
}

/// A model directory that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct ModelDirectory<'a> {
    /// The directory of the model that was trained, for configuration, tokenizer and dtypes.
    pub source: &'a Path,
    pub dtype: WrittenDtype,
    /// Most bytes of one weight file, header not counted; a tensor above it has a file of its own.
    pub shard_bytes: usize,
    /// Quantization of the weights of linear layers, in bitsandbytes' form.
    pub quantization: Option<WeightQuantization>,
}

impl ModelDirectory<'_> {
    /// Most bytes of one weight file where nobody says otherwise; transformers' own.
    pub const SHARD_BYTES: usize = 5_000_000_000;

    /// Writes `model` into `output`, made where it is missing: `model.safetensors`, or shards and their index where it
    /// is larger than one shard.
    ///
    /// It is on the disk when this returns. An older `config.json` is removed first and the new one comes last: after a crash the
    /// whole model loads, or none. Nothing stays of the weights and the tokenizer of an older model.
    ///
    /// # Errors
    /// Those of the file system, with the path; a source whose checkpoint or `config.json` cannot be read; weights that cannot be
    /// quantized in a form that other programs load.
    pub fn write(&self, output: &Path, model: &MergedModel<'_>) -> Result<(), TrainError> {
        let architecture = model.architecture();
        make_folder(output).map_err(|source| in_out(output, source))?;
        let whole = Checkpoint::open(self.source)?;
        let (mut entries, alone) = self.entries(architecture, &whole);
        let quantized = self.quantization.map(|kind| {
            let dtype = self.compute_dtype(architecture);
            QuantizedWeights::of(model, kind, dtype)
        });
        let quantized = quantized.transpose()?;
        if let Some(quantized) = &quantized {
            entries = quantized.in_place_of(entries);
        }
        if architecture.within.is_some() {
            entries.extend(whole.beside_language_model());
        }
        let config = self.config(architecture, quantized.as_ref())?;
        let config_path = output.join(CONFIG);
        remove_file(&config_path).map_err(|source| in_out(&config_path, source))?;
        remove_weights(output)?;
        let shards = shards(&entries, self.shard_bytes);
        let mut index = BTreeMap::new();
        for (number, shard) in shards.iter().enumerate() {
            let file = shard_name(number, shards.len());
            write_tensors(&output.join(&file), shard, &mut |name| {
                let quantized = quantized.as_ref().and_then(|quantized| quantized.tensor(name));
                match (quantized, alone.get(name)) {
                    (Some(value), _) => Ok(value),
                    (None, Some(alone)) => model.tensor(alone),
                    (None, None) => whole.stored(name),
                }
            })?;
            index.extend(shard.iter().map(|entry| (entry.name.as_str(), file.clone())));
        }
        if shards.len() > 1 {
            let total: usize = entries.iter().map(TensorEntry::bytes).sum();
            let index = json!({"metadata": {"total_size": total}, "weight_map": index});
            write_json(&output.join("model.safetensors.index.json"), &index)?;
        }
        for name in COPIED {
            copy_or_remove(&self.source.join(name), &output.join(name))?;
        }
        write_json(&config_path, &config)
    }

    /// Whether a file of this name holds weights of a model directory, or their index.
    pub(crate) fn is_weight_file(name: &str) -> bool {
        name.starts_with("model") && name.contains(".safetensors")
    }

    /// Dtype of what is not quantized.
    fn compute_dtype(&self, architecture: &Architecture) -> Dtype {
        match self.dtype {
            WrittenDtype::All(dtype) => dtype,
            WrittenDtype::AsStored => architecture.dtype.unwrap_or(Dtype::F32),
        }
    }

    /// The tensors of the language model under the names that the source has for them, and the name of each in the language
    /// model alone. Of tied embeddings the source may have one end, which the other is stored as.
    fn entries(
        &self,
        architecture: &Architecture,
        source: &Checkpoint,
    ) -> (Vec<TensorEntry>, BTreeMap<String, String>) {
        let published = match architecture.within {
            Some(_) => source.language_model(),
            None => BTreeMap::new(),
        };
        let name_in_source = |alone: &str| match published.get(alone) {
            Some(name) => (*name).to_owned(),
            None => name_within(architecture.within, alone),
        };
        let (mut entries, mut alone) = (Vec::new(), BTreeMap::new());
        for tensor in architecture.tensors() {
            let name = name_in_source(&tensor.name);
            let other_end = match tensor.name.as_str() {
                EMBEDDING => Some(LM_HEAD),
                LM_HEAD => Some(EMBEDDING),
                _ => None,
            };
            let as_stored = || {
                let of_other_end = || source.dtype(&name_in_source(other_end?));
                let stored = source.dtype(&name).or_else(of_other_end);
                stored.or(architecture.dtype).unwrap_or(Dtype::F32)
            };
            let dtype = match self.dtype {
                WrittenDtype::All(dtype) => dtype,
                WrittenDtype::AsStored => as_stored(),
            };
            let name = source.name_in_file(&name);
            alone.insert(name.clone(), tensor.name.clone());
            entries.push(TensorEntry {
                dtype: EntryDtype::Float(dtype),
                name,
                shape: tensor.shape,
            });
        }
        (entries, alone)
    }

    /// The content of `config.json`, less what is no longer true: how the weights are quantized, and that an LM head of its own is tied.
    fn config(&self, architecture: &Architecture, quantized: Option<&QuantizedWeights>) -> Result<Value, TrainError> {
        let path = self.source.join(CONFIG);
        let text = std::fs::read(&path).map_err(|source| in_out(&path, source))?;
        let parsed = python_json::from_slice(&text);
        let mut config: Map<String, Value> = parsed.map_err(|source| in_out(&path, source.into()))?;
        config.shift_remove("quantization_config");
        if !architecture.tied_embeddings && Architecture::from_config(&path)?.tied_embeddings {
            untie(&mut config);
        }
        if let Some(quantized) = quantized {
            config.insert("quantization_config".to_owned(), quantized.configuration());
        }
        if let WrittenDtype::All(dtype) = self.dtype {
            let key = if config.contains_key("dtype") {
                "dtype"
            } else {
                "torch_dtype"
            };
            config.insert(key.to_owned(), Value::from(name_of(dtype)));
        }
        Ok(Value::Object(config))
    }
}

/// Makes a configuration say that the LM head is no copy of the embedding, whatever it and that of a language model in it said.
fn untie(config: &mut Map<String, Value>) {
    const TIED: &str = "tie_word_embeddings";
    // LFM2's own word for it.
    const OTHER: &str = "tie_embedding";
    if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut) {
        untie(text);
    }
    if let Some(other) = config.get_mut(OTHER) {
        *other = Value::Bool(false);
    }
    config.insert(TIED.to_owned(), Value::Bool(false));
}

impl Checkpoint {
    /// Tensors beside the language model of a multimodal checkpoint, which are written as they are. Only buffers, such
    /// as positions, are no floats, and whoever loads the model makes them again.
    fn beside_language_model(&self) -> Vec<TensorEntry> {
        let within: BTreeSet<&str> = self.language_model().into_values().collect();
        let beside = self.names().filter(|name| !within.contains(name));
        beside.filter_map(|name| self.entry(name)).collect()
    }

    fn entry(&self, name: &str) -> Option<TensorEntry> {
        Some(TensorEntry {
            name: name.to_owned(),
            shape: self.raw(name)?.shape.to_vec(),
            dtype: EntryDtype::Float(self.dtype(name)?),
        })
    }

    /// The tensor `name` as it is stored, on the CPU.
    fn stored(&self, name: &str) -> Result<Tensor, TrainError> {
        let Some(entry) = self.entry(name) else {
            return Err(WeightsError::MissingTensor {
                path: self.path().to_owned(),
                tensor: name.to_owned(),
                missing: 1,
            }
            .into());
        };
        let dtype = match self.dtype(name) {
            Some(Dtype::F16) => DType::F16,
            Some(Dtype::Bf16) => DType::BF16,
            Some(Dtype::F32) | None => DType::F32,
        };
        Ok(self.tensor(name, &entry.shape, dtype, &Device::Cpu)?)
    }
}

impl BaseModel {
    /// The precision in which the model in `directory` is stored: that of its weights where all are alike, fp32 where
    /// they are not.
    ///
    /// # Errors
    /// No checkpoint, or one that cannot be read.
    pub fn stored_precision(directory: &Path) -> Result<Precision, TrainError> {
        let checkpoint = Checkpoint::open(directory)?;
        if checkpoint
            .names()
            .any(|name| name.ends_with(".quant_state.bitsandbytes__nf4"))
        {
            return Ok(Precision::Nf4);
        }
        if checkpoint.names().any(|name| name.ends_with(".SCB")) {
            return Ok(Precision::Int8);
        }
        if checkpoint.is_packed() {
            return Ok(Precision::Bf16);
        }
        // MXFP4 holds experts only: the others say what the model computes in.
        let names = checkpoint.names().filter(|name| mxfp4_owner(name).is_none());
        let mut precisions = names.map(|name| match checkpoint.dtype(name) {
            Some(Dtype::Bf16) => Precision::Bf16,
            Some(Dtype::F16) => Precision::Fp16,
            Some(Dtype::F32) | None => Precision::Fp32,
        });
        let first = precisions.next().unwrap_or(Precision::Fp32);
        Ok(if precisions.all(|precision| precision == first) {
            first
        } else {
            Precision::Fp32
        })
    }
}

/// Divides tensors into files of at most `limit` bytes, in their order. What belongs to a quantized weight stays beside it: other
/// programs look for it in the same file.
fn shards(entries: &[TensorEntry], limit: usize) -> Vec<Vec<TensorEntry>> {
    let mut shards: Vec<Vec<TensorEntry>> = vec![Vec::new()];
    let mut filled = 0;
    for entry in entries {
        if filled > 0 && filled + entry.bytes() > limit && !is_companion(&entry.name) {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += entry.bytes();
        if let Some(last) = shards.last_mut() {
            last.push(entry.clone());
        }
    }
    shards
}

fn shard_name(number: usize, of: usize) -> String {
    match of {
        1 => "model.safetensors".to_owned(),
        _ => format!("model-{:05}-of-{of:05}.safetensors", number + 1),
    }
}

/// Removes the weights of a model, and their index, from its directory.
fn remove_weights(directory: &Path) -> Result<(), TrainError> {
    for entry in std::fs::read_dir(directory).map_err(|source| in_out(directory, source))? {
        let path = entry.map_err(|source| in_out(directory, source))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if ModelDirectory::is_weight_file(&name) {
            remove_file(&path).map_err(|source| in_out(&path, source))?;
        }
    }
    Ok(())
}

/// Copies a file where it is there, and removes that of an older model where it is not. Its content, not its permissions: the hub's
/// cache is read-only.
fn copy_or_remove(from: &Path, to: &Path) -> Result<(), TrainError> {
    if !from.is_file() {
        return remove_file(to).map_err(|source| in_out(to, source));
    }
    let bytes = std::fs::read(from).map_err(|source| in_out(from, source))?;
    write_whole(to, &bytes, true).map_err(|source| in_out(to, source))
}

fn write_json(path: &Path, value: &Value) -> Result<(), TrainError> {
    let text = format!("{value:#}\n");
    write_whole(path, text.as_bytes(), true).map_err(|source| in_out(path, source))
}

fn in_out(path: &Path, source: std::io::Error) -> TrainError {
    TrainError::File {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_filled_in_order_and_never_empty() {
        let entry = |name: &str, elements| TensorEntry {
            name: name.to_owned(),
            shape: vec![elements],
            dtype: EntryDtype::Float(Dtype::F32),
        };
        let entries = [entry("a", 100), entry("b", 1), entry("c", 1), entry("d", 2)];
        let names = |limit| -> Vec<String> {
            let of_shard = |shard: &Vec<TensorEntry>| shard.iter().map(|entry| entry.name.as_str()).collect();
            shards(&entries, limit).iter().map(of_shard).collect()
        };
        assert_eq!(names(8), ["a", "bc", "d"]);
        assert_eq!(names(12), ["a", "bc", "d"]);
        assert_eq!(names(16), ["a", "bcd"]);
        assert_eq!(names(416), ["abcd"]);
        let entries =
            ["q.weight", "q.weight.absmax", "q.weight.quant_map", "k.weight", "k.SCB"].map(|name| entry(name, 2));
        let sizes: Vec<usize> = shards(&entries, 8).iter().map(Vec::len).collect();
        assert_eq!(sizes, [3, 2]);
        assert_eq!(shard_name(0, 1), "model.safetensors");
        assert_eq!(shard_name(1, 3), "model-00002-of-00003.safetensors");
    }
}
