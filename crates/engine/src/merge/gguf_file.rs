//! A trained model as one GGUF file.

use std::path::Path;

use candle_core::DType;

use super::MergedModel;
use super::vocabulary::of_tokenizer;
use crate::TrainError;
use crate::gguf::{GgufEntry, GgufError, GgufType, Layout, ModelMetadata, Value, of_architecture, write};
use crate::hub::ModelFiles;
use crate::tokenizer::Tokenizer;
use peft_tune_core::architecture::TensorShape;

/// A GGUF file that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct GgufFile<'a> {
    /// The files of the model that was trained, for configuration and vocabulary.
    pub source: &'a ModelFiles,
    pub stored: GgufType,
}

impl GgufFile<'_> {
    /// Writes `model` to `path`. What comes back should be told: where llama.cpp may treat text otherwise.
    ///
    /// # Errors
    /// Those of the file system, with the path; a family or a tokenizer that has no form there.
    pub fn write(&self, path: &Path, model: &MergedModel<'_>) -> Result<Vec<String>, TrainError> {
        let architecture = model.architecture();
        let layout = Layout::of(architecture)?;
        let ModelMetadata { keys, rope } = of_architecture(architecture, &layout);
        let tokenizer =
            Tokenizer::open(&self.source.tokenizer).map_err(|error| TrainError::Tokenizer(Box::new(error)))?;
        let vocabulary = of_tokenizer(&self.source.tokenizer, &tokenizer, architecture.vocabulary)?;
        let mut metadata = vec![
            ("general.architecture".to_owned(), Value::Text(layout.name.to_owned())),
            ("general.name".to_owned(), Value::Text(name_of(path))),
            ("general.file_type".to_owned(), Value::U32(self.stored.file_type())),
            ("general.quantization_version".to_owned(), Value::U32(2)),
        ];
        metadata.extend(keys);
        metadata.extend(vocabulary.keys);
        let tensors = architecture.tensors();
        let (mut entries, mut sources) = (Vec::new(), Vec::new());
        for tensor in &tensors {
            let name = layout.stored_name(&tensor.name);
            let name = name.ok_or_else(|| GgufError::Name {
                tensor: tensor.name.clone(),
            })?;
            entries.push(GgufEntry {
                stored: self.stored.of_shape(&tensor.shape),
                shape: tensor.shape.clone(),
                name,
            });
            sources.push(Source::Tensor(tensor));
        }
        for (name, values) in &rope {
            entries.push(GgufEntry {
                name: name.clone(),
                shape: vec![values.len()],
                stored: GgufType::F32,
            });
            sources.push(Source::Values(values));
        }
        let mut sources = sources.into_iter();
        let mut next = |_: &GgufEntry| match sources.next() {
            Some(Source::Tensor(tensor)) => values(model, &layout, tensor),
            Some(Source::Values(values)) => Ok(values.clone()),
            None => Ok(Vec::new()),
        };
        let in_out = |source| TrainError::File {
            path: path.to_owned(),
            source,
        };
        write(path, &metadata, &entries, &mut next, in_out)?;
        Ok(vocabulary.notes)
    }
}

/// Source of an entry's values.
enum Source<'a> {
    Tensor(&'a TensorShape),
    Values(&'a Vec<f32>),
}

fn values(model: &MergedModel<'_>, layout: &Layout<'_>, tensor: &TensorShape) -> Result<Vec<f32>, TrainError> {
    let values = model.tensor(&tensor.name)?.to_dtype(DType::F32)?;
    let values: Vec<f32> = values.flatten_all()?.to_vec1()?;
    let width = if tensor.shape.len() > 1 {
        tensor.shape[tensor.shape.len() - 1]
    } else {
        1
    };
    Ok(layout.form(&tensor.name, &tensor.shape).stored(values, width))
}

/// The file's name without its ending.
fn name_of(path: &Path) -> String {
    path.file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default()
}
