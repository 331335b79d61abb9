//! Integration tests, all in one binary: each further binary would link the whole engine again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

/// From data files to micro-batches, against transformers' tokens and templates.
mod data;
/// The walls between the floors: who may use whom, and which folder a heavy dependency enters through.
mod floors;
