//! Integration tests, all in one binary: each further binary would link the whole engine again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

/// The walls between the floors: who may use whom, and which folder a heavy dependency enters through.
mod floors;

/// `query`, `show`, `pareto` and `studies` as people call them, on real database files.
mod query;

/// The results database: files, migrations, resuming, being killed, and its document.
mod store;
