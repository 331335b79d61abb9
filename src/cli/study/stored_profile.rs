//! Profiles that were stored before.

use crate::cli::CliError;
use crate::cli::options::database::DatabaseArgs;
use crate::store::ProfileId;
use peft_tune_engine::profile::Profile;

/// The profile of this number, with the name that it is shown under.
pub(in crate::cli) fn stored_profile(database: &DatabaseArgs, id: i64) -> Result<(String, Profile), CliError> {
    let stored = database.read(async |store| store.profiles().find(ProfileId(id)).await)?;
    let Some(stored) = stored else {
        let path = database.path();
        let message = format!(
            "{} has no profile {id}; `{}` lists those it has",
            path.display(),
            database.command(&["query", "select id, name from profile"], None)
        );
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    };
    let profile = serde_json::from_value(stored.document["profile"].clone()).map_err(|error| {
        let message = format!("profile {id} was stored by another version of this program: {error}");
        CliError::bad_input(anyhow::anyhow!(message))
    })?;
    Ok((format!("profile {id} ({})", stored.name), profile))
}
