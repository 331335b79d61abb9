//! What people ask of a search that found something, answered from its trials: why this setting and not its neighbours, what
//! each setting is worth, where the search did not look, how sure the loss is, what more time would bring. One value for the
//! screen, for scripts and for the page.

mod all;
mod certainty;
mod coverage;
mod input;
mod more_time;
mod neighbours;
#[cfg(test)]
mod testing;
mod text;
mod values;
mod worth;

pub use all::Answers;
pub use certainty::{LossCertainty, NoiseSource, Rival};
pub use coverage::{ComparedValue, Coverage, CoverageCell, Edge, MetricChange};
pub use input::AnswersInput;
pub use more_time::{ExpectedGain, MoreTime, RecentGain};
pub use neighbours::{Comparison, Neighbour, NeighbourBasis, NeighbourMetric};
pub use text::{Answer, answers_text, effect_sentence};
