//! Why there is no sampler for a problem.

/// Why a sampler cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    #[error(
        "sampler `grid` needs steps, and parameter `{parameter}` is continuous: give it `step` or a list of `choices`"
    )]
    ContinuousGrid { parameter: String },
    #[error(
        "sampler `grid` numbers all settings, and they are more than {most}: give parameters fewer values or use `sobol`"
    )]
    LargeGrid { most: u64 },
    #[error("sampler `bayes` takes up to 4 objectives and there are {objectives}: use `nsga2`, `tpe` or `auto`")]
    ManyObjectives { objectives: usize },
    #[error("sampler `{sampler}` has no option `{option}`: {}", instead(.known))]
    UnknownOption {
        sampler: &'static str,
        option: String,
        /// Options that the sampler has, separated by commas; empty where it has none.
        known: String,
    },
    #[error("option `{option}` is `{value}`: give it {wanted}")]
    Option {
        option: &'static str,
        value: String,
        wanted: &'static str,
    },
    #[error("a study needs at least one objective: add one under `objectives`")]
    NoObjective,
}

impl SamplerError {
    /// The option that is wrong, to point at it in the file.
    pub fn option(&self) -> Option<&str> {
        match self {
            Self::UnknownOption { option, .. } => Some(option),
            Self::Option { option, .. } => Some(option),
            Self::ContinuousGrid { .. } | Self::LargeGrid { .. } | Self::ManyObjectives { .. } | Self::NoObjective => {
                None
            }
        }
    }
}

fn instead(known: &str) -> String {
    match known {
        "" => "it has none; remove it".to_owned(),
        known => format!("use {known}, or remove it"),
    }
}
