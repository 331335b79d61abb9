//! The data path: files to rows, rows to tokens, tokens to micro-batches.

mod batch;

pub use batch::{Document, IGNORE, MicroBatch};
