//! What the profiles of a study's trials found.

use super::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// A finding of a trial's latest profile.
#[derive(Clone, Debug, PartialEq, sqlx::FromRow)]
pub struct TrialFinding {
    #[sqlx(rename = "number", try_from = "i64")]
    pub trial: TrialNumber,
    pub rule: String,
    pub evidence: String,
    pub change: String,
    /// `throughput` (gains are relative) or `peak_memory` (bytes saved).
    pub metric: String,
    pub predicted_gain: Option<f64>,
    pub measured_gain: Option<f64>,
}

impl Store {
    /// The findings of the latest profile of each trial of a study, in the order of their rank.
    pub async fn findings(&self, study: StudyId) -> Result<Vec<TrialFinding>, StoreError> {
        sqlx::query_as(
            "select trial.number, rule, evidence, change, diagnosis.metric, predicted_gain, measured_gain
             from diagnosis join profile on profile.id = diagnosis.profile_id
                            join trial on trial.id = profile.trial_id
             where trial.study_id = ?
               and profile.id = (select max(id) from profile as other where other.trial_id = trial.id)
             order by trial.number, position",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))
    }
}
