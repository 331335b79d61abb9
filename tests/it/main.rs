//! Integration tests, all in one binary: each further binary would link the whole engine again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

/// The walls between the floors: who may use whom, and which folder a heavy dependency enters through.
mod floors;
/// Loading model directories: shards, damage, disagreement with the configuration.
mod checkpoints;
/// Reading the references in `tests/golden/ref_*`; no tests of its own.
mod golden;
/// The engine's losses, gradients and logits on every model family, against PEFT's.
mod parity;
/// The engine's kinds of adapter, optimizers and schedules, against PEFT's.
mod variants;
/// The assets of the quickstart, and the generator that made them.
mod quickstart;
