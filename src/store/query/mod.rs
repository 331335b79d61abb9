//! Queries: the user's own SQL, and questions that people ask often.

pub(super) mod named;
pub(super) mod permission;
pub(super) mod queries;
pub(super) mod rows;
mod sql_value;

pub use named::NamedQuery;
pub use queries::RowSink;
pub use sql_value::SqlValue;
