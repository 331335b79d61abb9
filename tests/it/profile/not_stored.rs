//! Results that the database does not take.

use std::path::Path;

use serde_json::Value;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};

use super::command::recipe;
use crate::golden::folder;
use peft_tune::store::Store;

/// A database that takes no profile and no bench.
async fn refusing_database(path: &Path) {
    Store::open(path).await.unwrap().close().await.unwrap();
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(path))
        .await
        .unwrap();
    for trigger in [
        "create trigger no_profile before insert on profile begin select raise(abort, 'no room'); end",
        "create trigger no_bench before insert on infer_bench begin select raise(abort, 'no room'); end",
    ] {
        sqlx::query(trigger).execute(&pool).await.unwrap();
    }
    pool.close().await;
}

#[tokio::test]
async fn what_was_measured_is_shown_where_it_cannot_be_stored() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    recipe(directory, "gradient_checkpointing: full\n");
    refusing_database(&directory.join("peft-tune.db")).await;
    let model = folder("ref_llama").join("model");
    let profile = ["profile", "recipe.yaml", "--budget", "500ms", "--trace", "trace.json"];
    let tuning = ["tune-step", "recipe.yaml", "--budget", "200ms", "--time", "1ms"];
    let bench = [
        "infer-bench",
        "--model",
        model.to_str().unwrap(),
        "--ranks",
        "2",
        "--batch-sizes",
        "1",
        "--prompt-lengths",
        "9",
        "--new-tokens",
        "4",
        "--budget",
        "0s",
    ];
    for arguments in [&profile[..], &tuning[..], &bench[..]] {
        let mut command = crate::program();
        command.args(arguments).arg("--json").current_dir(directory);
        let output = command.env_remove("PEFT_TUNE_DB").output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {errors}");
        assert!(errors.contains("no room"), "{arguments:?}: {errors}");
        let result: Result<Value, _> = serde_json::from_slice(&output.stdout);
        assert!(
            result.is_ok_and(|result| !result.is_null()),
            "{arguments:?}: {output:?}"
        );
    }
    assert!(directory.join("trace.json").exists());
    // Of several places that fail each is told.
    let mut command = crate::program();
    command.args([
        "profile",
        "recipe.yaml",
        "--budget",
        "500ms",
        "--tensorboard",
        "recipe.yaml",
    ]);
    let output = command
        .current_dir(directory)
        .env_remove("PEFT_TUNE_DB")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("cannot write an event file into recipe.yaml") && errors.contains("no room"),
        "{errors}"
    );
}
