//! Files of rows that another program trains from.

use std::path::PathBuf;

/// Files of the rows that are trained on and of those that are held out.
pub(super) struct RowFiles {
    pub train: PathBuf,
    pub held_out: PathBuf,
}
