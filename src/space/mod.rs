//! Search space files: what may be sampled, and the study around it.

mod distribution;
mod search_space;

pub use distribution::{Distribution, Scale};
pub use search_space::{Condition, Parameter, SearchSpace};
