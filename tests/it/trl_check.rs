//! `peft-tune check`. PyTorch and TRL are stand-ins of plain Python (`tests/stand_in_trl`), which train what they are told
//! to have trained; everything else is real. `scripts/peers/trl-test.sh` compares the engines with TRL itself.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::mocked::errors_of;
use crate::trl_backend::{has_python, with_stand_ins};
use crate::trl_search::stand_in;

const STEPS: usize = 4;

/// A folder with a recipe on the quickstart's model and data, of this adapter, with these lines.
fn folder_with(adapter: &str, lines: &str) -> tempfile::TempDir {
    let folder = crate::folders::for_database();
    let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/search_spaces/quickstart");
    let recipe = format!(
        "model: {assets}/base\ndata: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl}}\nadapter: {adapter}\n\
         optimizer: {{learning_rate: 1e-3}}\n{lines}\n"
    );
    std::fs::write(folder.path().join("recipe.yaml"), recipe).unwrap();
    folder
}

/// A recipe of small steps in fp32.
const SMALL: &str = "precision: fp32\nbatch: {micro_batch: 2, gradient_accumulation: 2, sequence_length: 64}";

fn check(folder: &Path, arguments: &[&str]) -> Command {
    checked(folder, &[&["recipe.yaml"], arguments].concat())
}

/// A check of the recipe that the arguments name, or of the program's own.
fn checked(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = crate::program();
    command.args(["check", "--device", "cpu", "--steps", &STEPS.to_string()]);
    command.args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_CACHE", folder.join("cache"));
    with_stand_ins(&mut command);
    command
}

fn output_of(mut command: Command, code: i32) -> Output {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", errors_of(&output));
    output
}

/// Findings on two engines, of which the other is told to have had this training; with what was said.
fn compared(folder: &Path, replayed: &Value, code: i32) -> (Value, String) {
    let path = folder.join("replayed.json");
    std::fs::write(&path, replayed.to_string()).unwrap();
    let mut command = check(folder, &["--json", "--python", "python3"]);
    command.env("STAND_IN_REPLAY", path);
    let output = output_of(command, code);
    (serde_json::from_slice(&output.stdout).unwrap(), errors_of(&output))
}

#[test]
fn engines_that_compute_alike_agree_and_others_are_told_apart() {
    if !has_python() {
        return;
    }
    let folder = folder_with("{rank: 4, dropout: 0.1}", SMALL);
    let folder = folder.path();
    // The stand-in's own training is another one.
    let output = output_of(check(folder, &["--json", "--python", "python3"]), 11);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["agrees"], false);
    let said = errors_of(&output);
    for part in [
        "dropout is 0 in both",
        "the recipe has 0.1",
        "in the order of the file",
        "do not agree: ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let native = &found["native"];
    assert_eq!(native["steps"].as_array().unwrap().len(), STEPS);
    // Both have the same rows, whatever they make of them.
    for step in 0..STEPS {
        for name in ["tokens", "target_tokens"] {
            assert_eq!(
                native["steps"][step][name], found["trl"]["steps"][step][name],
                "{name} of step {step}"
            );
        }
    }
    let (agreed, _) = compared(folder, native, 0);
    assert_eq!((&agreed["agrees"], &agreed["reasons"]), (&json!(true), &json!([])));
    assert!(agreed["differences"]["losses"].as_f64().unwrap() < 1e-12, "{agreed}");
    for engine in ["native", "trl"] {
        for name in ["held_out_loss_before", "held_out_loss", "peak_memory_bytes", "step_s"] {
            assert!(
                agreed[engine][name].as_f64().unwrap() > 0.0,
                "{name} of {engine}: {agreed}"
            );
        }
    }
    let changed = |key: &[&str], factor: f64| {
        let mut other = native.clone();
        let place = key.iter().fold(&mut other, |place, key| match key.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[*key],
        });
        *place = json!(place.as_f64().unwrap() * factor);
        other
    };
    for (key, factor, told) in [
        (
            &["steps", "2", "loss"] as &[&str],
            1.0001,
            "losses differ by up to 1.0e-4 from step 3 on",
        ),
        (
            &["steps", "0", "grad_norm"],
            1.01,
            "norms of gradients differ by up to 1.0e-2 from step 1 on",
        ),
        (&["steps", "1", "learning_rate"], 1.1, "learning rates differ"),
        (
            &["held_out_loss"],
            1.001,
            "held-out losses behind the last step differ by 1.0e-3",
        ),
    ] {
        let (found, said) = compared(folder, &changed(key, factor), 11);
        assert_eq!(found["reasons"].as_array().unwrap().len(), 1, "{key:?}: {found}");
        assert!(found["reasons"][0].as_str().unwrap().contains(told), "{key:?}: {found}");
        assert!(said.contains(told), "{said}");
    }
}

