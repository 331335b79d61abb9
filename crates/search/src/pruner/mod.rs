//! Stopping a trial that is not worth finishing. A pruner sees numbers only; who runs the trial stops it.

mod asha;
mod build;
mod dominance;
mod ends;
mod median;
mod progress;

pub use asha::Asha;
pub use build::build_pruner;
pub use dominance::Dominance;
pub use median::Median;
pub use progress::{Field, Progress, Pruner, Verdict};
