//! Trainings on several devices: the same bits as on one, whatever happens to them in between.
#![cfg(target_os = "linux")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::resume::{copy_folder, lively, lively_settings};
use super::{Workplace, adapter_bytes, column};

/// The lively training, with so many devices that share six micro-batches.
fn shared(devices: usize, changes: &[(&'static str, &'static str)]) -> Workplace {
    placed(devices, "none", changes)
}

/// Makes a workplace for so many devices, with so much of the weights on each.
fn placed(devices: usize, sharding: &str, changes: &[(&'static str, &'static str)]) -> Workplace {
    let place = lively();
    let batch = format!(
        "{{micro_batch: 1, gradient_accumulation: {}, devices: {devices}, sharding: {sharding}, sequence_length: 256}}",
        6 / devices
    );
    let mut settings = lively_settings().to_vec();
    for change in changes {
        settings.retain(|(key, _)| *key != change.0);
    }
    settings.extend(changes);
    settings.push(("batch", &batch));
    place.write_recipe(&settings);
    place
}

/// Numbers that a training tells and that no clock decides.
fn told(lines: &[Value]) -> Vec<Vec<f64>> {
    [
        ("step", "loss"),
        ("step", "grad_norm"),
        ("step", "tokens"),
        ("evaluation", "held_out_loss"),
        ("evaluation", "held_out_accuracy"),
    ]
    .map(|(event, key)| column(lines, event, key))
    .to_vec()
}

