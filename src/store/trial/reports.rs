//! Metrics that running trials reported on their way.

use std::collections::BTreeMap;

use crate::store::row::{to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};
use peft_tune_core::study::{Curve, Metrics, TrialNumber};

/// Metrics that running trials reported on their way.
#[derive(Clone, Copy, Debug)]
pub struct Reports<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Reports<'_> {
    /// Records metrics that a running trial reported, with the steps after which it did. One after the same step replaces
    /// it. They are one transaction: a program may report many times a second.
    pub async fn record(
        self,
        study: StudyId,
        number: TrialNumber,
        reports: &[(u64, Metrics)],
    ) -> Result<(), StoreError> {
        if reports.is_empty() {
            return Ok(());
        }
        let trial = self.store.trials().id(study, number).await?;
        let mut transaction = self.store.begin().await?;
        let values = reports.iter();
        for (step, (name, value)) in values.flat_map(|(step, metrics)| metrics.iter().map(move |one| (*step, one))) {
            sqlx::query("insert or replace into report (trial_id, step, name, value) values (?, ?, ?, ?)")
                .bind(trial.0)
                .bind(to_i64(step)?)
                .bind(name)
                .bind(value)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        self.store.commit(transaction).await
    }

    /// Curves of the metrics that every trial of a study reported, by number and step.
    pub async fn curves(self, study: StudyId) -> Result<BTreeMap<TrialNumber, Curve>, StoreError> {
        let rows: Vec<(i64, i64, String, f64)> = sqlx::query_as(
            "select trial, step, metric, value from trial_report
             where study = (select name from study where id = ?) order by trial, step",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))?;
        let mut curves: BTreeMap<TrialNumber, Curve> = BTreeMap::new();
        for (trial, step, metric, value) in rows {
            let curve = curves.entry(TrialNumber(to_u64(trial))).or_default();
            curve.push(to_u64(step), &Metrics::from([(metric.as_str(), value)]));
        }
        Ok(curves)
    }
}
