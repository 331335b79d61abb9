//! Studies for another tool's stack, and exports that fit its device.

use std::path::Path;
use std::process::Output;

use crate::mocked::{errors_of, folder_with, peft_tune};
use peft_tune::report::bytes;
use peft_tune::space::file::StudyFile;
use peft_tune_core::recipe::TemplateTargets;
use serde_json::Value;

const SPACE: &str = "study: aimed\nmodel: ./base\ndata: {train: train.jsonl, held_out: held_out.jsonl}\n\
                     target_stack: trl\ntarget_device: A100 40GB\n\
                     constraints: {peak_memory: \"<= 30 GiB\"}\n\
                     space: {rank: [2, 4, 8, 16], micro_batch: [1, 2, 4], global_batch: 4}\n\
                     trial: {sequence_length: 128}\nconfirm: none\nbudget: {trials: 6}\n";

/// Llama 3.1 8B.
const LLAMA_8B: &str = r#"{"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0}"#;

fn succeeded(folder: &Path, arguments: &[&str]) -> String {
    let output = peft_tune(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", errors_of(&output));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn chats_are_learnt_as_the_stack_learns_them_unless_the_study_says_otherwise() {
    for (stack, data, expected) in [
        ("axolotl", "", TemplateTargets::StopTokens),
        ("trl", "", TemplateTargets::All),
        ("axolotl", ", template_targets: all", TemplateTargets::All),
        ("axolotl", ", format: prompt_completion", TemplateTargets::All),
    ] {
        let space = SPACE
            .replace("target_stack: trl", &format!("target_stack: {stack}"))
            .replace("held_out.jsonl}", &format!("held_out.jsonl{data}}}"));
        let folder = folder_with(&space);
        let study = StudyFile::read(&folder.path().join("space.yaml")).unwrap();
        assert_eq!(study.base.unwrap().data.template_targets, expected, "{stack}{data}");
        let output = peft_tune(folder.path(), &["search", "space.yaml", "--dry-run"]);
        let told = "chats are learnt as axolotl learns them: of what the chat template writes, the tokens that end turns alone";
        let is_told = errors_of(&output).contains(told);
        assert_eq!(
            is_told,
            expected == TemplateTargets::StopTokens,
            "{stack}{data}: {}",
            errors_of(&output)
        );
    }
}

#[test]
fn a_study_for_a_stack_is_judged_by_what_is_predicted_of_it_and_shows_both() {
    let folder = folder_with(SPACE);
    let folder = folder.path();
    let found = succeeded(folder, &["search", "space.yaml"]);
    let parts = [
        "target: trl on A100 40GB",
        "target tokens/s (predicted)",
        "tokens/s here",
        "peak memory here",
        "predicted for trl on A100 40GB: tokens/s",
        "measured here: tokens/s",
    ];
    for part in parts {
        assert!(found.contains(part), "{part}: {found}");
    }
    let front: Value = serde_json::from_str(&succeeded(folder, &["pareto", "--json"])).unwrap();
    assert_eq!(
        front["target"],
        serde_json::json!({"stack": "trl", "device": "A100 40GB"})
    );
    let names: Vec<&str> = front["objectives"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["metric"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["target_throughput", "target_peak_memory", "loss"]);
    for row in front["front"].as_array().unwrap() {
        for metric in [
            "target_throughput",
            "target_peak_memory",
            "throughput",
            "peak_memory",
            "loss",
        ] {
            assert!(
                row["metrics"][metric].as_f64().is_some_and(|value| value > 0.0),
                "{row}"
            );
        }
    }
    for command in [&["show"][..], &["explain"], &["pareto"], &["show", "--trial", "0"]] {
        let text = succeeded(folder, command);
        assert!(text.contains("trl on A100 40GB"), "{command:?}: {text}");
    }
    succeeded(folder, &["report", "--output", "page.html"]);
    let page = std::fs::read_to_string(folder.join("page.html")).unwrap();
    assert!(page.contains("trl on A100 40GB; what a heading calls predicted") && page.contains(" here)"));
}

#[test]
fn an_export_to_the_target_says_what_the_search_predicted() {
    let folder = folder_with(SPACE);
    let folder = folder.path();
    let json: Value = serde_json::from_str(&succeeded(folder, &["search", "space.yaml", "--json"])).unwrap();
    let recommended = &json["recommendation"]["trial"];
    let rows = json["front"].as_array().unwrap();
    let row = rows.iter().find(|row| row["trial"] == *recommended).unwrap();
    let predicted = bytes(row["metrics"]["target_peak_memory"].as_f64().unwrap());
    let fastest = rows
        .iter()
        .map(|row| row["metrics"]["target_throughput"].as_f64().unwrap());
    let fastest = fastest.fold(0.0, f64::max);
    let output = peft_tune(folder, &["export", "--format", "trl", "--output", "out"]);
    let said = errors_of(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(&format!("trl will need about {predicted} of the ")),
        "{said}"
    );
    // `--prefer throughput` is the target's.
    let output = peft_tune(
        folder,
        &[
            "export",
            "--format",
            "trl",
            "--output",
            "fast",
            "--prefer",
            "throughput",
        ],
    );
    let row = rows
        .iter()
        .find(|row| row["metrics"]["target_throughput"].as_f64() == Some(fastest));
    let trial = format!("trial {} ", row.unwrap()["trial"]);
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &errors_of(&output);
    assert!(told.contains(&trial), "{trial}: {told}");
}

/// The quickstart's rows have 51 tokens in the mean, and the longest of eight 77: a third of what the tool computes is padding. A packed
/// row has up to 128 tokens, and a step so small takes as long.
#[test]
fn padding_is_no_work_done() {
    let space = SPACE
        .replace(
            "micro_batch: [1, 2, 4], global_batch: 4",
            "micro_batch: 8, packing: [false, true]",
        )
        .replace("rank: [2, 4, 8, 16]", "rank: 4");
    let folder = folder_with(&space);
    let folder = folder.path();
    succeeded(folder, &["search", "space.yaml"]);
    let study: Value = serde_json::from_str(&succeeded(folder, &["show", "--json"])).unwrap();
    let speed = |packing: bool| {
        let trials = study["trials"].as_array().unwrap().iter();
        let mut of_form = trials.filter(|trial| trial["params"]["packing"] == packing);
        let metrics = &of_form.next().unwrap()["state"]["metrics"];
        metrics["target_throughput"].as_f64().unwrap()
    };
    let gain = speed(true) / speed(false);
    assert!((1.3..128.0 / 50.0).contains(&gain), "{gain}");
}

#[test]
fn a_plan_says_for_which_stack_it_is() {
    let folder = folder_with(SPACE);
    let here = peft_tune(folder.path(), &["plan", "space.yaml"]);
    assert!(here.status.success());
    assert!(
        errors_of(&here).contains("the study is for trl on A100 40GB"),
        "{}",
        errors_of(&here)
    );
    let there = succeeded(
        folder.path(),
        &["plan", "space.yaml", "--stack", "trl", "--device", "A100 40GB"],
    );
    assert!(there.contains("plan for trl"), "{there}");
}

#[test]
fn what_does_not_fit_there_is_skipped_and_says_so() {
    let space = SPACE
        .replace("A100 40GB", "T4")
        .replace("global_batch: 4", "global_batch: [4, 8192]")
        + "baseline: {micro_batch: 8192, global_batch: 8192, rank: 4}\n";
    let folder = folder_with(&space);
    let folder = folder.path();
    succeeded(folder, &["search", "space.yaml"]);
    let first: Value = serde_json::from_str(&succeeded(folder, &["show", "--trial", "0", "--json"])).unwrap();
    assert_eq!(first["state"]["state"], "skipped", "{first:#}");
    let text = succeeded(folder, &["show", "--trial", "0"]);
    assert!(text.contains("predicted not to fit trl on T4: it needs "), "{text}");
}

#[test]
fn mistakes_in_a_target_are_told_before_anything_runs() {
    let of = |target: &str| SPACE.replace("target_stack: trl\ntarget_device: A100 40GB\n", target);
    let cases = [
        ("target_device: T4\n", ["space.yaml:4", "target_stack: trl"]),
        ("target_stack: megatron\n", ["space.yaml:4", "choose one of"]),
        (
            "target_stack: trl\ntarget_device: A100 48GB\n",
            ["space.yaml:5", "`A100 40GB` comes nearest"],
        ),
    ];
    for (target, parts) in cases {
        let folder = folder_with(&of(target));
        for command in [&["search", "space.yaml"][..], &["search", "space.yaml", "--dry-run"]] {
            let output = peft_tune(folder.path(), command);
            assert_eq!(output.status.code(), Some(2), "{target}: {}", errors_of(&output));
            for part in parts {
                assert!(errors_of(&output).contains(part), "{part}: {}", errors_of(&output));
            }
        }
        assert!(!folder.path().join("study.db").exists());
    }
    // A value that the tool cannot run is pointed at.
    let torchtune = of("target_stack: torchtune\ntarget_device: T4\n");
    let space = torchtune.replace("rank: [2, 4, 8, 16]", "rank: [2, 4], precision: [bf16, int8]");
    let folder = folder_with(&space);
    for command in [&["search", "space.yaml"][..], &["search", "space.yaml", "--dry-run"]] {
        let output = peft_tune(folder.path(), command);
        assert_eq!(output.status.code(), Some(2), "{}", errors_of(&output));
        for part in ["space.yaml:7", "space.precision", "torchtune cannot run", "NF4 only"] {
            assert!(errors_of(&output).contains(part), "{part}: {}", errors_of(&output));
        }
    }
    assert!(!folder.path().join("study.db").exists());
    // A program of the user's measures itself.
    let command = "study: own\ntarget_stack: trl\nbackend: {command: [run]}\nobjectives: [loss]\nspace: {x: [1, 2]}\n";
    let folder = folder_with(command);
    let output = peft_tune(folder.path(), &["search", "space.yaml", "--dry-run"]);
    assert_eq!(output.status.code(), Some(2), "{}", errors_of(&output));
    assert!(errors_of(&output).contains("target_stack"), "{}", errors_of(&output));
}

#[test]
fn without_a_device_memory_is_the_target_s_and_throughput_is_measured() {
    let folder = folder_with(&SPACE.replace("target_device: A100 40GB\n", ""));
    let output = peft_tune(folder.path(), &["search", "space.yaml", "--json"]);
    assert!(
        errors_of(&output).contains("without `target_device`"),
        "{}",
        errors_of(&output)
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["objectives"][0]["metric"], "throughput");
    assert_eq!(json["objectives"][1]["metric"], "target_peak_memory");
    assert!(json["front"][0]["metrics"]["target_throughput"].is_null());
}

#[test]
fn another_target_is_a_changed_input() {
    let folder = folder_with(SPACE);
    let folder = folder.path();
    succeeded(folder, &["search", "space.yaml"]);
    succeeded(folder, &["search", "space.yaml", "--trials", "7"]);
    let path = folder.join("space.yaml");
    std::fs::write(&path, SPACE.replace("A100 40GB", "L4")).unwrap();
    let refused = peft_tune(folder, &["search", "space.yaml", "--trials", "8"]);
    assert_eq!(refused.status.code(), Some(2));
    let said = errors_of(&refused);
    assert!(said.contains("target device `A100 40GB` to `L4` changed"), "{said}");
    std::fs::write(
        &path,
        SPACE.replace("target_stack: trl\ntarget_device: A100 40GB\n", ""),
    )
    .unwrap();
    let refused = peft_tune(folder, &["search", "space.yaml", "--trials", "8"]);
    assert!(errors_of(&refused).contains("target stack"), "{}", errors_of(&refused));
    std::fs::write(&path, SPACE.replace("A100 40GB", "L4")).unwrap();
    succeeded(
        folder,
        &["search", "space.yaml", "--trials", "8", "--accept-changed-inputs"],
    );
    let studies: Value = serde_json::from_str(&succeeded(folder, &["studies", "--json"])).unwrap();
    let devices: Vec<&Value> = studies
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["target"]["device"])
        .collect();
    assert_eq!(devices, ["A100 40GB", "L4"]);
}

/// A study of one setting, whose model is then 8 billion parameters large: an export looks at the config alone.
fn exported_from(micro_batch: u64) -> tempfile::TempDir {
    let space = format!(
        "study: own\nmodel: ./base\ndata: {{train: train.jsonl, held_out: held_out.jsonl}}\n\
         space: {{rank: [8, 16], micro_batch: {micro_batch}, global_batch: 64, gradient_checkpointing: full}}\n\
         trial: {{sequence_length: 1024}}\nconfirm: none\nbudget: {{trials: 1}}\n"
    );
    let folder = folder_with(&space);
    succeeded(folder.path(), &["search", "space.yaml"]);
    std::fs::write(folder.path().join("base/config.json"), LLAMA_8B).unwrap();
    folder
}

fn export(folder: &Path, more: &[&str]) -> Output {
    let format: &[&str] = if more.contains(&"--format") {
        &[]
    } else {
        &["--format", "trl"]
    };
    let arguments = ["export", "--trial", "0", "--output", "out", "--force"];
    peft_tune(folder, &[&arguments[..], format, more].concat())
}

fn number_in(folder: &Path, key: &str) -> u64 {
    let text = std::fs::read_to_string(folder.join("out/trl_sft.yaml")).unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(&format!("{key}: ")));
    lines.next().unwrap().trim().parse().unwrap()
}

