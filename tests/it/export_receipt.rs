//! `export --receipt`. PyTorch and TRL are stand-ins of plain Python (`tests/stand_in_trl`), which train what they are told to have
//! trained; the engine, the exported files and what is compared are real.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::mocked::{errors_of, folder_with, peft_tune};
use crate::trl_backend::{has_python, with_stand_ins};
use crate::trl_search::stand_in;

const SPACE: &str = "study: receipt\nmodel: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl, format: tokenized}\n\
                     objectives: [throughput, loss]\n\
                     space: {rank: 2, learning_rate: {low: 1e-3, high: 3e-3, scale: log}, micro_batch: 2, global_batch: 4,\n\
                     \x20       precision: fp32, packing: false}\n\
                     trial: {sequence_length: 64}\ntraining: {length: {steps: 12}, shuffle: false}\nconfirm: none\n\
                     budget: {trials: 1}\nseed: 1\n";
/// Steps of a receipt.
const STEPS: usize = 10;
/// Token that ends a text in the quickstart's tokenizer.
const END: usize = 2;

/// Rows of token ids, of which the last half is learnt, the end included.
fn rows(from: usize, count: usize) -> String {
    let row = |number: usize| {
        let length = 6 + number % 9;
        let id = |at: usize| match at + 1 == length {
            true => END,
            false => 10 + (37 * number + 11 * at) % 900,
        };
        let ids: Vec<usize> = (0..length).map(id).collect();
        let label = |at: usize| if at < length / 2 { json!(-100) } else { json!(ids[at]) };
        let labels: Vec<Value> = (0..length).map(label).collect();
        json!({"input_ids": ids, "labels": labels}).to_string() + "\n"
    };
    (from..from + count).map(row).collect()
}

/// A folder with a study of one trial on rows of token ids.
fn searched() -> tempfile::TempDir {
    let folder = folder_with(SPACE);
    std::fs::write(folder.path().join("train.jsonl"), rows(0, 60)).unwrap();
    std::fs::write(folder.path().join("held_out.jsonl"), rows(100, 6)).unwrap();
    let output = peft_tune(folder.path(), &["search", "space.yaml"]);
    assert!(output.status.success(), "{}", errors_of(&output));
    folder
}

fn export(folder: &Path, format: &str, more: &[&str]) -> Command {
    let mut command = crate::program();
    command.args(["export", "--format", format, "--output", "out", "--force", "--receipt"]);
    command.args(more).current_dir(folder);
    command
        .env("PEFT_TUNE_DB", folder.join("study.db"))
        .env("PEFT_TUNE_CACHE", folder.join("cache"));
    with_stand_ins(&mut command);
    command
}

/// The receipt of an export that ends with `code`, and what was said.
fn receipt(folder: &Path, mut command: Command, code: i32) -> (Value, String) {
    let output = command.output().unwrap();
    let said = errors_of(&output);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    let text = std::fs::read_to_string(folder.join("out/receipt.json")).unwrap();
    (serde_json::from_str(&text).unwrap(), said)
}

/// The receipt where TRL is told to have had this training.
fn replayed(folder: &Path, training: &Value, more: &[&str], code: i32) -> (Value, String) {
    let path = folder.join("replayed.json");
    std::fs::write(&path, training.to_string()).unwrap();
    let mut command = export(folder, "trl", &[&["--python", "python3"][..], more].concat());
    command.env("STAND_IN_REPLAY", path);
    receipt(folder, command, code)
}

fn keys(receipt: &Value) -> Vec<&str> {
    let findings = receipt["findings"].as_array().unwrap();
    findings
        .iter()
        .map(|finding| finding["key"].as_str().unwrap())
        .collect()
}

