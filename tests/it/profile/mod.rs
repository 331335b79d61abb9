//! `peft-tune profile` and `infer-bench`, and the spans that they read.

mod command;
mod decoding;
mod findings;
mod free_steps;
mod kept;
mod not_stored;
mod spans;
mod torch_trace;
mod trace_format;
mod trl;
mod tuning;
