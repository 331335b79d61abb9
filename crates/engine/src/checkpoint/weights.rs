//! Checkpoints: one or several memory-mapped safetensors files, read tensor by tensor into the wanted dtype.
//!
//! The files are mapped, not read: a tensor's pages come in while it is converted, belong to the page cache and are
//! released afterwards, so that loading needs no memory beyond the result. Every size and offset in a file is checked
//! before it is used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use memmap2::Mmap;
use safetensors::tensor::{Metadata, TensorInfo};

use super::WeightsError;
use super::floats::{Float, converted};
use super::header;
use super::packed::Packing;
use crate::gguf::GgufWeights;
use peft_tune_core::architecture::{self, Architecture, EMBEDDING, LM_HEAD, module_name, names_of_language_model};
use peft_tune_core::bounded;
use peft_tune_kernels::quant::RawTensor;

/// Name of an unsharded checkpoint.
const SINGLE: &str = "model.safetensors";
/// Name of the file that says which shard holds which tensor.
const INDEX: &str = "model.safetensors.index.json";

/// An opened checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    shards: Vec<Shard>,
    places: BTreeMap<String, TensorLocation>,
    /// The file that a missing tensor is reported in.
    path: PathBuf,
    packing: Packing,
    /// The weights, where they lie in a GGUF file.
    gguf: Option<GgufWeights>,
}

/// Location of a tensor.
#[derive(Clone, Debug)]
struct TensorLocation {
    shard: usize,
    /// Name of the tensor in the file.
    name: String,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// First byte behind the header.
    data: usize,
}

impl Checkpoint {
    /// Opens the checkpoint in `directory`: `model.safetensors`, the shards of `model.safetensors.index.json`, or the only GGUF
    /// file.
    ///
    /// # Errors
    /// No checkpoint, an unreadable or damaged file, or an index that does not agree with its shards.
    pub fn open(directory: &Path) -> Result<Self, WeightsError> {
        let packing = Packing::of(directory)?;
        let single = directory.join(SINGLE);
        if single.is_file() {
            let shard = Shard::open(single.clone())?;
            let place = |name: String| (module_name(&name), TensorLocation { shard: 0, name });
            let places = shard.names().into_iter().map(place).collect();
            return Ok(Self {
                shards: vec![shard],
                places,
                path: single,
                packing,
                gguf: None,
            });
        }
        let index = directory.join(INDEX);
        if index.is_file() {
            return Self::open_sharded(directory, index, packing);
        }
        let path = GgufWeights::find(directory)?.ok_or_else(|| WeightsError::NoCheckpoint {
            directory: directory.to_owned(),
        })?;
        let architecture = Architecture::from_config(&directory.join("config.json"))?;
        Ok(Self {
            shards: Vec::new(),
            places: BTreeMap::new(),
            path: path.clone(),
            packing,
            gguf: Some(GgufWeights::open(path, architecture)?),
        })
    }

    /// Opens the checkpoint in `directory` as a model of `architecture` has it: of a multimodal one the language model. Where the file
    /// has tied embeddings under the name of the LM head alone, they are found under that of the embedding too.
    ///
    /// # Errors
    /// Those of [`Checkpoint::open`].
    pub fn open_for(directory: &Path, architecture: &Architecture) -> Result<Self, WeightsError> {
        let checkpoint = Self::open(directory)?;
        let mut checkpoint = match architecture.within {
            Some(_) => checkpoint.of_language_model(),
            None => checkpoint,
        };
        if architecture.tied_embeddings
            && !checkpoint.contains(EMBEDDING)
            && let Some(head) = checkpoint.places.get(LM_HEAD).cloned()
        {
            checkpoint.places.insert(EMBEDDING.to_owned(), head);
        }
        Ok(checkpoint)
    }

    /// Whether there is an LM head with other values than the embedding. transformers leaves the two apart then, whatever
    /// `config.json` says of them.
    ///
    /// # Errors
    /// A value that is not finite.
    pub(crate) fn has_own_head(&self) -> Result<bool, WeightsError> {
        let is_float = |raw: &RawTensor<'_>| Float::from_dtype(raw.dtype).is_some();
        let (embedding, head) = (self.raw(EMBEDDING).filter(is_float), self.raw(LM_HEAD).filter(is_float));
        let (Some(embedding), Some(head)) = (embedding, head) else {
            return Ok(false);
        };
        let differ = if embedding.shape != head.shape {
            true
        } else if embedding.dtype == head.dtype {
            embedding.bytes != head.bytes
        } else {
            let values = |name: &str| -> Result<Vec<f32>, WeightsError> {
                let tensor = self.tensor(name, embedding.shape, DType::F32, &Device::Cpu)?;
                Ok(tensor.flatten_all()?.to_vec1()?)
            };
            values(EMBEDDING)? != values(LM_HEAD)?
        };
        self.let_go(EMBEDDING);
        self.let_go(LM_HEAD);
        Ok(differ)
    }

