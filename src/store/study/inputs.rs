//! Files that a study reads, as they were when it began.

use crate::space::Target;
use crate::store::row::to_i64;
use crate::store::{Store, StoreError, StudyId};
use crate::tools::Tool;
use peft_tune_core::predict;
use peft_tune_core::predict::stack::StackDevice;

/// Role of the device that trials run on: the name of a GPU, or `cpu`.
pub const DEVICE: &str = "device";
/// Role of the stack that a study is for.
pub const TARGET_STACK: &str = "target stack";
/// Role of the device of that stack.
pub const TARGET_DEVICE: &str = "target device";

/// A file that the trials of a study read.
#[derive(Clone, Debug, PartialEq, Eq, sqlx::FromRow)]
pub struct InputRecord {
    /// Role of the file, such as `weights` or `training data`.
    pub role: String,
    pub path: String,
    /// Hash of the content.
    pub fingerprint: String,
}

/// Files that the trials of studies read, and the stacks that studies are for.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub(in crate::store) store: &'a Store,
}

impl Inputs<'_> {
    /// Records the files of a study, in the place of the files that were recorded before.
    ///
    /// # Errors
    /// Where the database cannot be written.
    pub async fn record(self, study: StudyId, inputs: &[InputRecord]) -> Result<(), StoreError> {
        let mut transaction = self.store.begin().await?;
        sqlx::query("delete from study_input where study_id = ?")
            .bind(study.0)
            .execute(&mut *transaction)
            .await
            .map_err(|error| self.store.error(error))?;
        for (index, input) in inputs.iter().enumerate() {
            let position = inputs[..index].iter().filter(|other| other.role == input.role).count();
            sqlx::query("insert into study_input (study_id, role, position, path, fingerprint) values (?, ?, ?, ?, ?)")
                .bind(study.0)
                .bind(&input.role)
                .bind(to_i64(position as u64)?)
                .bind(&input.path)
                .bind(&input.fingerprint)
                .execute(&mut *transaction)
                .await
                .map_err(|error| self.store.error(error))?;
        }
        self.store.commit(transaction).await
    }

    /// Files of a study as they were when it began, by role and position; none for a command's study that has no target.
    ///
    /// # Errors
    /// Where the database cannot be read.
    pub async fn of(self, study: StudyId) -> Result<Vec<InputRecord>, StoreError> {
        sqlx::query_as("select role, path, fingerprint from study_input where study_id = ? order by role, position")
            .bind(study.0)
            .fetch_all(&self.store.pool)
            .await
            .map_err(|error| self.store.error(error))
    }

    /// The stack that a study is for, where that is another one than the native engine; `None` too where this version does not
    /// know it.
    pub(super) async fn target(self, study: StudyId) -> Result<Option<Target>, StoreError> {
        let inputs = self.of(study).await?;
        let named = |role: &str| {
            inputs
                .iter()
                .find(|input| input.role == role)
                .map(|input| input.path.as_str())
        };
        let stack = named(TARGET_STACK).and_then(|name| Tool::from_name(name).ok());
        let sheet = named(TARGET_DEVICE).and_then(|name| predict::device(name).ok());
        Ok(stack.map(|stack| Target {
            stack,
            device: sheet.map(|sheet| StackDevice { sheet }),
        }))
    }
}
