//! Writing safetensors files tensor by tensor: one tensor is in memory at a time, whatever the size of the file.
//!
//! Layout (github.com/huggingface/safetensors): 8 bytes with the header's length, the header (JSON, padded with spaces
//! to a multiple of 8), then the tensors without gaps, little-endian. Wider dtypes come first, so that all are aligned.
//!
//! Design note: the safetensors crate writes from values that are all there, or that cannot fail while they are
//! computed; a merged weight is neither.

use std::io::{self, Write};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::View;
use safetensors::tensor::SafeTensorError;
use serde_json::{Map, json};

use crate::{TrainError, WeightsError};
use peft_tune_core::architecture::Dtype;
use peft_tune_core::whole_file::WholeFile;

/// One tensor of a file that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorEntry {
    pub name: String,
    pub shape: Vec<usize>,
    pub dtype: EntryDtype,
}

/// Type of the elements of a file's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryDtype {
    Float(Dtype),
    /// Bytes, from a U8 tensor.
    U8,
    /// Signed bytes, from a U8 tensor of their bits.
    I8,
    F64,
    I64,
}

impl TensorEntry {
    /// The entry of a tensor that is written as it is.
    ///
    /// # Errors
    /// A dtype that no file here has.
    pub(crate) fn of(name: &str, tensor: &Tensor) -> candle_core::Result<Self> {
        let dtype = match tensor.dtype() {
            DType::F32 => EntryDtype::Float(Dtype::F32),
            DType::F16 => EntryDtype::Float(Dtype::F16),
            DType::BF16 => EntryDtype::Float(Dtype::Bf16),
            DType::U8 => EntryDtype::U8,
            DType::F64 => EntryDtype::F64,
            DType::I64 => EntryDtype::I64,
            other => candle_core::bail!("`{name}` is {other:?}, which is not written"),
        };
        Ok(Self {
            name: name.to_owned(),
            shape: tensor.dims().to_vec(),
            dtype,
        })
    }

    /// Bytes of the tensor in the file.
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * width(self.dtype)
    }
}

/// Computes the tensor of a name, in any float dtype or that of its entry, on any device.
pub(crate) type TensorSource<'a> = &'a mut dyn FnMut(&str) -> Result<Tensor, TrainError>;

/// Writes the tensors of `entries`, each taken from `source` when its turn comes and rounded to its dtype. The file
/// appears under `path` only when it is whole and on the disk.
///
/// # Errors
/// Those of `source`, of the file system, and a tensor that has another shape than its entry says.
pub(crate) fn write_tensors(path: &Path, entries: &[TensorEntry], source: TensorSource<'_>) -> Result<(), TrainError> {
    let failed = |error| write_error(path, error);
    let mut entries: Vec<&TensorEntry> = entries.iter().collect();
    entries.sort_by(|a, b| (width(b.dtype), &a.name).cmp(&(width(a.dtype), &b.name)));
    let mut file = WholeFile::create(path, true).map_err(failed)?;
    file.write_all(&header(&entries)).map_err(failed)?;
    for entry in entries {
        let tensor = converted(entry, &source(&entry.name)?)?;
        file.write_all(&View::data(&tensor)).map_err(failed)?;
    }
    file.finish().map_err(failed)
}

fn header(entries: &[&TensorEntry]) -> Vec<u8> {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    for entry in entries {
        let end = offset + entry.bytes();
        let place = json!({"dtype": code(entry.dtype), "shape": entry.shape, "data_offsets": [offset, end]});
        header.insert(entry.name.clone(), place);
        offset = end;
    }
    let mut text = serde_json::Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}

fn converted(entry: &TensorEntry, tensor: &Tensor) -> Result<Tensor, TrainError> {
    if tensor.dims() != entry.shape {
        return Err(WeightsError::Shape {
            path: "memory".into(),
            tensor: entry.name.clone(),
            expected: entry.shape.clone(),
            got: tensor.dims().to_vec(),
        }
        .into());
    }
    let dtype = match entry.dtype {
        EntryDtype::Float(Dtype::F32) => DType::F32,
        EntryDtype::Float(Dtype::F16) => DType::F16,
        EntryDtype::Float(Dtype::Bf16) => DType::BF16,
        EntryDtype::U8 | EntryDtype::I8 => DType::U8,
        EntryDtype::F64 => DType::F64,
        EntryDtype::I64 => DType::I64,
    };
    Ok(tensor.to_dtype(dtype)?.to_device(&Device::Cpu)?.contiguous()?)
}

fn write_error(path: &Path, error: io::Error) -> TrainError {
    WeightsError::Write {
        path: path.to_owned(),
        source: SafeTensorError::IoError(error),
    }
    .into()
}

fn width(dtype: EntryDtype) -> usize {
    match dtype {
        EntryDtype::F64 | EntryDtype::I64 => 8,
        EntryDtype::Float(Dtype::F32) => 4,
        EntryDtype::Float(Dtype::F16 | Dtype::Bf16) => 2,
        EntryDtype::U8 | EntryDtype::I8 => 1,
    }
}

fn code(dtype: EntryDtype) -> &'static str {
    match dtype {
        EntryDtype::Float(Dtype::F32) => "F32",
        EntryDtype::Float(Dtype::F16) => "F16",
        EntryDtype::Float(Dtype::Bf16) => "BF16",
        EntryDtype::U8 => "U8",
        EntryDtype::I8 => "I8",
        EntryDtype::F64 => "F64",
        EntryDtype::I64 => "I64",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, shape: &[usize], dtype: Dtype) -> TensorEntry {
        TensorEntry {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: EntryDtype::Float(dtype),
        }
    }

    #[test]
    fn candle_reads_back_what_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let values = Tensor::new(&[[1f32, -2.5, 3.0], [0.5, 7.0, -9.0]], &Device::Cpu).unwrap();
        let entries = [
            entry("a.half", &[3, 2], Dtype::Bf16),
            entry("b.single", &[2, 3], Dtype::F32),
            entry("c.empty", &[0], Dtype::F16),
        ];
        let mut source = |name: &str| {
            Ok(match name {
                // Not contiguous, as a view may be.
                "a.half" => values.t()?,
                "c.empty" => Tensor::from_vec(Vec::<f32>::new(), 0, &Device::Cpu)?,
                _ => values.clone(),
            })
        };
        write_tensors(&path, &entries, &mut source).unwrap();
        let read = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
        assert_eq!(
            read["b.single"].to_vec2::<f32>().unwrap(),
            values.to_vec2::<f32>().unwrap()
        );
        let half = read["a.half"].to_dtype(DType::F32).unwrap();
        assert_eq!(
            half.to_vec2::<f32>().unwrap(),
            values.t().unwrap().to_vec2::<f32>().unwrap()
        );
        assert_eq!(read["a.half"].dtype(), DType::BF16);
        assert_eq!(read["c.empty"].dims(), [0]);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_source_that_fails_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let wrong = Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap();
        let error = write_tensors(&path, &[entry("a", &[2], Dtype::F32)], &mut |_| Ok(wrong.clone())).unwrap_err();
        assert!(error.to_string().contains("[3]"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