#[test]
fn a_tool_that_trains_alike_has_a_receipt_and_another_is_refused_by_its_key() {
    if !has_python() {
        return;
    }
    let folder = searched();
    let folder = folder.path();
    // The stand-in's own training is another one, on the same rows from the same adapter.
    let (own, said) = receipt(folder, export(folder, "trl", &["--python", "python3"]), 11);
    assert!(
        said.contains("TRL trains something else: ") && said.contains("`--accept`"),
        "{said}"
    );
    assert_eq!(
        (&own["agrees"], &own["version"], &own["total_steps"]),
        (&json!(false), &json!("1.16.0"), &json!(12))
    );
    let steps = own["steps"].as_array().unwrap();
    assert_eq!(steps.len(), STEPS);
    for step in steps {
        assert_eq!((&step["rows"], &step["same_rows"]), (&json!(4), &json!(4)), "{step}");
        assert!(
            step["masked"].as_u64().unwrap() < step["tokens"].as_u64().unwrap(),
            "{step}"
        );
    }
    assert_eq!(own["parameters"]["engine"], own["parameters"]["tool"]);
    assert_eq!(own["compared_steps"], STEPS);
    let engine = &own["engine"];

    let (same, said) = replayed(folder, engine, &[], 0);
    assert_eq!(
        (&same["agrees"], &same["findings"]),
        (&json!(true), &json!([])),
        "{said}"
    );
    assert!(
        said.contains("TRL trains what the built-in engine trains: 40 rows in 10 steps"),
        "{said}"
    );
    let table = std::fs::read_to_string(folder.join("out/receipt.txt")).unwrap();
    for part in [
        "10 of 12 steps in TRL 1.16.0",
        "trained parameters",
        "learning rate in TRL",
    ] {
        assert!(table.contains(part), "{part}: {table}");
    }

    let changed = |name: &str, first: usize, factor: f64| {
        let mut other = engine.clone();
        for step in other["steps"].as_array_mut().unwrap().iter_mut().skip(first) {
            step[name] = json!(step[name].as_f64().unwrap() * factor);
        }
        other
    };
    for (training, key) in [
        (changed("loss", 3, 1.01), "optimizer.kind"),
        (changed("loss", 0, 1.01), "precision"),
        (changed("grad_norm", 0, 1.1), "adapter"),
        (changed("learning_rate", 0, 2.0), "optimizer.learning_rate"),
        (changed("learning_rate", 4, 2.0), "schedule"),
    ] {
        let (found, said) = replayed(folder, &training, &[], 11);
        assert_eq!(keys(&found), [key], "{said}");
        assert!(said.contains(&format!("`{key}`: ")), "{said}");
    }
    let (taken, said) = replayed(folder, &changed("loss", 3, 1.01), &["--accept"], 0);
    assert_eq!((&taken["agrees"], &taken["accepted"]), (&json!(false), &json!(true)));
    assert!(said.contains("TRL trains something else (accepted): "), "{said}");
}

#[test]
fn an_end_of_text_that_is_masked_as_padding_is_named() {
    if !has_python() {
        return;
    }
    let folder = searched();
    let folder = folder.path();
    let mut command = export(folder, "trl", &["--python", "python3"]);
    command.env("STAND_IN_MASKS_END", END.to_string());
    let (found, said) = receipt(folder, command, 11);
    assert!(keys(&found).contains(&"pad_token"), "{said}");
    assert!(
        said.contains("40 of 40 rows differ") && said.contains("masked as padding"),
        "{said}"
    );
    assert_eq!(found["steps"][0]["same_rows"], 0);
}

#[test]
fn a_tool_that_cannot_train_is_told_with_what_to_do() {
    let folder = searched();
    let folder = folder.path();
    let said = |mut command: Command, code: i32| {
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{command:?}: {}", errors_of(&output));
        errors_of(&output)
    };
    for (script, code, told) in [
        (
            r#"echo '{"outcome": "missing"}' > "$5""#,
            10,
            "trl is not installed in ./python: install it there",
        ),
        (
            r#"echo '{"outcome": "refused", "version": "1.0", "message": "no key `x`"}' > "$5""#,
            9,
            "trl 1.0 in ./python does not train from",
        ),
        (
            "echo 'SyntaxError: invalid syntax' >&2; exit 1",
            10,
            "before trl had trained its steps; its last words: SyntaxError",
        ),
        ("exec sleep 100", 10, "give it longer with --receipt-within"),
    ] {
        stand_in(folder, script);
        let told_now = said(
            export(folder, "trl", &["--python", "./python", "--receipt-within", "1s"]),
            code,
        );
        assert!(told_now.contains(told), "{script}: {told_now}");
        assert!(folder.join("out/trl_sft.yaml").is_file(), "the file is written");
    }
    let told = said(export(folder, "torchtune", &[]), 2);
    assert!(
        told.contains("there are receipts of trl, peft, axolotl, llamafactory alone"),
        "{told}"
    );
}
