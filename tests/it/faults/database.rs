//! The database: full, locked, read-only, run by two.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use super::bench::{Bench, Finished, messages, signal};

/// Steps enough to fill a file soon.
fn talkative() -> Bench {
    Bench::of(&super::bench::SPACE.replace("trials: 8", "trials: 100000"))
}

#[test]
fn a_file_that_may_not_grow_ends_the_search_and_loses_nothing() {
    let bench = talkative();
    let mut search = bench.search("0", &["--workers", "2"]);
    let limit = || {
        let most = libc::rlimit {
            rlim_cur: 2 << 20,
            rlim_max: 2 << 20,
        };
        // SAFETY: the value outlives the call; ignoring a signal has no precondition.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most);
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { search.pre_exec(limit) };
    let output = search.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", messages(&output));
    assert!(messages(&output).contains("study.db"), "{}", messages(&output));
    goes_on(&bench);
}

#[test]
fn a_full_disk_ends_the_search_and_loses_nothing() {
    let bench = talkative();
    Bench::succeed(bench.search("0", &["--trials", "1"]));
    std::fs::create_dir(bench.path("full")).unwrap();
    // A file system of three MiB, which this shell alone sees; what is on it is copied before it goes.
    let script = r#"
        mount -t tmpfs -o size=3m none full || exit 77
        mv study.db full/
        "$PROGRAM" search space.yaml --workers 2 --db full/study.db
        code=$?
        cp full/study.db* .
        exit $code
    "#;
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script]).current_dir(bench.path(""));
    command
        .env("PROGRAM", env!("CARGO_BIN_EXE_peft-tune"))
        .env("PEFT_TUNE_MOCK", "0");
    command
        .env("PEFT_TUNE_CACHE", bench.path("cache"))
        .env_remove("RUST_LOG");
    let Ok(output) = command.output() else {
        return eprintln!("skipped: there is no `unshare` here");
    };
    if messages(&output).contains("unshare") || output.status.code() == Some(77) {
        return eprintln!("skipped: a file system cannot be mounted here: {}", messages(&output));
    }
    assert_eq!(output.status.code(), Some(3), "{}", messages(&output));
    assert!(
        messages(&output).contains("is full: free some space"),
        "{}",
        messages(&output)
    );
    goes_on(&bench);
}

/// The study continues from what was finished.
fn goes_on(bench: &Bench) {
    let finished = bench.sound(&Finished::new());
    assert!(finished.len() > 1, "{}", finished.len());
    let trials = (finished.len() + 3).to_string();
    Bench::succeed(bench.search("0", &["--trials", &trials]));
    assert_eq!(bench.sound(&finished).len(), finished.len() + 3);
}

#[tokio::test]
async fn a_database_that_is_locked_for_a_moment_is_waited_for_and_one_that_stays_locked_is_named() {
    let bench = talkative();
    Bench::succeed(bench.search("0", &["--trials", "1"]));
    let search = Bench::start(bench.search("0.05", &["--workers", "2"]));
    bench.wait_for("select max(0, count(*) - 3) as n from trial where state = 'complete'");
    let other = SqlitePool::connect_with(SqliteConnectOptions::new().filename(bench.path("study.db")))
        .await
        .unwrap();
    let held = other.begin_with("begin immediate").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    held.rollback().await.unwrap();
    let before = bench.sound(&Finished::new());
    bench.wait_for(&format!(
        "select max(0, count(*) - {}) as n from trial where state = 'complete'",
        before.len() + 2
    ));
    let held = other.begin_with("begin immediate").await.unwrap();
    let output = tokio::task::spawn_blocking(|| search.wait_with_output().unwrap())
        .await
        .unwrap();
    held.rollback().await.unwrap();
    other.close().await;
    assert_eq!(output.status.code(), Some(3), "{}", messages(&output));
    assert!(
        messages(&output).contains("is locked by another process"),
        "{}",
        messages(&output)
    );
    bench.sound(&before);
    goes_on(&bench);
}

#[test]
fn a_database_that_cannot_be_written_is_refused_before_anything_runs() {
    let bench = Bench::new();
    Bench::succeed(bench.search("0", &["--trials", "2"]));
    let finished = bench.sound(&Finished::new());
    let mut permissions = std::fs::metadata(bench.path("study.db")).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(bench.path("study.db"), permissions).unwrap();
    let mut search = bench.search("0", &["--trials", "4"]);
    let obey = || {
        /// The right of the superuser to write what nobody may write.
        const CAP_DAC_OVERRIDE: libc::c_ulong = 1;
        // SAFETY: the call takes plain numbers; where it is refused, nothing needed to be given up.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0) };
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { search.pre_exec(obey) };
    let output = search.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
    assert!(messages(&output).contains("cannot be written"), "{}", messages(&output));
    assert_eq!(bench.sound(&finished), finished);
}

#[test]
fn a_second_search_on_a_study_is_refused_and_harms_nothing() {
    let bench = Bench::new();
    let first = Bench::start(bench.search("0.4", &["--trials", "100000"]));
    bench.wait_for("select count(*) as n from trial where state = 'running'");
    let second = bench.search("0.4", &["--trials", "6"]).output().unwrap();
    assert_eq!(second.status.code(), Some(4), "{}", messages(&second));
    let named = format!("is being run by process {}", first.id());
    assert!(messages(&second).contains(&named), "{}", messages(&second));
    signal(first.id(), libc::SIGINT);
    let output = first.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", messages(&output));
    assert!(!bench.sound(&Finished::new()).is_empty());
    assert_eq!(bench.count("select count(*) as n from trial where attempt > 1"), 0);
}
