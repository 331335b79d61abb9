//! Spans: what the engine tells a profiler while it computes.
//!
//! Trainer, modules and ops open a span where they begin and close it, by dropping it, where they end. While nobody
//! records, that is one relaxed load of an atomic; while somebody does, two readings of the clock and of the memory's
//! counters, and on a GPU two events in its queue. Whoever records joins with its thread; other threads take part where they are handed the recording, so
//! that two recordings in one process do not mix. A run on paper has nothing to time: it asks which spans are open.
//!
//! Design note: the recording is found through a thread-local rather than handed down. It would otherwise be an argument
//! of every function of the engine, for something that is off in all but one run in a thousand.

mod log;
mod mark;
mod marked;
mod place;
mod range;
mod recording;
mod work;

pub use log::{SpanMemory, SpanRecord, SpanTree};
pub use range::{Range, StepPhase};
pub use recording::{MemoryReading, Pause, Probe, Recording};
pub use work::{Shape, Work};

pub use peft_tune_core::predict::Module;

pub(crate) use mark::Mark;
pub(crate) use place::{Placing, module_around, phase_around};
pub(crate) use recording::{Span, handle, keep, layer, module, op, phase, release};