#[test]
fn rows_in_another_order_and_a_training_without_an_adapter_are_compared_too() {
    if !has_python() {
        return;
    }
    let folder = folder_with("null", SMALL);
    let folder = folder.path();
    let output = output_of(check(folder, &["--json", "--python", "python3"]), 11);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let replayed = folder.join("replayed.json");
    std::fs::write(&replayed, found["native"].to_string()).unwrap();
    let mut command = check(folder, &["--python", "python3"]);
    command.env("STAND_IN_REPLAY", &replayed);
    let output = output_of(command, 0);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for part in [
        "4 steps of recipe.yaml in fp32 on cpu, in the built-in engine and in TRL",
        "peak memory",
        "the engines agree: losses differ by",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let mut command = check(folder, &["--python", "python3"]);
    command.env("STAND_IN_REPLAY", &replayed).env("STAND_IN_SHUFFLES", "1");
    let said = errors_of(&output_of(command, 11));
    assert!(said.contains("do not train on the same rows"), "{said}");
}

#[test]
fn the_quickstarts_model_is_compared_where_no_recipe_is_named() {
    if !has_python() {
        return;
    }
    let folder = crate::folders::for_database();
    let folder = folder.path();
    let mut found = Vec::new();
    for precision in ["fp32", "bf16"] {
        let arguments = ["--json", "--python", "python3", "--precision", precision];
        let output = output_of(checked(folder, &arguments), 11);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&report["recipe"], &report["precision"]),
            (&json!("the quickstart's model"), &json!(precision))
        );
        let replayed = folder.join("replayed.json");
        std::fs::write(&replayed, report["native"].to_string()).unwrap();
        let mut command = checked(folder, &arguments);
        command.env("STAND_IN_REPLAY", &replayed);
        output_of(command, 0);
        found.push(report["bound"]["losses"].as_f64().unwrap());
    }
    assert!(found[0] < found[1], "{found:?}");
    let told = errors_of(&output_of(checked(folder, &["--precision", "fp8"]), 2));
    assert!(told.contains("write fp32, bf16"), "{told}");
}

#[test]
fn what_cannot_be_compared_is_bad_input() {
    let folder = folder_with(
        "{rank: 4}",
        &SMALL.replace("sequence_length", "packing: true, sequence_length"),
    );
    let refused = |folder: &Path, arguments: &[&str]| errors_of(&output_of(check(folder, arguments), 2));
    let told = refused(folder.path(), &["--python", "python3"]);
    assert!(told.contains("recipe.yaml: key `batch.packing`"), "{told}");
    let told = refused(folder.path(), &["--backend", "native"]);
    assert!(told.contains("write `--backend trl`"), "{told}");

    // A Python that has TRL, and one that lacks PyTorch.
    let folder = folder_with("{rank: 4}", "precision: nf4");
    for (torch, missing, parts) in [
        (r#""2.15.0""#, "", ["key `precision`", "GPU"]),
        (
            "null",
            r#""torch>=2.9""#,
            ["lacks what `backend: trl` trains with", "-m pip install 'torch>=2.9'"],
        ),
    ] {
        let answer = format!(
            r#"{{"python": "3.12.3", "torch": {torch}, "transformers": "5.23.0", "peft": "0.21.2", "trl": "1.16.0", "accelerate": "1.15.0", "datasets": "5.2.0", "devices": [], "missing": [{missing}]}}"#
        );
        stand_in(folder.path(), &format!("echo '{answer}'"));
        let told = refused(folder.path(), &["--python", "./python"]);
        for part in parts {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
}
