//! The key `serve` as it is written.

use std::num::NonZeroUsize;

use schemars::JsonSchema;
use serde::Deserialize;

use peft_tune_core::quantity::{self, PositiveCount};
use peft_tune_core::study::ServeMode;

/// Load under which each setting's model is served, for `serve_ms_per_token`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServeEntry {
    /// Form in which adapters are served: `merged`, `beside` the base weights, or `{together: 8}` for so many of them on one base
    /// model; default `beside`.
    pub mode: ServeMode,
    /// Sequences that are answered at once; default 1, and with several adapters one for each.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub batch: Option<NonZeroUsize>,
    /// Tokens of the prompt of each; default 512, or as many as the model has positions for.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub context: Option<NonZeroUsize>,
    /// Tokens that are generated for each in a measurement, at least 2; default 16.
    #[serde(deserialize_with = "quantity::optional_positive_count")]
    #[schemars(with = "Option<PositiveCount>")]
    pub new_tokens: Option<NonZeroUsize>,
}
