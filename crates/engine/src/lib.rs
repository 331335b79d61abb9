//! The training engine: checkpoints, base model, adapters, data path, forward, backward and optimizer step, and the
//! profile of all of it.
//!
//! It knows a [`Recipe`](peft_tune_core::recipe::Recipe) and nothing of studies, search or storage. Code in a module
//! uses only what lies below it here; `tests/it/floors.rs` of the root package checks it.
//!
//! | floor | modules |
//! |---|---|
//! | 8 | [`profile`] |
//! | 7 | [`run`], [`check`] |
//! | 6 | `merge`, `generation` |
//! | 5 | `training`, `sparsity`, `predictor` |
//! | 4 | `model` |
//! | 3 | `base`, [`data`], [`optimizer`] |
//! | 2 | `error` |
//! | 1 | [`adapter`], [`parallel`], `checkpoint`, [`hub`], [`tokenizer`], `gguf`, `parameters`, `tensor`, [`span`] |

pub mod adapter;
mod base;
pub mod check;
mod checkpoint;
pub mod data;
mod error;
mod generation;
mod gguf;
mod guarded;
pub mod hub;
mod merge;
mod model;
pub mod optimizer;
pub mod parallel;
mod parameters;
mod predictor;
pub mod profile;
pub mod run;
pub mod span;
mod sparsity;
mod tensor;
pub mod tokenizer;
mod training;

pub use base::{BaseModel, BaseSource, RankShare, Sparsity};
pub use checkpoint::{Checkpoint, WeightsError};
pub use error::{
    BatchError, CpuOnlyError, MergeError, PromptError, ShardError, SparsityError, TogetherError, TrainError,
};
pub use generation::{AnswerSettings, Decoding, Generated, GenerationSettings, Generator, Prompt, TextEnd};
pub use gguf::{GgufError, GgufType};
pub use merge::{GgufFile, MergedModel, ModelDirectory, WeightQuantization, WrittenDtype, write_checkpoint};
pub use parameters::Parameters;
pub use peft_tune_core::plan::{ParameterKind, ParameterLayout, ParameterSlot};
pub use predictor::predictor;
pub use sparsity::load_base;
pub use training::{
    BackOff, Control, Divergence, EvaluatedRows, Evaluation, HeldOutReward, LossKept, OverflowWatch, PrecisionCause,
    PrecisionDecision, RowLoss, RowWatch, SavedBytes, SpikeAnswer, SpikeReport, SpikeRow, SpikeStep, StepEvent,
    StepObserver, StepSeconds, Together, Trainer, TrainerPosition,
};

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: profile::CountingAllocator = profile::CountingAllocator::new();
