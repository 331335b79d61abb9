//! Searches in which trials that are surely worse than the best one are evaluated on a part of the held-out rows.

use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

const ROWS: f64 = 64.0;

/// Rates at which something is learned, and others at which nothing is.
const RATES: &str = "[5e-3, 4e-3, 1e-8, 2e-8]";

/// The folder of a small model with its rows.
fn quickstart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart")
}

/// A study with these objectives on the rows of a folder.
fn space(objectives: &str, rows: &Path) -> String {
    let (base, rows) = (quickstart().join("base"), rows.display());
    format!(
        "study: own\nmodel: {}\ndata: {{train: {rows}/train.jsonl, held_out: {rows}/held_out.jsonl}}\n\
         confirm: none\nsampler: grid\npruner: none\nobjectives: {objectives}\nbudget: {{trials: 4}}\n\
         space: {{learning_rate: {RATES}, rank: [4], micro_batch: 2, global_batch: 2, precision: fp32}}\n\
         trial: {{sequence_length: 64, profile_steps: 1, profile_warmup: 0, training_steps: 30, evaluation: {{rows: {ROWS}, times: 2}}}}\n",
        base.display()
    )
}

fn peft_tune(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    #[cfg(target_os = "linux")]
    crate::trl_backend::with_stand_ins(&mut command);
    let output = command
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .env("PEFT_TUNE_CACHE", folder.join("cache"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The folder of a study of these objectives, searched with each of these options in turn.
fn searched(objectives: &str, options: &[&[&str]]) -> tempfile::TempDir {
    let folder = crate::folders::for_database();
    search(folder.path(), &space(objectives, &quickstart()), options);
    folder
}

/// Searches a study in a folder, with each of these options in turn.
fn search(folder: &Path, study: &str, options: &[&[&str]]) {
    std::fs::write(folder.join("space.yaml"), study).unwrap();
    for options in options {
        peft_tune(
            folder,
            &[&["search", "space.yaml", "--workers", "1"], *options].concat(),
        );
    }
}

fn query(folder: &Path, sql: &str) -> Vec<Value> {
    let output = peft_tune(folder, &["query", sql, "--format", "json"]);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Loss of a trial, and what it rests on.
#[derive(Debug)]
struct Loss {
    learning_rate: f64,
    loss: f64,
    standard_error: f64,
    rows: Option<f64>,
}

/// The trials by number.
fn losses(folder: &Path) -> Vec<Loss> {
    let metric = |name: &str| {
        format!(
            "(select value from trial_metric as one where one.trial = param.trial and one.name = '{name}') as {name}"
        )
    };
    let sql = format!(
        "select trial, value, {}, {}, {} from trial_param as param where name = 'learning_rate' order by trial",
        metric("loss"),
        metric("loss_standard_error"),
        metric("loss_rows")
    );
    let read = |row: &Value| Loss {
        learning_rate: row["value"].as_f64().unwrap(),
        loss: row["loss"].as_f64().unwrap(),
        standard_error: row["loss_standard_error"].as_f64().unwrap(),
        rows: row["loss_rows"].as_f64(),
    };
    query(folder, &sql).iter().map(read).collect()
}

fn learns(one: &Loss) -> bool {
    one.learning_rate > 1e-3
}

/// The trial of the same setting that was evaluated on all rows.
fn of_all<'a>(one: &Loss, whole: &'a [Loss]) -> &'a Loss {
    whole.iter().find(|all| all.learning_rate == one.learning_rate).unwrap()
}

/// Asserts that trials which learn nothing rest on a part of the rows once one has learned, with the loss of `whole` within the
/// error, and all others on all rows.
fn assert_bad_ones_rest_on_a_part(found: &[Loss], whole: &[Loss]) {
    assert_eq!((found.len(), whole.len()), (4, 4));
    assert!(whole.iter().all(|one| one.rows.is_none()), "{whole:?}");
    let first = found.iter().position(learns).unwrap();
    for (number, one) in found.iter().enumerate() {
        let of_all = of_all(one, whole);
        let is_part = number > first && !learns(one);
        assert_eq!(one.rows.is_some(), is_part, "{found:?}");
        match one.rows {
            None => assert_eq!(one.loss, of_all.loss, "the same bits"),
            Some(rows) => {
                assert!(rows < ROWS, "{found:?}");
                let off = (one.loss - of_all.loss).abs();
                assert!(off <= 4.0 * one.standard_error, "{off} {one:?}");
            }
        }
    }
    assert!(found.iter().any(|one| one.rows.is_some()), "{found:?}");
}

#[test]
fn a_bad_setting_rests_on_fewer_rows_and_its_loss_is_that_of_all_within_its_error() {
    let folder = searched("[throughput, peak_memory, loss]", &[&[]]);
    // The knee of a front of memory and loss may be far above the least loss: these are evaluated on all rows.
    let whole = searched("[peak_memory, loss]", &[&[]]);
    let (found, whole) = (losses(folder.path()), losses(whole.path()));
    assert_bad_ones_rest_on_a_part(&found, &whole);
    for one in &found {
        if let Some(rows) = one.rows {
            let of_as_many = of_all(one, &whole).standard_error * (ROWS / rows).sqrt();
            assert!(one.standard_error < of_as_many, "pairs tell more: {one:?} {whole:?}");
        }
    }
    // It is said wherever the loss is shown.
    let part = found.iter().position(|one| one.rows.is_some()).unwrap().to_string();
    for arguments in [&["show"] as &[&str], &["show", &part]] {
        let shown = peft_tune(folder.path(), arguments);
        let text = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(text.contains("loss on "), "{text}");
    }
}

#[test]
fn a_search_that_goes_on_compares_with_what_was_best_before() {
    let objectives = "[throughput, peak_memory, loss]";
    let at_once = searched(objectives, &[&[]]);
    let in_parts = searched(objectives, &[&["--trials", "2"], &[]]);
    let seen = |folder: &Path| -> Vec<(f64, f64, Option<f64>)> {
        let losses = losses(folder).into_iter();
        losses.map(|one| (one.learning_rate, one.loss, one.rows)).collect()
    };
    assert_eq!(seen(at_once.path()), seen(in_parts.path()));
    // The best one alone is kept.
    let kept = query(
        in_parts.path(),
        "select number, json_array_length(losses) as rows from held_out_losses
         join trial on trial.id = held_out_losses.trial_id",
    );
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(kept[0]["rows"].as_f64() >= Some(ROWS), "{kept:?}");
}

#[cfg(target_os = "linux")]
const IN_TRL: &[&str] = &["--backend", "trl", "--python", "python3"];

#[cfg(target_os = "linux")]
#[test]
fn the_worker_in_python_ends_evaluations_as_the_engine_does() {
    if !crate::trl_backend::has_python() {
        return;
    }
    let folder = searched("[throughput, peak_memory, loss]", &[IN_TRL]);
    let whole = searched("[peak_memory, loss]", &[IN_TRL]);
    assert_bad_ones_rest_on_a_part(&losses(folder.path()), &losses(whole.path()));
}

/// The trials of a study of these objectives with a trainer that compares answers, at these rates.
#[cfg(target_os = "linux")]
fn compared(trainer: &str, rates: &str, objectives: &str) -> Vec<Loss> {
    use crate::trl_preferences::{labelled, pairs};
    let folder = crate::folders::for_database();
    let rows = if trainer == "kto" { labelled() } else { pairs() };
    let lines: Vec<String> = rows.iter().cycle().take(120).map(Value::to_string).collect();
    for name in ["train.jsonl", "held_out.jsonl"] {
        std::fs::write(folder.path().join(name), lines.join("\n")).unwrap();
    }
    let trained = format!("space: {{trainer: {trainer}, beta: 0.5, ");
    let study = space(objectives, folder.path()).replace(RATES, rates);
    search(folder.path(), &study.replace("space: {", &trained), &[IN_TRL]);
    losses(folder.path())
}

#[cfg(target_os = "linux")]
#[test]
fn evaluations_of_pairs_end_early_and_those_of_answers_without_a_partner_do_not() {
    if !crate::trl_backend::has_python() {
        return;
    }
    let objectives = "[throughput, peak_memory, loss]";
    // A pair's difference moves less than its tokens do.
    let higher = "[5e-2, 4e-2, 1e-8, 2e-8]";
    for (trainer, rates) in [("dpo", higher), ("orpo", RATES)] {
        let whole = compared(trainer, rates, "[peak_memory, loss]");
        assert_bad_ones_rest_on_a_part(&compared(trainer, rates, objectives), &whole);
    }
    // The drift over all rows is a part of each row's loss.
    let found = compared("kto", higher, objectives);
    assert!(
        found.iter().any(learns) && found.iter().all(|one| one.rows.is_none()),
        "{found:?}"
    );
}
