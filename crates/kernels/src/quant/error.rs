//! Errors in a weight to quantize, or in a quantized checkpoint.

/// A weight that cannot be quantized or read.
#[derive(Debug, thiserror::Error)]
pub enum QuantError {
    #[error("weight of shape {got:?} cannot be quantized; expected a matrix (out, in) with elements")]
    NotAMatrix { got: Vec<usize> },
    #[error("weight holds a value that is not finite in row {row}; the checkpoint is damaged")]
    NotFinite { row: usize },
    #[error("tensor `{name}` is missing beside the quantized weight; the checkpoint is incomplete")]
    Missing { name: String },
    #[error("tensor `{name}` has {got} elements of dtype {got_dtype}; expected {expected} of {expected_dtype}")]
    Mismatch {
        name: String,
        got: usize,
        got_dtype: String,
        expected: usize,
        expected_dtype: &'static str,
    },
    #[error("tensor `{name}` holds a value that is not finite; the checkpoint is damaged")]
    BadConstant { name: String },
    #[error("tensor `{name}` does not describe a quantized weight: {source}")]
    State { name: String, source: serde_json::Error },
    #[error("tensor `{name}` says `{key}` is {value}; expected {expected}")]
    Unsupported {
        name: String,
        key: &'static str,
        value: String,
        expected: &'static str,
    },
    #[error(
        "rows of {inputs} values are not whole groups of four, of which two would stay; set `weight_sparsity` to none"
    )]
    NotInGroups { inputs: usize },
    #[error("the norms of a weight's {inputs} columns are of another number or not finite; the calibration is damaged")]
    BadNorms { inputs: usize },
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
