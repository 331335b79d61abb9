//! Span trees summed up: phases, modules, ops and memory of the measured steps.

mod memory;
mod modules;
mod ops;
mod phases;
mod totals;

pub(super) use memory::{Held, MemoryWatch, course};
pub(super) use totals::{FreeSteps, StepTotals};
