//! Errors of a training: one enum for each subject, and [`TrainError`], which carries all of them.

mod batch;
mod cpu_only;
mod culprit;
mod merge;
mod prompt;
mod shard;
mod sparsity;
mod together;
mod train;

pub use batch::BatchError;
pub use cpu_only::CpuOnlyError;
pub use merge::MergeError;
pub use prompt::PromptError;
pub use shard::ShardError;
pub use sparsity::SparsityError;
pub use together::TogetherError;
pub use train::TrainError;