    fn open_sharded(directory: &Path, path: PathBuf, packing: Packing) -> Result<Self, WeightsError> {
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let text = bounded::read_text(&path, bounded::SETTINGS_BYTES).map_err(|source| WeightsError::Read {
            path: path.clone(),
            source,
        })?;
        let index: Index = serde_json::from_str(&text).map_err(|source| WeightsError::Index {
            path: path.clone(),
            source,
        })?;
        let files: BTreeSet<&String> = index.weight_map.values().collect();
        let mut shards = Vec::with_capacity(files.len());
        for file in &files {
            // A shard outside the directory is never meant: such an index is damaged or hostile.
            if Path::new(file.as_str()).file_name() != Some(file.as_ref()) {
                return Err(WeightsError::ShardName {
                    path,
                    shard: file.to_string(),
                });
            }
            shards.push(Shard::open(directory.join(file.as_str()))?);
        }
        let mut places = BTreeMap::new();
        for (name, file) in &index.weight_map {
            let shard = files.iter().position(|other| *other == file).unwrap_or_default();
            if shards[shard].metadata.info(name).is_none() {
                return Err(WeightsError::MisplacedTensor {
                    index: path,
                    tensor: name.clone(),
                    shard: shards[shard].path.clone(),
                });
            }
            let name = name.clone();
            places.insert(module_name(&name), TensorLocation { shard, name });
        }
        Ok(Self {
            shards,
            places,
            path,
            packing,
            gguf: None,
        })
    }

    /// The tensors of a language model inside of a multimodal checkpoint, under the names that they would have alone.
    pub fn language_model(&self) -> BTreeMap<String, &str> {
        let names = names_of_language_model(self.names()).into_iter();
        names.collect()
    }

    /// The checkpoint without what stands beside its language model, under the names that this would have alone.
    fn of_language_model(mut self) -> Self {
        let found = self.language_model().into_iter();
        let places = found.filter_map(|(alone, name)| Some((alone, self.places.get(name)?.clone())));
        self.places = places.collect();
        self
    }

    /// What the file itself calls the tensor `name`, or would call it where it holds parts of a packed weight in its place.
    pub(crate) fn name_in_file(&self, name: &str) -> String {
        if let Some(place) = self.places.get(name) {
            return place.name.clone();
        }
        let of_file = || {
            let (module, ending) = name.rsplit_once('.')?;
            let parts = self.places.range(format!("{module}.")..);
            let mut parts = parts.take_while(|(part, _)| part.starts_with(module));
            let (_, part) = parts.find(|(part, _)| part.rsplit_once('.').is_some_and(|(of, _)| of == module))?;
            let (module, _) = part.name.rsplit_once('.')?;
            Some(format!("{module}.{ending}"))
        };
        of_file().unwrap_or_else(|| name.to_owned())
    }

