//! Space of what may be sampled, and the methods that propose, prune, stop and confirm: plain data of a search.

mod bounds;
mod distribution;
mod fidelity;
mod membership;
mod search_space;
mod widening;

pub use bounds::{Bounds, RangeEnd};
pub use distribution::{Distribution, Scale};
pub use fidelity::{ConfirmPlan, PrunerChoice, PrunerKind, RepeatsInAll, StopRule};
pub use membership::{SettingError, as_sampled};
pub use search_space::{Condition, Parameter, SearchSpace};
pub use widening::Widening;
