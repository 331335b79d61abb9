//! What the profiles of a study's trials found.

use super::row::to_u64;
use super::{Store, StoreError, StudyId};
use peft_tune_core::study::TrialNumber;

/// A finding of a trial's latest profile.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialFinding {
    pub trial: TrialNumber,
    pub rule: String,
    pub evidence: String,
    pub change: String,
    /// `throughput` (gains are relative) or `peak_memory` (bytes saved).
    pub metric: String,
    pub predicted_gain: Option<f64>,
    pub measured_gain: Option<f64>,
}

#[derive(sqlx::FromRow)]
struct FindingRow {
    number: i64,
    rule: String,
    evidence: String,
    change: String,
    metric: String,
    predicted_gain: Option<f64>,
    measured_gain: Option<f64>,
}

impl Store {
    /// The findings of the latest profile of each trial of a study, in the order of their rank.
    ///
    /// # Errors
    /// Where reading fails.
    pub async fn findings(&self, study: StudyId) -> Result<Vec<TrialFinding>, StoreError> {
        let rows: Vec<FindingRow> = sqlx::query_as(
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
        .map_err(|error| self.error(error))?;
        let finding = |row: FindingRow| TrialFinding {
            trial: TrialNumber(to_u64(row.number)),
            rule: row.rule,
            evidence: row.evidence,
            change: row.change,
            metric: row.metric,
            predicted_gain: row.predicted_gain,
            measured_gain: row.measured_gain,
        };
        Ok(rows.into_iter().map(finding).collect())
    }
}
