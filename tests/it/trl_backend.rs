//! Searches whose trials the worker in Python trains. PyTorch, TRL and what belongs to them are stand-ins of plain
//! Python (`tests/stand_in_trl`), and everything else is real. `scripts/peers/trl-test.sh` does the same with TRL
//! itself.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::faults::bench::{Bench, Dice, Finished, SPACE, children, messages, signal};

const RUNNING: &str = "select count(*) as n from trial where phase = 'train' and state = 'running'";
/// Module that the worker's process runs.
const MODULE: &str = "peft_tune.backends";

/// Whether there is a Python that the worker can run in.
pub(crate) fn has_python() -> bool {
    let is_new = "import sys; sys.exit(sys.version_info < (3, 10))";
    let asked = Command::new("python3").args(["-c", is_new]).output();
    let found = asked.is_ok_and(|output| output.status.success());
    if !found {
        println!("there is no python3 here that is 3.10 or newer");
    }
    found
}

/// Puts the stand-ins before whatever packages the Python has.
pub(crate) fn with_stand_ins(command: &mut Command) {
    command
        .env("PYTHONPATH", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stand_in_trl"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
}

/// A search with `backend: trl`.
pub(crate) fn search(bench: &Bench, arguments: &[&str]) -> Command {
    let mut command = bench.command(&["search", "space.yaml", "--backend", "trl", "--python", "python3"]);
    command.args(arguments);
    with_stand_ins(&mut command);
    command
}

/// A search whose steps take so many seconds.
fn slow_search(bench: &Bench, step_s: &str, arguments: &[&str]) -> Command {
    let mut command = search(bench, arguments);
    command.env("STAND_IN_STEP_S", step_s);
    command
}

/// Searches with a fault in a worker, and returns what was said.
pub(crate) fn faulty(bench: &Bench, fault: &str, arguments: &[&str]) -> String {
    let mut command = search(bench, arguments);
    command.args(["--log-level", "info"]).env("PEFT_TUNE_FAULT", fault);
    let output = command.output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{fault}: {said}");
    said
}

fn workers_started(said: &str) -> usize {
    said.matches("started a worker").count()
}

/// How a trial ended: state, reason, attempt.
pub(crate) fn outcome(bench: &Bench, trial: u64) -> (String, Value, u64) {
    let sql = format!("select state, reason, attempt from trial where number = {trial}");
    let row = &bench.rows(&sql)[0];
    (
        row["state"].as_str().unwrap().to_owned(),
        row["reason"].clone(),
        row["attempt"].as_u64().unwrap(),
    )
}

pub(crate) fn complete_at(attempt: u64) -> (String, Value, u64) {
    ("complete".to_owned(), Value::Null, attempt)
}

fn failed(reason: &str) -> (String, Value, u64) {
    ("failed".to_owned(), reason.into(), 1)
}

/// Python processes that a search has started.
fn python_below(search: &Child) -> Vec<u32> {
    let all = children(search.id()).into_iter();
    all.filter(|(_, words)| words.contains(MODULE))
        .map(|(process, _)| process)
        .collect()
}

/// Waits until none of these processes runs the worker any more.
pub(crate) fn assert_all_end(workers: &[u32]) {
    let began = Instant::now();
    let is_still = |worker: &u32| {
        let words = std::fs::read(format!("/proc/{worker}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(MODULE)
    };
    while workers.iter().any(is_still) {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "a worker outlived its search"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_search_trains_in_one_python_and_stores_what_a_native_trial_has() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    let output = search(&bench, &["--trials", "4", "--log-level", "info"])
        .output()
        .unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let first = said.lines().find(|line| line.starts_with("trials train in TRL: "));
    assert!(first.is_some_and(|line| line.contains("trl 1.16.0")), "{said}");
    assert_eq!(workers_started(&said), 1, "{said}");
    let finished = bench.sound(&Finished::new());
    let complete = bench.count("select count(*) as n from trial where state = 'complete'");
    assert!(finished.len() >= 4 && complete == finished.len() as u64, "{finished:?}");
    for name in [
        "throughput",
        "peak_memory",
        "base_memory_bytes",
        "reserved_memory_bytes",
        "step_s",
        "data_s",
        "forward_s",
        "backward_s",
        "optimizer_s",
        "load_s",
        "loss_before",
        "token_accuracy",
        "train_tokens",
    ] {
        let sql = format!("select count(*) as n from trial_metric where name = '{name}' and value >= 0");
        assert!(bench.count(&sql) > 0, "{name}");
    }
    let unlearnt = "select count(*) as n from trial_metric as after \
                    join trial_metric as before on before.trial = after.trial \
                    where after.name = 'loss' and before.name = 'loss_before' and after.value >= before.value";
    assert_eq!(bench.count(unlearnt), 0);
    // Four steps and two evaluations of each training.
    let trainings = bench.count("select count(*) as n from trial_metric where name = 'train_steps' and value = 4");
    let steps = bench.count("select count(*) as n from trial_step where phase = 'train'");
    assert!(
        trainings > 0 && steps >= 4 * trainings,
        "{steps} steps of {trainings} trainings"
    );
    assert!(bench.count("select count(*) as n from trial_evaluation") >= 2 * trainings);
}

#[test]
fn values_that_promise_nothing_by_prediction_are_measured_beside_a_training() {
    if !has_python() {
        return;
    }
    let searched = "micro_batch: [1, 2, 4]\n  attn_implementation: [sdpa, eager]\n  dataloader_num_workers: [0, 2]";
    let space = SPACE
        .replace("micro_batch: [1, 2, 4]", searched)
        .replace("sampler: random\n", "");
    let bench = Bench::of(&space);
    Bench::succeed(search(&bench, &["--trials", "5"]));
    let trainings = bench.count("select count(*) as n from trial where id not in (select trial_id from variant)");
    assert_eq!(trainings, 5, "what measures a cost alone is none of them");
    let explained: Value = serde_json::from_str(&Bench::succeed(bench.command(&["explain", "--json"]))).unwrap();
    for parameter in ["attn_implementation", "dataloader_num_workers"] {
        let mut coverage = explained["coverage"].as_array().unwrap().iter();
        let found = coverage.find(|one| one["parameter"] == parameter).unwrap();
        let compared = &found["compared"][0];
        assert!(compared["trials"].is_array(), "{found}");
        let numbers: Vec<u64> = compared["trials"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        // The two differ in nothing else.
        let differing = bench.rows(&format!(
            "select one.name as name from trial_param as one join trial_param as other on other.name = one.name \
             where one.trial = {} and other.trial = {} and other.value <> one.value",
            numbers[0], numbers[1]
        ));
        assert_eq!(Value::from(differing), json!([{"name": parameter}]), "{found}");
        let metrics = compared["changes"].as_array().unwrap().iter().map(|one| &one["metric"]);
        assert!(metrics.eq(["throughput", "peak_memory"].iter()), "{compared}");
    }
    let text = Bench::succeed(bench.command(&["explain"]));
    assert!(
        text.contains("dataloader_num_workers: predictions do not tell what "),
        "{text}"
    );
}

#[test]
fn a_setting_trains_to_the_same_bits_whatever_was_trained_before() {
    if !has_python() {
        return;
    }
    let losses = |rates: &str| {
        let space = SPACE
            .replace("{low: 1e-4, high: 1e-2, scale: log}", rates)
            .replace("[2, 4, 8, 16]", "4")
            .replace("[1, 2, 4]", "2")
            .replace("random", "grid");
        let bench = Bench::of(&space);
        Bench::succeed(search(&bench, &[]));
        bench.rows(
            "select cast(rate.value as real) as rate, loss.value as loss from trial_param as rate \
             join trial_metric as loss on loss.trial = rate.trial and loss.name = 'loss' \
             where rate.name = 'learning_rate' order by 1",
        )
    };
    let found = losses("[1e-3, 3e-3, 9e-3]");
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(found, losses("[9e-3, 3e-3, 1e-3]"));
}

#[test]
fn a_python_that_ends_in_any_phase_costs_an_attempt_and_no_trial() {
    if !has_python() {
        return;
    }
    let phases = ["load", "profile", "train", "evaluate"];
    let kinds = ["crash", "kill", "exit", "crash"];
    let usually = kinds.into_iter().zip(phases);
    let all = kinds[..3].iter().flat_map(|kind| phases.map(|phase| (*kind, phase)));
    let cases: Vec<(&str, &str)> = match crate::has_all_cases() {
        true => all.collect(),
        false => usually.collect(),
    };
    for (kind, phase) in cases {
        let bench = Bench::new();
        let said = faulty(
            &bench,
            &format!("{kind}:{phase},trial=1,attempts=1"),
            &["--trials", "3"],
        );
        assert_eq!(bench.sound(&Finished::new()).len(), 3);
        assert_eq!(outcome(&bench, 1), complete_at(2), "{kind}:{phase}: {said}");
        let lost = bench.rows("select trial, attempt, phase from trial_lost_attempt");
        let expected = json!([{"trial": 1, "attempt": 1, "phase": phase}]);
        assert_eq!(Value::from(lost), expected, "{kind}");
    }
}

#[test]
fn a_python_that_hangs_or_falls_silent_is_replaced() {
    if !has_python() {
        return;
    }
    for (fault, option, told) in [
        ("hang:profile", "--stuck-after", "made no progress"),
        ("freeze:train", "--silent-after", "nothing was heard"),
    ] {
        let bench = Bench::new();
        let arguments = [option, "5s", "--trials", "3"];
        faulty(&bench, &format!("{fault},trial=1,attempts=1"), &arguments);
        assert_eq!(bench.sound(&Finished::new()).len(), 3);
        assert_eq!(outcome(&bench, 1), complete_at(2), "{fault}");
        let message = bench.rows("select message from lost_attempt")[0]["message"].to_string();
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn out_of_memory_is_an_outcome_and_the_process_goes_on_where_it_can() {
    if !has_python() {
        return;
    }
    let space = SPACE.replace("trial: {", "trial: {memory_limit: 256 MiB, ");
    // Asking for too much fails in the trial; without any memory left another process has to take over.
    for (fault, workers) in [("oom:profile", 1), ("oom:train", 1), ("oom_system:profile", 2)] {
        let bench = Bench::of(&space);
        let said = faulty(&bench, &format!("{fault},trial=0"), &["--trials", "2"]);
        assert_eq!(outcome(&bench, 0), failed("out_of_memory"), "{fault}: {said}");
        assert_eq!(outcome(&bench, 1), complete_at(1), "{fault}: {said}");
        assert_eq!(workers_started(&said), workers, "{fault}: {said}");
        assert_eq!(bench.count("select count(*) as n from lost_attempt"), 0);
        bench.sound(&Finished::new());
    }
}

/// State and reason of all trials of a study of two micro-batches, one row a trial.
fn trials_within(limit: &str, micro_batches: &str, token_bytes: &str) -> Vec<Value> {
    let space = SPACE
        .replace("[1, 2, 4]", micro_batches)
        .replace("{low: 1e-4, high: 1e-2, scale: log}", "1e-3")
        .replace("random", "grid")
        .replace("trial: {", &format!("trial: {{memory_limit: {limit}, "));
    let bench = Bench::of(&space);
    let mut command = search(&bench, &[]);
    command.env("STAND_IN_TOKEN_BYTES", token_bytes);
    Bench::succeed(command);
    bench.rows("select micro_batch, state, reason from trial order by number")
}

/// Whether there are trials of a micro-batch, and all of them ended so.
fn all_are(rows: &[Value], micro_batch: u64, state: &str) -> bool {
    let mut of_size = rows.iter().filter(|row| row["micro_batch"] == micro_batch).peekable();
    of_size.peek().is_some() && of_size.all(|row| row["state"] == state)
}

#[test]
fn settings_that_take_more_than_was_predicted_are_out_of_memory_and_others_are_not() {
    if !has_python() {
        return;
    }
    let rows = trials_within("192 MiB", "[1, 8]", "2000000");
    assert!(all_are(&rows, 1, "complete") && all_are(&rows, 8, "failed"), "{rows:?}");
    assert!(
        rows.iter()
            .all(|row| row["state"] == "complete" || row["reason"] == "out_of_memory")
    );
}

/// The tile of TRL's head alone has 32,768 numbers for each of 64 rows of 64 tokens: half a gigabyte.
#[test]
fn settings_that_trl_is_predicted_to_have_no_room_for_are_not_run() {
    if !has_python() {
        return;
    }
    let rows = trials_within("64 MiB", "[1, 64]", "4096");
    assert!(
        all_are(&rows, 1, "complete") && all_are(&rows, 64, "skipped"),
        "{rows:?}"
    );
    let mut skipped = rows.iter().filter(|row| row["state"] == "skipped");
    let is_told = |row: &Value| {
        let reason = row["reason"].as_str().unwrap();
        reason.starts_with("predicted to need ") && reason.contains("MiB in TRL, and 64 MiB are allowed")
    };
    assert!(skipped.all(is_told), "{rows:?}");
}

#[test]
fn what_goes_wrong_inside_of_a_trial_fails_it_and_keeps_the_process() {
    if !has_python() {
        return;
    }
    for (fault, expected) in [
        ("nan:train", failed("diverged")),
        ("panic:train", failed("crashed")),
        ("panic:evaluate", failed("crashed")),
        ("garble:train", complete_at(1)),
    ] {
        let bench = Bench::new();
        let said = faulty(&bench, &format!("{fault},trial=1"), &["--trials", "3"]);
        assert_eq!(outcome(&bench, 1), expected, "{fault}: {said}");
        assert_eq!(workers_started(&said), 1, "{fault}: {said}");
        assert_eq!(bench.sound(&Finished::new()).len(), 3);
    }
}

#[test]
fn two_workers_measure_one_after_the_other() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    Bench::succeed(slow_search(&bench, "0.05", &["--trials", "6", "--workers", "2"]));
    assert!(bench.sound(&Finished::new()).len() >= 6);
    let rows = bench.rows("select value from trial_metric where name = 'neighbours'");
    assert!(
        !rows.is_empty() && rows.iter().all(|row| row["value"] == 0.0),
        "{rows:?}"
    );
    assert_eq!(
        bench.count("select count(*) as n from trial where state <> 'complete'"),
        0
    );
}

#[test]
fn ctrl_c_finishes_the_trial_and_a_killed_search_takes_its_python_along() {
    if !has_python() {
        return;
    }
    let bench = Bench::new();
    let running = Bench::start(slow_search(&bench, "0.2", &[]));
    bench.wait_for(RUNNING);
    signal(running.id(), libc::SIGINT);
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", messages(&output));
    let finished = bench.sound(&Finished::new());
    assert!((1..8).contains(&finished.len()), "{}", finished.len());
    assert_eq!(
        bench.count("select count(*) as n from trial where state <> 'complete'"),
        0
    );

    let mut running = Bench::start(slow_search(&bench, "0.2", &[]));
    bench.wait_for(RUNNING);
    let workers = python_below(&running);
    assert_eq!(workers.len(), 1);
    running.kill().unwrap();
    running.wait().unwrap();
    assert_all_end(&workers);
    let finished = bench.sound(&finished);
    let trials = (finished.len() + 2).to_string();
    Bench::succeed(search(&bench, &["--trials", &trials]));
    assert!(bench.sound(&finished).len() >= finished.len() + 2);
}

#[test]
fn pythons_that_are_killed_again_and_again_lose_and_repeat_nothing() {
    if !has_python() {
        return;
    }
    let kills = crate::cases_of(50, 6);
    let (bench, mut dice) = (Bench::new(), Dice(20));
    let (mut done, mut finished) = (0, Finished::new());
    while done < kills {
        let trials = (finished.len() + 12).to_string();
        let mut running = Bench::start(slow_search(
            &bench,
            "0.05",
            &["--trials", &trials, "--attempts", "1000"],
        ));
        while running.try_wait().unwrap().is_none() && done < kills {
            std::thread::sleep(Duration::from_millis(500 + dice.below(1500)));
            for worker in python_below(&running) {
                signal(worker, libc::SIGKILL);
                done += 1;
            }
        }
        let output = running.wait_with_output().unwrap();
        // Killed three times in a row before it greets, a worker is given up.
        assert!(matches!(output.status.code(), Some(0 | 5)), "{}", messages(&output));
        finished = bench.sound(&finished);
    }
    let trials = (finished.len() + 2).to_string();
    Bench::succeed(search(&bench, &["--trials", &trials]));
    let complete = bench.count("select count(*) as n from trial where state = 'complete'");
    assert_eq!(bench.sound(&finished).len() as u64, complete);
    assert!(bench.count("select count(*) as n from lost_attempt") > 0);
}

/// A worker that is spoken to without a coordinator between.
pub(crate) struct Worker {
    pub(crate) child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    /// Folder with the cache that the worker's files lie in.
    folder: tempfile::TempDir,
}

impl Worker {
    /// Starts one whose steps take so many seconds.
    pub(crate) fn start(step_s: &str) -> Self {
        Self::start_with(&[("STAND_IN_STEP_S", step_s)])
    }

    /// Starts one with these variables.
    pub(crate) fn start_with(variables: &[(&str, &str)]) -> Self {
        let folder = crate::folders::for_database();
        let mut command = crate::program();
        let words = [
            "worker",
            "--backend",
            "trl",
            "--python",
            "python3",
            "--device",
            "cpu",
            "--threads",
            "1",
        ];
        command
            .args(words)
            .env("PEFT_TUNE_CACHE", folder.path())
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        with_stand_ins(&mut command);
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, folder }
    }

    pub(crate) fn say(&mut self, request: &Value) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{request}").unwrap();
    }

    /// The next message; `None` behind the last.
    pub(crate) fn hear(&mut self) -> Option<Value> {
        let line = self.lines.next()?.unwrap();
        Some(serde_json::from_str(&line).unwrap())
    }

    /// Hears on until an event of this name.
    pub(crate) fn hear_until(&mut self, event: &str) -> Value {
        loop {
            let message = self.hear();
            let message = message.unwrap_or_else(|| panic!("no `{event}` before the end"));
            if message["event"] == event {
                return message;
            }
        }
    }

    pub(crate) fn greet(&mut self, protocol: u64) {
        self.say(
            &json!({"request": "hello", "protocol": protocol, "version": "9.9.9", "heartbeat_s": 0.05,
                         "take_turns": true}),
        );
    }

    /// A trial of this many steps.
    fn trial(&mut self, number: u64, steps: u64) {
        self.trial_of(number, steps, &json!({"micro_batch": 2, "sequence_length": 64}));
    }

    /// A trial of this many steps, with these settings of a step's rows.
    pub(crate) fn trial_of(&mut self, number: u64, steps: u64, batch: &Value) {
        let assets = concat!(env!("CARGO_MANIFEST_DIR"), "/search_spaces/quickstart");
        let recipe = json!({
            "model": format!("{assets}/base"),
            "data": {"train": format!("{assets}/train.jsonl"), "held_out": format!("{assets}/held_out.jsonl")},
            "adapter": {"rank": 8}, "precision": "fp32", "batch": batch,
        });
        self.trial_with(number, steps, &recipe);
    }

    /// A trial of a recipe, of this many steps.
    pub(crate) fn trial_with(&mut self, number: u64, steps: u64, recipe: &Value) {
        self.trial_beside(number, steps, recipe, 4, &Value::Null);
    }

    /// A trial of a recipe, whose last evaluation is one of so many rows, compared as `pairing` says.
    pub(crate) fn trial_beside(&mut self, number: u64, steps: u64, recipe: &Value, rows: usize, pairing: &Value) {
        let plan = json!({
            "measure": {"steps": 1, "max_warmup_steps": 1},
            "train": {"length": {"steps": steps}, "evaluations": 1, "evaluation_rows": rows},
        });
        let task = json!({"recipe": {"recipe": recipe, "plan": plan}});
        self.say(
            &json!({"request": "trial", "number": number, "attempt": 1, "task": task,
                         "memory_limit_bytes": null, "time_limit_s": null, "pairing": pairing}),
        );
    }
}

#[test]
fn a_worker_becomes_python_and_speaks_the_protocol() {
    if !has_python() {
        return;
    }
    let mut worker = Worker::start("0.02");
    let greeting = worker.hear_until("hello");
    // The process is the same one: whoever started it ends it.
    assert_eq!(greeting["process"], u64::from(worker.child.id()));
    assert_eq!((&greeting["device"], &greeting["threads"]), (&json!("cpu"), &json!(1)));
    worker.greet(greeting["protocol"].as_u64().unwrap());
    assert!(worker.hear_until("heartbeat")["resident_bytes"].as_u64().unwrap() > 1 << 20);
    worker.say(&json!({"request": "sing"}));
    worker.trial(3, 100_000);
    assert_eq!(worker.hear_until("ready_to_measure")["number"], 3);
    worker.say(&json!({"request": "measure", "number": 3}));
    worker.hear_until("measured");
    worker.say(&json!({"request": "hold", "turn": 7}));
    assert_eq!(worker.hear_until("held")["turn"], 7);
    worker.say(&json!({"request": "cancel", "number": 3}));
    let ended = worker.hear_until("ended");
    assert_eq!(ended["state"]["state"], "pruned", "{ended}");
    worker.say(&json!({"request": "stop"}));
    worker.hear_until("bye");
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
    assert!(worker.folder.path().join("python").is_dir());
}

#[test]
fn a_worker_whose_coordinator_is_gone_or_of_another_version_ends() {
    if !has_python() {
        return;
    }
    let mut worker = Worker::start("0");
    worker.hear_until("hello");
    worker.greet(99);
    let output = worker.child.wait_with_output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("protocol 99 (peft-tune 9.9.9)"), "{said}");

    // In the middle of a trial it ends after the step, or a little later.
    let mut worker = Worker::start("0.1");
    let protocol = worker.hear_until("hello")["protocol"].as_u64().unwrap();
    worker.greet(protocol);
    worker.trial(1, 100_000);
    worker.hear_until("ready_to_measure");
    worker.say(&json!({"request": "measure", "number": 1}));
    worker.hear_until("measured");
    drop(worker.child.stdin.take());
    let began = Instant::now();
    worker.child.wait().unwrap();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}