/// A training that runs, and of which so many steps were printed.
fn begun(place: &Workplace, steps: usize, arguments: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut command = place.command(arguments);
    crate::signals::heeds_signals(&mut command);
    let mut child = command
        .args(["--json", "--checkpoint-every", "1"])
        .env("PEFT_TUNE_RANK_PATIENCE_S", "5")
        // As a shell does it, so that a signal can go to the whole group.
        .process_group(0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    for _ in 0..steps {
        lines.next().unwrap();
    }
    (child, lines)
}

/// The other ranks of a training.
fn ranks_of(child: &Child) -> Vec<i32> {
    let is_rank = |id: &i32| {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).unwrap_or_default();
        read("status").contains(&format!("PPid:\t{}\n", child.id())) && read("cmdline").contains("\0rank\0")
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let ids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(is_rank).collect()
}

fn signal(id: i32, signal: i32) {
    // SAFETY: sends a signal to processes that this test started.
    assert_eq!(unsafe { libc::kill(id, signal) }, 0);
}

fn wait_until_gone(ranks: &[i32]) {
    let began = Instant::now();
    while ranks
        .iter()
        .any(|id| std::fs::exists(format!("/proc/{id}/cmdline")).unwrap())
    {
        assert!(began.elapsed() < Duration::from_secs(20), "ranks are left over");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How a training ended to whose rank 1 something was done in its midst, and what it printed on standard error.
fn disturbed(place: &Workplace, output: &str, disturb: fn(i32)) -> (Option<i32>, String) {
    let (child, lines) = begun(place, 4, &["--output", output]);
    let ranks = ranks_of(&child);
    assert_eq!(ranks.len(), 1);
    disturb(ranks[0]);
    drop(lines);
    let Output { status, stderr, .. } = child.wait_with_output().unwrap();
    wait_until_gone(&ranks);
    (status.code(), String::from_utf8(stderr).unwrap())
}

#[test]
fn ranks_end_in_the_bits_of_one_device() {
    let averaged = "{kind: adamw_schedulefree, learning_rate: 1e-2, max_grad_norm: 0.5, weight_decay: 0.1}";
    let cases = [
        (2, "none", [].as_slice()),
        (3, "none", &[("optimizer", averaged)]),
        (3, "full", &[]),
    ];
    for (devices, sharding, changes) in cases {
        let place = placed(devices, sharding, changes);
        let several = place.train(&["--output", "several"]);
        let one = place.train(&["--output", "one", "--device", "cpu"]);
        assert_eq!(column(&one, "step", "loss").len(), 14);
        assert_eq!(told(&several), told(&one), "{devices} ranks");
        for folder in ["", "best"] {
            let bytes = |name: &str| adapter_bytes(&place.path(name).join(folder));
            assert_eq!(bytes("several"), bytes("one"), "{devices} ranks");
        }
    }
}

#[test]
fn what_computes_is_said() {
    let place = shared(2, &[("training", "{length: {steps: 1}}")]);
    let messages = |arguments: &[&str]| {
        let output = place.command(arguments).output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let message = messages(&["--output", "two"]);
    assert!(
        message.contains("training on 2 devices (cpu, cpu), 1 thread each"),
        "{message}"
    );
    let message = messages(&["--output", "one", "--devices", "cpu"]);
    assert!(
        message.contains("`devices` is 2, and `--devices` names cpu alone: it computes the shares of all"),
        "{message}"
    );
    let message = place.refused(2, &["--output", "none", "--devices", "0,1,2"]);
    assert!(
        message.contains("`--devices` names 3 devices, and `batch.devices` in the recipe is 2"),
        "{message}"
    );
    assert!(!place.path("none").exists());
}

#[test]
fn ctrl_c_ends_all_ranks_and_any_number_of_devices_goes_on() {
    let place = shared(2, &[("training", "{length: {steps: 60}, evaluate_every: 25, seed: 5}")]);
    let whole = place.train(&["--output", "whole"]);
    let (child, lines) = begun(&place, 3, &["--output", "parts"]);
    let ranks = ranks_of(&child);
    assert_eq!(ranks.len(), 1);
    // As a terminal does it: all processes of the group get it.
    signal(-i32::try_from(child.id()).unwrap(), libc::SIGINT);
    assert!(lines.last().unwrap().contains("\"interrupted\""));
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{message}");
    wait_until_gone(&ranks);
    copy_folder(&place.path("parts"), &place.path("alone"));
    for arguments in [
        ["--output", "parts", "--resume"].as_slice(),
        &["--output", "alone", "--resume", "--device", "cpu"],
    ] {
        let rest = place.train(arguments);
        let first = rest[0]["step"].as_u64().unwrap() as usize;
        assert!((4..60).contains(&first), "{first}");
        assert_eq!(
            column(&rest, "step", "loss"),
            column(&whole, "step", "loss")[first - 1..]
        );
        for folder in ["", "best"] {
            let bytes = |name: &str| adapter_bytes(&place.path(name).join(folder));
            assert_eq!(bytes(arguments[1]), bytes("whole"));
        }
    }
}

#[test]
fn a_rank_that_is_killed_is_named_and_the_rest_is_trained_from_the_last_checkpoint() {
    let place = shared(2, &[("training", "{length: {steps: 40}, seed: 5}")]);
    let whole = place.train(&["--output", "whole"]);
    let (code, message) = disturbed(&place, "killed", |rank| signal(rank, libc::SIGKILL));
    assert_eq!(code, Some(1), "{message}");
    let error = message.lines().find(|line| line.starts_with("error: ")).unwrap();
    assert!(
        error.contains("rank 1 of 2: its process was killed (signal 9)"),
        "{message}"
    );
    assert!(
        error.contains("--resume` continues from killed/checkpoints/step-"),
        "{message}"
    );
    assert!(!place.path("killed/adapter_model.safetensors").exists());
    // And where the training's own process is killed, which ends the other.
    let (mut child, _) = begun(&place, 4, &["--output", "gone"]);
    let ranks = ranks_of(&child);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until_gone(&ranks);
    for name in ["killed", "gone"] {
        let rest = place.train(&["--output", name, "--resume"]);
        let first = rest[0]["step"].as_u64().unwrap() as usize;
        assert!((4..40).contains(&first), "{first}");
        assert_eq!(
            column(&rest, "step", "loss"),
            column(&whole, "step", "loss")[first - 1..]
        );
        assert_eq!(adapter_bytes(&place.path(name)), adapter_bytes(&place.path("whole")));
    }
}

#[test]
fn a_rank_that_hangs_is_named() {
    let place = shared(2, &[("training", "{length: {steps: 100000}, seed: 5}")]);
    let (code, message) = disturbed(&place, "hangs", |rank| signal(rank, libc::SIGSTOP));
    assert_eq!(code, Some(1), "{message}");
    assert!(
        message.contains("error: rank 1 of 2 has not arrived within 5 s"),
        "{message}"
    );
    assert!(
        message.contains("--resume` continues from hangs/checkpoints/step-"),
        "{message}"
    );
}

#[test]
fn a_whole_model_is_trained_by_ranks_too() {
    let settings = [
        ("adapter", "null"),
        ("optimizer", "{kind: sgd, learning_rate: 0.05, momentum: 0.9}"),
        ("training", "{length: {steps: 4}, seed: 5}"),
    ];
    let place = shared(2, &settings);
    let several = place.train(&["--output", "several", "--checkpoint-every", "2"]);
    let one = place.train(&["--output", "one", "--device", "cpu"]);
    assert_eq!(told(&several), told(&one));
    let weights = |name: &str| std::fs::read(place.path(name).join("model.safetensors")).unwrap();
    assert!(weights("several") == weights("one"));
    copy_folder(&place.path("several"), &place.path("parts"));
    std::fs::remove_file(place.path("parts/result.json")).unwrap();
    std::fs::remove_dir_all(place.path("parts/checkpoints/step-00000004")).unwrap();
    assert_eq!(
        column(&place.train(&["--output", "parts", "--resume"]), "step", "step"),
        [3.0, 4.0]
    );
    assert!(weights("parts") == weights("one"));
}
