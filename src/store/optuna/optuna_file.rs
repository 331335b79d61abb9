//! An Optuna storage that is kept up to date while others look at it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::json;
use sqlx::{SqliteConnection, SqlitePool};

use super::distribution::OptunaParameter;
use super::write::{
    RecommendedTrial, SCHEMA_VERSION, insert_trial, parameters, write_notes, write_schema, write_study, write_trial,
};
use crate::store::file::foreign_file::open_foreign;
use crate::store::{StoreError, StudyOverview, TrialRun};
use peft_tune_core::space::SearchSpace;
use peft_tune_core::study::Params;

/// The attribute of a study that says whose it is.
const MARK: &str = "peft_tune";

/// Statements that delete the rows which belong to a trial, but for its own.
const DELETE_ROWS_OF_TRIAL: [&str; 5] = [
    "delete from trial_values where trial_id = ?",
    "delete from trial_params where trial_id = ?",
    "delete from trial_intermediate_values where trial_id = ?",
    "delete from trial_user_attributes where trial_id = ?",
    "delete from trial_system_attributes where trial_id = ?",
];

/// A storage of Optuna, new or with studies of others.
#[derive(Debug)]
pub struct OptunaFile {
    path: PathBuf,
    pool: SqlitePool,
    /// The study as it was written last.
    written: Option<WrittenStudy>,
}

/// A study as it was written: how many trials it had, and how Optuna saw their parameters.
#[derive(Debug)]
struct WrittenStudy {
    trials: usize,
    parameters: BTreeMap<String, OptunaParameter>,
}

/// A study to be kept there.
#[derive(Clone, Debug)]
pub struct OptunaStudy<'a> {
    pub overview: &'a StudyOverview,
    /// Mark that tells studies of one name apart.
    pub mark: &'a str,
    pub space: Option<&'a SearchSpace>,
    /// All trials of the study.
    pub runs: &'a [TrialRun],
    pub recommended: Option<RecommendedTrial<'a>>,
}

impl OptunaFile {
    /// Opens the file, which is made where it is missing; its folder has to be there.
    ///
    /// # Errors
    /// Where it is no SQLite file, or cannot be written.
    pub async fn open(path: &Path) -> Result<Self, StoreError> {
        Ok(Self {
            pool: open_foreign(path).await?,
            path: path.to_owned(),
            written: None,
        })
    }

    /// Writes trials as they are now, in one transaction: one that is there keeps its row.
    ///
    /// # Errors
    /// [`StoreError::OptunaOther`] where the file has another study of that name, [`StoreError::OptunaSchema`] where another
    /// Optuna made it, or where writing fails; nothing is written then.
    pub async fn put(&mut self, study: &OptunaStudy<'_>, changed: &[&TrialRun]) -> Result<(), StoreError> {
        let (parameters, is_explained) = explained(self.written.take(), study);
        let failed = |error| StoreError::from_sqlx(&self.path, error);
        let mut transaction = self.pool.begin_with("begin immediate").await.map_err(failed)?;
        self.check_schema(&mut transaction).await?;
        let id = self.study(&mut transaction, study).await?;
        let written = async {
            // Optuna's tables have no index for a trial's number.
            let there: HashMap<i64, i64> = sqlx::query_as("select number, trial_id from trials where study_id = ?")
                .bind(id)
                .fetch_all(&mut *transaction)
                .await?
                .into_iter()
                .collect();
            for run in changed {
                let number = run.trial.number;
                let trial = match there.get(&number.0.cast_signed()) {
                    Some(trial) => *trial,
                    None => insert_trial(&mut transaction, id, number).await?,
                };
                for delete in DELETE_ROWS_OF_TRIAL {
                    sqlx::query(delete).bind(trial).execute(&mut *transaction).await?;
                }
                write_trial(&mut transaction, trial, study.overview, run, &parameters).await?;
                if let Some(recommended) = study.recommended.as_ref().filter(|one| one.trial == number) {
                    write_notes(&mut transaction, trial, &recommended.notes).await?;
                }
            }
            if !is_explained {
                explain_all(&mut transaction, id, study.runs, &parameters).await?;
            }
            transaction.commit().await
        };
        written.await.map_err(failed)?;
        self.written = Some(WrittenStudy {
            trials: study.runs.len(),
            parameters,
        });
        Ok(())
    }

