//! Ways to look at one study: all say the same front, the same hypervolume and the same values.

use std::path::Path;

use peft_tune::store::Store;
use peft_tune_core::objective::{Bound, Constraint, LOSS, LOSS_BEFORE, PEAK_MEMORY, THROUGHPUT};
use peft_tune_core::study::{Confirmed, Metrics, Params, TrialNumber, TrialState};
use serde_json::Value;

use super::store::{add_trial, complete, out_of_memory, study_record};

const GB: f64 = 1e9;
/// The front of [`fill`]'s study.
const FRONT: [u64; 4] = [0, 1, 6, 7];

/// A study in which each way to be on the front, or not, is met once.
async fn fill(path: &Path) {
    let store = Store::open(path).await.unwrap();
    let mut record = study_record("all kinds");
    record.definition = serde_json::json!({"settings": {"space": {"parameters": [
        {"name": "rank", "distribution": {"kind": "categorical", "choices": [2, 4, 8, 16, 32, 64, 128, 256, 512]}}
    ]}}});
    record.constraints = vec![Constraint {
        metric: PEAK_MEMORY.to_owned(),
        bound: Bound::AtMost(5.0 * GB),
    }];
    let study = store.studies().begin(&record).await.unwrap();
    let pruned = TrialState::Pruned {
        at_step: 2,
        rule: "dominance: trial 0 is better".to_owned(),
        metrics: [(THROUGHPUT, 500.0), (PEAK_MEMORY, GB)].into(),
    };
    let mut began = Metrics::from([(THROUGHPUT, 100.0), (PEAK_MEMORY, 2.0 * GB), (LOSS, 2.0)]);
    began.insert(LOSS_BEFORE, 6.0);
    let states = [
        TrialState::Complete { metrics: began },
        // As good as trial 0 in everything.
        complete(100.0, 2.0 * GB, 2.0),
        // The fastest of all as it was measured once, and slower than trial 0 in its repeats.
        complete(200.0, 2.0 * GB, 2.0),
        // Breaks the constraint.
        complete(300.0, 9.0 * GB, 1.5),
        // Keeps it as measured once, and breaks it in its repeats.
        complete(250.0, 3.0 * GB, 1.8),
        out_of_memory(None),
        // A variant of trial 0.
        complete(80.0, GB, 2.0),
        // One repeat says nothing.
        complete(150.0, 4.0 * GB, 2.5),
        pruned,
    ];
    for (number, state) in (0..).zip(&states) {
        let params = Params::from([("rank".to_owned(), (2i64 << number).into())]);
        add_trial(&store, study.id, number, &params, state).await;
    }
    let source = TrialNumber(0);
    store
        .inheritance()
        .record(study.id, TrialNumber(6), "loss", source)
        .await
        .unwrap();
    store.baselines().record(study.id, TrialNumber(6)).await.unwrap();
    for (number, metric, value, repeats) in [
        (2, THROUGHPUT, 90.0, 3),
        (4, PEAK_MEMORY, 6.0 * GB, 2),
        (7, THROUGHPUT, 1.0, 1),
    ] {
        let confirmed = Confirmed {
            value,
            interval: 0.01,
            repeats,
        };
        let number = TrialNumber(number);
        let all = [(number, [(metric.to_owned(), confirmed)].into())].into();
        let one = [(metric, value)].into();
        store
            .repeats()
            .record(study.id, number, repeats, &one, &all)
            .await
            .unwrap();
    }
    drop(study);
    store.close().await.unwrap();
}

fn shown(folder: &Path, arguments: &[&str]) -> String {
    let mut command = crate::program();
    let output = command
        .args(arguments)
        .current_dir(folder)
        .env_remove("PEFT_TUNE_DB")
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(folder: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&shown(folder, arguments)).unwrap()
}

/// The values that a report embeds.
fn page(folder: &Path) -> Value {
    shown(folder, &["report", "--output", "page.html"]);
    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    let (_, rest) = page
        .split_once("<script type=\"application/json\" id=\"view\">")
        .unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn numbers<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<u64> {
    let mut numbers: Vec<u64> = values.into_iter().filter_map(Value::as_u64).collect();
    numbers.sort_unstable();
    numbers
}

async fn workspace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fill(&folder.path().join("peft-tune.db")).await;
    folder
}

