//! Trial processes: who runs a trial, and how the coordinator talks to it.

mod child;
mod command;
mod evaluator;
mod launch_words;
mod mock;
mod process;
mod protocol;
mod rank;
mod rank_group;
mod serve;
mod session;
mod trial;

pub use command::CommandEvaluator;
pub use evaluator::{Evaluator, EvaluatorError, Task, TrialEvent, TrialRequest};
pub use launch_words::LaunchWords;
pub use mock::MockEvaluator;
pub use process::ProcessEvaluator;
pub use protocol::{ControlMessage, Message, PROTOCOL_VERSION, Request};
pub use rank::{RankSettings, serve_rank};
pub use serve::serve;
