//! A merged model's linear layers in the form of bitsandbytes: what transformers, vLLM and this program load as they are.
//!
//! Every linear layer of the decoder is quantized, from its merged weight in F32; embedding, LM head and norms stay as they are.
//! NF4 has blocks of 64 elements that run on over the ends of rows, as bitsandbytes cuts them; int8 has a scale for each row.

use std::collections::HashMap;

use candle_core::{DType, Tensor};
use serde_json::{Value, json};

use super::MergedModel;
use super::tensor_file::{EntryDtype, TensorEntry};
use crate::{MergeError, TrainError, WeightsError};
use peft_tune_core::architecture::{Architecture, Dtype};
use peft_tune_core::recipe::Precision;
use peft_tune_kernels::quant::{Int8, Nf4, PackedTensor, QuantError};

/// Forms of quantized weights that bitsandbytes saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightQuantization {
    /// LLM.int8(): 8 bits, with a scale for each row.
    Int8,
    /// 4-bit NormalFloat, with a scale for each block of 64 elements.
    Nf4,
}

impl WeightQuantization {
    /// The precision that reads such weights as they are.
    pub fn precision(self) -> Precision {
        match self {
            Self::Int8 => Precision::Int8,
            Self::Nf4 => Precision::Nf4,
        }
    }

    fn packed(self, value: &Tensor, name: &str, dtype: Dtype) -> Result<Vec<PackedTensor>, QuantError> {
        match self {
            Self::Int8 => Int8::quantize_rows(value)?.to_bitsandbytes(name),
            Self::Nf4 => Nf4::quantize(value, false)?.to_bitsandbytes(name, name_of(dtype)),
        }
    }
}

/// The quantized tensors of a model, by the names of the weights that they stand for.
pub(super) struct QuantizedWeights {
    kind: WeightQuantization,
    dtype: Dtype,
    /// Entries that are written in the place of each weight.
    entries: HashMap<String, Vec<TensorEntry>>,
    /// Tensors of all these entries, by name.
    tensors: HashMap<String, Tensor>,
}

impl QuantizedWeights {
    /// Quantizes the linear layers of `model`; nothing where `kind` says so. `dtype` is that of the other weights.
    ///
    /// # Errors
    /// A model whose weights other programs do not load in this form: with experts, with other mixers than attention, or within a
    /// model of images; weights that are not finite; memory.
    pub(super) fn of(model: &MergedModel<'_>, kind: WeightQuantization, dtype: Dtype) -> Result<Self, TrainError> {
        let architecture = model.architecture();
        if let Some(found) = architecture.without_quantized_form() {
            let kind = kind.precision();
            return Err(MergeError::NoQuantizedForm { kind, found }.into());
        }
        let (mut entries, mut tensors) = (HashMap::new(), HashMap::new());
        for index in 0..architecture.layers.len() {
            let layer = Architecture::layer_name(index);
            for module in architecture.layer_modules(index) {
                let name = format!("{layer}.{}.weight", module.name);
                let packed = kind.packed(&model.tensor(&name)?, &name, dtype);
                let packed = packed.map_err(|source| WeightsError::Quantized {
                    tensor: name.clone(),
                    source,
                })?;
                entries.insert(name, packed.iter().map(entry_of).collect());
                tensors.extend(packed.into_iter().map(|packed| (packed.name, packed.value)));
            }
        }
        Ok(Self {
            kind,
            dtype,
            entries,
            tensors,
        })
    }

    /// The entries with those of quantized weights in the place of the plain ones.
    pub(super) fn in_place_of(&self, entries: Vec<TensorEntry>) -> Vec<TensorEntry> {
        let mut replaced = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.entries.get(&entry.name) {
                Some(packed) => replaced.extend(packed.iter().cloned()),
                None => replaced.push(entry),
            }
        }
        replaced
    }

    /// The tensor `name` where it belongs to a quantized weight.
    pub(super) fn tensor(&self, name: &str) -> Option<Tensor> {
        self.tensors.get(name).cloned()
    }

    /// Settings of `quantization_config`, in the keys of transformers' `BitsAndBytesConfig`.
    pub(super) fn configuration(&self) -> Value {
        let is_nf4 = self.kind == WeightQuantization::Nf4;
        json!({
            "_load_in_4bit": is_nf4,
            "_load_in_8bit": !is_nf4,
            "bnb_4bit_compute_dtype": name_of(self.dtype),
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": if is_nf4 { "nf4" } else { "fp4" },
            "bnb_4bit_use_double_quant": false,
            "llm_int8_enable_fp32_cpu_offload": false,
            "llm_int8_has_fp16_weight": false,
            "llm_int8_skip_modules": ["lm_head"],
            "llm_int8_threshold": 6.0,
            "load_in_4bit": is_nf4,
            "load_in_8bit": !is_nf4,
            "quant_method": "bitsandbytes",
        })
    }
}

/// Whether a tensor of this name belongs to the quantized weight before it.
pub(super) fn is_companion(name: &str) -> bool {
    name.contains(".weight.") || name.ends_with(".SCB") || name.ends_with(".weight_format")
}

fn entry_of(packed: &PackedTensor) -> TensorEntry {
    TensorEntry {
        name: packed.name.clone(),
        shape: packed.shape.clone(),
        dtype: match (packed.value.dtype(), packed.is_signed) {
            (DType::U8, true) => EntryDtype::I8,
            (DType::U8, false) => EntryDtype::U8,
            _ => EntryDtype::Float(Dtype::F32),
        },
    }
}

/// Name of a dtype in a `config.json`.
pub(super) fn name_of(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => "float32",
        Dtype::F16 => "float16",
        Dtype::Bf16 => "bfloat16",
    }
}
