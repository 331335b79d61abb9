//! Plans of a setting in a tool: what it needs on a device, whether that fits, and what would change it. `plan --stack` and
//! `plan --check` print them, and the page of the documentation shows them.

mod asked;
mod error;
mod frontier;
mod model_config;
mod predicted;
mod stack_plan;
mod within;
mod words;

pub use asked::{AskedChanges, AskedSetting, SHARING_NAMES, check_file};
pub use error::PlanError;
pub use frontier::{FrontierPoint, lengths_around};
pub use model_config::ModelConfig;
pub use predicted::{Predicted, Searched};
pub use stack_plan::{Assumed, StackPlan};
pub use within::{MEMORY_WITHIN, SPEED_WITHIN};
pub use words::{phases_note, setting_text, weights_text};
