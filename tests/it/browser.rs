//! The pages in a real browser, where Node and Chromium are installed; elsewhere the test says so and passes.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use peft_tune::dashboard::{ConnectionLimits, Dashboard, DashboardSettings};
use peft_tune::report::html::{StudyView, document};
use peft_tune::store::Store;

use crate::dashboard::{record, search, study};
use crate::report::{HOSTILE, input_of, synthetic};

const BROWSERS: [&str; 5] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "chrome-headless-shell",
];

fn installed(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// The checks of `scripts/checks/pages.mjs`, on a report and, where a search runs, a dashboard. Pictures go to the folder that
/// `PICTURES` names.
async fn checked(report: &Path, dashboard: Option<&str>) {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("scripts/checks/pages.mjs");
    let mut command = tokio::process::Command::new("node");
    command
        .arg(script)
        .arg(report)
        .args(dashboard)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    if let Some(folder) = std::env::var_os("PICTURES") {
        command.arg("--pictures").arg(folder);
    }
    let output = command.output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "drives Chromium, which takes minutes on a busy machine: cargo test pages_work -- --ignored"]
async fn pages_work_in_a_browser() {
    let browser = std::env::var_os("CHROMIUM").is_some() || BROWSERS.into_iter().any(installed);
    // Machines without Node or a browser leave this out.
    if !browser || !installed("node") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("report.db");
    synthetic(&database, HOSTILE, 300, 30).await;
    let report = folder.path().join("report.html");
    std::fs::write(&report, document(&StudyView::new(&input_of(&database).await)).unwrap()).unwrap();

    let database = folder.path().join("live.db");
    let store = Store::open(&database).await.unwrap();
    // The study must be there before a page can listen to it.
    drop(store.studies().begin(&record(&study())).await.unwrap());
    let settings = DashboardSettings {
        port: 0,
        study: None,
        control: true,
        limits: ConnectionLimits::default(),
    };
    let dashboard = Dashboard::bind(store, settings).await.unwrap();
    let url = dashboard.control_url().unwrap();
    tokio::spawn(dashboard.serve(std::future::pending()));
    tokio::join!(search(&database, 100_000, 150), checked(&report, Some(&url)));
}
