//! Profiles of steps in TRL, whose PyTorch is a stand-in. `scripts/peers/trl-test.sh` takes one of TRL itself.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::command::recipe;
use crate::faults::bench::Bench;
use crate::mocked::errors_of;
use crate::trl_backend::{has_python, search, with_stand_ins};

/// A profile in the stand-in of TRL, whose updates take most of a step.
pub(super) fn profile(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::program();
    command.arg("profile").args(arguments).current_dir(directory);
    command.args(["--backend", "trl", "--python", "python3"]);
    command
        .env_remove("PEFT_TUNE_DB")
        .env("PEFT_TUNE_CACHE", directory.join("cache"))
        .env("STAND_IN_STEP_S", "0.01");
    with_stand_ins(&mut command);
    command
}

/// Message of options or a recipe that are refused.
fn refused(directory: &Path, arguments: &[&str]) -> String {
    let output = profile(directory, arguments).output().unwrap();
    let told = errors_of(&output);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
    told
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn sum(values: &Value, field: &str) -> f64 {
    let values = values.as_array().unwrap().iter();
    values.map(|value| number(&value[field])).sum()
}

/// A recipe on a model that the stand-ins load: they ask for a tokenizer.
pub(super) fn bench(more: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart/base");
    recipe(folder.path(), more);
    let path = folder.path().join("recipe.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    std::fs::write(&path, format!("model: {}\n{rest}", assets.display())).unwrap();
    folder
}

#[test]
fn a_profile_in_trl_fills_the_tables_of_any_other() {
    if !has_python() {
        return;
    }
    let folder = bench("");
    let folder = folder.path();
    let words = [
        "recipe.yaml",
        "--budget",
        "1s",
        "--trace",
        "trace.json",
        "--tensorboard",
        "events",
        "--json",
    ];
    let output = profile(folder, &words).output().unwrap();
    let told = errors_of(&output);
    assert!(output.status.success(), "{told}");
    assert!(told.contains("profiled in TRL: ") && told.contains("on cpu"), "{told}");
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let profile = &result["profile"];
    let setting = &profile["setting"];
    assert!(setting["stack"].as_str().unwrap().contains("trl 1.16.0"), "{setting}");
    assert_eq!((&setting["rank"], &setting["micro_batch"]), (&4.into(), &2.into()));
    let shares = sum(&profile["phases"], "share");
    assert!((0.9..1.1).contains(&shares), "{shares}");
    let first = &profile["ops"][0];
    assert_eq!(
        (&first["name"], &first["phase"]),
        (&"aten::mm".into(), &"forward".into())
    );
    assert!(
        first["shape"].as_str().unwrap().ends_with("x480 480x960") && number(&first["flops"]) > 0.0,
        "{first}"
    );
    let memory = &profile["memory"];
    assert!(
        sum(&memory["parts"], "bytes") == number(&memory["peak_bytes"]),
        "{memory}"
    );
    // What the profiler does not tell is absent, and no zero.
    for absent in ["adapter", "gpu", "energy", "evaluation"] {
        assert!(profile[absent].is_null(), "{absent}");
    }
    assert!(profile["samples"].as_array().unwrap().is_empty());
    let spanned = &profile["steps"]["spanned"];
    assert_eq!(
        (&spanned["timed_by"], &spanned["steps"]),
        (&"profiler".into(), &3.into())
    );
    let trace: Value = serde_json::from_slice(&std::fs::read(folder.join("trace.json")).unwrap()).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    assert!(folder.join("events").read_dir().unwrap().next().is_some());
    let mut query = crate::program();
    query.args([
        "query",
        "select count(*) as n from op_profile where name = 'aten::mm'",
        "--format",
        "csv",
    ]);
    let stored = query.current_dir(folder).env_remove("PEFT_TUNE_DB").output().unwrap();
    assert!(
        String::from_utf8_lossy(&stored.stdout).starts_with("n\n"),
        "{}",
        errors_of(&stored)
    );
}

#[test]
fn a_profile_in_trl_is_text_that_leaves_out_what_is_not_known() {
    if !has_python() {
        return;
    }
    let folder = bench("gradient_checkpointing: full\n");
    let output = profile(folder.path(), &["recipe.yaml", "--budget", "200ms", "--no-store"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", errors_of(&output));
    for part in [
        ", in TRL (torch 2.15.0",
        "under torch.profiler",
        "aten::mm",
        "memory at the peak",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["\nadapters ", "module ", "\nenergy "] {
        assert!(!text.contains(part), "{part}: {text}");
    }
}

#[test]
fn what_the_built_in_engine_alone_has_is_refused_by_name() {
    if !has_python() {
        return;
    }
    let folder = bench("optimizer: {kind: lion}\n");
    let folder = folder.path();
    for (arguments, part) in [
        (&["recipe.yaml", "--verify"][..], "`--verify`"),
        (&["recipe.yaml", "--log-every", "3"], "`--log-every`"),
        (&["recipe.yaml", "--kernels", "reference"], "`--kernels`"),
        (&["recipe.yaml", "--device", "cuda:7"], "cuda:7"),
        (&["recipe.yaml"], "bitsandbytes"),
    ] {
        let told = refused(folder, arguments);
        assert!(told.contains(part), "{part}: {told}");
    }
    let mut command = crate::program();
    let native = command
        .args(["profile", "recipe.yaml", "--python", "python3"])
        .current_dir(folder);
    let output = native.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(errors_of(&output).contains("--backend trl"), "{}", errors_of(&output));
}

#[test]
fn a_trial_that_trl_trained_is_profiled_in_trl() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    Bench::succeed(search(&bench, &["--trials", "1"]));
    let mut command = bench.command(&["profile", "--trial", "0", "--python", "python3", "--budget", "200ms"]);
    with_stand_ins(&mut command);
    let text = Bench::succeed(command);
    assert!(text.contains(", in TRL (torch 2.15.0"), "{text}");
    assert_eq!(
        bench.count("select count(*) as n from profile where trial_id is not null"),
        1
    );
}
