//! What the program says of itself: help, reference page, manual pages, completions, schemas.

pub(super) mod command_groups;
pub(super) mod completions;
pub(super) mod man;
pub(super) mod reference_page;
pub(super) mod schema;
