//! Files that are not what they should be: a clear error, and every byte as it was.

use std::path::{Path, PathBuf};
use std::time::Duration;

use peft_tune::store::{ImportWish, Store, StoreError, import_studies};
use peft_tune_core::study::{Params, TrialNumber};

use super::{complete, recipe, study_record};

/// Makes a database with `trials` trials.
pub(super) async fn database(path: &Path, trials: u64) {
    let store = Store::open(path).await.unwrap();
    let study = store.studies().begin(&study_record("first")).await.unwrap();
    for number in 0..trials {
        let params = Params::from([("rank".to_owned(), (number as i64).into())]);
        store
            .trials()
            .start(study.id, TrialNumber(number), &params, Some(&recipe()))
            .await
            .unwrap();
        let state = complete(100.0 + number as f64, 1e9 + number as f64, 2.0);
        store
            .trials()
            .finish(study.id, TrialNumber(number), &state, 1.0)
            .await
            .unwrap();
    }
    drop(study);
    store.close().await.unwrap();
}

/// Runs SQL on a file behind the store's back.
async fn tamper(path: &Path, sql: &str) {
    let pool = sqlx::SqlitePool::connect_with(
        sqlx::sqlite::SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true),
    )
    .await
    .unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(&pool)
        .await
        .unwrap();
    pool.close().await;
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// The errors of opening `path` for writing and for reading; asserts that nothing changed.
async fn refused(path: &Path) -> (StoreError, StoreError) {
    let (bytes, files) = (std::fs::read(path).unwrap(), files_in(path.parent().unwrap()));
    let errors = (
        Store::open(path).await.expect_err("opened for writing"),
        Store::open_read_only(path).await.expect_err("opened for reading"),
    );
    assert!(std::fs::read(path).unwrap() == bytes, "the file was changed");
    assert_eq!(files_in(path.parent().unwrap()), files, "files were left behind");
    errors
}

#[tokio::test]
async fn a_file_of_text_or_of_another_program_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "these are my notes, not a database").unwrap();
    let errors = refused(&text).await;
    assert!(
        matches!(
            errors,
            (StoreError::NotADatabase { .. }, StoreError::NotADatabase { .. })
        ),
        "{errors:?}"
    );

    let other = folder.path().join("other.db");
    tamper(&other, "create table history (url text)").await;
    let errors = refused(&other).await;
    assert!(
        matches!(errors, (StoreError::Foreign { .. }, StoreError::Foreign { .. })),
        "{errors:?}"
    );
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    database(&path, 1).await;
    tamper(
        &path,
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values (9999, 'from the future', true, x'00', 0)",
    )
    .await;
    let (writing, reading) = refused(&path).await;
    assert!(matches!(reading, StoreError::Newer { .. }), "{reading}");
    assert!(
        writing.to_string().contains("9999") && writing.to_string().contains("update peft-tune"),
        "{writing}"
    );
}

#[tokio::test]
async fn a_database_of_an_older_layout_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    database(&path, 1).await;
    tamper(&path, "update _sqlx_migrations set version = 3").await;
    let (writing, reading) = refused(&path).await;
    for error in [writing, reading] {
        assert!(matches!(error, StoreError::Older { found: 3, .. }), "{error}");
        let told = error.to_string();
        assert!(
            told.contains("a.db") && told.contains("schema 3,") && told.contains("the peft-tune that wrote it"),
            "{told}"
        );
    }

    let here = Store::open(&folder.path().join("here.db")).await.unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = import_studies(&here, &path, &ImportWish::default()).await.unwrap_err();
    assert!(matches!(error, StoreError::Older { found: 3, .. }), "{error}");
    assert!(std::fs::read(&path).unwrap() == before);
}

#[tokio::test]
async fn a_damaged_page_is_found_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    database(&path, 200).await;
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 4096 / 2 * 4096;
    bytes[middle..middle + 4096].fill(0xa5);
    std::fs::write(&path, &bytes).unwrap();
    let error = Store::open(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
    assert!(std::fs::read(&path).unwrap() == bytes);

    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = Store::open(&path).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "a file cut short: {error}");
}

#[tokio::test]
async fn nothing_is_made_where_nothing_is() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none.db");
    let error = Store::open_read_only(&missing).await.unwrap_err();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    let error = Store::open(&folder.path().join("no").join("a.db")).await.unwrap_err();
    assert!(matches!(error, StoreError::NoFolder { .. }), "{error}");
    assert!(Store::open(folder.path()).await.is_err(), "a folder is no database");
    assert!(files_in(folder.path()).is_empty());
    std::fs::write(&missing, "").unwrap();
    let error = Store::open_read_only(&missing).await.unwrap_err();
    assert!(matches!(error, StoreError::Empty { .. }), "{error}");
    Store::open(&missing).await.expect("an empty file is a new database");
}

