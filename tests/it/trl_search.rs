//! Searches with `backend: trl` without Python: a script says what an interpreter would have, and trials are made up.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::mocked::{errors_of, folder_with};
use peft_tune_engine::profile::Throughput;
use peft_tune_search::{PairedDifference, PairedRow, looks};

pub(crate) const SPACE: &str = "study: own\nmodel: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl}\n\
                     objectives: [throughput, loss]\n\
                     space: {rank: [2, 4, 8, 16], learning_rate: {low: 1e-3, high: 3e-2, scale: log}}\n\
                     trial: {sequence_length: 128}\nconfirm: none\nbudget: {trials: 3}\n";

/// A study in which the tile of TRL's head alone takes, at 64 rows, eight times what is allowed; `RATES` stands for learning rates.
const LIMITED: &str = "study: own\nmodel: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl}\n\
                       objectives: [throughput, loss]\n\
                       space: {micro_batch: [1, 2, 64], precision: fp32, learning_rate: RATES}\n\
                       trial: {sequence_length: 64, memory_limit: 64 MiB}\nconfirm: none\n";

pub(crate) const BACKEND: &str = "backend: {trl: {python: ./python}}\n";

pub(crate) const GPU: &str = r#"{"name": "NVIDIA L4", "bytes": 23622320128}"#;

/// Puts a program in the place of Python.
pub(crate) fn stand_in(folder: &Path, script: &str) {
    let path = folder.join("python");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// Puts a Python there that has these GPUs and this version of TRL.
pub(crate) fn python_with(folder: &Path, trl: &str, gpus: &[&str]) {
    let gpus = gpus.join(", ");
    let answer = format!(
        r#"{{"python": "3.12.3", "torch": "2.15.0", "transformers": "5.23.0", "peft": "0.21.2", "trl": "{trl}",
        "accelerate": "1.15.0", "datasets": "5.2.0", "optional": {{"bitsandbytes": "0.49.0"}}, "devices": [{gpus}], "missing": []}}"#
    );
    stand_in(
        folder,
        &format!("echo a library that prints\necho '{}'", answer.replace('\n', " ")),
    );
}

/// A folder with the quickstart's model and data, a study, and a Python without GPUs.
pub(crate) fn bench(space: &str) -> tempfile::TempDir {
    let folder = folder_with(space);
    python_with(folder.path(), "1.16.0", &[]);
    folder
}

pub(crate) fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command
        .env("PEFT_TUNE_MOCK", "0.01")
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .env("PEFT_TUNE_CACHE", folder.join("cache"));
    command
}

pub(crate) fn succeeds(folder: &Path, arguments: &[&str]) -> Output {
    let output = command(folder, arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", errors_of(&output));
    output
}

/// Message of a command that these options or files make bad input of.
pub(crate) fn refused(folder: &Path, arguments: &[&str]) -> String {
    let output = command(folder, arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", errors_of(&output));
    errors_of(&output)
}

fn text_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn queried(folder: &Path, statement: &str) -> String {
    let output = succeeds(folder, &["query", statement, "--format", "csv"]);
    text_of(&output).trim().to_owned()
}

#[test]
fn a_study_in_trl_is_searched_continued_and_shown_as_any_other() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    let said = errors_of(&succeeds(folder, &["search", "space.yaml"]));
    let first = said.lines().next().unwrap();
    for part in [
        "trials train in TRL: ",
        "/python (Python 3.12.3)",
        "trl 1.16.0",
        " on the CPU",
    ] {
        assert!(first.contains(part), "{said}");
    }
    // Elsewhere the line goes on: other programs are not watched for.
    assert!(!cfg!(target_os = "linux") || first.ends_with(" on the CPU"), "{said}");
    assert!(
        said.contains(", in TRL") && said.contains("worker 0: the CPU"),
        "{said}"
    );
    succeeds(folder, &["search", "space.yaml", "--trials", "5"]);
    assert_eq!(queried(folder, "select count(*) as n from trial_summary"), "n\n5");
    // A moved environment is the same study.
    let definition = "select definition ->> '$.settings.backend' as backend from study";
    let backend = queried(folder, definition);
    assert!(backend.contains("trl") && !backend.contains("python"), "{backend}");
    let stack = "select path from study_input where role = 'stack'";
    assert!(queried(folder, stack).contains("transformers 5.23.0, peft 0.21.2, trl 1.16.0"));
    for command in ["show", "explain", "pareto"] {
        succeeds(folder, &[command]);
    }
    succeeds(folder, &["export", "--format", "trl", "--output", "out"]);
    assert!(folder.join("out/trl_sft.yaml").is_file());
}

#[test]
fn nothing_runs_before_the_search_says_what_it_would_run() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    let text = text_of(&succeeds(folder, &["search", "space.yaml", "--dry-run"]));
    assert!(
        text.contains(", in TRL") && text.contains("worker 0: the CPU"),
        "{text}"
    );
    assert!(!folder.join("study.db").exists());
}

