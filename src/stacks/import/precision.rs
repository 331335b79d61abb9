//! The precision of the base weights, which the tools spread over several keys.

use super::reader::Reader;
use crate::stacks::StackFileError;
use crate::stacks::keys::Keys;
use crate::tools::Tool;
use peft_tune_core::recipe::Precision;

/// Reads it.
///
/// # Errors
/// A number of bits that no tool has.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<(), StackFileError> {
    let quantized = quantized(reader)?;
    let dense = dense(reader)?;
    let Some(precision) = quantized.or(dense) else {
        return Ok(());
    };
    reader.recipe.precision = precision;
    reader.said("precision");
    Ok(())
}

fn quantized(reader: &mut Reader<'_>) -> Result<Option<Precision>, StackFileError> {
    let keys = reader.keys;
    let bits = match (reader.tool, keys.count("quantization_bit")?) {
        (Tool::LlamaFactory, Some(bits @ (4 | 8))) => Some(bits),
        (Tool::LlamaFactory, Some(bits)) => return Err(keys.wrong("quantization_bit", &bits.into(), "write 4 or 8")),
        _ if flag(keys, "load_in_4bit") => Some(4),
        _ if flag(keys, "load_in_8bit") => Some(8),
        (Tool::Axolotl, _) if keys.text("adapter")?.as_deref() == Some("qlora") => Some(4),
        _ => None,
    };
    for key in ["bnb_4bit_quant_type", "quantization_type"] {
        if let Some(form) = keys.text(key)?.filter(|form| bits == Some(4) && form != "nf4") {
            reader.unknown_word(key, &form, "nf4");
        }
    }
    Ok(match bits {
        Some(4) if is_double(reader)? => Some(Precision::Nf4Double),
        Some(4) => Some(Precision::Nf4),
        Some(_) => Some(Precision::Int8),
        None => None,
    })
}

/// Whether constants of blocks are quantized too.
fn is_double(reader: &Reader<'_>) -> Result<bool, StackFileError> {
    let keys = reader.keys;
    Ok(match reader.tool {
        Tool::Axolotl => {
            let within = keys.part("bnb_config_kwargs", "bnb_config_kwargs.");
            let within = within
                .map(|part| part.flag("bnb_4bit_use_double_quant"))
                .transpose()?
                .flatten();
            within.or(keys.flag("bnb_4bit_use_double_quant")?).unwrap_or(true)
        }
        Tool::LlamaFactory => keys.flag("double_quantization")?.unwrap_or(true),
        Tool::Trl => keys
            .flag("use_bnb_nested_quant")?
            .or(keys.flag("bnb_4bit_use_double_quant")?)
            .unwrap_or(false),
        // They always do.
        Tool::Unsloth | Tool::Torchtune | Tool::Peft => true,
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
