//! Compressed storage of frozen weights: 4-bit NormalFloat and 8-bit blocks, in bitsandbytes' layout, and values of which two of each
//! four are left out.
//!
//! A weight (out, in) is cut into blocks of consecutive elements, row after row. A block has one constant, its largest
//! absolute value, and each element one code: the nearest of a fixed set of fractions of that constant. Weights are
//! widened again in row ranges into a buffer that the caller reuses, so that a full copy never exists.

mod blocks;
mod checkpoint;
mod cuda;
mod dynamic_map;
mod element;
mod error;
mod expand;
mod int8;
mod nf4;
mod nf4_constants;
mod nf4_values;
mod quantized;
mod scatter;
mod sparse;

pub use checkpoint::{PackedTensor, RawTensor};
pub use dynamic_map::DynamicMap;
pub use element::Element;
pub use error::QuantError;
pub use int8::Int8;
pub use nf4::Nf4;
pub use nf4_constants::Constants;
pub use quantized::{ByteRows, Int8Blocks, Quantized};
pub use sparse::Sparse;