#[test]
fn other_versions_are_changed_inputs() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    succeeds(folder, &["search", "space.yaml"]);
    python_with(folder, "1.17.0", &[]);
    let told = refused(folder, &["search", "space.yaml", "--trials", "4"]);
    for part in [
        "stack `torch 2.15.0",
        "trl 1.16.0",
        "trl 1.17.0",
        "--accept-changed-inputs",
    ] {
        assert!(told.contains(part), "{told}");
    }
    succeeds(folder, &["search", "space.yaml", "--accept-changed-inputs"]);
    let counts = "select study, count(*) as n from trial_summary group by study order by study";
    assert_eq!(queried(folder, counts), "study,n\nown,3\nown before change 1,3");
}

#[test]
fn the_command_line_names_the_engine_of_a_file_that_names_none() {
    let folder = bench(SPACE);
    let folder = folder.path();
    let asked = ["search", "space.yaml", "--backend", "trl", "--python", "./python"];
    succeeds(folder, &asked);
    let told = refused(folder, &["search", "space.yaml", "--trials", "4"]);
    assert!(
        told.contains("another definition (different: settings.backend"),
        "{told}"
    );
    succeeds(folder, &["search", "space.yaml", "--as", "here"]);
    let told = refused(
        folder,
        &["search", "space.yaml", "--as", "here", "--python", "./python"],
    );
    assert!(told.contains("`--python`") && told.contains("--backend trl"), "{told}");

    let other = bench(&format!("{SPACE}{BACKEND}"));
    let native = errors_of(&succeeds(
        other.path(),
        &["search", "space.yaml", "--backend", "native"],
    ));
    assert!(!native.contains("in TRL"), "{native}");
}

#[test]
fn workers_have_the_gpus_that_pytorch_sees() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    python_with(folder, "1.16.0", &[GPU, GPU]);
    let dry = |options: &[&str]| {
        let arguments = [&["search", "space.yaml", "--dry-run"], options].concat();
        text_of(&succeeds(folder, &arguments))
    };
    assert!(dry(&[]).contains("worker 0: cuda:0"));
    let two = dry(&["--workers", "2"]);
    assert!(
        two.contains("worker 0: cuda:0") && two.contains("worker 1: cuda:1"),
        "{two}"
    );
    assert!(dry(&["--devices", "1"]).contains("worker 0: cuda:1"));
    let told = refused(folder, &["search", "space.yaml", "--workers", "3"]);
    assert!(told.contains("there are 2 GPUs"), "{told}");
    let told = refused(folder, &["search", "space.yaml", "--devices", "cuda:2"]);
    assert!(
        told.contains("cuda:2 cannot be used") && told.contains("NVIDIA L4"),
        "{told}"
    );
    succeeds(folder, &["search", "space.yaml", "--workers", "2"]);
    let device = "select path from study_input where role = 'device'";
    assert_eq!(queried(folder, device), "path\nNVIDIA L4");
}

#[test]
fn options_of_the_built_in_engine_and_values_of_a_gpu_are_refused() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    let told = refused(folder, &["search", "space.yaml", "--together", "2"]);
    assert!(told.contains("TRL's trials train by themselves"), "{told}");
    let told = refused(folder, &["search", "space.yaml", "--kernels", "reference"]);
    assert!(told.contains("`--kernels reference`"), "{told}");
    let quantized = SPACE.replace("rank: [2, 4, 8, 16]", "precision: [bf16, nf4]");
    std::fs::write(folder.join("quantized.yaml"), format!("{quantized}{BACKEND}")).unwrap();
    let told = refused(folder, &["search", "quantized.yaml"]);
    assert!(told.contains("key `space.precision`") && told.contains("GPU"), "{told}");
    let kernels = SPACE.replace("rank: [2, 4, 8, 16]", "use_liger_kernel: [false, true]");
    std::fs::write(folder.join("kernels.yaml"), format!("{kernels}{BACKEND}")).unwrap();
    let told = refused(folder, &["search", "kernels.yaml"]);
    assert!(
        told.contains("key `space.use_liger_kernel`") && told.contains("on a GPU only"),
        "{told}"
    );
    python_with(folder, "1.16.0", &[GPU]);
    let told = refused(folder, &["search", "kernels.yaml"]);
    assert!(told.contains("pip install liger-kernel`"), "{told}");
    succeeds(folder, &["search", "quantized.yaml"]);
    assert!(refused(folder, &["search", "quantized.yaml", "--as", "cpu", "--devices", "cpu"]).contains("GPU"));
}

