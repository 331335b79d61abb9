//! MLflow: a folder that is its file store, or a server.

mod client;
mod files;
mod run;
mod server;

pub(super) use files::FileStoreTracker;
pub use run::mlflow_run;
pub(super) use server::ServerTracker;
