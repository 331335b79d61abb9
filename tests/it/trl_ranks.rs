//! Trials in TRL on several devices. A launcher starts their ranks, as PyTorch's does; all that is no stand-in is real.
//! `scripts/peers/trl_worker.py` does the same with PyTorch and TRL themselves, whose ranks are linked by gloo.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::faults::bench::{Bench, Finished, SPACE, children, messages, signal};
use crate::trl_backend::{Worker, assert_all_end, complete_at, faulty, has_python, outcome, search};
use crate::trl_preferences::{labelled, pairs};

/// The quickstart's model.
const BASE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/search_spaces/quickstart/base");

/// Rows of a step on so many devices.
fn batch(devices: u64, gradient_accumulation: u64) -> Value {
    json!({"micro_batch": 2, "gradient_accumulation": gradient_accumulation, "devices": devices, "sequence_length": 64})
}

/// Processes below one, children of children too.
fn below(process: u32) -> Vec<u32> {
    let own = children(process).into_iter().map(|(child, _)| child);
    own.flat_map(|child| [vec![child], below(child)].concat()).collect()
}

/// A worker that was greeted.
fn greeted(variables: &[(&str, &str)]) -> Worker {
    let mut worker = Worker::start_with(variables);
    let protocol = worker.hear_until("hello")["protocol"].as_u64().unwrap();
    worker.greet(protocol);
    worker
}

/// Hands a trial over, and lets it measure when it wants to.
fn begin(worker: &mut Worker, number: u64, steps: u64, batch: &Value) {
    worker.trial_of(number, steps, batch);
    let_measure(worker, number);
}

fn let_measure(worker: &mut Worker, number: u64) {
    worker.hear_until("ready_to_measure");
    worker.say(&json!({"request": "measure", "number": number}));
}

/// What a trial told.
struct Told {
    /// Numbers of each step of the training.
    steps: Vec<Value>,
    evaluation: Value,
    /// Losses of the rows of that evaluation, where they are told.
    rows: Value,
    ended: Value,
}

/// Runs a trial of four steps to its end.
fn run(worker: &mut Worker, number: u64, batch: &Value) -> Told {
    begin(worker, number, 4, batch);
    hear_out(worker)
}

/// Hears of a trial under way to its end.
fn hear_out(worker: &mut Worker) -> Told {
    let (mut steps, mut evaluation, mut rows) = (Vec::new(), Value::Null, Value::Null);
    loop {
        let mut message = worker.hear().expect("a trial ends");
        if message["event"] == "step" && message["phase"] == "train" {
            message["step"].as_object_mut().unwrap().remove("seconds");
            steps.push(message["step"].take());
        } else if message["event"] == "evaluation" {
            message["evaluation"].as_object_mut().unwrap().remove("seconds");
            evaluation = message["evaluation"].take();
            rows = message["rows"].take();
        } else if message["event"] == "ended" {
            return Told {
                steps,
                evaluation,
                rows,
                ended: message,
            };
        }
    }
}

#[test]
fn two_devices_train_as_one_with_twice_the_micro_batches() {
    if !has_python() {
        return;
    }
    let mut worker = greeted(&[]);
    let one = run(&mut worker, 1, &batch(1, 2));
    assert_eq!(below(worker.child.id()).len(), 0);
    let two = run(&mut worker, 2, &batch(2, 1));
    // Losses are means over all target tokens, and rows are evaluated once each.
    assert_eq!((two.steps.len(), &two.steps), (4, &one.steps));
    assert_eq!(two.evaluation, one.evaluation);
    let metric = |told: &Told, name: &str| told.ended["state"]["metrics"][name].as_f64().unwrap();
    for name in ["train_tokens", "peak_memory", "base_memory_bytes", "loss_before"] {
        assert_eq!(metric(&two, name).to_bits(), metric(&one, name).to_bits(), "{name}");
    }
    assert!(metric(&two, "throughput") > 0.0);
    // A launcher and two ranks stay for the next trial on as many devices, and for no other one.
    let ranks = below(worker.child.id());
    assert_eq!(ranks.len(), 3);
    assert_eq!(run(&mut worker, 3, &batch(2, 1)).steps, one.steps);
    assert_eq!(below(worker.child.id()), ranks);
    assert_eq!(run(&mut worker, 4, &batch(3, 1)).steps.len(), 4);
    assert_eq!(below(worker.child.id()).len(), 4);
    assert_eq!(run(&mut worker, 5, &batch(1, 2)).steps, one.steps);
    assert_eq!(below(worker.child.id()).len(), 0);
    worker.say(&json!({"request": "stop"}));
    worker.hear_until("bye");
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
}

