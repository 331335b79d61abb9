//! A trial's settings as files: peft-tune's own recipe, other tools' files, and studies for MLflow.

mod error;
mod format;
mod mlflow;
mod recipe;
mod write;

pub use error::ExportError;
pub use format::ExportFormat;
pub use mlflow::{MlflowExperiment, MlflowMetric, MlflowRun, MlflowStatus, mlflow_key};
pub use write::write;
