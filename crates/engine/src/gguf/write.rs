//! Writing a GGUF file tensor by tensor: one is in memory at a time.

use std::io::{self, Write};
use std::path::Path;

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

use super::Value;
use super::value::write_text;
use peft_tune_core::whole_file::WholeFile;

/// Bytes between which tensors begin.
const ALIGNMENT: usize = 32;
const MAGIC: [u8; 4] = *b"GGUF";
const VERSION: u32 = 3;

/// How the weights of a file are stored. Vectors are always F32, as llama.cpp computes with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    F32,
    F16,
    Bf16,
    /// 8-bit codes with an F16 scale for each block of 32.
    Q8_0,
}

/// One tensor of a file that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct GgufEntry {
    /// Name in GGUF.
    pub name: String,
    /// Dimensions, rows first.
    pub shape: Vec<usize>,
    pub stored: GgufType,
}

impl GgufType {
    /// `general.file_type`.
    pub(crate) fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    fn code(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    /// The form of a tensor of this shape in a file of this type: rows that are no whole number of blocks stay F16.
    pub(crate) fn of_shape(self, shape: &[usize]) -> Self {
        let width = shape.last().copied().unwrap_or_default();
        match self {
            _ if shape.len() < 2 => Self::F32,
            Self::Q8_0 if !width.is_multiple_of(GgmlDType::Q8_0.block_size()) => Self::F16,
            other => other,
        }
    }
}

impl GgufEntry {
    fn bytes(&self) -> usize {
        let elements: usize = self.shape.iter().product();
        match self.stored {
            GgufType::F32 => 4 * elements,
            GgufType::F16 | GgufType::Bf16 => 2 * elements,
            GgufType::Q8_0 => elements / GgmlDType::Q8_0.block_size() * GgmlDType::Q8_0.type_size(),
        }
    }

    fn encoded(&self, values: Vec<f32>) -> candle_core::Result<Vec<u8>> {
        Ok(match self.stored {
            GgufType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            GgufType::F16 => values
                .iter()
                .flat_map(|value| f16::from_f32(*value).to_le_bytes())
                .collect(),
            GgufType::Bf16 => values
                .iter()
                .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
                .collect(),
            GgufType::Q8_0 => {
                let tensor = Tensor::from_vec(values, self.shape.as_slice(), &Device::Cpu)?.to_dtype(DType::F32)?;
                QTensor::quantize(&tensor, GgmlDType::Q8_0)?.data()?.into_owned()
            }
        })
    }
}

/// Writes a file; it appears under `path` only when it is whole and on the disk. `source` gives the values of an entry.
///
/// # Errors
/// Those of `source` and of the file system.
pub(crate) fn write<E: From<candle_core::Error>>(
    path: &Path,
    metadata: &[(String, Value)],
    entries: &[GgufEntry],
    source: &mut dyn FnMut(&GgufEntry) -> Result<Vec<f32>, E>,
    in_out: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let mut file = WholeFile::create(path, true).map_err(&in_out)?;
    file.write_all(&header(metadata, entries)).map_err(&in_out)?;
    for entry in entries {
        let mut bytes = entry.encoded(source(entry)?)?;
        bytes.resize(entry.bytes().next_multiple_of(ALIGNMENT), 0);
        file.write_all(&bytes).map_err(&in_out)?;
    }
    file.finish().map_err(in_out)
}

fn header(metadata: &[(String, Value)], entries: &[GgufEntry]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((entries.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        write_text(key, &mut bytes);
        value.write(&mut bytes);
    }
    let mut offset = 0u64;
    for entry in entries {
        write_text(&entry.name, &mut bytes);
        bytes.extend((entry.shape.len() as u32).to_le_bytes());
        // The innermost dimension comes first.
        for length in entry.shape.iter().rev() {
            bytes.extend((*length as u64).to_le_bytes());
        }
        bytes.extend(entry.stored.code().to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        offset += entry.bytes().next_multiple_of(ALIGNMENT) as u64;
    }
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    bytes
}
