//! Weights as bitsandbytes saves them, read and written.
//!
//! | format | tensors beside `NAME` |
//! |---|---|
//! | NF4 | `NAME.absmax`, `NAME.quant_map`, `NAME.quant_state.bitsandbytes__nf4` (JSON in bytes) |
//! | NF4, double | the same, and `NAME.nested_absmax`, `NAME.nested_quant_map` |
//! | LLM.int8() | `SCB` beside `weight`: one scale a row |
//!
//! Every size is checked against the shape that the checkpoint states before anything is used.

use candle_core::{Device, Tensor};
use serde::Deserialize;

use super::blocks::CHUNK;
use super::dynamic_map::DynamicMap;
use super::error::QuantError;
use super::int8::Int8;
use super::nf4::Nf4;
use super::nf4_constants::Constants;
use super::nf4_values::VALUES;
use peft_tune_core::plan::NESTED_BLOCK;

/// A tensor as it lies in a file.
#[derive(Clone, Copy, Debug)]
pub struct RawTensor<'a> {
    pub dtype: safetensors::Dtype,
    pub shape: &'a [usize],
    /// Little-endian elements, row after row.
    pub bytes: &'a [u8],
}

/// A tensor of a quantized weight as it is to lie in a file.
#[derive(Clone, Debug)]
pub struct PackedTensor {
    pub name: String,
    pub shape: Vec<usize>,
    /// Whether its bytes, which `value` has as U8, are signed ones.
    pub is_signed: bool,
    /// U8 or F32, on the CPU.
    pub value: Tensor,
}

impl PackedTensor {
    fn new(name: String, value: Tensor) -> Self {
        Self {
            name,
            shape: value.dims().to_vec(),
            is_signed: false,
            value,
        }
    }
}

/// The JSON in `quant_state`.
#[derive(Deserialize)]
struct State {
    quant_type: String,
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

/// Finds tensors of a checkpoint by name.
struct Finder<F>(F);

impl<'a, F: Fn(&str) -> Option<RawTensor<'a>>> Finder<F> {
    fn bytes(&self, name: &str, expected: usize) -> Result<&'a [u8], QuantError> {
        let tensor = self.tensor(name)?;
        let is_byte = matches!(tensor.dtype, safetensors::Dtype::U8 | safetensors::Dtype::I8);
        if !is_byte || tensor.bytes.len() != expected {
            return Err(mismatch(name, &tensor, expected, "U8"));
        }
        Ok(tensor.bytes)
    }

    fn floats(&self, name: &str, expected: usize) -> Result<Vec<f32>, QuantError> {
        let tensor = self.tensor(name)?;
        if tensor.dtype != safetensors::Dtype::F32 || tensor.bytes.len() != expected.saturating_mul(4) {
            return Err(mismatch(name, &tensor, expected, "F32"));
        }
        let values: Vec<f32> = tensor
            .bytes
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect();
        if values.iter().any(|value| !value.is_finite()) {
            return Err(QuantError::BadConstant { name: name.to_owned() });
        }
        Ok(values)
    }

    /// Checks that a stored map is the one this engine computes with.
    fn check_map(&self, name: &str, expected: &[f32]) -> Result<(), QuantError> {
        let values = self.floats(name, expected.len())?;
        if values
            .iter()
            .zip(expected)
            .all(|(value, expected)| (value - expected).abs() < 1e-6)
        {
            return Ok(());
        }
        Err(QuantError::Unsupported {
            name: name.to_owned(),
            key: "values",
            value: "another table".into(),
            expected: "bitsandbytes' own table",
        })
    }

    fn tensor(&self, name: &str) -> Result<RawTensor<'a>, QuantError> {
        (self.0)(name).ok_or_else(|| QuantError::Missing { name: name.to_owned() })
    }
}

impl Nf4 {
    /// Reads the weight `name` (`model.layers.0.self_attn.q_proj.weight`) onto the CPU; `find` looks tensors up.
    ///
    /// # Errors
    /// A tensor that is missing, of another size or dtype, or damaged; another 4-bit type than NF4.
    pub fn from_bitsandbytes<'a>(name: &str, find: impl Fn(&str) -> Option<RawTensor<'a>>) -> Result<Self, QuantError> {
        let find = Finder(find);
        let state = read_state(name, &find)?;
        let (outputs, inputs) = (state.shape[0], state.shape[1]);
        let elements = outputs * inputs;
        let packed = find.bytes(name, elements.div_ceil(2))?.to_vec();
        find.check_map(&format!("{name}.quant_map"), &VALUES)?;
        let blocks = elements.div_ceil(state.blocksize);
        let absmax = format!("{name}.absmax");
        let constants = match state.nested_offset {
            None => Constants::Plain(Tensor::from_vec(find.floats(&absmax, blocks)?, blocks, &Device::Cpu)?),
            Some(offset) => {
                find.check_map(&format!("{name}.nested_quant_map"), DynamicMap::signed().values())?;
                let groups = blocks.div_ceil(NESTED_BLOCK);
                let nested = find.floats(&format!("{name}.nested_absmax"), groups)?;
                Constants::Double {
                    codes: Tensor::from_slice(find.bytes(&absmax, blocks)?, blocks, &Device::Cpu)?,
                    nested: Tensor::from_vec(nested, groups, &Device::Cpu)?,
                    offset,
                }
            }
        };
        let bytes = packed.len();
        Ok(Self {
            outputs,
            inputs,
            block: state.blocksize,
            packed: Tensor::from_vec(packed, bytes, &Device::Cpu)?,
            constants,
        })
    }
}

