//! `peft-tune` finds, for one model, one data set and one machine, the LoRA/QLoRA fine-tuning settings worth using.
//!
//! The folders are floors: code on one floor uses only what lies below it. `docs/architecture.md` draws the picture
//! and `tests/it/floors.rs` checks it.
//!
//! | floor | modules |
//! |---|---|
//! | 8 | [`cli`] |
//! | 7 | [`tune`], [`dashboard`] |
//! | 6 | [`worker`], [`report`] |
//! | 5 | [`profile`] |
//! | 4 | [`train`], [`export`], [`store`], [`search`] |
//! | 3 | [`predict`], [`plan`] |
//! | 2 | [`recipe`], [`study`], [`space`], [`architecture`] |
//! | 1 | [`objective`] |

pub mod architecture;
pub mod cli;
pub mod dashboard;
pub mod export;
pub mod objective;
pub mod plan;
pub mod predict;
pub mod profile;
pub mod recipe;
pub mod report;
pub mod search;
pub mod space;
pub mod store;
pub mod study;
pub mod train;
pub mod tune;
pub mod worker;

/// Counts every allocation, so that a trial's peak memory on the CPU is exact.
#[global_allocator]
static ALLOCATOR: profile::CountingAllocator = profile::CountingAllocator::new();