    /// Names of all tensors, sorted: those of modules, which the files may have others for.
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.places.keys().map(String::as_str)
    }

    /// Names of the modules whose weight is a matrix in the files, sorted; none of a GGUF file.
    pub fn matrix_modules(&self) -> impl Iterator<Item = &str> {
        self.names().filter_map(|name| {
            let is_matrix = self.raw(name)?.shape.len() == 2;
            name.strip_suffix(".weight").filter(|_| is_matrix)
        })
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name) || self.gguf.as_ref().is_some_and(|gguf| gguf.contains(name))
    }

    /// Reads tensor `name` of shape `shape` and converts it to `dtype` (F32, F16 or BF16) on `device`.
    ///
    /// # Errors
    /// A tensor that is missing, has another shape, is stored in a dtype other than F32, F16 and BF16, or holds a
    /// value that is not finite in `dtype`.
    pub fn tensor(&self, name: &str, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor, WeightsError> {
        let (shard, stored, bytes) = self.checked(name, shape)?;
        let tensor = shard.converted(name, stored, bytes, shape, dtype)?;
        shard.let_go(bytes);
        Ok(tensor.to_device(device)?)
    }

    /// Matrix `index` of the stack `name`, whose shape is `shape`, in `dtype` on the CPU; else as [`Checkpoint::tensor`].
    pub(crate) fn part(&self, name: &str, shape: &[usize], index: usize, dtype: DType) -> Result<Tensor, WeightsError> {
        let (shard, stored, bytes) = self.checked(name, shape)?;
        let length = bytes.len() / shape.first().copied().unwrap_or(1).max(1);
        let bytes = bytes.get(index * length..(index + 1) * length).unwrap_or_default();
        let tensor = shard.converted(name, stored, bytes, &shape[1..], dtype)?;
        shard.let_go(bytes);
        Ok(tensor)
    }

    /// Number type of tensor `name` in the file; `None` where there is no such tensor or it is not a float.
    pub fn dtype(&self, name: &str) -> Option<architecture::Dtype> {
        Some(match Float::from_dtype(self.raw(name)?.dtype)? {
            Float::F32 => architecture::Dtype::F32,
            Float::F16 => architecture::Dtype::F16,
            Float::Bf16 => architecture::Dtype::Bf16,
        })
    }

    /// The tensor `name` as it lies in the file.
    pub(crate) fn raw(&self, name: &str) -> Option<RawTensor<'_>> {
        let place = self.places.get(name)?;
        let shard = &self.shards[place.shard];
        let info = shard.metadata.info(&place.name)?;
        Some(RawTensor {
            dtype: info.dtype,
            shape: &info.shape,
            bytes: shard.bytes(info),
        })
    }

    /// Packing of quantized weights, as `config.json` says it.
    pub(super) fn packing(&self) -> &Packing {
        &self.packing
    }

    /// Takes the pages of the tensor `name` out of this process's memory, once it has been read.
    pub(crate) fn let_go(&self, name: &str) {
        if let Some(raw) = self.raw(name) {
            self.shard(name).let_go(raw.bytes);
        }
    }

    /// The file, or the index of the files.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The weights, where they lie in a GGUF file.
    pub(super) fn gguf(&self) -> Option<&GgufWeights> {
        self.gguf.as_ref()
    }

    /// The file that holds the tensor `name`.
    pub(super) fn file_of(&self, name: &str) -> &Path {
        &self.shard(name).path
    }

    /// Checks that the tensor `name` is there, has this shape and is a float.
    pub(super) fn check_tensor(&self, name: &str, shape: &[usize]) -> Result<(), WeightsError> {
        self.checked(name, shape).map(drop)
    }

    fn shard(&self, name: &str) -> &Shard {
        &self.shards[self.places.get(name).map_or(0, |place| place.shard)]
    }

    /// The shard, float type and bytes of `name`, once its shape and dtype have been checked.
    fn checked(&self, name: &str, shape: &[usize]) -> Result<(&Shard, Float, &[u8]), WeightsError> {
        let shard = self.shard(name);
        let place = self.places.get(name);
        let Some(info) = place.and_then(|place| shard.metadata.info(&place.name)) else {
            return Err(WeightsError::MissingTensor {
                path: self.path.clone(),
                tensor: name.to_owned(),
                missing: 1,
            });
        };
        if info.shape != shape {
            return Err(WeightsError::Shape {
                path: shard.path.clone(),
                tensor: name.to_owned(),
                expected: shape.to_vec(),
                got: info.shape.clone(),
            });
        }
        let float = Float::from_dtype(info.dtype).ok_or_else(|| WeightsError::Dtype {
            path: shard.path.clone(),
            tensor: name.to_owned(),
            got: format!("{:?}", info.dtype),
        })?;
        Ok((shard, float, shard.bytes(info)))
    }
}

impl Shard {
    fn open(path: PathBuf) -> Result<Self, WeightsError> {
        let read = |source| WeightsError::Read {
            path: path.clone(),
            source,
        };
        let file = File::open(&path).map_err(read)?;
        // SAFETY: the map is read only. A file that another process shortens while it is mapped would end this
        // process with SIGBUS; model files are written once.
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        let parsed = header::check(&map).and_then(|()| safetensors::SafeTensors::read_metadata(&map));
        let (header, metadata) = parsed.map_err(|source| WeightsError::Damaged {
            path: path.clone(),
            source,
        })?;
        Ok(Self {
            path,
            map,
            metadata,
            data: header + size_of::<u64>(),
        })
    }

    fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The bytes of one tensor; `read_metadata` has checked that its offsets lie inside the file.
    fn bytes(&self, info: &TensorInfo) -> &[u8] {
        &self.map[self.data + info.data_offsets.0..self.data + info.data_offsets.1]
    }

    /// Bytes of the tensor `name` as a tensor of `shape` in `dtype`, on the CPU.
    fn converted(
        &self,
        name: &str,
        stored: Float,
        bytes: &[u8],
        shape: &[usize],
        dtype: DType,
    ) -> Result<Tensor, WeightsError> {
        let not_finite = |element| WeightsError::NotFinite {
            path: self.path.clone(),
            tensor: name.to_owned(),
            dtype: dtype.as_str(),
            element,
        };
        let cpu = &Device::Cpu;
        Ok(match dtype {
            DType::BF16 => Tensor::from_vec(converted::<bf16>(stored, bytes).map_err(not_finite)?, shape, cpu),
            DType::F16 => Tensor::from_vec(converted::<f16>(stored, bytes).map_err(not_finite)?, shape, cpu),
            DType::F32 => Tensor::from_vec(converted::<f32>(stored, bytes).map_err(not_finite)?, shape, cpu),
            other => Err(candle_core::Error::UnsupportedDTypeForOp(other, "weights").bt()),
        }?)
    }

    /// Takes pages that have been read out of this process's memory; they stay in the page cache.
    fn let_go(&self, bytes: &[u8]) {
        let start = bytes.as_ptr().addr() - self.map.as_ptr().addr();
        let advice = memmap2::UncheckedAdvice::DontNeed;
        // Where the system refuses, the pages stay a while longer.
        // SAFETY: nobody writes to the map, so that its pages come back as they were.
        let _ = unsafe { self.map.unchecked_advise_range(advice, start, bytes.len()) };
    }
}
