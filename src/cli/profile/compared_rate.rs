//! A throughput from elsewhere beside a profile.

use peft_tune_core::predict::{AskedRate, NearRate, NoPublishedRate, TuningMethod, device_of_driver, nearest_rate};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::profile::{Profile, Reference};

/// Rate that a profile is compared with; empty where none was asked for.
#[derive(Debug, Default)]
pub(super) struct ComparedRate {
    pub reference: Option<Reference>,
    /// The published rate that the reference is, or why there is none.
    pub published: Option<String>,
}

impl ComparedRate {
    /// The rate that a person gives.
    pub(super) fn given(tokens_per_s: f64, profile: &Profile) -> Self {
        Self {
            reference: Some(Reference::new(profile, tokens_per_s)),
            published: None,
        }
    }

    /// The published rate that is nearest to a profiled recipe.
    pub(super) fn published(recipe: &Recipe, profile: &Profile) -> Self {
        match nearest(recipe, profile) {
            Ok(near) => Self {
                reference: Some(Reference::new(profile, near.row.tokens_per_s)),
                published: Some(near.to_string()),
            },
            Err(refused) => Self {
                reference: None,
                published: Some(refused.to_string()),
            },
        }
    }
}

fn nearest(recipe: &Recipe, profile: &Profile) -> Result<NearRate, NoPublishedRate> {
    let setting = &profile.setting;
    nearest_rate(&AskedRate {
        parameters: setting.base_parameters,
        method: TuningMethod::of(recipe),
        sheet: device_of_driver(&setting.device),
        sequence_length: setting.sequence_length as u64,
    })
}
