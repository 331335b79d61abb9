//! `peft-tune` finds, for one model, one data set and one machine, the LoRA/QLoRA fine-tuning settings worth using.
//!
//! This package is the tuner. What it tunes and how it searches are crates of their own below it: `peft-tune-core` (plain
//! data and arithmetic), `peft-tune-tools` (other programs that train), `peft-tune-search` (samplers), `peft-tune-kernels` (ops)
//! and `peft-tune-engine` (training and profiling). `docs/architecture.md` draws the picture. Code in a module uses only what lies
//! below it here; `tests/it/floors.rs` checks it.
//!
//! | floor | modules |
//! |---|---|
//! | 5 | [`cli`] |
//! | 4 | [`tune`], [`dashboard`] |
//! | 3 | [`track`], `draft` |
//! | 2 | [`worker`], [`report`] |
//! | 1 | [`export`], [`store`], [`space`], [`shell`], [`files`] |

#[cfg(not(unix))]
compile_error!("peft-tune runs on Linux and macOS");

pub mod cli;
pub mod dashboard;
mod draft;
pub mod export;
pub mod files;
pub mod report;
pub mod shell;
pub mod space;
pub mod store;
pub mod track;
pub mod tune;
pub mod worker;

/// Other programs that train.
pub use peft_tune_tools as tools;