#[test]
fn processes_that_open_a_new_database_at_once_all_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    std::thread::scope(|scope| {
        for number in 0..8 {
            let path = &path;
            scope.spawn(move || {
                tokio::runtime::Runtime::new().unwrap().block_on(async {
                    let store = Store::open(path).await.unwrap();
                    store
                        .studies()
                        .begin(&study_record(&format!("study {number}")))
                        .await
                        .unwrap();
                    store.close().await.unwrap();
                });
            });
        }
    });
    assert_eq!(files_in(folder.path()), [path.as_path()]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let studies = runtime.block_on(async {
        Store::open_read_only(&path)
            .await
            .unwrap()
            .studies()
            .all()
            .await
            .unwrap()
    });
    assert_eq!(studies.len(), 8);
}

#[tokio::test]
async fn reading_leaves_no_file_behind_and_no_byte_changed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    database(&path, 5).await;
    assert_eq!(
        files_in(folder.path()),
        [path.as_path()],
        "a closed database is one file"
    );
    let before = std::fs::read(&path).unwrap();
    let store = Store::open_read_only(&path).await.unwrap();
    assert_eq!(store.studies().all().await.unwrap().len(), 1);
    assert!(store.studies().begin(&study_record("second")).await.is_err());
    store.close().await.unwrap();
    assert_eq!(files_in(folder.path()), [path.as_path()]);
    assert!(std::fs::read(&path).unwrap() == before);
}

#[tokio::test]
async fn a_reader_sees_each_trial_as_it_ends_and_never_stops_the_writer() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    let writer = Store::open(&path).await.unwrap();
    let study = writer.studies().begin(&study_record("first")).await.unwrap();
    let reader = Store::open_read_only(&path).await.unwrap();
    let reading = async {
        let mut seen = 0;
        while seen < 100 {
            let states = reader.studies().find(Some("first")).await.unwrap().states;
            let complete = states.get("complete").copied().unwrap_or(0);
            assert!(complete >= seen, "a trial went away");
            seen = complete;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let writing = async {
        for number in (0..100).map(TrialNumber) {
            writer
                .trials()
                .start(study.id, number, &Params::new(), Some(&recipe()))
                .await
                .unwrap();
            writer
                .trials()
                .finish(study.id, number, &complete(1.0, 1.0, 1.0), 1.0)
                .await
                .unwrap();
        }
    };
    tokio::join!(reading, writing);
    reader.close().await.unwrap();
    writer.close().await.unwrap();
}

#[cfg(unix)]
#[test]
fn a_folder_that_cannot_be_written_can_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    tokio::runtime::Runtime::new().unwrap().block_on(database(&path, 5));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();

    let Some(output) = as_someone_else(&["studies", "--db", path.to_str().unwrap()]) else {
        return;
    };
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("first"));
    let written = as_someone_else(&["query", "delete from trial", "--db", path.to_str().unwrap()]).unwrap();
    assert_eq!(written.status.code(), Some(2), "{written:?}");
    assert_eq!(files_in(folder.path()), [path.as_path()]);

    // What a killed search leaves: a log, here without content, and one that would have to be merged.
    let log = folder.path().join("a.db-wal");
    std::fs::write(&log, "").unwrap();
    let with_empty_log = as_someone_else(&["studies", "--db", path.to_str().unwrap()]).unwrap();
    assert!(with_empty_log.status.success(), "{with_empty_log:?}");
    std::fs::remove_file(log).unwrap();
    let unmerged = folder_of_a_killed_search();
    let path = unmerged.path().join("a.db");
    let refused = as_someone_else(&["studies", "--db", path.to_str().unwrap()]).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("copy both files"),
        "{refused:?}"
    );
    std::fs::set_permissions(unmerged.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A read-only folder with a database whose log was never merged.
#[cfg(unix)]
fn folder_of_a_killed_search() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt;
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        store.studies().begin(&study_record("first")).await.unwrap();
        for name in ["a.db", "a.db-wal"] {
            std::fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
            let file = copy.path().join(name);
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o444)).unwrap();
        }
    });
    std::fs::set_permissions(copy.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    copy
}

/// Runs the program; as another user where this one is root, whom no permission stops. `None` where that user cannot
/// reach the program.
#[cfg(unix)]
fn as_someone_else(arguments: &[&str]) -> Option<std::process::Output> {
    use std::os::unix::process::CommandExt;
    /// `nobody`.
    const NOBODY: u32 = 65534;
    let mut command = crate::program();
    command.args(arguments);
    // SAFETY: geteuid has no preconditions and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => None,
        Err(error) => panic!("{error}"),
    }
}
