//! Trial processes: who runs a trial, and how the coordinator talks to it.

mod child;
mod command;
mod control;
mod death;
mod evaluator;
mod fault;
mod launch_command;
mod launcher;
mod limits;
mod mock;
mod mock_session;
mod placement;
mod pool;
mod prepare;
mod program;
mod protocol;
mod rank;
mod rank_group;
mod serve;
mod session;
mod surroundings;
mod trial;
mod turns;
mod worker_slot;

pub use command::CommandEvaluator;
pub use evaluator::{DeviceAssignment, Evaluator, EvaluatorError, Task, TrialEvent, TrialRequest};
pub use launch_command::LaunchCommand;
pub use launcher::Launcher;
pub use limits::{MemoryLimiter, memory_limiter};
pub use mock::MockEvaluator;
pub use placement::{Placement, pin_to, usable_cpus};
pub use pool::{Measuring, PoolSettings, WorkerPool};
pub use prepare::{Preparation, PrepareError, PrepareRequest, Prepared, prepare_apart, serve_prepare};
pub use protocol::{About, CAPABILITIES, ControlMessage, Message, PROTOCOL_VERSION, Request, protocol_schema};
pub use rank::{RankError, RankSettings, serve_rank};
pub use serve::{ServeSettings, serve};
