//! The precision of the base weights, which the tools spread over several keys.

use super::{Keys, Reader, StackFileError};
use peft_tune_core::predict::stack::{Dtypes, Number};
use peft_tune_core::recipe::Precision;

/// How a tool's file says the precision, beside `bf16`, `fp16`, `load_in_4bit` and `load_in_8bit`.
pub(crate) struct PrecisionKeys {
    /// Keys of the dtype of weights.
    pub dtype: &'static [&'static str],
    /// Whether weights are loaded in the dtype of products, where no key says otherwise.
    pub loads_as_computed: bool,
    /// Whether `quantization_bit` has the number of bits, and no other key.
    pub counts_bits: bool,
    /// Whether another key says that there are 4 bits.
    pub is_4_bits: fn(&Keys<'_>) -> Result<bool, StackFileError>,
    /// Whether constants of blocks are quantized too.
    pub is_double: fn(&Keys<'_>) -> Result<bool, StackFileError>,
    /// Whether another key keeps weights from being quantized.
    pub is_whole: fn(&Keys<'_>) -> Result<bool, StackFileError>,
}

impl PrecisionKeys {
    /// Keys of a tool that has none but transformers', which always quantizes constants too.
    pub(crate) const NONE: Self = Self {
        dtype: &["dtype", "torch_dtype"],
        loads_as_computed: false,
        counts_bits: false,
        is_4_bits: |_| Ok(false),
        is_double: |_| Ok(true),
        is_whole: |_| Ok(false),
    };
}

/// Flags of weights of 4 bits and of 8 bits: transformers' own, and those of the trainer among PEFT's examples.
const IN_4_BITS: [&str; 2] = ["load_in_4bit", "use_4bit_quantization"];
const IN_8_BITS: [&str; 2] = ["load_in_8bit", "use_8bit_quantization"];

/// Reads the precision, with the dtypes in the tool's own training.
///
/// # Errors
/// A number of bits that no tool has; a value that is neither true nor false.
pub(crate) fn read(reader: &mut Reader<'_>, own: &PrecisionKeys) -> Result<(), StackFileError> {
    let quantized = quantized(reader, own)?;
    let said = Said::of(reader.keys, own)?;
    reader.choices.dtypes = Some(said.dtypes(reader, own, quantized.is_some()));
    let Some(precision) = quantized.or_else(|| said.precision(reader)) else {
        return Ok(());
    };
    reader.recipe.precision = precision;
    reader.said("precision");
    Ok(())
}

fn quantized(reader: &mut Reader<'_>, own: &PrecisionKeys) -> Result<Option<Precision>, StackFileError> {
    let keys = reader.keys;
    let bits = match keys.count("quantization_bit")?.filter(|_| own.counts_bits) {
        Some(bits @ (4 | 8)) => Some(bits),
        Some(bits) => return Err(keys.wrong("quantization_bit", &bits.into(), "write 4 or 8")),
        None if own.counts_bits => None,
        None if is_any_on(keys, IN_4_BITS)? => Some(4),
        None if is_any_on(keys, IN_8_BITS)? => Some(8),
        None if (own.is_4_bits)(keys)? => Some(4),
        None => None,
    };
    let is_whole = (own.is_whole)(keys)?;
    if let Some(bits) = bits.filter(|_| is_whole) {
        reader.note(format!(
            "the tool trains all parameters, and turns the {bits} bits of the weights off"
        ));
    }
    let bits = bits.filter(|_| !is_whole);
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

/// The dtypes that a file says.
struct Said {
    /// Dtype of weights; `auto` and other words are those of the model's files.
    dtype: Option<String>,
    bf16: Option<bool>,
    fp16: Option<bool>,
}

impl Said {
    fn of(keys: &Keys<'_>, own: &PrecisionKeys) -> Result<Self, StackFileError> {
        let key = own.dtype.iter().find(|key| keys.has(key));
        // Without autocast, which is said by keys of their own.
        let pure = [keys.flag("pure_bf16")?, keys.flag("bfloat16")?].contains(&Some(true));
        let whole = keys.flag("float32")? == Some(true);
        Ok(Self {
            dtype: key.map(|key| keys.text(key)).transpose()?.flatten(),
            bf16: pure.then_some(true).or(is_on(keys, "bf16")?).or(whole.then_some(false)),
            fp16: is_on(keys, "fp16")?.or(keys.flag("float16")?),
        })
    }

    /// Whether products are in 16 bits neither by what the file says nor by the tool's default.
    fn is_off(&self) -> bool {
        self.bf16 == Some(false) && self.fp16 != Some(true)
    }

    /// The dtypes of a training in the tool.
    fn dtypes(&self, reader: &Reader<'_>, own: &PrecisionKeys, is_quantized: bool) -> Dtypes {
        let loads = match self.dtype.as_deref() {
            Some("float32" | "fp32") => Number::F32,
            Some(_) => Number::Half,
            None if is_quantized => Number::Half,
            None if own.loads_as_computed && self.is_off() => Number::F32,
            None => reader.behaviour().loads,
        };
        Dtypes {
            loads,
            computes: if self.is_off() { loads } else { Number::Half },
            autocast: !self.is_off(),
        }
    }

    /// The precision that is nearest here.
    fn precision(&self, reader: &mut Reader<'_>) -> Option<Precision> {
        let loads = match self.dtype.as_deref() {
            Some("float32" | "fp32") => Some(Precision::Fp32),
            Some("float16" | "fp16" | "half") => Some(Precision::Fp16),
            Some("bfloat16" | "bf16") => Some(Precision::Bf16),
            _ => None,
        };
        let computes = match (self.bf16, self.fp16) {
            (_, Some(true)) => Some(Precision::Fp16),
            (Some(true), _) => Some(Precision::Bf16),
            // Neither of them is F32 where nothing else is said.
            (Some(false), _) if loads.is_none() => Some(Precision::Fp32),
            // Autocast is on where nothing is said.
            (None, _) if loads == Some(Precision::Fp32) => Some(Precision::Bf16),
            _ => None,
        };
        if let (Some(Precision::Fp32), Some(half)) = (loads, computes) {
            reader.note(format!(
                "weights in F32 with products in {half} are not known here: precision {half} is taken, which keeps the \
                 weights so too"
            ));
            return Some(half);
        }
        loads.or(computes)
    }
}

/// Whether one of some flags is on.
fn is_any_on(keys: &Keys<'_>, flags: [&str; 2]) -> Result<bool, StackFileError> {
    let mut flags = flags.into_iter();
    flags.try_fold(false, |is_on, flag| Ok(is_on | keys.flag(flag)?.unwrap_or(false)))
}

/// Whether a key is on: `true`, `auto` or `full`; `None` where it is not there.
fn is_on(keys: &Keys<'_>, key: &str) -> Result<Option<bool>, StackFileError> {
    match keys.raw(key) {
        Some(form) if form == "full" => Ok(Some(true)),
        _ => keys.flag(key),
    }
}
