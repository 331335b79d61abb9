//! The precisions, one row each: how base weights are stored and multiplied.

use serde::Serialize;

use super::KeyValue::{Flag, Map, Number, Text};
use super::Keys;
use super::named::named;
use super::tool_keys::{ToolKeys, keys};

/// Storage and arithmetic of the frozen base weights; adapters are always F32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Precision {
    Fp32,
    #[default]
    Bf16,
    Fp16,
    Int8,
    Nf4,
    Nf4Double,
}

/// What is to be known of a precision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrecisionRow {
    #[serde(skip)]
    pub kind: Precision,
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Bits of a value or code.
    pub bits: u64,
    /// What the codes are multiplied by, block by block; `None` where values are stored.
    pub constants: Option<BlockConstants>,
    /// The precision in which one computes: itself where values are stored.
    pub compute: Precision,
    /// What other tools call it.
    pub keys: ToolKeys,
}

/// How the constants of quantized blocks are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockConstants {
    /// One F32 for each block.
    Plain,
    /// One byte for each block, and F32 for blocks of these.
    Quantized,
}

/// Keys of weights that are stored as they are multiplied.
macro_rules! dense {
    ($dtype:literal, $bf16:literal, $fp16:literal, $torchtune:expr) => {
        ToolKeys {
            peft: None,
            trl: keys!("dtype": Text($dtype), "bf16": Flag($bf16), "fp16": Flag($fp16)),
            axolotl: keys!(
                "adapter": Text("lora"), "load_in_8bit": Flag(false), "load_in_4bit": Flag(false),
                "bf16": Flag($bf16), "fp16": Flag($fp16), "tf32": Flag(false),
            ),
            llamafactory: keys!("bf16": Flag($bf16), "fp16": Flag($fp16)),
            torchtune: $torchtune,
            unsloth: keys!(
                "dtype": Text($dtype), "load_in_4bit": Flag(false), "load_in_8bit": Flag(false),
                "bf16": Flag($bf16), "fp16": Flag($fp16),
            ),
        }
    };
}

/// Keys of NF4 in blocks of 64.
macro_rules! nf4 {
    ($double:literal, $torchtune:expr, $unsloth:expr) => {
        ToolKeys {
            peft: None,
            trl: keys!(
                "dtype": Text("bfloat16"), "bf16": Flag(true), "fp16": Flag(false), "load_in_4bit": Flag(true),
                "bnb_4bit_quant_type": Text("nf4"), "use_bnb_nested_quant": Flag($double),
            ),
            axolotl: keys!(
                "adapter": Text("qlora"), "load_in_8bit": Flag(false), "load_in_4bit": Flag(true),
                "bnb_config_kwargs": Map(Keys(&[
                    ("bnb_4bit_quant_type", Text("nf4")),
                    ("bnb_4bit_use_double_quant", Flag($double)),
                    ("bnb_4bit_compute_dtype", Text("bfloat16")),
                ])),
                "bf16": Flag(true), "fp16": Flag(false), "tf32": Flag(false),
            ),
            llamafactory: keys!(
                "bf16": Flag(true), "fp16": Flag(false), "quantization_bit": Number(4),
                "quantization_method": Text("bnb"), "quantization_type": Text("nf4"),
                "double_quantization": Flag($double),
            ),
            torchtune: $torchtune,
            unsloth: $unsloth,
        }
    };
}

const ROWS: &[PrecisionRow] = &[
    PrecisionRow {
        kind: Precision::Fp32,
        name: "fp32",
        aliases: &[],
        about: "32-bit floating point.",
        bits: 32,
        constants: None,
        compute: Precision::Fp32,
        keys: dense!(
            "float32",
            false,
            false,
            keys!("quantize_base": Flag(false), "dtype": Text("fp32"))
        ),
    },
    PrecisionRow {
        kind: Precision::Bf16,
        name: "bf16",
        aliases: &[],
        about: "bfloat16.",
        bits: 16,
        constants: None,
        compute: Precision::Bf16,
        keys: dense!(
            "bfloat16",
            true,
            false,
            keys!("quantize_base": Flag(false), "dtype": Text("bf16"))
        ),
    },
    PrecisionRow {
        kind: Precision::Fp16,
        name: "fp16",
        aliases: &[],
        about: "16-bit floating point, with loss scaling.",
        bits: 16,
        constants: None,
        compute: Precision::Fp16,
        keys: dense!("float16", false, true, None),
    },
    PrecisionRow {
        kind: Precision::Int8,
        name: "int8",
        aliases: &[],
        about: "8-bit block-wise weights.",
        bits: 8,
        constants: Some(BlockConstants::Plain),
        compute: Precision::Bf16,
        keys: ToolKeys {
            peft: None,
            trl: keys!(
                "dtype": Text("bfloat16"), "bf16": Flag(true), "fp16": Flag(false), "load_in_8bit": Flag(true),
            ),
            axolotl: keys!(
                "adapter": Text("lora"), "load_in_8bit": Flag(true), "load_in_4bit": Flag(false),
                "bf16": Flag(true), "fp16": Flag(false), "tf32": Flag(false),
            ),
            llamafactory: keys!(
                "bf16": Flag(true), "fp16": Flag(false), "quantization_bit": Number(8),
                "quantization_method": Text("bnb"),
            ),
            torchtune: None,
            unsloth: keys!(
                "dtype": Text("bfloat16"), "load_in_4bit": Flag(false), "load_in_8bit": Flag(true),
                "bf16": Flag(true), "fp16": Flag(false),
            ),
        },
    },
    PrecisionRow {
        kind: Precision::Nf4,
        name: "nf4",
        aliases: &[],
        about: "4-bit NormalFloat weights in blocks of 64 (QLoRA).",
        bits: 4,
        constants: Some(BlockConstants::Plain),
        compute: Precision::Bf16,
        // torchtune and unsloth always quantise the constants too.
        keys: nf4!(false, None, None),
    },
    PrecisionRow {
        kind: Precision::Nf4Double,
        name: "nf4_double",
        aliases: &[],
        about: "nf4 whose block constants are quantized again.",
        bits: 4,
        constants: Some(BlockConstants::Quantized),
        compute: Precision::Bf16,
        keys: nf4!(
            true,
            keys!("quantize_base": Flag(true), "dtype": Text("bf16")),
            keys!(
                "dtype": Text("bfloat16"), "load_in_4bit": Flag(true), "load_in_8bit": Flag(false),
                "bf16": Flag(true), "fp16": Flag(false),
            )
        ),
    },
];

named!(
    Precision,
    PrecisionRow,
    ROWS,
    "Precision",
    "Storage and arithmetic of the frozen base weights; adapters are always F32."
);

impl Precision {
    /// Whether linear weights are held in codes, which cannot be trained themselves.
    pub fn is_quantized(self) -> bool {
        self.row().constants.is_some()
    }

    /// The precision in which one computes.
    pub fn compute(self) -> Self {
        self.row().compute
    }

    /// Bytes of an element of the activations.
    pub fn compute_bytes(self) -> u64 {
        self.compute().row().bits / 8
    }
}
