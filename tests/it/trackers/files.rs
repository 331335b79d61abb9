//! Trackers that are files: an Optuna storage, a trackio project, offline runs of Weights & Biases.

use std::path::Path;

use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;

use super::{Bench, files};
use crate::mocked;

/// Rows of a query as text.
fn rows(path: &Path, sql: &'static str) -> Vec<String> {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(path))
            .await
            .unwrap();
        let rows = sqlx::query_scalar(sql).fetch_all(&pool).await.unwrap();
        pool.close().await;
        rows
    })
}

const OPTUNA: &str =
    "select number || ' ' || state || ' ' || (select group_concat(param_name || '=' || param_value) from
    (select * from trial_params as p where p.trial_id = trials.trial_id order by param_name)) || ' ' ||
    (select count(*) from trial_values as v where v.trial_id = trials.trial_id) from trials where study_id =
    (select study_id from studies where study_name = 'tracked') order by number";

#[test]
fn an_optuna_storage_has_what_an_export_has_and_keeps_other_studies() {
    let bench = Bench::new();
    bench.said(&["search", "space.yaml", "--as", "other", "--track", "optuna=live.db"]);
    bench.said(&["search", "space.yaml", "--track", "optuna=live.db"]);
    bench.said(&["track", "tracked", "--to", "optuna=sqlite:///live.db"]);
    bench.said(&[
        "export", "--format", "optuna", "--study", "tracked", "--output", "whole",
    ]);
    let live = rows(&bench.path("live.db"), OPTUNA);
    assert_eq!(live.len(), 3, "{live:?}");
    assert!(
        live.iter()
            .all(|row| row.contains("COMPLETE learning_rate=") && row.ends_with(" 3")),
        "{live:?}"
    );
    assert_eq!(live, rows(&bench.path("whole/optuna.db"), OPTUNA));
    let names = rows(&bench.path("live.db"), "select study_name from studies order by 1");
    assert_eq!(names, ["other", "tracked"]);
    let refused = bench.run(&["track", "tracked", "--to", "optuna=study.db"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        mocked::errors_of(&refused).contains("no storage of Optuna"),
        "{}",
        mocked::errors_of(&refused)
    );
}

#[test]
fn the_trial_to_take_is_marked_and_no_other_whatever_is_searched_on() {
    let bench = Bench::new();
    let trackers = ["optuna=o.db", "trackio=io", "wandb=offline", "tensorboard=runs"];
    for trials in ["3", "9", "20"] {
        let mut search = vec!["search", "space.yaml", "--trials", trials];
        search.extend(trackers.iter().flat_map(|tracker| ["--track", tracker]));
        bench.said(&search);
        let shown = bench.run(&["export", "--format", "csv", "--output", "csv", "--force"]);
        assert!(shown.status.success(), "{}", mocked::errors_of(&shown));
        let said = mocked::errors_of(&shown);
        let recommended = said.split_once("recommended: trial ").unwrap().1;
        let number: usize = recommended.split(' ').next().unwrap().parse().unwrap();

        let optuna = "select cast(number as text) from trials join trial_user_attributes as a using (trial_id)
            where a.\"key\" = 'recommended'";
        assert_eq!(rows(&bench.path("o.db"), optuna), [number.to_string()]);
        let trackio = "select run_name from configs where config like '%\"recommended\"%'";
        assert_eq!(rows(&bench.path("io/tracked.db"), trackio), [format!("trial {number}")]);
        let marked = |folder: &str, end: &str, is_marked: &dyn Fn(&[u8]) -> bool| {
            let of_kind = files(&bench.path(folder)).into_iter();
            let of_kind = of_kind.filter(|(path, _)| path.to_string_lossy().contains(end));
            of_kind
                .filter(|(_, bytes)| is_marked(bytes))
                .map(|(path, _)| path)
                .collect::<Vec<_>>()
        };
        let has = |bytes: &[u8], text: &[u8]| bytes.windows(text.len()).any(|part| part == text);
        let name = format!("trial {number}");
        let offline = marked("offline", ".wandb", &|bytes| has(bytes, b"recommended"));
        assert_eq!(offline.len(), 1);
        assert!(has(&std::fs::read(&offline[0]).unwrap(), name.as_bytes()));
        let events = marked("runs", "tfevents", &|bytes| {
            let last = super::tensorboard::records(bytes).pop().unwrap();
            has(&last, b"recommended") && has(&last, &1_f32.to_le_bytes())
        });
        assert_eq!(events.len(), 1);
        assert!(
            events[0].to_string_lossy().contains(&format!("trial-{number:04}")),
            "{events:?}"
        );
    }
    let resumed = files(&bench.path("offline"));
    bench.said(&["track", "--to", "wandb=offline", "--to", "tensorboard=runs"]);
    assert!(files(&bench.path("offline")) == resumed, "something was written twice");
}

#[test]
fn a_trackio_project_has_each_row_once() {
    let bench = Bench::new();
    let all = "select run_name || ' ' || step || ' ' || metrics || ' ' || log_id from metrics order by id";
    bench.said(&["search", "space.yaml", "--track", "trackio=io"]);
    let first = rows(&bench.path("io/tracked.db"), all);
    assert!(first.len() >= 3 * 6, "{first:?}");
    assert_eq!(first.iter().filter(|row| row.contains("metric/throughput")).count(), 3);
    bench.said(&["search", "space.yaml", "--track", "trackio=io"]);
    bench.said(&["track", "--to", "trackio=io"]);
    assert_eq!(rows(&bench.path("io/tracked.db"), all), first);
    let configs = rows(&bench.path("io/tracked.db"), "select config from configs order by id");
    assert!(configs.len() == 3 && configs[0].contains("\"rank\":"), "{configs:?}");
}

#[test]
fn an_offline_run_is_continued_and_is_sent_again_once_it_changed() {
    let bench = Bench::new();
    bench.said(&["search", "space.yaml", "--track", "wandb=offline"]);
    let whole: Vec<_> = files(&bench.path("offline"));
    let runs: Vec<_> = whole
        .iter()
        .filter(|(path, _)| path.extension().is_some_and(|end| end == "wandb"))
        .collect();
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|(_, bytes)| bytes.starts_with(b":W&B\xe1\xbe\x00")));
    let (path, bytes) = runs[1];
    let sent = path.with_extension("wandb.synced");
    for kept in [7, 100, bytes.len() - 1] {
        std::fs::write(path, &bytes[..kept]).unwrap();
        std::fs::write(&sent, "").unwrap();
        bench.said(&["track", "--to", "wandb=offline"]);
        assert!(files(&bench.path("offline")) == whole, "after {kept} bytes");
    }
    std::fs::write(&sent, "").unwrap();
    bench.said(&["track", "--to", "wandb=offline"]);
    assert!(sent.exists(), "nothing changed");
}
