//! What a trial told on its way, why it was stopped and what was expected of it.

use std::collections::BTreeMap;

use super::row::{finite, to_i64, to_u64};
use super::{Store, StoreError, StudyId};
use peft_tune_core::study::{Curve, Metrics, Stop, TrialNumber};

impl Store {
    /// Records metrics that a running trial reported, with the steps after which it did. One after the same step replaces
    /// it. They are one transaction: a program may report many times a second.
    pub async fn record_reports(
        &self,
        study: StudyId,
        number: TrialNumber,
        reports: &[(u64, Metrics)],
    ) -> Result<(), StoreError> {
        if reports.is_empty() {
            return Ok(());
        }
        let trial = self.trial_id(study, number).await?;
        let mut transaction = self.begin().await?;
        let values = reports.iter();
        for (step, (name, value)) in values.flat_map(|(step, metrics)| metrics.iter().map(move |one| (*step, one))) {
            sqlx::query("insert or replace into report (trial_id, step, name, value) values (?, ?, ?, ?)")
                .bind(trial.0)
                .bind(to_i64(step)?)
                .bind(name)
                .bind(value)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.error(error))?;
        }
        self.commit(transaction).await
    }

    /// What every trial of a study told on its way, by number and step.
    pub async fn curves(&self, study: StudyId) -> Result<BTreeMap<TrialNumber, Curve>, StoreError> {
        let rows: Vec<(i64, i64, String, f64)> = sqlx::query_as(
            "select trial, step, metric, value from trial_report
             where study = (select name from study where id = ?) order by trial, step",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        let mut curves: BTreeMap<TrialNumber, Curve> = BTreeMap::new();
        for (trial, step, metric, value) in rows {
            let curve = curves.entry(TrialNumber(to_u64(trial))).or_default();
            curve.push(to_u64(step), &Metrics::from([(metric.as_str(), value)]));
        }
        Ok(curves)
    }

    /// Records why a trial was stopped before its end.
    pub async fn record_stop(&self, study: StudyId, number: TrialNumber, stop: &Stop) -> Result<(), StoreError> {
        let trial = self.trial_id(study, number).await?;
        sqlx::query("insert or replace into stop (trial_id, step, rule, reason) values (?, ?, ?, ?)")
            .bind(trial.0)
            .bind(to_i64(stop.step)?)
            .bind(&stop.rule)
            .bind(&stop.reason)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|error| self.error(error))
    }

    /// Why a trial was stopped before its end, if it was.
    pub async fn stop(&self, study: StudyId, number: TrialNumber) -> Result<Option<Stop>, StoreError> {
        let row: Option<(i64, String, String)> = sqlx::query_as(
            "select step, rule, stop.reason from stop join trial on trial.id = stop.trial_id
             where trial.study_id = ? and trial.number = ?",
        )
        .bind(study.0)
        .bind(to_i64(number.0)?)
        .fetch_optional(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(row.map(|(step, rule, reason)| Stop {
            step: to_u64(step),
            rule,
            reason,
        }))
    }

    /// Records that a command's trial took the value of `metric` over from `source`.
    pub async fn record_inherited_metric(
        &self,
        study: StudyId,
        number: TrialNumber,
        metric: &str,
        source: TrialNumber,
    ) -> Result<(), StoreError> {
        let trial = self.trial_id(study, number).await?;
        let source = self.trial_id(study, source).await?;
        sqlx::query("insert or replace into metric_inheritance (trial_id, metric, source_id) values (?, ?, ?)")
            .bind(trial.0)
            .bind(metric)
            .bind(source.0)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|error| self.error(error))
    }

    /// Records the hypervolume that a trial was expected to add when it was proposed.
    pub async fn record_expectation(
        &self,
        study: StudyId,
        number: TrialNumber,
        expected_improvement: f64,
    ) -> Result<(), StoreError> {
        let Some(value) = finite(expected_improvement) else {
            return Ok(());
        };
        let trial = self.trial_id(study, number).await?;
        sqlx::query("insert or replace into proposal (trial_id, expected_improvement) values (?, ?)")
            .bind(trial.0)
            .bind(value)
            .execute(&self.pool)
            .await
            .map(drop)
            .map_err(|error| self.error(error))
    }

    /// What was expected of each trial when it was proposed; trials of which nothing was expected are absent.
    pub async fn expectations(&self, study: StudyId) -> Result<BTreeMap<TrialNumber, f64>, StoreError> {
        let rows: Vec<(i64, f64)> = sqlx::query_as(
            "select number, expected_improvement from proposal join trial on trial.id = proposal.trial_id
             where trial.study_id = ?",
        )
        .bind(study.0)
        .fetch_all(&self.pool)
        .await
        .map_err(|error| self.error(error))?;
        Ok(rows
            .into_iter()
            .map(|(number, value)| (TrialNumber(to_u64(number)), value))
            .collect())
    }
}
