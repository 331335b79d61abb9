//! Options that several commands have: the results database, what they compute with, counts, prices, the environment.

pub(super) mod backend;
pub(super) mod compute;
pub(super) mod count;
pub(super) mod database;
pub(super) mod device_names;
pub(super) mod environment;
pub(super) mod price;
