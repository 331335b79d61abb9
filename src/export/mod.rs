//! Recipe -> other tools' files.

mod deepspeed;
mod draft;
mod error;
mod formats;
mod hf_trainer;
mod input;
mod mlflow;
mod modules;
mod reading;
mod rows;
mod step_counts;
mod target_yaml;
mod write;

pub use error::ExportError;
pub use formats::ExportFormat;
pub use input::{AnswerMarks, ExportInput, Exported, Known, Warning};
pub use mlflow::{MlflowExperiment, MlflowMetric, MlflowRun, MlflowStatus, mlflow_key};
pub use reading::TokenFiles;
pub use step_counts::TrainedRows;
pub use write::write;
