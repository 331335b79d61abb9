//! Traces of PyTorch's profiler (`torch.profiler`, `export_chrome_trace`), read into profiles.
//!
//! | from the top | |
//! |---|---|
//! | `read` | a file becomes a profile |
//! | `gpu`, `memory`, `ops` | tables of the profile |
//! | `phases`, `steps`, `marks` | which step and which phase a moment belongs to |
//! | `stream` | the file, event by event |
//! | `recorded`, `interned` | events as they are kept |
//! | `event`, `value` | one event, as it stands in the file |

mod event;
mod gpu;
mod interned;
mod marks;
mod memory;
mod ops;
mod phases;
mod read;
mod recorded;
mod steps;
mod stream;
mod value;

pub use read::read_torch_trace;
pub use stream::TraceError;
