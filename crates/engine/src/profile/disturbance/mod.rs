//! Whether something else on the machine slowed a measurement down.

mod counters;
mod gpu;
mod host;
mod others;
mod watch;

pub use counters::{Counters, Load, MachineCounters};
pub use gpu::{lost_on_gpu, lost_to_clock};
pub use host::{HostCounters, TICKS_PER_S, pressure_s, processor_s};
pub use others::OtherLoad;
pub use watch::{Busy, Disturbance, DisturbanceWatch};
