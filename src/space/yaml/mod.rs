//! YAML files as text with positions: a tree of nodes that know where they stand, and typed values decoded from it.
//!
//! Decoding goes through a tree of our own, so that an error names the key and points at it even where serde buffers
//! values (untagged forms), and so that a check made after decoding can still ask where a key stands.

mod decode;
mod document;
mod span;
mod tree;

pub(super) use document::Document;
pub use span::Span;

use decode::{DecodeError, Fault};
use tree::{Node, Value};
