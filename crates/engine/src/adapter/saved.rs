//! A PEFT adapter directory: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use crate::Parameters;
use crate::checkpoint::header;
use peft_tune_core::architecture::{Architecture, EMBEDDING, LM_HEAD, module_name, name_alone};
use peft_tune_core::bounded;
use peft_tune_core::recipe::AdapterSettings;
use peft_tune_core::whole_file::{make_folder, remove_file, write_whole};

use super::config::PeftConfig;
use super::error::AdapterError;
use super::init::set;
use super::per_expert;
use super::per_expert::Tensors;

use peft_tune_core::plan::{AdapterPlan, PREFIX, TiedEnds};

const CONFIG: &str = "adapter_config.json";
const TENSORS: &str = "adapter_model.safetensors";
const MAGNITUDE: &str = ".lora_magnitude_vector";
const MAGNITUDE_WEIGHT: &str = ".lora_magnitude_vector.weight";

/// An adapter read from disk.
#[derive(Clone, Debug)]
pub struct SavedAdapter {
    path: PathBuf,
    pub config: PeftConfig,
    tensors: Tensors,
}

impl SavedAdapter {
    /// Reads the adapter in `directory`.
    ///
    /// # Errors
    /// Missing, damaged or truncated files, a feature this engine does not have, a dtype that is not a float, and
    /// values that are not finite.
    pub fn read(directory: &Path) -> Result<Self, AdapterError> {
        let path = directory.join(TENSORS);
        let bytes = fs::read(&path).map_err(|source| AdapterError::Read {
            path: path.clone(),
            source,
        })?;
        let mut tensors = read_tensors(&path, &bytes)?;
        let joined = per_expert::join(&mut tensors, &path)?;
        let modules = adapted_modules(&tensors);
        if modules.is_empty() {
            return Err(AdapterError::NoTensor { path });
        }
        let config_path = directory.join(CONFIG);
        let text = bounded::read_text(&config_path, bounded::SETTINGS_BYTES).map_err(|source| AdapterError::Read {
            path: config_path.clone(),
            source,
        })?;
        let mut config = PeftConfig::from_json(&text, &config_path, &modules)?;
        if let Some(joined) = joined {
            config.settings = joined.settings(config.settings, &modules);
        }
        Ok(Self { path, config, tensors })
    }

    /// The tensor of a PEFT name, F32 on the CPU.
    ///
    /// # Errors
    /// The name is not in the file.
    pub fn tensor(&self, name: &str) -> Result<Tensor, AdapterError> {
        let (shape, values) = self.tensors.get(name).ok_or_else(|| AdapterError::MissingTensor {
            path: self.path.clone(),
            name: name.to_owned(),
        })?;
        Ok(Tensor::from_slice(values, shape.as_slice(), &Device::Cpu)?)
    }

    /// Names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether PEFT gives a model with tied embeddings an LM head of its own for this adapter: it has one of the two ends whole, or each
    /// for itself, and nothing says that they are one (`ensure_weight_tying`).
    pub fn unties_embeddings(&self) -> bool {
        !self.config.ties_embeddings && (self.whole(EMBEDDING).is_some() || self.whole(LM_HEAD).is_some())
    }

    /// The adapter as a model of `architecture` has its parameters: where its embeddings are tied, with one tensor for both ends.
    ///
    /// # Errors
    /// Ends that differ.
    pub fn for_model(mut self, architecture: &Architecture) -> Result<Self, AdapterError> {
        if !architecture.tied_embeddings || !self.config.ties_embeddings {
            return Ok(self);
        }
        let (embedding, head) = (self.whole(EMBEDDING), self.whole(LM_HEAD));
        let Some((head, value)) = head.and_then(|head| self.tensors.remove_entry(&head)) else {
            return Ok(self);
        };
        match embedding {
            Some(embedding) if self.tensors.get(&embedding) != Some(&value) => Err(AdapterError::EndsDiffer {
                path: self.path,
                embedding,
                head,
            }),
            Some(_) => Ok(self),
            None => {
                self.tensors.insert(format!("{PREFIX}{EMBEDDING}"), value);
                Ok(self)
            }
        }
    }

    /// The name in the file of the parameter `name` of the base model, where it is saved whole.
    fn whole(&self, name: &str) -> Option<String> {
        let mut names = self.tensors.keys();
        names.find(|known| peft_name_alone(known) == name).cloned()
    }

    /// Copies every tensor to its slot. An adapter on a language model alone fits the same language model inside of a multimodal
    /// one, and the other way round.
    ///
    /// # Errors
    /// A slot without tensor, a tensor without slot, or a shape that differs.
    pub fn load_into(&self, parameters: &Parameters) -> Result<(), AdapterError> {
        let slots = parameters.layout.slots();
        let wanted: Vec<String> = slots.iter().map(|slot| peft_name_alone(&slot.name)).collect();
        let mut alone: BTreeMap<String, &String> = BTreeMap::new();
        for name in self.tensors.keys() {
            let known = wanted.contains(&peft_name_alone(name));
            // Twice the same place under two names is as much too many.
            if !known || alone.insert(peft_name_alone(name), name).is_some() {
                return Err(AdapterError::ExtraTensor {
                    path: self.path.clone(),
                    name: name.clone(),
                });
            }
        }
        for (index, slot) in slots.iter().enumerate() {
            let found = alone.get(&wanted[index]).and_then(|name| self.tensors.get(*name));
            let (shape, values) = found.ok_or_else(|| AdapterError::MissingTensor {
                path: self.path.clone(),
                name: slot.name.clone(),
            })?;
            if *shape != slot.shape {
                return Err(AdapterError::Shape {
                    path: self.path.clone(),
                    name: slot.name.clone(),
                    got: shape.clone(),
                    expected: slot.shape.clone(),
                });
            }
            set(parameters, index, values.clone())?;
        }
        Ok(())
    }
}

