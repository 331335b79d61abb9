//! `init` as people call it.

use std::path::Path;
use std::process::{Command, Output};

use peft_tune::space::{ReadOptions, StudyFile};

fn run(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peft-tune"))
        .arg("init")
        .args(arguments)
        .current_dir(folder)
        .env("HF_HUB_CACHE", folder.join("cache"))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap()
}

/// A folder with a model's `config.json` and rows to train on.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("base");
    std::fs::create_dir(&model).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ref_qwen2/model/config.json");
    std::fs::copy(config, model.join("config.json")).unwrap();
    std::fs::write(
        folder.path().join("train.jsonl"),
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n".repeat(20),
    )
    .unwrap();
    folder
}

#[test]
fn what_is_found_becomes_a_study_file_that_a_search_reads() {
    let folder = place();
    let output = run(folder.path(), &["--yes", "--memory", "2GiB"]);
    assert!(output.status.success(), "{output:?}");
    let path = folder.path().join("space.yaml");
    let study = StudyFile::read_with(&path, ReadOptions { check_files: true }).unwrap();
    assert_eq!(study.memory_limit_bytes, Some(2 << 30));
    assert!(study.base.unwrap().model.ends_with("base"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.contains("format: prompt_completion") && text.contains("sequence_length: 128"),
        "{text}"
    );
    let again = run(folder.path(), &["--yes", "--memory", "2GiB"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
}

#[test]
fn a_file_elsewhere_names_the_model_and_the_data_where_they_are() {
    let folder = place();
    let output = run(
        folder.path(),
        &["--model", "base", "--data", "train.jsonl", "--output", "deep/er.yaml"],
    );
    assert!(output.status.success(), "{output:?}");
    StudyFile::read_with(&folder.path().join("deep/er.yaml"), ReadOptions { check_files: true }).unwrap();
}

#[test]
fn what_is_missing_or_cannot_fit_is_told() {
    let folder = place();
    for (arguments, message) in [
        (
            &["--model", "./none", "--data", "train.jsonl"][..],
            "no model at ./none",
        ),
        (&["--model", "base", "--data", "none.jsonl"], "no data at none.jsonl"),
        (&["--model", "base", "--memory", "1kB"], "fits"),
        (&["--model", "base", "--memory", "much"], "size"),
        (&["--model", "base", "--data", "base/config.json"], "config.json"),
    ] {
        let output = run(folder.path(), arguments);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {told}");
        assert!(told.contains(message), "{arguments:?}: {told}");
        assert!(!folder.path().join("space.yaml").exists(), "{arguments:?}");
    }
    let empty = tempfile::tempdir().unwrap();
    let output = run(empty.path(), &["--yes"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--model"),
        "{output:?}"
    );
}
