//! A GGUF file as the weights of a model directory.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::Content;
use candle_core::{Device, Tensor};

use super::{GgufError, Layout};
use peft_tune_core::architecture::{Architecture, TensorShape};

/// Tensors that say how positions are encoded, which `config.json` says too.
const OF_ROPE: [&str; 3] = [
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
];

/// An opened file. Tensors are asked for by the names that they have in a safetensors checkpoint.
pub(crate) struct GgufWeights {
    path: PathBuf,
    content: Content,
    architecture: Architecture,
}

impl GgufWeights {
    /// The only GGUF file of a model directory; `None` where it has none.
    ///
    /// # Errors
    /// Several files, a part of a split model, a damaged file, one of another architecture than `config.json` describes.
    pub(crate) fn find(folder: &Path) -> Result<Option<PathBuf>, GgufError> {
        let files = files_in(folder).map_err(|source| in_out(folder, source))?;
        match files.as_slice() {
            [] => Ok(None),
            [one] => Ok(Some(one.clone())),
            [first, ..] if is_part(first) => Err(GgufError::Split { path: first.clone() }),
            several => {
                let names = several
                    .iter()
                    .filter_map(|path| path.file_name())
                    .map(|name| name.to_string_lossy());
                Err(GgufError::Several {
                    folder: folder.to_owned(),
                    files: names.collect::<Vec<_>>().join(", "),
                })
            }
        }
    }

    /// GGUF file of a folder, any of them.
    pub(crate) fn first(folder: &Path) -> Option<PathBuf> {
        files_in(folder).ok()?.into_iter().next()
    }

    /// Opens `path`, whose model is of this architecture.
    ///
    /// # Errors
    /// See [`GgufWeights::find`].
    pub(crate) fn open(path: PathBuf, architecture: Architecture) -> Result<Self, GgufError> {
        if is_part(&path) {
            return Err(GgufError::Split { path });
        }
        let mut file = BufReader::new(File::open(&path).map_err(|source| in_out(&path, source))?);
        let content = Content::read(&mut file).map_err(|error| damaged(&path, &error))?;
        let name = content
            .metadata
            .get("general.architecture")
            .and_then(|name| name.to_string().ok());
        let layout = Layout::of(&architecture)?;
        if let Some(got) = name.filter(|name| *name != layout.name) {
            return Err(GgufError::Architecture {
                got: got.clone(),
                family: architecture.family.name(),
                expected: layout.name,
                path,
            });
        }
        Ok(Self {
            path,
            content,
            architecture,
        })
    }

    /// Whether it has the tensor `name`.
    pub(crate) fn contains(&self, name: &str) -> bool {
        let stored = self.layout().and_then(|layout| layout.stored_name(name));
        stored.is_some_and(|stored| self.content.tensor_infos.contains_key(&stored))
    }

    /// The tensors that are none of `expected`, by their own names, sorted.
    pub(crate) fn extra(&self, expected: &[TensorShape]) -> Vec<String> {
        let Some(layout) = self.layout() else {
            return Vec::new();
        };
        let known: Vec<String> = expected
            .iter()
            .filter_map(|tensor| layout.stored_name(&tensor.name))
            .collect();
        // A copy of the embedding where the LM head is tied to it.
        let is_copy = |name: &str| name == "output.weight" && self.architecture.tied_embeddings;
        let names = self.content.tensor_infos.keys();
        let mut extra: Vec<String> = names
            .filter(|name| !known.contains(name) && !OF_ROPE.contains(&name.as_str()) && !is_copy(name))
            .cloned()
            .collect();
        extra.sort();
        extra
    }

    /// Tensor `name` of this shape, widened to F32 on the CPU; `None` where there is none.
    ///
    /// # Errors
    /// Another shape, a value that is not finite, a file that ends early.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Option<Tensor>, GgufError> {
        let Some(layout) = self.layout() else {
            return Ok(None);
        };
        let stored = layout.stored_name(name);
        let Some(stored) = stored.filter(|stored| self.content.tensor_infos.contains_key(stored)) else {
            return Ok(None);
        };
        let got = self.content.tensor_infos[&stored].shape.dims();
        if got != shape {
            return Err(GgufError::Shape {
                path: self.path.clone(),
                tensor: stored.clone(),
                expected: shape.to_vec(),
                got: got.to_vec(),
            });
        }
        let mut file = BufReader::new(File::open(&self.path).map_err(|source| in_out(&self.path, source))?);
        let tensor = self.content.tensor(&mut file, &stored, &Device::Cpu);
        let tensor = tensor
            .map_err(|error| damaged(&self.path, &error))?
            .dequantize(&Device::Cpu)?;
        let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        if let Some(element) = values.iter().position(|value| !value.is_finite()) {
            return Err(GgufError::NotFinite {
                path: self.path.clone(),
                tensor: stored,
                element,
            });
        }
        let width = if shape.len() > 1 { shape[shape.len() - 1] } else { 1 };
        let values = layout.form(name, shape).restored(values, width);
        Ok(Some(Tensor::from_vec(values, shape, &Device::Cpu)?))
    }

    fn layout(&self) -> Option<Layout<'_>> {
        Layout::of(&self.architecture).ok()
    }
}

impl std::fmt::Debug for GgufWeights {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("GgufWeights")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// The GGUF files of a folder, sorted.
fn files_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "gguf") && path.is_file())
        .collect();
    files.sort();
    Ok(files)
}

/// Whether a file is one of several that hold a model (`-00001-of-00003`).
fn is_part(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let Some((rest, of)) = stem.rsplit_once("-of-") else {
        return false;
    };
    let number = rest.rsplit_once('-').map_or("", |(_, number)| number);
    [of, number]
        .iter()
        .all(|digits| digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        && of != "00001"
}

fn damaged(path: &Path, error: &candle_core::Error) -> GgufError {
    GgufError::Damaged {
        path: path.to_owned(),
        reason: error.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

fn in_out(path: &Path, source: std::io::Error) -> GgufError {
    GgufError::File {
        path: path.to_owned(),
        source,
    }
}
