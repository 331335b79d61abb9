//! The command that continues a search, to be printed wherever one is named.

use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::this_command::this_command;
use crate::shell::command_line;
use crate::space::{Loader, ReadOptions, StudyFile};
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
    if let Some(backend) = backend_beside_file(study) {
        words.extend(["--backend".to_owned(), backend.to_owned()]);
    }
    words.extend(database.words());
    command_line(words)
}

/// The engine that a study goes on with, as `--backend` takes it, where the study's file names another one, or cannot be read
/// and so may do.
pub(in crate::cli) fn backend_beside_file(study: &StudyOverview) -> Option<&'static str> {
    let engine = study.backend;
    let text = std::fs::read_to_string(&study.space_path).ok();
    let options = ReadOptions { check_files: false };
    match text.and_then(|text| StudyFile::parse(&study.space_path, &text, options).ok()) {
        Some(file) if !engine.trains_recipes() || !file.backend.trains_recipes() => None,
        Some(file) => (file.backend.kind() != engine).then(|| engine.name()),
        None => engine.loader().map(Loader::name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::search::study_record::record_of;
    use crate::space::{Backend, TrlBackend};
    use crate::store::Store;

    #[tokio::test]
    async fn a_study_goes_on_in_the_engine_that_it_began_in() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        let trl = Backend::Trl(TrlBackend::default());
        let unsloth = Backend::Trl(TrlBackend::by(Loader::Unsloth));
        let cases = [
            ("a", "", Backend::Native, None),
            ("b", "", trl.clone(), Some("trl")),
            ("c", "backend: trl\n", trl, None),
            ("d", "backend: trl\n", Backend::Native, Some("native")),
            ("e", "backend: trl\n", unsloth.clone(), Some("unsloth")),
            ("f", "backend: {unsloth: {}}\n", unsloth, None),
        ];
        for (name, line, backend, beside) in cases {
            let path = folder.path().join(format!("{name}.yaml"));
            let text = format!("model: m\ndata: {{train: [a.jsonl]}}\nspace: {{rank: [4, 8]}}\n{line}");
            std::fs::write(&path, &text).unwrap();
            let mut study = StudyFile::parse(&path, &text, ReadOptions { check_files: false }).unwrap();
            study.backend = backend;
            store.studies().begin(&record_of(&study, None, None)).await.unwrap();
            let stored = store.studies().find(Some(name)).await.unwrap();
            assert_eq!(backend_beside_file(&stored), beside, "{name}");
            let command = resume_command_of(&stored, &DatabaseArgs::at("peft-tune.db".into()));
            assert_eq!(command.contains("--backend"), beside.is_some(), "{command}");
        }
    }
}
