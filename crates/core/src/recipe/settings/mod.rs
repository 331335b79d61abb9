//! The settings that can be searched: one table with a row each.
//!
//! A row says what the setting is called, which values it takes, which field of the recipe it sets and what it can change.
//! Everything else reads the rows: study files and their JSON schema, recipes made of sampled values, the cost key and the loss
//! key, and the files for other tools.

mod adapter;
mod batch;
mod effect;
mod field;
mod keys;
mod legal;
mod optimizer;
mod preference;
mod row;
mod table;
mod torch;
mod unsearched;

pub use effect::{Circumstance, Effect, Effects, Form, Outcome, Reach};
pub use keys::RecipeKey;
pub use legal::{FloatRange, Legal};
pub use row::{SetError, SettingRow};
pub use table::{setting, settings};
pub use unsearched::{Unsearched, unsearched};
