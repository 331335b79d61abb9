//! Attention: its kernels in several forms, and which of them a device takes.

mod choice;
mod first_use;
mod forms;
mod launches;
#[cfg(test)]
mod tests;

pub(crate) use self::choice::{backward, forward, prepare, takes};
pub use self::first_use::{Probe, ProbeError, probe_apart_by};
pub use self::forms::Form;
pub(crate) use self::launches::both_passes_by;
pub use self::launches::{backward_by, forward_by};
