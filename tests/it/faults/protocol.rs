//! The protocol as a worker speaks it, without a coordinator between.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Stdio};

use serde_json::{Value, json};

struct Worker {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(arguments: &[&str]) -> Self {
        let mut command = crate::program();
        command.arg("worker").args(arguments).env("PEFT_TUNE_MOCK", "0.05");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn say(&mut self, request: Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{request}").unwrap();
    }

    fn hear(&mut self) -> Option<Value> {
        Some(serde_json::from_str(&self.lines.next()?.unwrap()).unwrap())
    }

    /// Hears on until an event of this name.
    fn hear_until(&mut self, event: &str) -> Value {
        loop {
            let line = self.hear().unwrap_or_else(|| panic!("no `{event}` before the end"));
            if line["event"] == event {
                return line;
            }
        }
    }
}

fn hello(protocol: u64, heartbeat_s: f64, take_turns: bool) -> Value {
    json!({"request": "hello", "protocol": protocol, "version": "9.9.9", "heartbeat_s": heartbeat_s, "take_turns": take_turns})
}

fn trial(number: u64) -> Value {
    let recipe = json!({"model": "m", "data": {"train": ["t.jsonl"]}, "adapter": {"rank": 8}});
    let plan = json!({"measure": {"steps": 1, "max_warmup_steps": 0}, "train": null});
    json!({"request": "trial", "number": number, "attempt": 1, "task": {"recipe": {"recipe": recipe, "plan": plan}},
           "memory_limit_bytes": null, "time_limit_s": null})
}

#[test]
fn both_sides_greet_and_a_worker_tells_what_it_is() {
    let mut worker = Worker::start(&[
        "--threads",
        "1",
        "--cpus",
        "0",
        "--device",
        "cpu",
        "--kernels",
        "reference",
    ]);
    let greeting = worker.hear().unwrap();
    assert_eq!(greeting["event"], "hello");
    assert_eq!(greeting["process"], u64::from(worker.child.id()));
    assert_eq!((&greeting["threads"], &greeting["cpus"]), (&json!(1), &json!([0])));
    assert_eq!(greeting["kernels"], "reference");
    assert!(
        ["cgroup", "address_space"].contains(&greeting["memory_limiter"].as_str().unwrap()),
        "{greeting}"
    );
    let protocol = greeting["protocol"].as_u64().unwrap();
    worker.say(hello(protocol, 0.05, false));
    let beat = worker.hear_until("heartbeat");
    assert!(
        beat["number"].is_null() && beat["resident_bytes"].as_u64().unwrap() > 1 << 20,
        "{beat}"
    );
    worker.say(json!({"request": "stop"}));
    worker.hear_until("bye");
    // Standard input is still open: being asked is enough.
    drop(worker.child.stdin.take());
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_coordinator_of_another_version_is_refused_with_both_versions() {
    let mut worker = Worker::start(&[]);
    worker.hear();
    worker.say(hello(99, 0.0, false));
    drop(worker.child.stdin.take());
    let output = worker.child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("protocol 99 (peft-tune 9.9.9)") && said.contains("speaks 4"),
        "{said}"
    );
}

#[test]
fn a_profile_phase_waits_for_leave_and_a_request_that_is_none_is_passed_over() {
    let mut worker = Worker::start(&[]);
    let protocol = worker.hear().unwrap()["protocol"].as_u64().unwrap();
    worker.say(hello(protocol, 0.0, true));
    worker.say(json!({"request": "sing"}));
    worker.say(trial(3));
    assert_eq!(worker.hear_until("ready_to_measure")["number"], 3);
    worker.say(json!({"request": "measure", "number": 3}));
    let ended = worker.hear_until("ended");
    assert_eq!(ended["state"]["state"], "complete", "{ended}");
    worker.say(json!({"request": "stop"}));
    worker.hear_until("bye");
}

#[test]
fn a_worker_whose_coordinator_is_gone_ends() {
    let mut worker = Worker::start(&[]);
    worker.hear();
    drop(worker.child.stdin.take());
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
}

#[test]
fn the_schema_of_the_protocol_is_printed() {
    let mut command = crate::program();
    let output = command.args(["schema", "protocol"]).output().unwrap();
    let schema: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(schema["version"], 4);
    assert!(schema["properties"]["request"].is_object() && schema["properties"]["message"].is_object());
}
