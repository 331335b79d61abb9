//! Recipe -> other tools' files.

mod axolotl;
mod course;
mod draft;
mod error;
mod format;
mod hf_trainer;
mod llamafactory;
mod mlflow;
mod modules;
mod peft;
mod recipe;
mod target_yaml;
mod torchtune;
mod trl;
mod unsloth;
mod write;

pub use course::TrainedRows;
pub use error::ExportError;
pub use format::{ExportFormat, ExportInput, Exported, Known, Warning};
pub use mlflow::{MlflowExperiment, MlflowMetric, MlflowRun, MlflowStatus};
pub use write::write;
