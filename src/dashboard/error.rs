//! Why the dashboard cannot serve.

use crate::report::html::DocumentError;
use crate::store::StoreError;

/// The dashboard cannot start, or cannot answer.
#[derive(Debug, thiserror::Error)]
pub enum DashboardError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("port {port} of this machine cannot be used ({source}): choose another one with `--port`, or 0 for any")]
    Port { port: u16, source: std::io::Error },
    #[error("serving pages failed: {0}")]
    Serve(#[source] std::io::Error),
    #[error("the study cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("the system gave no random numbers for the token: {0}")]
    Random(String),
}
