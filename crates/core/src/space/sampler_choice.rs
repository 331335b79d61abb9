//! Which sampler proposes, and its settings.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::study::ParamValue;

/// The method that proposes parameters, with its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerChoice {
    pub kind: SamplerKind,
    /// Settings by name; the sampler itself knows which there are and refuses others.
    pub options: BTreeMap<String, ParamValue>,
}

/// A sampler's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SamplerKind {
    /// The one that fits the space and the budget.
    #[default]
    Auto,
    /// Independent random points.
    Random,
    /// A low-discrepancy sequence.
    Sobol,
    /// Every combination, once.
    Grid,
    /// The genetic algorithm NSGA-II.
    Nsga2,
    /// Tree-structured Parzen estimators.
    Tpe,
    /// Bayesian optimisation with Gaussian processes.
    Bayes,
}

impl SamplerKind {
    /// All samplers in the order of the documentation.
    pub const ALL: [Self; 7] = [
        Self::Auto,
        Self::Random,
        Self::Sobol,
        Self::Grid,
        Self::Nsga2,
        Self::Tpe,
        Self::Bayes,
    ];

    /// Name as the file and the database have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Random => "random",
            Self::Sobol => "sobol",
            Self::Grid => "grid",
            Self::Nsga2 => "nsga2",
            Self::Tpe => "tpe",
            Self::Bayes => "bayes",
        }
    }

    /// The sampler of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampler_names_are_those_of_the_file() {
        for kind in SamplerKind::ALL {
            let name = serde_json::to_value(kind).unwrap();
            assert_eq!(name, kind.name());
            assert_eq!(SamplerKind::from_name(kind.name()), Some(kind));
        }
    }
}
