//! The tensors of one quantized weight.

use half::{bf16, f16};
use safetensors::Dtype;

use super::PackedError;
use super::codes::float8;
use super::scales::Rounding;
use crate::checkpoint::Checkpoint;
use peft_tune_kernels::quant::RawTensor;

/// Tensors that a checkpoint has under the name of one module.
pub(super) struct Parts<'a> {
    checkpoint: &'a Checkpoint,
    module: &'a str,
}

impl<'a> Parts<'a> {
    pub(super) fn new(checkpoint: &'a Checkpoint, module: &'a str) -> Self {
        Self { checkpoint, module }
    }

    pub(super) fn name(&self, ending: &str) -> String {
        format!("{}.{ending}", self.module)
    }

    pub(super) fn find(&self, ending: &str) -> Option<RawTensor<'a>> {
        self.checkpoint.raw(&self.name(ending))
    }

    /// Takes the pages of the large ones out of this process's memory.
    pub(super) fn let_go(&self) {
        for ending in ["weight", "weight_packed", "qweight"] {
            self.checkpoint.let_go(&self.name(ending));
        }
    }

    pub(super) fn get(&self, ending: &str) -> Result<RawTensor<'a>, PackedError> {
        let name = self.name(ending);
        self.find(ending).ok_or(PackedError::Missing { name })
    }

    /// The tensor of this shape and one of these dtypes.
    pub(super) fn shaped(&self, ending: &str, shape: &[usize], dtypes: &[Dtype]) -> Result<RawTensor<'a>, PackedError> {
        let tensor = self.get(ending)?;
        if tensor.shape == shape && dtypes.contains(&tensor.dtype) {
            return Ok(tensor);
        }
        let dtypes: Vec<String> = dtypes.iter().map(|dtype| format!("{dtype:?}")).collect();
        Err(self.mismatch(ending, &tensor, format!("{shape:?} of {}", dtypes.join(" or "))))
    }

    pub(super) fn mismatch(&self, ending: &str, tensor: &RawTensor<'_>, expected: String) -> PackedError {
        PackedError::Mismatch {
            name: self.name(ending),
            got: tensor.shape.to_vec(),
            dtype: format!("{:?}", tensor.dtype),
            expected,
        }
    }

    /// The finite values of a tensor of floats, and the dtype in which its reader computes with them.
    pub(super) fn floats(&self, ending: &str) -> Result<(Vec<f32>, Rounding), PackedError> {
        let tensor = self.get(ending)?;
        let (values, rounding): (Vec<f32>, _) = match tensor.dtype {
            Dtype::F32 => (
                four_bytes(tensor.bytes).map(f32::from_le_bytes).collect(),
                Rounding::F32,
            ),
            Dtype::F16 => (
                two_bytes(tensor.bytes)
                    .map(|two| f16::from_le_bytes(two).to_f32())
                    .collect(),
                Rounding::F16,
            ),
            Dtype::BF16 => (
                two_bytes(tensor.bytes)
                    .map(|two| bf16::from_le_bytes(two).to_f32())
                    .collect(),
                Rounding::Bf16,
            ),
            Dtype::F8_E4M3 => (tensor.bytes.iter().map(|byte| float8(*byte)).collect(), Rounding::F32),
            _ => return Err(self.mismatch(ending, &tensor, "a tensor of floats".to_owned())),
        };
        match values.iter().position(|value| !value.is_finite()) {
            None => Ok((values, rounding)),
            Some(element) => Err(PackedError::BadConstant {
                name: self.name(ending),
                element,
            }),
        }
    }

    /// The values of a tensor of I32 or I64 with so many elements.
    pub(super) fn integers(&self, ending: &str, count: usize) -> Result<Vec<i64>, PackedError> {
        let tensor = self.get(ending)?;
        let values: Vec<i64> = match tensor.dtype {
            Dtype::I32 => four_bytes(tensor.bytes)
                .map(|four| i32::from_le_bytes(four).into())
                .collect(),
            Dtype::I64 => tensor
                .bytes
                .as_chunks()
                .0
                .iter()
                .map(|eight| i64::from_le_bytes(*eight))
                .collect(),
            _ => Vec::new(),
        };
        match values.len() == count && (count > 0 || tensor.bytes.is_empty()) {
            true => Ok(values),
            false => Err(self.mismatch(ending, &tensor, format!("{count} integers"))),
        }
    }

    /// Words of 32 bits, row after row: `rows` of as many as `columns` codes of `bits` take.
    pub(super) fn words(&self, ending: &str, (rows, columns): (usize, usize)) -> Result<Vec<u32>, PackedError> {
        let tensor = self.shaped(ending, &[rows, columns], &[Dtype::I32, Dtype::U32])?;
        Ok(four_bytes(tensor.bytes).map(u32::from_le_bytes).collect())
    }
}

fn four_bytes(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> {
    bytes.as_chunks().0.iter().copied()
}

fn two_bytes(bytes: &[u8]) -> impl Iterator<Item = [u8; 2]> {
    bytes.as_chunks().0.iter().copied()
}