#[test]
fn an_export_that_does_not_fit_halves_its_micro_batch_and_keeps_the_global_one() {
    let folder = exported_from(64);
    let folder = folder.path();
    let output = export(folder, &["--device", "A100 40GB"]);
    let said = errors_of(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let (rows, times) = (
        number_in(folder, "per_device_train_batch_size"),
        number_in(folder, "gradient_accumulation_steps"),
    );
    assert!(rows < 64 && rows * times == 64, "{rows} x {times}");
    let line = format!("micro-batch 64 x accumulation 1 became {rows} x {times}");
    assert_eq!(said.matches(&line).count(), 1, "{said}");
    assert!(said.contains("of A100 40GB, at about "), "{said}");

    // What is written fits: `plan --check` says the same of the file, and twice as many rows do not surely fit.
    let check = |file: &str| {
        let output = peft_tune(
            folder,
            &[
                "plan",
                "--check",
                file,
                "--device",
                "A100 40GB",
                "--json",
                "--model",
                "./base",
            ],
        );
        output.status.code()
    };
    assert_eq!(check("out/trl_sft.yaml"), Some(0));
    let text = std::fs::read_to_string(folder.join("out/trl_sft.yaml")).unwrap();
    let twice = text.replace(
        &format!("per_device_train_batch_size: {rows}"),
        &format!("per_device_train_batch_size: {}", 2 * rows),
    );
    assert_ne!(text, twice);
    std::fs::write(folder.join("twice.yaml"), twice).unwrap();
    assert!(matches!(check("twice.yaml"), Some(7 | 8)));
}

#[test]
fn strict_exports_are_refused_where_they_would_change() {
    let folder = exported_from(64);
    let folder = folder.path();
    let refused = export(folder, &["--device", "A100 40GB", "--strict"]);
    assert_eq!(refused.status.code(), Some(2), "{}", errors_of(&refused));
    assert!(
        errors_of(&refused).contains("without --strict"),
        "{}",
        errors_of(&refused)
    );
    assert!(!folder.join("out").exists(), "nothing is written");
    // Not with one row either.
    let hopeless = export(folder, &["--device", "T4"]);
    assert_eq!(hopeless.status.code(), Some(2), "{}", errors_of(&hopeless));
    assert!(
        errors_of(&hopeless).contains("not with one row at a time"),
        "{}",
        errors_of(&hopeless)
    );
    // What fits goes through, strict or not, and is left as it is.
    for more in [&["--device", "B200", "--strict"][..], &["--device", "B200"], &[]] {
        let output = export(folder, more);
        assert_eq!(output.status.code(), Some(0), "{more:?}: {}", errors_of(&output));
        assert_eq!(number_in(folder, "per_device_train_batch_size"), 64, "{more:?}");
        assert!(
            errors_of(&output).contains("trl will need about "),
            "{}",
            errors_of(&output)
        );
    }
    // Of a tool that nothing was compared with, the need is told as what it is.
    for (tool, is_told) in [("axolotl", true), ("trl", false)] {
        let output = export(folder, &["--format", tool, "--device", "B200"]);
        let said = errors_of(&output);
        assert!(said.contains(&format!("{tool} will need about ")), "{said}");
        let told = format!("what {tool} needs is predicted by an unproven model: ");
        assert_eq!(said.contains(&told), is_told, "{said}");
    }
    let aimless = export(folder, &["--strict"]);
    assert_eq!(aimless.status.code(), Some(2));
    assert!(errors_of(&aimless).contains("--device"), "{}", errors_of(&aimless));
}
