//! The trial to take, as trackers and exports of whole studies say it.

use crate::report::{against_baseline, with_length};
use crate::store::{RecommendedTrial, Store, StoreError, StudyOverview};
use peft_tune_core::study::TrialNumber;
use peft_tune_search::{Preference, recommend};

/// The trial to take.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommended {
    pub trial: TrialNumber,
    /// Why, with the numbers that decided.
    pub reason: String,
    /// Gains of the trial against the baseline, where the study has one.
    pub against_baseline: Option<String>,
}

impl Recommended {
    /// What trackers have of it beside the trial: names and values.
    pub fn notes(&self) -> Vec<(&'static str, &str)> {
        let against = self.against_baseline.as_deref().map(|text| ("against_baseline", text));
        [("recommended", self.reason.as_str())]
            .into_iter()
            .chain(against)
            .collect()
    }

    /// The trial and its notes, as a storage of Optuna has them.
    pub fn in_optuna(&self) -> RecommendedTrial<'_> {
        RecommendedTrial {
            trial: self.trial,
            notes: self.notes(),
        }
    }

    /// Reads the recommendation of a study as it stands; `None` where nothing can be recommended.
    pub async fn read(store: &Store, study: &StudyOverview) -> Result<Option<Self>, StoreError> {
        let (trials, confirmed) = store.history().confirmed_trials(study.id).await?;
        let Ok(chosen) = recommend(&study.problem(None), &trials, &Preference::default()) else {
            return Ok(None);
        };
        let baseline = store.baselines().of(study.id).await?;
        let baseline = baseline.and_then(|number| trials.iter().find(|trial| trial.number == number));
        Ok(Some(Self {
            trial: chosen.trial.number,
            against_baseline: baseline
                .map(|baseline| against_baseline(&study.objectives, chosen.trial, baseline, &confirmed)),
            reason: with_length(chosen.reason, study.finds_length, &trials),
        }))
    }
}
