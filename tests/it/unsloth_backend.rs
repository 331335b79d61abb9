//! Searches with `backend: unsloth`. A GPU of PyTorch, TRL and unsloth are stand-ins of plain Python (`tests/stand_in_trl`,
//! `tests/stand_in_unsloth`), and everything else is real.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::faults::bench::{Bench, Finished, SPACE, messages};
use crate::mocked::{errors_of, folder_with};
use crate::trl_backend::{complete_at, has_python, outcome, with_stand_ins};
use crate::trl_search::{self, GPU, queried, refused, stand_in, succeeds};

/// Folders with the stand-ins.
const STAND_INS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/stand_in_unsloth:",
    env!("CARGO_MANIFEST_DIR"),
    "/tests/stand_in_trl"
);
/// File that the stand-in of unsloth writes its calls to.
const RECORD: &str = "record.jsonl";

/// Arguments of the training that a trial sets otherwise than its export: what it must not do, its length and its rows.
const OF_TRIAL: [&str; 12] = [
    "completion_only_loss",
    "dataset_text_field",
    "disable_tqdm",
    "eval_strategy",
    "logging_steps",
    "logging_strategy",
    "max_steps",
    "num_train_epochs",
    "output_dir",
    "report_to",
    "save_strategy",
    "warmup_steps",
];

fn bench() -> Bench {
    Bench::of(&SPACE.replace("precision: fp32", "precision: bf16"))
}

/// A search with `backend: unsloth`, beside so many GPUs.
fn search(bench: &Bench, gpus: &str, arguments: &[&str]) -> Command {
    let mut command = bench.command(&["search", "space.yaml", "--backend", "unsloth", "--python", "python3"]);
    command.args(arguments);
    with_stand_ins(&mut command);
    command
        .env("PYTHONPATH", STAND_INS)
        .env("STAND_IN_GPUS", gpus)
        .env("STAND_IN_RECORD", bench.path(RECORD));
    command
}

/// What a search said that went well.
fn searched(mut command: Command) -> String {
    let output = command.args(["--log-level", "info"]).output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    said
}

