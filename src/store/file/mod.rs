//! The file of a database: opening and locking it, keeping it in place, making it small, and copying studies into it.

mod file_identity;
pub(super) mod files;
pub(super) mod foreign_file;
pub(super) mod import;
pub(super) mod lock;
pub(super) mod open;
pub(super) mod rescue;
pub(super) mod vacuum;

pub use import::{ImportOutcome, ImportWish, Imported, import_studies};
pub use lock::StudyLock;
pub use open::Store;
pub use vacuum::{Vacuumed, vacuum};
