//! Errors in weights that another program quantized.

/// Why a quantized weight cannot be read; the tensor and the file stand before it.
#[derive(Debug, thiserror::Error)]
pub enum PackedError {
    #[error("`{name}` is missing beside it; download the model again")]
    Missing { name: String },

    #[error(
        "`{name}` has shape {got:?} of {dtype}, but {expected} is expected; check config.json against the published one"
    )]
    Mismatch {
        name: String,
        got: Vec<usize>,
        dtype: String,
        expected: String,
    },

    #[error("`{name}` holds {value}, but only {expected} are known; the file is damaged")]
    OutOfRange { name: String, value: i64, expected: String },

    #[error("`{name}` holds a value that is not finite, at element {element}; the file is damaged")]
    BadConstant { name: String, element: usize },

    #[error("its value at element {element} is not finite; the file is damaged")]
    NotFinite { element: usize },

    #[error("its shape is {shape:?}, and only matrices can be quantized; check config.json against the published one")]
    NotAMatrix { shape: Vec<usize> },

    #[error(
        "it is quantized in a way that is not read: {what}; take the model's unquantized weights, or a format that \
         docs/training.md names"
    )]
    Unsupported { what: String },

    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
