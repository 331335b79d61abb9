//! The precisions, one row each: how base weights are stored and multiplied.

use serde::Serialize;

use super::named::named;

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

/// Row of the table of precisions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PrecisionRow {
    #[serde(skip)]
    pub kind: Precision,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Bits of a value or code.
    pub bits: u64,
    /// Constants that the codes are multiplied by, block by block; `None` where values are stored.
    pub constants: Option<BlockConstants>,
    /// The precision in which one computes: itself where values are stored.
    pub compute: Precision,
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

const ROWS: &[PrecisionRow] = &[
    PrecisionRow {
        kind: Precision::Fp32,
        name: "fp32",
        aliases: &[],
        about: "32-bit floating point.",
        bits: 32,
        constants: None,
        compute: Precision::Fp32,
    },
    PrecisionRow {
        kind: Precision::Bf16,
        name: "bf16",
        aliases: &[],
        about: "bfloat16.",
        bits: 16,
        constants: None,
        compute: Precision::Bf16,
    },
    PrecisionRow {
        kind: Precision::Fp16,
        name: "fp16",
        aliases: &[],
        about: "16-bit floating point, with loss scaling.",
        bits: 16,
        constants: None,
        compute: Precision::Fp16,
    },
    PrecisionRow {
        kind: Precision::Int8,
        name: "int8",
        aliases: &[],
        about: "8-bit block-wise weights.",
        bits: 8,
        constants: Some(BlockConstants::Plain),
        compute: Precision::Bf16,
    },
    PrecisionRow {
        kind: Precision::Nf4,
        name: "nf4",
        aliases: &[],
        about: "4-bit NormalFloat weights in blocks of 64 (QLoRA).",
        bits: 4,
        constants: Some(BlockConstants::Plain),
        compute: Precision::Bf16,
    },
    PrecisionRow {
        kind: Precision::Nf4Double,
        name: "nf4_double",
        aliases: &[],
        about: "nf4 whose block constants are quantized again.",
        bits: 4,
        constants: Some(BlockConstants::Quantized),
        compute: Precision::Bf16,
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
