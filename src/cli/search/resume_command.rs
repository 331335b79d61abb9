//! The command that continues a search, to be printed wherever one is named.

use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::this_command::this_command;
use crate::shell::command_line;
use crate::store::StudyOverview;

/// The command that this search was started with, whole: it continues where it stopped. A database that the environment named is
/// named in it.
pub(super) fn resume_command(database: &DatabaseArgs) -> String {
    this_command(&[], &database.words_of_environment())
}

/// The command that continues a search which another process ran: its file, its name and its database.
pub(super) fn resume_command_of(study: &StudyOverview, database: &DatabaseArgs) -> String {
    let path = study.space_path.to_string_lossy().into_owned();
    let mut words = vec!["peft-tune".to_owned(), "search".to_owned(), path];
    let usual = study
        .space_path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned());
    if usual.as_deref() != Some(study.name.as_str()) {
        words.extend(["--as".to_owned(), study.name.clone()]);
    }
    words.extend(database.words());
    command_line(words)
}
