//! What other tools do by a file: what is read of it, and what is refused by the key that says so.

mod table;

use std::path::Path;
use std::process::Output;

use crate::mocked::errors_of;
use table::{ANSWERS, Ends, FILES, LABELS, PAIRS, ToolFile};

/// Published dimensions of Llama 3.2 1B.
const LLAMA_1B: &str = r#"{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": true}"#;

/// Name of the study that is written.
const STUDY: &str = "own.yaml";

fn bench() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rows = [
        (ANSWERS, r#"{"prompt": "a", "completion": "b"}"#),
        (PAIRS, r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#),
        (LABELS, r#"{"prompt": "a", "completion": "b", "label": true}"#),
    ];
    for (name, row) in rows {
        std::fs::write(folder.path().join(name), format!("{row}\n").repeat(20)).unwrap();
    }
    std::fs::create_dir(folder.path().join("model")).unwrap();
    std::fs::write(folder.path().join("model/config.json"), LLAMA_1B).unwrap();
    folder
}

fn called(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = crate::program();
    command.args(arguments).current_dir(folder);
    command.env("PEFT_TUNE_CACHE", folder.join("cache"));
    command.env("PEFT_TUNE_DB", folder.join("study.db")).output().unwrap()
}

/// Words of some texts, with one blank between them.
fn words(texts: &[&str]) -> String {
    let words: Vec<&str> = texts.iter().flat_map(|text| text.split_whitespace()).collect();
    words.join(" ")
}

/// Faults of an ending: the exit code, and parts that are not told.
fn faults(output: &Output, study: &str, ends: &Ends) -> Vec<String> {
    let (code, parts) = match ends {
        Ends::Says(parts) => (0, parts),
        Ends::Refused(parts) => (2, parts),
    };
    let (results, messages) = (String::from_utf8_lossy(&output.stdout), errors_of(output));
    let told = words(&[&*results, messages.as_str(), study]);
    let wrong_code = (output.status.code() != Some(code)).then(|| format!("ends with {:?}: {told}", output.status));
    let missing = parts.iter().filter(|part| !told.contains(&words(&[**part])));
    let missing = missing.map(|part| format!("does not say {part}: {told}"));
    missing.chain(wrong_code).collect()
}

#[test]
fn every_file_is_read_as_what_it_does_or_refused_by_name() {
    let folder = bench();
    let folder = folder.path();
    let mut found = Vec::new();
    for ToolFile {
        name,
        base,
        more,
        rows,
        init,
        check,
    } in FILES
    {
        let (name, rows) = (*name, *rows);
        let text = format!("{base}{more}");
        std::fs::write(folder.join(name), &text).unwrap();
        // What another file left.
        let _ = std::fs::remove_file(folder.join(STUDY));
        let arguments = [
            "init", "--from", name, "--data", rows, "--memory", "80GiB", "--output", STUDY,
        ];
        let output = called(folder, &arguments);
        let study = std::fs::read_to_string(folder.join(STUDY)).unwrap_or_default();
        let of_init = faults(&output, &study, init)
            .into_iter()
            .map(|fault| format!("init {fault}"));
        let output = called(folder, &["plan", "--check", name]);
        let of_check = faults(&output, "", check)
            .into_iter()
            .map(|fault| format!("plan {fault}"));
        found.extend(of_init.chain(of_check).map(|fault| format!("{text}\n{fault}\n")));
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    assert!(found.is_empty(), "{} faults:\n{}", found.len(), found.join("\n"));
}

#[test]
fn a_study_of_preferences_from_a_file_is_planned_in_trl() {
    let folder = bench();
    let folder = folder.path();
    let text = "base_model: ./model\nadapter: lora\nlora_r: 8\nmicro_batch_size: 2\nsequence_len: 512\nbf16: true\nrl: dpo\nrl_beta: 0.2\n";
    std::fs::write(folder.join("axolotl.yaml"), text).unwrap();
    let made = called(
        folder,
        &[
            "init",
            "--from",
            "axolotl.yaml",
            "--data",
            PAIRS,
            "--memory",
            "80GiB",
            "--output",
            STUDY,
        ],
    );
    assert!(made.status.success(), "{}", errors_of(&made));
    let planned = called(folder, &["plan", STUDY, "--stack", "trl"]);
    assert!(planned.status.success(), "{}", errors_of(&planned));
    let told = String::from_utf8_lossy(&planned.stdout).into_owned();
    assert!(told.contains("two sequences a row, a reference in each step"), "{told}");
    // A baseline of another trainer is none of the study's.
    let space =
        "study: sft\nmodel: ./model\ndata: {train: answers.jsonl}\nspace: {rank: [4, 8]}\nbudget: {trials: 2}\n";
    std::fs::write(folder.join("sft.yaml"), space).unwrap();
    let refused = called(
        folder,
        &["search", "sft.yaml", "--baseline", "axolotl.yaml", "--dry-run"],
    );
    assert_eq!(refused.status.code(), Some(2), "{}", errors_of(&refused));
    assert!(
        errors_of(&refused).contains("`trainer: dpo`"),
        "{}",
        errors_of(&refused)
    );
}