/// Writes the adapter into `directory` (made where it is missing), in F32 and in PEFT's layout. A trained embedding that is the LM
/// head too is written as both: PEFT would load one end alone, and leave the other as the base model has it.
///
/// It is on the disk when this returns. An older configuration is removed first and the new one comes last: after a crash the
/// whole adapter loads, or none.
///
/// # Errors
/// Those of the file system, with the path.
pub fn write(
    directory: &Path,
    plan: &AdapterPlan,
    base_model: Option<&str>,
    parameters: &Parameters,
) -> Result<(), AdapterError> {
    make_folder(directory).map_err(|source| AdapterError::Write {
        path: directory.to_owned(),
        source,
    })?;
    let ends = plan.tied_ends();
    let config = PeftConfig {
        base_model: base_model.map(str::to_owned),
        ties_embeddings: ends.is_some(),
        settings: AdapterSettings {
            adapter_init: None,
            ..plan.settings.clone()
        },
    };
    let values: Vec<f32> = parameters
        .values
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F32)?
        .to_vec1()?;
    let tensors = to_safetensors(parameters, &values, ends.as_ref())?;
    let text = config.to_json(&plan.linears, plan.within);
    let failed = |path: PathBuf| |source| AdapterError::Write { path, source };
    let path = directory.join(CONFIG);
    remove_file(&path).map_err(failed(path))?;
    for (name, bytes) in [(TENSORS, tensors.as_slice()), (CONFIG, text.as_bytes())] {
        let path = directory.join(name);
        write_whole(&path, bytes, true).map_err(failed(path))?;
    }
    Ok(())
}

fn to_safetensors(parameters: &Parameters, values: &[f32], ends: Option<&TiedEnds>) -> Result<Vec<u8>, AdapterError> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut views = Vec::with_capacity(parameters.layout.slots().len());
    for slot in parameters.layout.slots() {
        let range = slot.offset * 4..(slot.offset + slot.elements()) * 4;
        let view = TensorView::new(Dtype::F32, slot.shape.clone(), &bytes[range]).map_err(candle_core::Error::wrap)?;
        if let Some(ends) = ends.filter(|ends| ends.embedding == slot.name) {
            views.push((ends.head.as_str(), view.clone()));
        }
        views.push((slot.name.as_str(), view));
    }
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    Ok(safetensors::serialize(views, Some(metadata)).map_err(candle_core::Error::wrap)?)
}

fn read_tensors(path: &Path, bytes: &[u8]) -> Result<Tensors, AdapterError> {
    let file = header::check(bytes).and_then(|()| SafeTensors::deserialize(bytes));
    let file = file.map_err(|source| AdapterError::Tensors {
        path: path.to_owned(),
        source,
    })?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        let values = to_f32(&view).ok_or_else(|| AdapterError::Dtype {
            path: path.to_owned(),
            name: name.to_owned(),
            dtype: format!("{:?}", view.dtype()),
        })?;
        if values.iter().any(|value| !value.is_finite()) {
            return Err(AdapterError::NotFinite {
                path: path.to_owned(),
                name: name.to_owned(),
            });
        }
        // PEFT's modules call a magnitude `lora_magnitude_vector.weight`; its files have the short form.
        let name = name
            .strip_suffix(MAGNITUDE_WEIGHT)
            .map_or(name.to_owned(), |head| format!("{head}{MAGNITUDE}"));
        tensors.insert(module_name(&name), (view.shape().to_vec(), values));
    }
    Ok(tensors)
}

fn to_f32(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = view.data();
    Some(match view.dtype() {
        Dtype::F32 => data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect(),
        Dtype::BF16 => data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| bf16::from_le_bytes(*bytes).to_f32())
            .collect(),
        Dtype::F16 => data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f16::from_le_bytes(*bytes).to_f32())
            .collect(),
        Dtype::F64 => data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f64::from_le_bytes(*bytes) as f32)
            .collect(),
        _ => return None,
    })
}

/// A tensor's name without PEFT's prefix, in the language model alone.
fn peft_name_alone(name: &str) -> String {
    name_alone(name.strip_prefix(PREFIX).unwrap_or(name))
}

/// Names of the modules that have a lora_a, in the language model alone.
fn adapted_modules(tensors: &Tensors) -> Vec<String> {
    let module = |name: &String| {
        let inner = name.strip_prefix(PREFIX)?.strip_suffix(".lora_A.weight")?;
        Some(name_alone(inner))
    };
    tensors.keys().filter_map(module).collect()
}