#[test]
fn what_trl_has_no_room_for_is_not_run_and_all_else_is() {
    let space = LIMITED.replace("RATES", "[1e-3, 3e-3]");
    let folder = bench(&format!("{space}sampler: grid\nbudget: {{trials: 6}}\n{BACKEND}"));
    let folder = folder.path();
    let said = errors_of(&succeeds(folder, &["search", "space.yaml"]));
    assert!(
        said.contains("by prediction of TRL's needs 4 of 6 settings fit into 64")
            && said.contains("no others are tried"),
        "{said}"
    );
    let states = "select micro_batch, state, count(*) as n from trial group by micro_batch, state order by micro_batch";
    assert_eq!(
        queried(folder, states),
        "micro_batch,state,n\n1,complete,2\n2,complete,2\n64,skipped,2"
    );
    let reason = queried(folder, "select distinct reason from trial where state = 'skipped'");
    assert!(
        reason.contains("MiB in TRL, and 64 MiB are allowed; lower `micro_batch`"),
        "{reason}"
    );
}

#[test]
fn predictions_of_trl_reach_what_is_proposed_and_trials_correct_them() {
    let space = LIMITED.replace("RATES", "{low: 1e-4, high: 1e-2, scale: log}");
    let folder = bench(&format!("{space}budget: {{trials: 5}}\n{BACKEND}"));
    let folder = folder.path();
    succeeds(folder, &["search", "space.yaml"]);
    let run = "select count(*) as n from trial where state = 'complete' and micro_batch < 64";
    assert_eq!(queried(folder, run), "n\n5");
    let metrics = "select metric, count(*) as n from trial_prediction group by metric order by metric";
    assert_eq!(queried(folder, metrics), "metric,n\npeak_memory,5\nthroughput,5");
    let deviation = |trial: u64| -> f64 {
        let asked = format!("select deviation from trial_prediction where trial = {trial} and metric = 'throughput'");
        queried(folder, &asked).lines().nth(1).unwrap().parse().unwrap()
    };
    assert!(deviation(4) < deviation(0), "{} {}", deviation(0), deviation(4));
    // What would come next is asked with the predictions too: larger micro-batches are faster in all trials.
    let explained = text_of(&succeeds(folder, &["explain", "--next", "8", "--json"]));
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let next = explained["next"].as_array().unwrap();
    assert!(!next.is_empty());
    assert!(next.iter().all(|one| one["params"]["micro_batch"] != 64), "{next:#?}");
}

#[test]
fn memory_alone_is_predicted_of_a_gpu_without_a_data_sheet() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    python_with(folder, "1.16.0", &[r#"{"name": "NVIDIA H20", "bytes": 103079215104}"#]);
    let said = errors_of(&succeeds(folder, &["search", "space.yaml"]));
    assert!(
        said.contains("the speed of TRL on this device is not known: memory alone is predicted"),
        "{said}"
    );
    let metrics = "select metric, count(*) as n from trial_prediction group by metric";
    assert_eq!(queried(folder, metrics), "metric,n\npeak_memory,3");
}

#[test]
fn choices_among_pytorchs_kernels_are_searched_in_trl_and_refused_by_name_here() {
    let searched = "attn_implementation: [eager, sdpa], torch_compile: [false, true], dataloader_num_workers: [0, 2]";
    let space = SPACE.replace("rank: [2, 4, 8, 16]", searched);
    let folder = bench(&format!("{space}sampler: random\n{BACKEND}"));
    let folder = folder.path();
    succeeds(folder, &["search", "space.yaml", "--trials", "6"]);
    let tried = "select count(*) > 0 as n from trial where recipe ->> '$.torch.attn_implementation' = 'eager'";
    assert_eq!(queried(folder, tried), "n\n1");
    succeeds(folder, &["export", "--format", "trl", "--output", "out"]);
    let told = refused(folder, &["search", "space.yaml", "--as", "here", "--backend", "native"]);
    assert!(
        told.contains("key `space.attn_implementation`") && told.contains("search with `backend: trl`"),
        "{told}"
    );
}

#[test]
fn a_python_that_cannot_train_is_named_before_anything_is_begun() {
    let folder = bench(&format!("{SPACE}{BACKEND}"));
    let folder = folder.path();
    let lacks = r#"{"python": "3.12.3", "torch": null, "transformers": "5.23.0", "peft": "0.21.2", "trl": "1.16.0",
                    "accelerate": "1.15.0", "datasets": "5.2.0", "devices": [], "missing": ["torch>=2.9"]}"#;
    let lacks = format!("echo '{}'", lacks.replace('\n', " "));
    let search = ["search", "space.yaml"];
    let cases: [(&str, &[&str]); 3] = [
        (lacks.as_str(), &["/python -m pip install 'torch>=2.9'`", "`--python`"]),
        ("echo nonsense", &["it printed: nonsense", "`--python`"]),
        (
            "echo no such option >&2; exit 2",
            &["exit status: 2", "its last words: no such option"],
        ),
    ];
    for (script, parts) in cases {
        stand_in(folder, script);
        let told = refused(folder, &search);
        for part in parts {
            assert!(told.contains(part), "{script}: {told}");
        }
    }
    stand_in(folder, "exec sleep 600");
    let began = Instant::now();
    let mut hanging = command(folder, &search);
    let hanging = hanging.env("PEFT_TUNE_PYTHON_WITHIN", "1s").output().unwrap();
    let told = errors_of(&hanging);
    assert_eq!(hanging.status.code(), Some(2), "{told}");
    assert!(told.contains("did not say within 1.0 s"), "{told}");
    assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
    let told = refused(folder, &["search", "space.yaml", "--python", "./none"]);
    assert!(told.contains("cannot start") && told.contains("none"), "{told}");
    assert!(!folder.join("study.db").exists());
}