impl Nf4 {
    /// The tensors in which bitsandbytes saves this weight under `name`; `dtype` names the one it is widened to (`bfloat16`).
    ///
    /// # Errors
    /// Constants that are quantized themselves; memory.
    pub fn to_bitsandbytes(&self, name: &str, dtype: &str) -> Result<Vec<PackedTensor>, QuantError> {
        let Constants::Plain(absmax) = &self.constants else {
            return Err(
                candle_core::Error::Msg("constants that are quantized themselves are not written".into()).into(),
            );
        };
        let state = serde_json::json!({
            "quant_type": "nf4", "blocksize": self.block, "dtype": dtype, "shape": [self.outputs, self.inputs],
        });
        let state = state.to_string().into_bytes();
        let length = state.len();
        let packed = self.packed.to_device(&Device::Cpu)?;
        Ok(vec![
            PackedTensor::new(name.to_owned(), packed.unsqueeze(1)?),
            PackedTensor::new(format!("{name}.absmax"), absmax.to_device(&Device::Cpu)?),
            PackedTensor::new(
                format!("{name}.quant_map"),
                Tensor::from_slice(&VALUES, VALUES.len(), &Device::Cpu)?,
            ),
            PackedTensor::new(
                format!("{name}.quant_state.bitsandbytes__nf4"),
                Tensor::from_vec(state, length, &Device::Cpu)?,
            ),
        ])
    }
}

impl Int8 {
    /// The tensors in which LLM.int8() saves this weight under `name`.
    ///
    /// # Errors
    /// Other blocks than rows; memory.
    pub fn to_bitsandbytes(&self, name: &str) -> Result<Vec<PackedTensor>, QuantError> {
        let (codes, constants) = self.row_codes()?;
        let module = name.strip_suffix("weight").unwrap_or(name);
        Ok(vec![
            PackedTensor {
                is_signed: true,
                ..PackedTensor::new(name.to_owned(), codes)
            },
            PackedTensor::new(format!("{module}SCB"), constants),
            // 0: row after row.
            PackedTensor::new(format!("{module}weight_format"), Tensor::new(0u8, &Device::Cpu)?),
        ])
    }

    /// Reads the weight `name` that LLM.int8() wrote (I8, with `SCB` beside it) onto the CPU.
    ///
    /// # Errors
    /// A tensor that is missing, of another size or dtype, or damaged.
    pub fn from_bitsandbytes<'a>(name: &str, find: impl Fn(&str) -> Option<RawTensor<'a>>) -> Result<Self, QuantError> {
        let find = Finder(find);
        let weight = find.tensor(name)?;
        let &[outputs, inputs] = weight.shape else {
            return Err(QuantError::NotAMatrix {
                got: weight.shape.to_vec(),
            });
        };
        let Some(elements) = outputs.checked_mul(inputs).filter(|elements| *elements > 0) else {
            return Err(QuantError::NotAMatrix {
                got: weight.shape.to_vec(),
            });
        };
        let codes = find.bytes(name, elements)?;
        let module = name.strip_suffix("weight").unwrap_or(name);
        let scales = find.floats(&format!("{module}SCB"), outputs)?;
        Ok(Self::from_rows(inputs, codes, scales)?)
    }
}

fn read_state<'a>(name: &str, find: &Finder<impl Fn(&str) -> Option<RawTensor<'a>>>) -> Result<State, QuantError> {
    let name = format!("{name}.quant_state.bitsandbytes__nf4");
    let tensor = find.tensor(&name)?;
    let state: State = serde_json::from_slice(tensor.bytes).map_err(|source| QuantError::State {
        name: name.clone(),
        source,
    })?;
    let unsupported = |key, value: String, expected| QuantError::Unsupported {
        name: name.clone(),
        key,
        value,
        expected,
    };
    if state.quant_type != "nf4" {
        return Err(unsupported("quant_type", state.quant_type, "nf4"));
    }
    if !state.blocksize.is_power_of_two() || state.blocksize < 2 || state.blocksize > CHUNK {
        return Err(unsupported(
            "blocksize",
            state.blocksize.to_string(),
            "a power of two from 2 to 16384",
        ));
    }
    let is_matrix = matches!(state.shape[..], [out, inputs] if out.checked_mul(inputs).is_some_and(|n| n > 0));
    if !is_matrix {
        return Err(unsupported(
            "shape",
            format!("{:?}", state.shape),
            "two numbers above zero",
        ));
    }
    let nested_is_right = match state.nested_offset {
        None => true,
        Some(offset) => state.nested_blocksize == Some(NESTED_BLOCK) && offset.is_finite(),
    };
    if !nested_is_right {
        return Err(unsupported(
            "nested_blocksize",
            format!("{:?}", state.nested_blocksize),
            "256",
        ));
    }
    Ok(state)
}

fn mismatch(name: &str, tensor: &RawTensor<'_>, expected: usize, dtype: &'static str) -> QuantError {
    QuantError::Mismatch {
        name: name.to_owned(),
        got: tensor.shape.iter().product(),
        got_dtype: format!("{:?}", tensor.dtype),
        expected,
        expected_dtype: dtype,
    }
}