    /// Makes the tables of a new file, and checks whose tables an old file has.
    async fn check_schema(&self, connection: &mut SqliteConnection) -> Result<(), StoreError> {
        let failed = |error| StoreError::from_sqlx(&self.path, error);
        let tables: i64 = sqlx::query_scalar("select count(*) from sqlite_schema where type = 'table'")
            .fetch_one(&mut *connection)
            .await
            .map_err(failed)?;
        if tables == 0 {
            return write_schema(connection).await.map_err(failed);
        }
        let other = |found| StoreError::OptunaSchema {
            path: self.path.clone(),
            found,
        };
        let version = sqlx::query_scalar("select schema_version from version_info")
            .fetch_one(&mut *connection)
            .await;
        match version {
            Ok(SCHEMA_VERSION) => Ok(()),
            Ok(version) => Err(other(Some(version))),
            Err(sqlx::Error::Database(_) | sqlx::Error::RowNotFound) => Err(other(None)),
            Err(error) => Err(failed(error)),
        }
    }

    /// The study's id in the file, where it is made if it is missing.
    async fn study(&self, connection: &mut SqliteConnection, study: &OptunaStudy<'_>) -> Result<i64, StoreError> {
        let failed = |error| StoreError::from_sqlx(&self.path, error);
        let there: Option<(i64, Option<String>)> = sqlx::query_as(
            "select study_id, (select value_json from study_user_attributes as a where a.study_id = studies.study_id and \"key\" = ?)
             from studies where study_name = ?",
        )
        .bind(MARK)
        .bind(&study.overview.name)
        .fetch_optional(&mut *connection)
        .await
        .map_err(failed)?;
        let mark = json!(study.mark).to_string();
        match there {
            Some((id, Some(there))) if there == mark => return Ok(id),
            Some(_) => {
                return Err(StoreError::OptunaOther {
                    path: self.path.clone(),
                    study: study.overview.name.clone(),
                });
            }
            None => (),
        }
        let id = write_study(connection, study.overview).await.map_err(failed)?;
        sqlx::query("insert into study_user_attributes (study_id, \"key\", value_json) values (?, ?, ?)")
            .bind(id)
            .bind(MARK)
            .bind(mark)
            .execute(connection)
            .await
            .map_err(failed)?;
        Ok(id)
    }
}

/// The study's parameters as Optuna sees them, and whether all of its trials in the file were written so. A trial's values
/// never change: only more trials let Optuna see the parameters otherwise.
fn explained(written: Option<WrittenStudy>, study: &OptunaStudy<'_>) -> (BTreeMap<String, OptunaParameter>, bool) {
    let Some(written) = written else {
        return (parameters(study.runs, study.space), false);
    };
    if written.trials == study.runs.len() {
        return (written.parameters, true);
    }
    let parameters = parameters(study.runs, study.space);
    let is_same = |(name, parameter): (&String, &OptunaParameter)| {
        let known = written.parameters.get(name);
        known.is_some_and(|known| known.distribution == parameter.distribution)
    };
    let is_explained = parameters.iter().all(is_same);
    (parameters, is_explained)
}

/// Gives all trials of a study the distributions of its parameters: a value that the search space does not explain makes a
/// parameter another one, in every trial.
async fn explain_all(
    connection: &mut SqliteConnection,
    study: i64,
    runs: &[TrialRun],
    parameters: &BTreeMap<String, OptunaParameter>,
) -> Result<(), sqlx::Error> {
    for (name, parameter) in parameters {
        let distribution = parameter.distribution.to_string();
        let others: Vec<(i64, i64)> = sqlx::query_as(
            "select trial_id, number from trial_params join trials using (trial_id)
             where study_id = ? and param_name = ? and distribution_json <> ?",
        )
        .bind(study)
        .bind(name)
        .bind(&distribution)
        .fetch_all(&mut *connection)
        .await?;
        if others.is_empty() {
            continue;
        }
        let params: HashMap<i64, &Params> = runs
            .iter()
            .map(|run| (run.trial.number.0.cast_signed(), &run.trial.params))
            .collect();
        for (trial, number) in others {
            let value = params
                .get(&number)
                .and_then(|params| parameter.number(params.get(name)?));
            sqlx::query(
                "update trial_params set distribution_json = ?, param_value = coalesce(?, param_value)
                 where param_name = ? and trial_id = ?",
            )
            .bind(&distribution)
            .bind(value)
            .bind(name)
            .bind(trial)
            .execute(&mut *connection)
            .await?;
        }
    }
    Ok(())
}
