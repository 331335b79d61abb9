//! The machine that the program runs on: what it has, how fast it is, its threads, and the commands that look at it.

mod anonymous;
pub(super) mod cpu_ceilings;
mod cuda;
pub(super) mod doctor;
pub(super) mod engine_check;
pub(super) mod gpu_ceilings;
pub(super) mod gpu_check;
pub(super) mod record;
pub(super) mod threads;