/// Writes rows to train on and so many held out, and returns the data of a recipe that reads them.
fn data_of(folder: &Path, rows: &[Value], held_out: usize, format: &str) -> Value {
    let (held_out, train) = rows.split_at(held_out);
    let write = |name: &str, rows: &[Value]| {
        let lines: Vec<String> = rows.iter().map(Value::to_string).collect();
        let path = folder.join(name);
        std::fs::write(&path, lines.join("\n")).unwrap();
        path
    };
    json!({
        "train": write("train.jsonl", train), "held_out": write("held_out.jsonl", held_out), "format": format,
    })
}

#[test]
fn answers_are_compared_on_two_devices_as_on_one() {
    if !has_python() {
        return;
    }
    for (trainer, rows, format) in [
        ("dpo", pairs(), "preference"),
        ("orpo", pairs(), "preference"),
        ("kto", labelled(), "unpaired_preference"),
    ] {
        let folder = crate::folders::for_database();
        let data = data_of(folder.path(), &rows, 8, format);
        let mut worker = greeted(&[]);
        let mut run = |number: u64, batch: &Value, reference: &str| {
            let recipe = json!({
                "model": BASE, "data": data, "adapter": {"rank": 8}, "precision": "fp32", "batch": batch, "trainer": trainer,
                "reference": reference,
            });
            worker.trial_with(number, 4, &recipe);
            let_measure(&mut worker, number);
            hear_out(&mut worker)
        };
        let one = run(1, &batch(1, 2), "each_step");
        let metric = |told: &Told, name: &str| told.ended["state"]["metrics"][name].as_f64().unwrap();
        for (number, reference) in [(2, "each_step"), (3, "precomputed")] {
            let two = run(number, &batch(2, 1), reference);
            assert_eq!(two.steps.len(), 4, "{trainer}: {}", two.ended);
            for name in ["train_tokens", "loss_before"] {
                assert_eq!(
                    metric(&two, name).to_bits(),
                    metric(&one, name).to_bits(),
                    "{trainer}: {name}"
                );
            }
            let loss = |told: &Told| told.evaluation["loss"].as_f64().unwrap();
            if trainer == "kto" {
                // The drift that is taken off is that of all ranks' micro-batches.
                assert!(
                    (loss(&two) - loss(&one)).abs() < 0.01,
                    "{} {}",
                    two.evaluation,
                    one.evaluation
                );
            } else {
                assert_eq!(
                    (&two.steps, &two.evaluation),
                    (&one.steps, &one.evaluation),
                    "{trainer}"
                );
            }
        }
        drop(worker.child.stdin.take());
        worker.child.wait().unwrap();
    }
}

/// Rows that are held out for an evaluation that ends early, and nats by which its rival is better on each.
const HELD_OUT: usize = 20;
const BETTER_BY: f64 = 0.2;

