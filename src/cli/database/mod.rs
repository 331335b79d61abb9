//! Commands on the results database as a whole.

pub(super) mod import;
pub(super) mod query;
pub(super) mod vacuum;