/// Figures of measured steps as the engine has them: the worker in Python is compared with this table by its own tests.
/// `UPDATE_GOLDEN=1 cargo test --test it trl_search` writes it.
#[test]
fn figures_of_steps_are_a_table_that_python_is_compared_with() {
    let steps: [Vec<(f64, u64)>; 4] = [
        vec![(0.5, 100)],
        vec![(1.0, 100), (1.0, 100), (5.0, 100)],
        (0..8).map(|step| (0.25 + 0.03 * f64::from(step), 128)).collect(),
        (0..31)
            .map(|step| (0.1 + 0.01 * f64::from(step * 7 % 13), 60 + step as u64))
            .collect(),
    ];
    let rows = steps.iter().map(|steps| {
        let found = Throughput::from_steps(steps).unwrap();
        json!({
            "steps": steps,
            "tokens_per_s": found.tokens_per_s,
            "spread": found.spread,
            "interval": found.interval,
        })
    });
    is_golden("steady.json", &json!(rows.collect::<Vec<_>>()));
}

/// Comparisons of trials row by row as the engine makes them: the worker in Python is compared with this table by its own tests.
/// `UPDATE_GOLDEN=1 cargo test --test it trl_search` writes it.
#[test]
fn comparisons_of_rows_are_a_table_that_python_is_compared_with() {
    let rows = |count: usize, by_token: f64, targets: fn(usize) -> usize| -> Vec<PairedRow> {
        let row = |row: usize| {
            let target_tokens = targets(row) as f64;
            let stray = 0.05 * ((row * 5 % 11) as f64 - 5.0);
            PairedRow {
                difference: target_tokens * (by_token + stray),
                target_tokens,
            }
        };
        (0..count).map(row).collect()
    };
    let cases = [
        (rows(16, 0.3, |_| 9), 1),
        (rows(40, 0.02, |row| 3 + row * 7 % 23), 4),
        (rows(128, -0.4, |row| 1 + row * row % 97), 8),
        // One long row among short ones says nothing.
        (rows(32, 5.0, |row| if row == 7 { 1000 } else { 1 }), 2),
    ];
    let compared = cases.iter().map(|(rows, looks_in_all)| {
        let difference = PairedDifference::of(rows).map(|found| {
            json!({
                "value": found.value,
                "standard_error": found.standard_error,
                "surely_above": highest_limit(&found, *looks_in_all),
            })
        });
        json!({
            "differences": rows.iter().map(|row| row.difference).collect::<Vec<_>>(),
            "target_tokens": rows.iter().map(|row| row.target_tokens as u64).collect::<Vec<_>>(),
            "looks_in_all": looks_in_all,
            "difference": difference,
        })
    });
    let looked: Vec<_> = [0, 16, 17, 256, 1000].map(|rows| json!([rows, looks(rows)])).into();
    is_golden(
        "paired.json",
        &json!({"compared": compared.collect::<Vec<_>>(), "looks": looked}),
    );
}

/// The limit that a difference is surely above, and above no higher one: by halves.
fn highest_limit(difference: &PairedDifference, looks_in_all: usize) -> f64 {
    let (mut low, mut high) = (difference.value - 100.0 * difference.standard_error, difference.value);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        match difference.is_surely_above(middle, looks_in_all) {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}

/// Compares a table with the file that Python reads, or writes it.
pub(crate) fn is_golden(name: &str, table: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/backends")
        .join(name);
    let table = serde_json::to_string_pretty(table).unwrap() + "\n";
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &table).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), table);
}