#[tokio::test]
async fn every_command_view_and_export_has_the_same_front() {
    let folder = workspace().await;
    let folder = folder.path();
    let view = json(folder, &["query", "select trial from pareto_front", "--format", "json"]);
    assert_eq!(numbers(view.as_array().unwrap().iter().map(|row| &row["trial"])), FRONT);
    let pareto = json(folder, &["pareto", "--json"]);
    assert_eq!(
        numbers(pareto["front"].as_array().unwrap().iter().map(|row| &row["trial"])),
        FRONT
    );
    let page = page(folder);
    let on_page = page["trials"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|trial| trial["front"] == true);
    assert_eq!(numbers(on_page.map(|trial| &trial["number"])), FRONT);
    shown(
        folder,
        &["export", "--front", "--format", "recipe", "--output", "front"],
    );
    let mut exported: Vec<String> = std::fs::read_dir(folder.join("front"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    exported.sort_unstable();
    let expected: Vec<String> = FRONT.iter().map(|number| format!("trial-{number}")).collect();
    assert_eq!(exported, expected);
    let best = "select trial from best_by_objective where metric = 'throughput'";
    assert_eq!(shown(folder, &["query", best, "--format", "csv"]), "trial\n7\n");
}

#[tokio::test]
async fn every_command_has_the_same_hypervolume() {
    let folder = workspace().await;
    let folder = folder.path();
    let last = |value: &Value| value.as_array().and_then(|all| all.last()?.as_f64()).unwrap();
    let shown_volume = last(&json(folder, &["show", "--json"])["hypervolume"]);
    assert!(shown_volume > 0.0);
    assert_eq!(last(&json(folder, &["explain", "--json"])["hypervolume"]), shown_volume);
    let page = page(folder);
    let points = page["growth"]["points"].as_array().unwrap();
    assert_eq!(points.last().unwrap()["volume"].as_f64(), Some(shown_volume));
    assert_eq!(points.last().unwrap()["share"].as_f64(), Some(1.0));
    let text = format!("{shown_volume:.4e}");
    for command in ["show", "explain"] {
        let said = shown(folder, &[command]);
        let line = said.lines().find(|line| line.contains("hypervolume ")).unwrap();
        assert!(line.contains(&text), "{command}: {line} is not {text}");
    }
}

#[tokio::test]
async fn every_command_view_and_export_has_the_same_values() {
    let folder = workspace().await;
    let folder = folder.path();
    let sql = "select throughput from trial_summary where trial = 2";
    assert_eq!(shown(folder, &["query", sql, "--format", "csv"]), "throughput\n90.0\n");
    // What was measured once stays where measurements are.
    let sql = "select value from trial_metric where trial = 2 and name = 'throughput'";
    assert_eq!(shown(folder, &["query", sql, "--format", "csv"]), "value\n200.0\n");
    let study = json(folder, &["show", "--json"]);
    let of = |state: &Value| state["metrics"]["throughput"].as_f64();
    assert_eq!(of(&study["trials"][2]["state"]), Some(90.0), "{study}");
    assert_eq!(
        json(folder, &["show", "--trial", "2", "--json"])["state"]["metrics"]["throughput"],
        90.0
    );
    assert_eq!(
        json(folder, &["compare", "2", "0", "--json"])["trials"][0]["metrics"]["throughput"],
        90.0
    );
    assert_eq!(page(folder)["trials"][2]["metrics"][0], 90.0);
    shown(folder, &["export", "--format", "csv", "--output", "rows"]);
    let rows = std::fs::read_to_string(folder.join("rows/trials.csv")).unwrap();
    let column = rows
        .lines()
        .next()
        .unwrap()
        .split(',')
        .position(|name| name == "metric.throughput")
        .unwrap();
    let third = rows.lines().find(|line| line.starts_with("all kinds,2,")).unwrap();
    assert_eq!(third.split(',').nth(column), Some("90.0"), "{third}");
}

#[tokio::test]
async fn variants_are_told_from_trainings_wherever_trials_are_listed() {
    let folder = workspace().await;
    let folder = folder.path();
    let counts = "9 trials, 8 trainings and 1 variant: 7 complete, 1 pruned, 1 failed (out_of_memory)";
    for command in ["show", "explain", "pareto"] {
        let said = shown(folder, &[command]);
        assert!(said.contains(counts), "{command}: {said}");
    }
    assert!(shown(folder, &["show"]).contains("complete, variant of 0"));
    assert!(shown(folder, &["pareto"]).contains("measured, loss of 0"));
    assert_eq!(json(folder, &["studies", "--json"])[0]["variants"], 1);
    assert!(shown(folder, &["status"]).contains("(1 of all are variants of a training)"));
    let sql = "select trial from trial_summary where variant = 1";
    assert_eq!(shown(folder, &["query", sql, "--format", "csv"]), "trial\n6\n");
    let sql = "select trials, variants from study_summary";
    assert_eq!(
        shown(folder, &["query", sql, "--format", "csv"]),
        "trials,variants\n9,1\n"
    );
    let page = page(folder);
    assert_eq!(page["trials"][6]["outcome"], "complete, variant of 0");
    assert_eq!(page["counts_text"], counts);
}

#[tokio::test]
async fn the_baseline_is_compared_with_in_the_report_and_in_exports_of_the_whole_study() {
    let folder = workspace().await;
    let folder = folder.path();
    let wins = "against the baseline (trial 6): 1.25 times as fast, 100.0% more memory, the same loss";
    let page_view = page(folder);
    assert_eq!(page_view["recommendation"]["against_baseline"], wins);
    assert!(
        std::fs::read_to_string(folder.join("page.html"))
            .unwrap()
            .contains(&format!("{wins}.</p>"))
    );
    assert!(shown(folder, &["explain"]).contains(wins));
    shown(folder, &["export", "--format", "csv", "--output", "rows"]);
    assert!(
        std::fs::read_to_string(folder.join("rows/trials.csv"))
            .unwrap()
            .contains(wins)
    );
    shown(folder, &["export", "--format", "mlflow", "--output", "runs"]);
    let tags = walk(&folder.join("runs"), "against_baseline");
    assert_eq!(tags, [wins]);
}

/// The texts of all files of one name.
fn walk(folder: &Path, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path, name));
        } else if path.file_name().is_some_and(|own| own == name) {
            found.push(std::fs::read_to_string(&path).unwrap().trim_end().to_owned());
        }
    }
    found
}

#[tokio::test]
async fn what_was_stopped_early_is_drawn_as_that() {
    let folder = workspace().await;
    let folder = folder.path();
    shown(folder, &["report", "--charts", "pictures"]);
    let drawn = std::fs::read_to_string(folder.join("pictures/front-throughput-peak_memory.svg")).unwrap();
    assert!(drawn.contains("stopped early, where it stood"), "{drawn}");
    // It has no loss.
    let drawn = std::fs::read_to_string(folder.join("pictures/front-throughput-loss.svg")).unwrap();
    assert!(!drawn.contains("stopped early"), "{drawn}");
}
