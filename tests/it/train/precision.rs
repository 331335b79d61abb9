//! Trainings whose precision changes on their way.

use super::resume::{copy_folder, lively, lively_settings};
use super::{Workplace, adapter_bytes, column, lines};

/// `lively`, in 16 bits with this schedule.
fn scheduled(precision: &str, schedule: &str) -> Workplace {
    let place = lively();
    write(&place, precision, schedule);
    place
}

fn write(place: &Workplace, precision: &str, schedule: &str) {
    place.write_recipe(&lively_settings());
    let path = place.path("recipe.yaml");
    let recipe = std::fs::read_to_string(&path).unwrap();
    let changed = recipe.replace(
        "precision: fp32\n",
        &format!("precision: {precision}\nprecision_schedule: {schedule}\n"),
    );
    assert_ne!(recipe, changed);
    std::fs::write(path, changed).unwrap();
}

/// Precisions that the steps computed in.
fn precisions(lines: &[serde_json::Value]) -> Vec<String> {
    let steps = lines.iter().filter(|line| line["event"] == "step");
    steps
        .map(|line| line["precision"].as_str().unwrap().to_owned())
        .collect()
}

/// Resumes a copy of `whole` from the checkpoint of step `from`.
fn resumed(place: &Workplace, name: &str, from: u64) -> Vec<serde_json::Value> {
    copy_folder(&place.path("whole"), &place.path(name));
    std::fs::remove_file(place.path(name).join("result.json")).unwrap();
    for step in 1..=14 {
        let checkpoint = place.path(name).join(format!("checkpoints/step-{step:08}"));
        if step > from && checkpoint.is_dir() {
            std::fs::remove_dir_all(checkpoint).unwrap();
        }
    }
    place.train(&["--output", name, "--resume"])
}

#[test]
fn a_training_resumes_before_and_behind_the_switch_to_the_same_bits() {
    for (precision, schedule) in [
        ("bf16", "fp32_5"),
        ("fp16", "fp32_5"),
        ("bf16", "adaptive_4"),
        ("fp16", "adaptive_4"),
    ] {
        let place = scheduled(precision, schedule);
        let whole = place.train(&[
            "--output",
            "whole",
            "--checkpoint-every",
            "3",
            "--keep-checkpoints",
            "9",
        ]);
        let computed = precisions(&whole);
        assert_eq!(computed[0], "fp32");
        if schedule == "fp32_5" {
            assert_eq!(computed.iter().filter(|one| *one == "fp32").count(), 5);
            assert!(computed[5..].iter().all(|one| one == precision));
        }
        for from in [3, 6, 9] {
            let rest = resumed(&place, &format!("from-{from}"), from);
            let said = format!("{precision} {schedule} from {from}");
            let from = from as usize;
            assert_eq!(
                column(&rest, "step", "loss"),
                column(&whole, "step", "loss")[from..],
                "{said}"
            );
            assert_eq!(precisions(&rest), computed[from..], "{said}");
            assert_eq!(
                adapter_bytes(&place.path(&format!("from-{from}"))),
                adapter_bytes(&place.path("whole")),
                "{said}"
            );
            let decisions = |lines: &[serde_json::Value]| lines.last().unwrap()["precision_decisions"].clone();
            assert_eq!(decisions(&rest), decisions(&whole), "{said}");
        }
    }
}

#[test]
fn what_was_decided_is_in_the_record() {
    let place = scheduled("bf16", "adaptive_4");
    let told = place.train(&["--output", "out", "--log-every", "100"]);
    let decisions = told.last().unwrap()["precision_decisions"].as_array().unwrap().clone();
    let steps: Vec<u64> = decisions.iter().map(|one| one["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [4, 8, 12]);
    for decision in &decisions {
        let step = told.iter().find(|line| line["step"] == decision["step"]).unwrap();
        assert_eq!(step["precision_decision"]["cause"], decision["cause"]);
        assert!(decision["step_targets"].as_f64().unwrap() > 0.0);
    }
    let result: serde_json::Value =
        serde_json::from_slice(&std::fs::read(place.path("out/result.json")).unwrap()).unwrap();
    assert_eq!(result["precision_decisions"], serde_json::Value::Array(decisions));
}

#[test]
fn the_switch_is_told_to_people() {
    let place = scheduled("bf16", "fp32_5");
    let output = place.command(&["--output", "out"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{message}");
    assert!(
        message.contains("step 5: from here on in bf16 (as the recipe says)"),
        "{message}"
    );
}

#[test]
fn ranks_switch_together() {
    let place = scheduled("bf16", "adaptive_4");
    let run = |devices: u32, name: &str| {
        let path = place.path("recipe.yaml");
        let recipe = std::fs::read_to_string(&path).unwrap();
        let batch = recipe.lines().find(|line| line.starts_with("batch:")).unwrap();
        let accumulation = 2 / devices;
        let changed = recipe.replace(
            batch,
            &format!("batch: {{micro_batch: 2, gradient_accumulation: {accumulation}, devices: {devices}, sequence_length: 256}}"),
        );
        std::fs::write(path, changed).unwrap();
        let output = place.command(&["--output", name, "--json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        lines(&output.stdout)
    };
    let (one, two) = (run(1, "one"), run(2, "two"));
    assert_eq!(precisions(&one), precisions(&two));
}

#[test]
fn schedules_that_cannot_be_are_refused() {
    for (precision, schedule, said) in [
        ("bf16", "fp32_14", "has 14 steps: no step would compute in bf16"),
        ("fp16", "adaptive_20", "has 14 steps: no step would compute in fp16"),
        ("fp32", "adaptive_4", "fp32 computes all steps in fp32 already"),
        ("nf4", "fp32_4", "nf4 rounds the weights far more"),
        ("int8", "adaptive_4", "int8 rounds the weights far more"),
        ("bf16", "fp32_0", "precision_schedule"),
        ("bf16", "warm", "precision_schedule"),
    ] {
        let place = scheduled(precision, schedule);
        let message = place.refused(2, &["--output", "out"]);
        assert!(message.contains(said), "{message}");
        assert!(
            message.contains("recipe.yaml") && message.contains("precision_schedule"),
            "{message}"
        );
    }
    // The length is known from the data only.
    let place = scheduled("bf16", "fp32_400");
    let path = place.path("recipe.yaml");
    let recipe = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, recipe.replace("length: {steps: 14}", "length: {epochs: 2.0}")).unwrap();
    let message = place.refused(2, &["--output", "out"]);
    assert!(message.contains("is as long as the training or longer"), "{message}");
}
