//! Products of frozen quantized weights that take their activations in 8 bits, one row for each choice.

use serde::Serialize;

use super::named::named;

/// Products of frozen quantized weights whose activations are quantized: to 8 bits, symmetric, one scale for each token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationQuantization {
    #[default]
    None,
    Int8Forward,
    Int8Both,
}

/// Row of the table of activation quantizations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ActivationQuantizationRow {
    #[serde(skip)]
    pub kind: ActivationQuantization,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// Whether the products of the forward pass take 8 bits, and those for the gradients of inputs.
    pub forward: bool,
    pub backward: bool,
}

const ROWS: &[ActivationQuantizationRow] = &[
    ActivationQuantizationRow {
        kind: ActivationQuantization::None,
        name: "none",
        aliases: &[],
        about: "Activations stay in the compute dtype.",
        forward: false,
        backward: false,
    },
    ActivationQuantizationRow {
        kind: ActivationQuantization::Int8Forward,
        name: "int8_forward",
        aliases: &[],
        about: "The inputs of the forward pass's products are rounded to 8 bits.",
        forward: true,
        backward: false,
    },
    ActivationQuantizationRow {
        kind: ActivationQuantization::Int8Both,
        name: "int8_both",
        aliases: &[],
        about: "So are the gradients of outputs in the products that make those of inputs.",
        forward: true,
        backward: true,
    },
];

named!(
    ActivationQuantization,
    ActivationQuantizationRow,
    ROWS,
    "ActivationQuantization",
    "Products of frozen quantized weights whose activations are quantized to 8 bits, with a scale for each token."
);

impl ActivationQuantization {
    /// Whether no activation is quantized.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}
