//! Earlier studies that a study starts from.

use crate::store::row::{to_i64, to_u64};
use crate::store::{Store, StoreError, StudyId};

/// Earlier studies that studies start from.
#[derive(Clone, Copy, Debug)]
pub struct WarmStarts<'a> {
    pub(in crate::store) store: &'a Store,
}

impl WarmStarts<'_> {
    /// Names of the studies that began before this one on the same model, data and machine, or with the same command, the
    /// latest first. Models and data are the same where they hold the same; where a study does not say what they held,
    /// where their files lie in the same place.
    pub async fn earlier_studies(self, study: StudyId) -> Result<Vec<String>, StoreError> {
        sqlx::query_scalar(
            "select earlier.name from study as own join study as earlier
                on earlier.id <> own.id and earlier.created_at <= own.created_at
               and (earlier.model_id is own.model_id or exists (
                    select 1 from model as a join model as b
                    where a.id = earlier.model_id and b.id = own.model_id
                      and case when a.fingerprint <> '' then a.fingerprint = b.fingerprint else a.source = b.source end))
               and (earlier.data_set_id is own.data_set_id or exists (
                    select 1 from data_set as a join data_set as b
                    where a.id = earlier.data_set_id and b.id = own.data_set_id
                      and case when a.fingerprint <> '' then a.fingerprint = b.fingerprint else a.source = b.source end))
               and earlier.machine_id is own.machine_id
               and earlier.definition -> '$.settings.backend' is own.definition -> '$.settings.backend'
             where own.id = ? order by earlier.created_at desc, earlier.id desc",
        )
        .bind(study.0)
        .fetch_all(&self.store.pool)
        .await
        .map_err(|error| self.store.error(error))
    }

    /// Records that a study starts from the first `trials` trials of the study called `source`.
    pub async fn record(self, study: StudyId, source: &str, trials: u64) -> Result<(), StoreError> {
        sqlx::query("insert or replace into warm_start (study_id, source, trials) values (?, ?, ?)")
            .bind(study.0)
            .bind(source)
            .bind(to_i64(trials)?)
            .execute(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))?;
        Ok(())
    }

    /// Earlier studies that a study started from, by name, with how many of their first trials it took.
    pub async fn of(self, study: StudyId) -> Result<Vec<(String, u64)>, StoreError> {
        let rows: Vec<(String, i64)> =
            sqlx::query_as("select source, trials from warm_start where study_id = ? order by source")
                .bind(study.0)
                .fetch_all(&self.store.pool)
                .await
                .map_err(|error| self.store.error(error))?;
        rows.into_iter()
            .map(|(source, trials)| Ok((source, to_u64(trials))))
            .collect()
    }
}