/// The training with these losses of rows, but for `BETTER_BY` better on each target token.
fn better(told: &Told) -> Value {
    let numbers = |name: &str| -> Vec<f64> {
        let column = told.rows[name].as_array().expect("losses of all rows are told");
        column.iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let (losses, targets) = (numbers("losses"), numbers("target_tokens"));
    assert_eq!((losses.len(), targets.len()), (HELD_OUT, losses.len()));
    let losses: Vec<f64> = losses
        .iter()
        .zip(&targets)
        .map(|(loss, count)| loss - BETTER_BY * count)
        .collect();
    let loss = told.evaluation["loss"].as_f64().unwrap() - BETTER_BY;
    json!({"rival": {"loss": loss, "rows": {"target_tokens": told.rows["target_tokens"], "losses": losses}}})
}

#[test]
fn an_evaluation_ends_early_on_all_ranks_at_once_with_the_loss_over_all_rows() {
    if !has_python() {
        return;
    }
    let folder = crate::folders::for_database();
    let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/search_spaces/quickstart");
    let of_texts = json!({"train": format!("{assets}/train.jsonl"), "held_out": format!("{assets}/held_out.jsonl")});
    let of_rows = |name: &str, rows: &[Value], format: &str| {
        let folder = folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        data_of(&folder, rows, HELD_OUT, format)
    };
    for (trainer, data) in [
        ("sft", of_texts),
        ("dpo", of_rows("pairs", &pairs(), "preference")),
        ("kto", of_rows("labelled", &labelled(), "unpaired_preference")),
    ] {
        let mut worker = greeted(&[]);
        let mut run = |number: u64, devices: u64, pairing: &Value| {
            let recipe = json!({
                "model": BASE, "data": data, "adapter": {"rank": 8}, "precision": "fp32", "batch": batch(devices, 1),
                "trainer": trainer,
            });
            worker.trial_beside(number, 4, &recipe, HELD_OUT, pairing);
            let_measure(&mut worker, number);
            hear_out(&mut worker)
        };
        for (number, devices) in [(1, 2), (3, 1)] {
            let whole = run(number, devices, &json!({}));
            let part = run(number + 1, devices, &better(&whole));
            assert_eq!(part.steps, whole.steps, "{trainer} on {devices}: {}", part.ended);
            assert!(part.rows.is_null(), "{trainer} on {devices}: {}", part.rows);
            let metric = |told: &Told, name: &str| told.ended["state"]["metrics"][name].as_f64();
            assert_eq!(metric(&whole, "loss_rows"), None, "{trainer} on {devices}");
            // It looks after 16 rows, and micro-batches have two.
            let rows = ["loss_rows", "loss_rows_in_all"].map(|name| metric(&part, name));
            assert_eq!(rows, [Some(16.0), Some(20.0)], "{trainer} on {devices}: {}", part.ended);
            // On each row the trial is as much worse, so that its loss is the one over all rows.
            let losses = [&whole, &part].map(|told| metric(told, "loss").unwrap());
            assert!(
                (losses[0] - losses[1]).abs() < 1e-5,
                "{trainer} on {devices}: {losses:?}"
            );
        }
        assert_eq!(below(worker.child.id()).len(), 0, "{trainer}");
        drop(worker.child.stdin.take());
        worker.child.wait().unwrap();
    }
}

#[test]
fn holds_and_cancellations_reach_the_ranks() {
    if !has_python() {
        return;
    }
    let mut worker = greeted(&[("STAND_IN_STEP_S", "0.02")]);
    begin(&mut worker, 3, 100_000, &batch(2, 1));
    worker.hear_until("measured");
    worker.say(&json!({"request": "hold", "turn": 7}));
    assert_eq!(worker.hear_until("held")["turn"], 7);
    worker.say(&json!({"request": "resume"}));
    worker.hear_until("step");
    worker.say(&json!({"request": "cancel", "number": 3}));
    let ended = worker.hear_until("ended");
    assert_eq!(ended["state"]["state"], "pruned", "{ended}");
    // One that is taken back before its ranks are there ends as well.
    worker.trial_of(4, 100_000, &batch(3, 1));
    worker.say(&json!({"request": "cancel", "number": 4}));
    let ended = worker.hear_until("ended");
    assert_eq!(
        (&ended["number"], &ended["state"]["state"]),
        (&json!(4), &json!("pruned"))
    );
    drop(worker.child.stdin.take());
    worker.child.wait().unwrap();
}

#[test]
fn ranks_end_with_their_worker() {
    if !has_python() {
        return;
    }
    let mut worker = greeted(&[("STAND_IN_STEP_S", "0.02")]);
    begin(&mut worker, 1, 100_000, &batch(2, 1));
    worker.hear_until("measured");
    let ranks = below(worker.child.id());
    assert_eq!(ranks.len(), 3);
    signal(worker.child.id(), libc::SIGKILL);
    worker.child.wait().unwrap();
    assert_all_end(&ranks);

    let mut worker = greeted(&[("STAND_IN_STEP_S", "0.1")]);
    begin(&mut worker, 1, 100_000, &batch(2, 1));
    worker.hear_until("measured");
    let ranks = below(worker.child.id());
    drop(worker.child.stdin.take());
    let began = Instant::now();
    worker.child.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_all_end(&ranks);
}

#[test]
fn a_rank_that_fails_fails_the_trial_for_its_reason_and_takes_the_others_along() {
    if !has_python() {
        return;
    }
    for (fails, kind, said) in [
        ("0:broken", "crashed", "RuntimeError: broken"),
        ("1:broken", "crashed", "rank 1 of 2: RuntimeError: broken"),
        ("1:out of memory", "out_of_memory", ""),
    ] {
        let mut worker = greeted(&[("STAND_IN_FAILS", fails)]);
        let ended = run(&mut worker, 1, &batch(2, 1)).ended;
        let reason = &ended["state"]["reason"];
        assert_eq!(reason["kind"], kind, "{fails}: {ended}");
        assert_eq!(reason["message"].as_str().unwrap_or_default(), said, "{fails}");
        assert_eq!(below(worker.child.id()).len(), 0, "{fails}");
        if fails.starts_with('1') {
            assert_eq!(run(&mut worker, 2, &batch(1, 1)).ended["state"]["state"], "complete");
        }
        drop(worker.child.stdin.take());
        worker.child.wait().unwrap();
    }
}

#[test]
fn a_rank_that_is_lost_costs_an_attempt_and_no_trial() {
    if !has_python() {
        return;
    }
    let mut worker = greeted(&[("STAND_IN_FAILS", "1:killed")]);
    begin(&mut worker, 1, 4, &batch(2, 1));
    while worker.hear().is_some() {}
    let output = worker.child.wait_with_output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("one of the 2 processes of a trial was lost"), "{said}");

    let space = SPACE.replace("precision: fp32", "precision: fp32\n  devices: 2");
    for kind in ["kill", "exit"] {
        let bench = Bench::of(&space);
        let said = faulty(&bench, &format!("{kind}:train,trial=1,attempts=1"), &["--trials", "3"]);
        assert_eq!(bench.sound(&Finished::new()).len(), 3);
        assert_eq!(outcome(&bench, 1), complete_at(2), "{kind}: {said}");
        let lost = bench.rows("select trial, attempt, phase from trial_lost_attempt");
        assert_eq!(
            Value::from(lost),
            json!([{"trial": 1, "attempt": 1, "phase": "train"}]),
            "{kind}"
        );
    }
}

#[test]
fn two_workers_give_their_places_to_a_trial_on_two_devices() {
    if !has_python() {
        return;
    }
    let space = SPACE.replace("precision: fp32", "precision: fp32\n  devices: [1, 2]");
    let bench = Bench::of(&space);
    Bench::succeed(search(&bench, &["--trials", "6", "--workers", "2"]));
    assert!(bench.sound(&Finished::new()).len() >= 6);
    let failed = "select count(*) as n from trial where state <> 'complete'";
    assert_eq!(bench.count(failed), 0);
    let on_two = "select count(*) as n from trial_param where name = 'devices' and cast(value as integer) = 2";
    assert!(bench.count(on_two) > 0);
}

#[test]
fn what_needs_gpus_is_refused_on_a_processor() {
    if !has_python() {
        return;
    }
    for (values, said) in [
        (
            "devices: 2\n  sharding: full",
            "share weights out by FSDP, on GPUs only",
        ),
        ("optimizer_offload: host", "through DeepSpeed, beside a GPU only"),
    ] {
        let bench = Bench::of(&SPACE.replace("precision: fp32", &format!("precision: fp32\n  {values}")));
        let output = search(&bench, &[]).output().unwrap();
        let told = messages(&output);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(said), "{told}");
    }
}
