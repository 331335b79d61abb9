//! Offline runs of Weights & Biases, which `wandb sync` sends: a folder a trial, with a log of records.

mod log;
mod record;
mod tracker;

pub(super) use tracker::WandbTracker;
