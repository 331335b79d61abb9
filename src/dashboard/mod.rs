//! Live pages on this machine: a study as it runs, and what a person may ask of it.
//!
//! The pages are served to this machine only. Whoever has the token may ask the study loop to pause, continue, stop, or
//! try a setting; requests go through the database, so that the search may be another process and needs no open port.

mod commands;
mod connection;
mod copy;
mod error;
mod gather;
mod guard;
mod machine;
mod news;
mod now;
mod route;
mod server;
mod shared;
mod stream;
mod token;

pub use connection::ConnectionLimits;
pub use error::DashboardError;
pub use gather::{Gatherer, importance_view};
pub use server::{Dashboard, DashboardSettings};
