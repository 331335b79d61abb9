//! The precision of the base weights, which the tools spread over several keys.

use super::{Keys, Reader, StackFileError};
use peft_tune_core::recipe::Precision;

/// How a tool's file says that weights are quantized, beside `load_in_4bit` and `load_in_8bit`.
pub(in crate::tools) struct QuantizedKeys {
    /// Whether `quantization_bit` has the number of bits.
    pub counts_bits: bool,
    /// Whether another key says that there are 4 bits.
    pub is_4_bits: fn(&Keys<'_>) -> Result<bool, StackFileError>,
    /// Whether constants of blocks are quantized too.
    pub is_double: fn(&Keys<'_>) -> Result<bool, StackFileError>,
}

impl QuantizedKeys {
    /// For a tool with no key of its own, which always quantizes constants too.
    pub(in crate::tools) const NONE: Self = Self {
        counts_bits: false,
        is_4_bits: |_| Ok(false),
        is_double: |_| Ok(true),
    };
}

/// Reads it.
///
/// # Errors
/// A number of bits that no tool has.
pub(in crate::tools) fn read(reader: &mut Reader<'_>, own: &QuantizedKeys) -> Result<(), StackFileError> {
    let quantized = quantized(reader, own)?;
    let dense = dense(reader)?;
    let Some(precision) = quantized.or(dense) else {
        return Ok(());
    };
    reader.recipe.precision = precision;
    reader.said("precision");
    Ok(())
}

fn quantized(reader: &mut Reader<'_>, own: &QuantizedKeys) -> Result<Option<Precision>, StackFileError> {
    let keys = reader.keys;
    let bits = match keys.count("quantization_bit")?.filter(|_| own.counts_bits) {
        Some(bits @ (4 | 8)) => Some(bits),
        Some(bits) => return Err(keys.wrong("quantization_bit", &bits.into(), "write 4 or 8")),
        None if flag(keys, "load_in_4bit") => Some(4),
        None if flag(keys, "load_in_8bit") => Some(8),
        None if (own.is_4_bits)(keys)? => Some(4),
        None => None,
    };
    for key in ["bnb_4bit_quant_type", "quantization_type"] {
        if let Some(form) = keys.text(key)?.filter(|form| bits == Some(4) && form != "nf4") {
            reader.unknown_word(key, &form, "nf4");
        }
    }
    Ok(match bits {
        Some(4) if (own.is_double)(keys)? => Some(Precision::Nf4Double),
        Some(4) => Some(Precision::Nf4),
        Some(_) => Some(Precision::Int8),
        None => None,
    })
}

fn dense(reader: &mut Reader<'_>) -> Result<Option<Precision>, StackFileError> {
    let keys = reader.keys;
    let dtype = keys.text("dtype")?.or(keys.text("torch_dtype")?);
    let loads = match dtype.as_deref() {
        Some("float32" | "fp32") => Some(Precision::Fp32),
        Some("float16" | "fp16" | "half") => Some(Precision::Fp16),
        Some("bfloat16" | "bf16") => Some(Precision::Bf16),
        _ => None,
    };
    let (bf16, fp16) = (given(keys, "bf16"), given(keys, "fp16"));
    let computes = match (bf16, fp16) {
        (_, Some(true)) => Some(Precision::Fp16),
        (Some(true), _) => Some(Precision::Bf16),
        // Neither of them is F32 where nothing else is said.
        (Some(false), _) if loads.is_none() => Some(Precision::Fp32),
        _ => None,
    };
    if let (Some(Precision::Fp32), Some(half)) = (loads, computes)
        && half != Precision::Fp32
    {
        reader.note(format!(
            "weights in F32 with products in {half} are not known here: precision {half} is taken, which keeps the weights so too"
        ));
        return Ok(Some(half));
    }
    Ok(loads.or(computes))
}

/// Whether a key is on: `true`, `auto` or `full`; `None` where it is not there.
fn given(keys: &Keys<'_>, key: &str) -> Option<bool> {
    keys.raw(key)?;
    Some(flag(keys, key))
}

fn flag(keys: &Keys<'_>, key: &str) -> bool {
    let text = keys.text(key).ok().flatten().unwrap_or_default();
    ["true", "auto", "full", "1"].contains(&text.to_lowercase().as_str())
}
