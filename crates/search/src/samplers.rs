//! The samplers, one row each. A new one is a file below `samplers/` and a row here: the study file, its JSON schema, the
//! command line and the race read the table.

mod bayes;
mod grid;
mod nsga2;
mod random;
mod sobol;
mod tpe;

use std::collections::BTreeMap;

use peft_tune_core::study::ParamValue;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use bayes::{Bayes, Dependence, Effect, EffectPoint, Importance, Insight, Proposal, Share, Trend, importance};
pub use grid::Grid;
pub use nsga2::Nsga2;
pub use random::Random;
pub use sobol::Sobol;
pub use tpe::Tpe;

pub(crate) use bayes::MOST_OBJECTIVES;

use crate::{Knowledge, Problem, Sampler, SamplerError};

/// What a sampler is made from.
pub(crate) struct Request<'a> {
    pub problem: &'a Problem,
    pub seed: u64,
    /// Options of the sampler by name; all of them known.
    pub options: &'a BTreeMap<String, ParamValue>,
    pub knowledge: Knowledge,
}

type Made = Result<Box<dyn Sampler>, SamplerError>;

/// Rows of samplers, each with its doc, its kind, its name in files and the database, the options it takes, and how it
/// is made.
macro_rules! samplers {
    ($($(#[$attribute:meta])* $kind:ident $name:literal $options:expr => $make:expr;)*) => {
        /// A sampler's name.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum SamplerKind {
            $($(#[$attribute])* #[serde(rename = $name)] $kind,)*
        }

        impl SamplerKind {
            /// All samplers in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Name as the file and the database have it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Names of the options that it takes.
            pub(crate) fn options(self) -> &'static [&'static str] {
                match self {
                    $(Self::$kind => $options,)*
                }
            }

            /// Makes the sampler; see [`crate::build_with`].
            pub(crate) fn make(self, request: Request<'_>) -> Made {
                let make: fn(Request<'_>) -> Made = match self {
                    $(Self::$kind => $make,)*
                };
                make(request)
            }
        }
    };
}

samplers! {
    /// The one that fits the space and the budget.
    #[default]
    Auto "auto" bayes::OPTIONS => bayes::make;
    /// Independent random points.
    Random "random" &[] => |request: Request<'_>| Ok(Box::new(Random::new(request.seed)));
    /// A low-discrepancy sequence.
    Sobol "sobol" &[] => |request: Request<'_>| Ok(Box::new(Sobol::new(request.seed)));
    /// Every combination, once.
    Grid "grid" &[] => |request: Request<'_>| Ok(Box::new(Grid::new(request.problem, request.seed)?));
    /// The genetic algorithm NSGA-II.
    Nsga2 "nsga2" &[] => |request: Request<'_>| Ok(Box::new(Nsga2::new(request.seed)));
    /// Tree-structured Parzen estimators.
    Tpe "tpe" &[] => |request: Request<'_>| Ok(Box::new(Tpe::new(request.seed)));
    /// Bayesian optimisation with Gaussian processes.
    Bayes "bayes" bayes::OPTIONS => bayes::make;
}

impl SamplerKind {
    /// The sampler of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}

/// The method that proposes parameters, with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerChoice {
    pub kind: SamplerKind,
    /// Settings by name; [`crate::build_with`] refuses those that the sampler does not have.
    pub options: BTreeMap<String, ParamValue>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_names_are_those_of_the_file() {
        for kind in SamplerKind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
            assert_eq!(SamplerKind::from_name(kind.name()), Some(*kind));
        }
    }
}
