//! A few steps of one recipe in an engine, as another engine trains them: the worker that trains, what it tells of its steps, and the
//! bounds within which two trainings are the same.

mod bound;
mod engine_worker;
pub(super) mod folder;
mod trained;

pub(super) use bound::{Bound, Products, RATES};
pub(super) use engine_worker::{EngineWorker, Length};
pub(super) use trained::{Trained, relative, relative_of};
