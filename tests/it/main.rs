//! Integration tests, all in one binary: each further binary would link the whole engine again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

/// The walls between the floors: who may use whom, and which folder a heavy dependency enters through.
mod floors;
/// Optimizers, schedules and clipping against their reference implementations.
mod optimizer;
/// PEFT adapter directories: reading, writing, and refusing damaged ones.
mod peft_directory;
/// Quantised weights against bitsandbytes, and its checkpoints.
mod quant;
