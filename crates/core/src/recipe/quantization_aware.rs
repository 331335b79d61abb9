//! Quantized forms that a training takes into account, one row each.

use serde::Serialize;

use super::Precision;
use super::named::named;

/// Form that the merged weights of linear layers are rounded to in each pass, so that a model that is merged and
/// quantized so keeps what was learned. Gradients pass through the rounding as if it were not there (the
/// straight-through estimator, arXiv:1308.3432; for networks arXiv:1712.05877).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuantizationAware {
    #[default]
    None,
    Int8,
    Nf4,
}

/// Row of the table of quantizations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QuantizationAwareRow {
    #[serde(skip)]
    pub kind: QuantizationAware,
    pub name: &'static str,
    /// Names that are read beside `name`.
    pub aliases: &'static [&'static str],
    pub about: &'static str,
    /// The precision that reads the merged model as it is.
    pub precision: Option<Precision>,
}

const ROWS: &[QuantizationAwareRow] = &[
    QuantizationAwareRow {
        kind: QuantizationAware::None,
        name: "none",
        aliases: &[],
        about: "Weights and adapters are multiplied as they are.",
        precision: None,
    },
    QuantizationAwareRow {
        kind: QuantizationAware::Int8,
        name: "int8",
        aliases: &[],
        about: "The merged weights are rounded to 8 bits, with a scale for each row, as `merge --quantize int8` writes them.",
        precision: Some(Precision::Int8),
    },
    QuantizationAwareRow {
        kind: QuantizationAware::Nf4,
        name: "nf4",
        aliases: &[],
        about: "The merged weights are rounded to 4-bit NormalFloat, with a scale for each 64 elements, as `merge --quantize nf4` writes them.",
        precision: Some(Precision::Nf4),
    },
];

named!(
    QuantizationAware,
    QuantizationAwareRow,
    ROWS,
    "QuantizationAware",
    "The form that merged weights are rounded to in each pass, with gradients straight through the rounding."
);

impl QuantizationAware {
    /// Whether weights are multiplied as they are.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }
}
