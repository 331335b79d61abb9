//! Going on from checkpoints.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use super::{Workplace, adapter_bytes, adapter_of, column};

/// Eight rows in random order with dropout, clipping and a schedule, so that everything which could be lost would show.
pub(super) fn lively() -> Workplace {
    let place = Workplace::new(&lively_settings());
    let rows = std::fs::read_to_string(place.path("rows.jsonl")).unwrap();
    let rows: Vec<&str> = rows.lines().collect();
    let mut more = String::new();
    for shift in 0..4 {
        for row in &rows {
            let mut row: serde_json::Value = serde_json::from_str(row).unwrap();
            let ids: Vec<u64> = row["input_ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap())
                .collect();
            let shifted: Vec<u64> = ids.iter().skip(shift).map(|id| (id + 7 * shift as u64) % 512).collect();
            row = serde_json::json!({"input_ids": shifted});
            more += &format!("{row}\n");
        }
    }
    std::fs::write(place.path("rows.jsonl"), more).unwrap();
    place
}

pub(super) fn lively_settings() -> [(&'static str, &'static str); 4] {
    let adapter: &'static str = adapter_of("ref_llama/adapter_init", "dropout: 0.2").leak();
    [
        ("adapter", adapter),
        (
            "optimizer",
            "{kind: adamw, learning_rate: 1e-2, max_grad_norm: 0.5, weight_decay: 0.1}",
        ),
        ("schedule", "{kind: cosine, warmup: 3}"),
        ("training", "{length: {steps: 14}, evaluate_every: 4, seed: 5}"),
    ]
}

/// Stops a training by SIGINT once it has printed `steps` steps; what it printed on standard error.
#[cfg(unix)]
fn interrupted(place: &Workplace, steps: usize, arguments: &[&str]) -> (i32, String) {
    let mut command = place.command(arguments);
    crate::signals::heeds_signals(&mut command);
    let mut child = command
        .arg("--json")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..steps {
        lines.next().unwrap().unwrap();
    }
    let killed = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    let output = child.wait_with_output().unwrap();
    assert!(rest.last().unwrap().contains("\"interrupted\""), "{rest:?}");
    (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn averaged_values_are_what_is_kept_and_gone_on_from() {
    let place = lively();
    let mut settings = lively_settings();
    settings[1].1 = "{kind: adamw_schedulefree, learning_rate: 1e-2, max_grad_norm: 0.5, weight_decay: 0.1}";
    place.write_recipe(&settings);
    let arguments = ["--checkpoint-every", "5", "--keep-checkpoints", "9"];
    let whole = place.train(&[&["--output", "whole"], &arguments[..]].concat());
    copy_folder(&place.path("whole"), &place.path("parts"));
    std::fs::remove_file(place.path("parts/result.json")).unwrap();
    std::fs::remove_dir_all(place.path("parts/checkpoints/step-00000014")).unwrap();
    let rest = place.train(&["--output", "parts", "--resume"]);
    assert_eq!(column(&rest, "step", "loss"), column(&whole, "step", "loss")[10..]);
    let evaluations = column(&whole, "evaluation", "held_out_loss");
    assert!(evaluations.ends_with(&column(&rest, "evaluation", "held_out_loss")));
    assert_eq!(adapter_bytes(&place.path("parts")), adapter_bytes(&place.path("whole")));
}

#[test]
fn a_training_goes_on_with_its_updates_elsewhere_to_the_same_bits() {
    let place = lively();
    let mut settings = lively_settings();
    for (kind, clips) in [("adamw", "0.5"), ("adamw_8bit", "null"), ("muon", "0.5")] {
        let optimizer = |more: &str| {
            let constants = format!("learning_rate: 1e-2, max_grad_norm: {clips}, weight_decay: 0.1{more}");
            format!("{{kind: {kind}, {constants}}}").leak() as &'static str
        };
        for (first, then) in [("", ", offload: host"), (", offload: host", "")] {
            settings[1].1 = optimizer(first);
            place.write_recipe(&settings);
            let arguments = ["--checkpoint-every", "5", "--keep-checkpoints", "9", "--force"];
            let whole = place.train(&[&["--output", "whole"], &arguments[..]].concat());
            std::fs::remove_dir_all(place.path("parts")).ok();
            copy_folder(&place.path("whole"), &place.path("parts"));
            std::fs::remove_file(place.path("parts/result.json")).unwrap();
            std::fs::remove_dir_all(place.path("parts/checkpoints/step-00000014")).unwrap();
            settings[1].1 = optimizer(then);
            place.write_recipe(&settings);
            let rest = place.train(&["--output", "parts", "--resume"]);
            assert_eq!(
                column(&rest, "step", "loss"),
                column(&whole, "step", "loss")[10..],
                "{kind}{first}"
            );
            assert_eq!(adapter_bytes(&place.path("parts")), adapter_bytes(&place.path("whole")));
        }
    }
}

#[cfg(unix)]
#[test]
fn an_interrupted_training_goes_on_to_the_same_bits() {
    let place = lively();
    // Long enough that the signal comes before the end.
    let long = "{length: {steps: 400}, evaluate_every: 150, seed: 5}";
    let mut settings = lively_settings();
    settings[3].1 = long;
    place.write_recipe(&settings);
    let whole = place.train(&["--output", "whole"]);
    let (code, message) = interrupted(&place, 3, &["--output", "parts"]);
    assert_eq!(code, 130, "{message}");
    assert!(
        message.contains("`peft-tune train recipe.yaml") && message.contains(" --resume` continues"),
        "{message}"
    );
    let rest = place.train(&["--output", "parts", "--resume"]);
    let first = rest[0]["step"].as_u64().unwrap() as usize;
    assert!((4..400).contains(&first), "{first}");
    assert_eq!(
        column(&rest, "step", "loss"),
        column(&whole, "step", "loss")[first - 1..]
    );
    assert_eq!(adapter_bytes(&place.path("parts")), adapter_bytes(&place.path("whole")));
    assert_eq!(
        adapter_bytes(&place.path("parts/best")),
        adapter_bytes(&place.path("whole/best"))
    );
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let place = lively();
    let whole = place.train(&[
        "--output",
        "whole",
        "--checkpoint-every",
        "3",
        "--keep-checkpoints",
        "9",
    ]);
    for (name, broken) in [
        ("cut", "adapter_model.safetensors"),
        ("gone", "optimizer.safetensors"),
        ("state", "state.json"),
    ] {
        copy_folder(&place.path("whole"), &place.path(name));
        std::fs::remove_file(place.path(name).join("result.json")).unwrap();
        std::fs::remove_dir_all(place.path(name).join("checkpoints/step-00000014")).unwrap();
        let file = place.path(name).join("checkpoints/step-00000012").join(broken);
        match name {
            "gone" => std::fs::remove_file(file).unwrap(),
            _ => {
                let bytes = std::fs::read(&file).unwrap();
                std::fs::write(&file, &bytes[..bytes.len() - 9]).unwrap();
            }
        }
        let output = place
            .command(&["--output", name, "--resume", "--json"])
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("step-00000012 is damaged and skipped"), "{message}");
        assert!(message.contains("continuing after step 9 from"), "{message}");
        assert_eq!(
            column(&super::lines(&output.stdout), "step", "loss"),
            column(&whole, "step", "loss")[9..]
        );
        assert_eq!(adapter_bytes(&place.path(name)), adapter_bytes(&place.path("whole")));
    }
}

#[test]
fn full_fine_tuning_goes_on_to_the_same_bits() {
    let settings = [
        ("adapter", "null"),
        ("optimizer", "{kind: sgd, learning_rate: 0.05, momentum: 0.9}"),
        ("training", "{length: {steps: 6}, seed: 5}"),
    ];
    let place = Workplace::new(&settings);
    place.train(&[
        "--output",
        "whole",
        "--checkpoint-every",
        "4",
        "--keep-checkpoints",
        "9",
    ]);
    copy_folder(&place.path("whole"), &place.path("parts"));
    std::fs::remove_file(place.path("parts/result.json")).unwrap();
    std::fs::remove_file(place.path("parts/model.safetensors")).unwrap();
    std::fs::remove_dir_all(place.path("parts/checkpoints/step-00000006")).unwrap();
    let rest = place.train(&["--output", "parts", "--resume"]);
    assert_eq!(column(&rest, "step", "step"), [5.0, 6.0]);
    let weights = |name: &str| std::fs::read(place.path(name).join("model.safetensors")).unwrap();
    assert!(weights("parts") == weights("whole"));
}

#[test]
fn the_initial_adapter_is_not_needed_any_more() {
    let place = lively();
    let start = place.path("start");
    copy_folder(&crate::golden::folder("ref_llama/adapter_init"), &start);
    let mut settings = lively_settings();
    settings[0].1 = "{rank: 8, alpha: 16, adapter_init: start}";
    place.write_recipe(&settings);
    place.train(&["--output", "out", "--checkpoint-every", "5", "--keep-checkpoints", "9"]);
    std::fs::remove_file(place.path("out/result.json")).unwrap();
    std::fs::remove_dir_all(place.path("out/checkpoints/step-00000014")).unwrap();
    std::fs::remove_file(start.join("adapter_model.safetensors")).unwrap();
    assert_eq!(
        column(&place.train(&["--output", "out", "--resume"]), "step", "step").len(),
        4
    );
}

#[test]
fn another_recipe_is_refused_by_its_first_difference() {
    let place = lively();
    place.train(&["--output", "out"]);
    let mut settings = lively_settings();
    settings[1].1 = "{kind: adamw, learning_rate: 2e-2, max_grad_norm: 0.5, weight_decay: 0.1}";
    place.write_recipe(&settings);
    let message = place.refused(2, &["--output", "out", "--resume"]);
    assert!(
        message.contains("`optimizer.learning_rate` was 0.01 and is 0.02"),
        "{message}"
    );
    place.write_recipe(&lively_settings());
    let rows = std::fs::read_to_string(place.path("rows.jsonl")).unwrap();
    std::fs::write(place.path("rows.jsonl"), rows.replace("[", "[1,")).unwrap();
    let first = place.refused(2, &["--output", "out", "--resume"]);
    assert!(first.contains("was started with other data"), "{first}");
}

#[test]
fn a_training_that_is_over_says_so() {
    let place = lively();
    place.train(&["--output", "out"]);
    let before = adapter_bytes(&place.path("out"));
    let output = place.command(&["--output", "out", "--resume"]).output().unwrap();
    assert!(output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("already holds this training, and it has ended"),
        "{message}"
    );
    assert_eq!(adapter_bytes(&place.path("out")), before);
}

#[test]
fn a_folder_in_use_is_refused_unless_told_otherwise() {
    let place = lively();
    std::fs::create_dir(place.path("out")).unwrap();
    std::fs::write(place.path("out/mine.txt"), "keep").unwrap();
    let message = place.refused(2, &["--output", "out"]);
    assert!(message.contains("is not empty; give `--resume`"), "{message}");
    let message = place.refused(2, &["--output", "out", "--resume"]);
    assert!(message.contains("holds no training to resume"), "{message}");
    place.train(&["--output", "out", "--force"]);
    let first = adapter_bytes(&place.path("out"));
    place.train(&["--output", "out", "--force"]);
    assert_eq!(adapter_bytes(&place.path("out")), first);
    assert_eq!(std::fs::read_to_string(place.path("out/mine.txt")).unwrap(), "keep");
    // Nothing to continue from is a beginning.
    assert_eq!(
        column(&place.train(&["--output", "new", "--resume"]), "step", "step").len(),
        14
    );
}

#[test]
fn the_models_own_folder_is_no_output() {
    let place = Workplace::new(&[("model", "model"), ("adapter", "null")]);
    copy_folder(&crate::golden::folder("ref_llama/model"), &place.path("model"));
    let message = place.refused(2, &["--output", "model", "--force"]);
    assert!(
        message.contains("is the directory of the model that is trained"),
        "{message}"
    );
}

pub(super) fn copy_folder(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => copy_folder(&path, &target),
            false => drop(std::fs::copy(&path, &target).unwrap()),
        }
    }
}