/// The calls of unsloth's functions: the process, the function, and the arguments as a script has them.
fn calls(bench: &Bench) -> Vec<Value> {
    let text = std::fs::read_to_string(bench.path(RECORD)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Arguments of a call in a script.
fn arguments(script: &str, call: &str) -> BTreeMap<String, String> {
    let (_, rest) = script.split_once(&format!("{call}(\n")).unwrap();
    let lines = rest.lines().take_while(|line| *line != ")");
    let both = lines.map(|line| line.trim().trim_end_matches(',').split_once('=').unwrap());
    both.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Whether two texts are the same value: numbers have several forms.
fn is_same(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<f64>().ok();
    one == other || (number(one).is_some() && number(one) == number(other))
}

#[test]
fn a_search_trains_each_trial_in_a_process_of_its_own_on_the_gpu() {
    if !has_python() {
        return;
    }
    let bench = bench();
    let said = searched(search(&bench, "1", &["--trials", "4"]));
    let first = said.lines().find(|line| line.starts_with("trials train in unsloth: "));
    for part in ["unsloth 2026.10.9", "trl 1.16.0", "on NVIDIA L4"] {
        assert!(first.is_some_and(|line| line.contains(part)), "{said}");
    }
    let finished = bench.sound(&Finished::new());
    let complete = bench.count("select count(*) as n from trial where state = 'complete'");
    assert!(finished.len() >= 4 && complete == finished.len() as u64, "{finished:?}");
    let processes: BTreeSet<u64> = calls(&bench)
        .iter()
        .map(|call| call["process"].as_u64().unwrap())
        .collect();
    assert!(processes.len() >= finished.len(), "{processes:?} of {finished:?}");
    for name in [
        "throughput",
        "peak_memory",
        "base_memory_bytes",
        "step_s",
        "loss_before",
    ] {
        let sql = format!("select count(*) as n from trial_metric where name = '{name}' and value > 0");
        assert!(bench.count(&sql) > 0, "{name}");
    }
    let unlearnt = "select count(*) as n from trial_metric as after \
                    join trial_metric as before on before.trial = after.trial \
                    where after.name = 'loss' and before.name = 'loss_before' and after.value >= before.value";
    assert_eq!(bench.count(unlearnt), 0);
    let stack = "select path from study_input where role = 'stack'";
    assert!(
        bench.rows(stack)[0]["path"]
            .as_str()
            .unwrap()
            .starts_with("unsloth 2026.10.9, torch")
    );
}

#[test]
fn a_trial_calls_unsloth_as_the_exported_script_does() {
    if !has_python() {
        return;
    }
    let bench = bench();
    searched(search(&bench, "1", &["--trials", "1"]));
    let export = ["export", "--trial", "0", "--format", "unsloth", "--output", "out"];
    Bench::succeed(bench.command(&export));
    let script = std::fs::read_to_string(bench.path("out/unsloth_train.py")).unwrap();
    let calls = calls(&bench);
    for (function, call, but) in [
        (
            "from_pretrained",
            "FastLanguageModel.from_pretrained",
            &["model_name"][..],
        ),
        ("get_peft_model", "FastLanguageModel.get_peft_model", &["model"][..]),
        ("SFTConfig", "SFTConfig", &OF_TRIAL[..]),
    ] {
        let mut exported = arguments(&script, call);
        exported.retain(|name, _| !but.contains(&name.as_str()));
        assert!(exported.len() > 3, "{function}: {script}");
        let made: Vec<&Value> = calls.iter().filter(|call| call["function"] == function).collect();
        assert!(!made.is_empty(), "{function}");
        for call in made {
            let given = call["arguments"].as_object().unwrap().iter();
            let given: BTreeMap<&str, &str> = given
                .filter(|(name, _)| !but.contains(&name.as_str()))
                .map(|(name, value)| (name.as_str(), value.as_str().unwrap()))
                .collect();
            let names: Vec<&str> = exported.keys().map(String::as_str).collect();
            assert_eq!(given.keys().copied().collect::<Vec<_>>(), names, "{function}");
            for (name, value) in &exported {
                let other = given[name.as_str()];
                assert!(
                    is_same(value, other),
                    "{function}: {name}={value}, and a trial has {other}"
                );
            }
        }
    }
}

#[test]
fn faults_cost_what_they_cost_in_trl() {
    if !has_python() {
        return;
    }
    let failed = |reason: &str| ("failed".to_owned(), Value::from(reason), 1);
    for (fault, expected) in [
        ("kill:profile,trial=1,attempts=1", complete_at(2)),
        ("exit:train,trial=1,attempts=1", complete_at(2)),
        ("nan:train,trial=1", failed("diverged")),
        ("panic:evaluate,trial=1", failed("crashed")),
        ("oom:train,trial=1", failed("out_of_memory")),
    ] {
        let bench = bench();
        let mut command = search(&bench, "1", &["--trials", "3"]);
        command.env("PEFT_TUNE_FAULT", fault);
        let said = searched(command);
        assert_eq!(outcome(&bench, 1), expected, "{fault}: {said}");
        assert_eq!(bench.sound(&Finished::new()).len(), 3);
    }
}

/// Message of a search that is refused before anything is begun.
fn refused_search(bench: &Bench, mut command: Command) -> String {
    let output: Output = command.output().unwrap();
    let told = messages(&output);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(!bench.path("study.db").exists() && !bench.path(RECORD).exists());
    told
}

#[test]
fn a_processor_and_a_python_without_unsloth_are_refused_before_anything_is_begun() {
    if !has_python() {
        return;
    }
    let bench = bench();
    for (gpus, arguments) in [("0", &[][..]), ("1", &["--devices", "cpu"][..])] {
        let told = refused_search(&bench, search(&bench, gpus, arguments));
        for part in ["trials in unsloth need a GPU", "kernels there alone", "`--backend trl`"] {
            assert!(told.contains(part), "{told}");
        }
    }
    let mut without = search(&bench, "1", &[]);
    with_stand_ins(&mut without);
    let told = refused_search(&bench, without);
    for part in [
        "lacks what `backend: unsloth`",
        "pip install 'unsloth>=2026.10.9,<2027'`",
    ] {
        assert!(told.contains(part), "{told}");
    }
    let in_fp32 = search(&bench, "1", &[]);
    let path = bench.path("space.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("bf16", "fp32")).unwrap();
    let told = refused_search(&bench, in_fp32);
    assert!(
        told.contains("key `space.precision`") && told.contains("computes in bf16"),
        "{told}"
    );
}

/// Puts a Python there that has a GPU and this version of unsloth.
fn python_with(folder: &Path, unsloth: &str) {
    let answer = json!({
        "python": "3.12.3", "unsloth": unsloth, "torch": "2.14.1", "transformers": "5.17.0", "peft": "0.21.2", "trl": "1.15.0",
        "accelerate": "1.15.0", "datasets": "4.8.0", "optional": {"bitsandbytes": "0.49.0"},
        "devices": [serde_json::from_str::<Value>(GPU).unwrap()], "missing": [],
    });
    stand_in(folder, &format!("echo '{answer}'"));
}

#[test]
fn a_study_in_unsloth_is_continued_shown_and_kept_apart_as_any_other() {
    let file = format!("{}backend: {{unsloth: {{python: ./python}}}}\n", trl_search::SPACE);
    let folder = folder_with(&file);
    let folder = folder.path();
    python_with(folder, "2026.10.9");
    let said = errors_of(&succeeds(folder, &["search", "space.yaml", "--log-level", "info"]));
    assert!(said.matches("started a worker").count() >= 3, "{said}");
    assert!(
        said.contains("trials train in unsloth: ") && said.contains(", in unsloth"),
        "{said}"
    );
    succeeds(folder, &["search", "space.yaml", "--trials", "5"]);
    assert_eq!(queried(folder, "select count(*) as n from trial_summary"), "n\n5");
    let backend = queried(
        folder,
        "select definition ->> '$.settings.backend' as backend from study",
    );
    assert!(backend.contains("unsloth") && !backend.contains("python"), "{backend}");
    for command in ["show", "explain", "pareto"] {
        succeeds(folder, &[command]);
    }
    let told = refused(
        folder,
        &["search", "space.yaml", "--backend", "native", "--trials", "6"],
    );
    assert!(told.contains("different: settings.backend"), "{told}");
    let told = refused(folder, &["search", "space.yaml", "--backend", "auto"]);
    assert!(told.contains("go on with `--backend unsloth`"), "{told}");
    python_with(folder, "2026.11.2");
    let told = refused(folder, &["search", "space.yaml", "--trials", "6"]);
    assert!(
        told.contains("unsloth 2026.11.2") && told.contains("--accept-changed-inputs"),
        "{told}"
    );
    let planned = succeeds(folder, &["plan", "space.yaml", "--device", "L4"]);
    let planned = String::from_utf8_lossy(&planned.stdout);
    assert!(planned.contains(", in unsloth"), "{planned}");
}
