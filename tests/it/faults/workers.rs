//! Workers that hang, crash, and run out of memory.

use std::process::Command;

use serde_json::Value;

use super::bench::{Bench, Finished, children, messages, signal};

/// A search in which a fault is caused in a worker.
fn faulty(bench: &Bench, fault: &str, arguments: &[&str]) -> Command {
    let mut command = bench.search("0.02", arguments);
    command.env("PEFT_TUNE_FAULT", fault);
    command
}

/// How a trial ended: state, reason, attempt.
fn outcome(bench: &Bench, trial: u64) -> (String, Value, u64) {
    let sql = format!("select state, reason, attempt from trial where number = {trial}");
    let row = &bench.rows(&sql)[0];
    (
        row["state"].as_str().unwrap().to_owned(),
        row["reason"].clone(),
        row["attempt"].as_u64().unwrap(),
    )
}

#[test]
fn a_crash_in_any_phase_costs_an_attempt_and_no_trial() {
    for phase in ["load", "profile", "train", "evaluate"] {
        let bench = Bench::new();
        let fault = format!("crash:{phase},trial=1,attempts=1");
        Bench::succeed(faulty(&bench, &fault, &["--trials", "3", "--workers", "2"]));
        assert_eq!(bench.sound(&Finished::new()).len(), 3);
        assert_eq!(outcome(&bench, 1), ("complete".to_owned(), Value::Null, 2), "{phase}");
        let lost = bench.rows("select trial, attempt, phase, message from trial_lost_attempt");
        assert_eq!(lost.len(), 1, "{lost:?}");
        assert_eq!(
            (&lost[0]["trial"], &lost[0]["attempt"], &lost[0]["phase"]),
            (&1.into(), &1.into(), &phase.into()),
            "{lost:?}"
        );
        assert!(lost[0]["message"].as_str().unwrap().contains("signal 6"), "{lost:?}");
    }
}

#[test]
fn a_kernels_fault_costs_an_attempt_and_the_search_goes_on_in_a_safer_form() {
    let bench = Bench::new();
    // Even where no attempt may be lost.
    let search = faulty(&bench, "trap:load,trial=1", &["--trials", "4", "--attempts", "1"]);
    let output = { search }.output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let warning = "warning: a kernel of `--kernels auto` failed (DriverError(CUDA_ERROR_ILLEGAL_INSTRUCTION)); with `--kernels reference`";
    assert_eq!(said.matches(warning).count(), 1, "{said}");
    assert_eq!(outcome(&bench, 1), ("complete".to_owned(), Value::Null, 2));
    assert_eq!(bench.count("select count(*) as n from lost_attempt"), 1);
    let forms = |bench: &Bench| -> Vec<String> {
        let sql = "select kernels || ' ' || coalesce(instead_of, '-') as form from trial_kernels order by trial_id";
        let rows = bench.rows(sql);
        rows.iter()
            .map(|row| row["form"].as_str().unwrap().to_owned())
            .collect()
    };
    let safer = "reference fused";
    assert_eq!(forms(&bench), ["fused -", safer, safer, safer]);
    let detail = Bench::succeed(bench.command(&["show", "faults", "--trial", "2", "--json"]));
    let detail: Value = serde_json::from_str(&detail).unwrap();
    assert_eq!(
        (&detail["kernels"], &detail["kernels_instead_of"]),
        (&"reference".into(), &"fused".into())
    );
    let front = Bench::succeed(bench.command(&["pareto", "faults", "--json"]));
    let front: Value = serde_json::from_str(&front).unwrap();
    let number = front["front"][0]["trial"].to_string();
    assert!(front["kernels"][&number]["kernels"].is_string(), "{front}");
    let text = Bench::succeed(bench.command(&["show", "faults", "--trial", "2"]));
    assert!(
        text.contains("in the place of `--kernels auto`, of which a kernel failed"),
        "{text}"
    );
    // The same search, started again, stays with it; another form is taken by its name.
    let output = bench.search("0.02", &["--trials", "5"]).output().unwrap();
    let said = messages(&output);
    assert!(
        said.contains("a kernel of `--kernels auto` failed in this study: it goes on with `--kernels reference`"),
        "{said}"
    );
    Bench::succeed(bench.search("0.02", &["--trials", "6", "--kernels", "graphs"]));
    assert_eq!(forms(&bench)[4..], [safer, "graphs -"]);
}

#[test]
fn a_setting_that_always_crashes_is_set_aside_and_never_proposed_again() {
    let space = super::bench::SPACE
        .replace(
            "learning_rate: {low: 1e-4, high: 1e-2, scale: log}",
            "learning_rate: 1e-3",
        )
        .replace("random", "tpe");
    let bench = Bench::of(&space);
    // Twelve settings in all.
    Bench::succeed(faulty(
        &bench,
        "crash:train,trial=2",
        &["--trials", "40", "--workers", "2"],
    ));
    let finished = bench.sound(&Finished::new());
    assert_eq!(finished.len(), 12);
    let (state, reason, attempt) = outcome(&bench, 2);
    assert_eq!((state.as_str(), &reason, attempt), ("failed", &"crashed".into(), 3));
    let detail = bench.rows("select detail from trial where number = 2")[0]["detail"].to_string();
    assert!(detail.contains("set aside after 3 lost attempts"), "{detail}");
    let same = "select count(*) as n from trial as a join trial as b on a.recipe = b.recipe and a.number < b.number";
    assert_eq!(bench.count(same), 0);
    assert_eq!(
        bench.count("select count(*) as n from trial where state = 'complete'"),
        11
    );
    let shown = Bench::succeed(bench.command(&["show", "2"]));
    assert!(
        shown.contains("attempt 3") && shown.contains("lost attempt 1"),
        "{shown}"
    );
}

#[test]
fn a_worker_that_hangs_or_falls_silent_is_replaced() {
    for (fault, arguments, said) in [
        ("hang:profile", ["--stuck-after", "1s"], "made no progress"),
        ("hang:train", ["--stuck-after", "1s"], "made no progress"),
        ("freeze:train", ["--silent-after", "1s"], "nothing was heard"),
    ] {
        let bench = Bench::new();
        let fault = format!("{fault},trial=1,attempts=1");
        let mut arguments = arguments.to_vec();
        arguments.extend(["--trials", "4", "--workers", "2"]);
        Bench::succeed(faulty(&bench, &fault, &arguments));
        assert_eq!(bench.sound(&Finished::new()).len(), 4);
        assert_eq!(outcome(&bench, 1), ("complete".to_owned(), Value::Null, 2), "{fault}");
        let message = bench.rows("select message from lost_attempt")[0]["message"].to_string();
        assert!(message.contains(said), "{message}");
    }
}

#[test]
fn a_wait_in_which_nothing_can_answer_is_refused() {
    for flag in ["--silent-after", "--stuck-after"] {
        let bench = Bench::new();
        let output = bench.search("0.02", &[flag, "0"]).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(flag) && said.contains("use at least 1s"), "{said}");
    }
}

#[test]
fn words_that_are_no_messages_and_a_silent_end_are_borne() {
    for fault in ["garble:train", "exit:train,trial=0,attempts=2"] {
        let bench = Bench::new();
        Bench::succeed(faulty(&bench, fault, &["--trials", "3"]));
        assert_eq!(bench.sound(&Finished::new()).len(), 3);
        assert_eq!(
            bench.count("select count(*) as n from trial where state = 'complete'"),
            3,
            "{fault}"
        );
    }
}

#[test]
fn where_every_worker_dies_the_search_gives_up_and_hands_its_trials_back() {
    let bench = Bench::new();
    let output = faulty(&bench, "crash:start", &["--workers", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", messages(&output));
    assert!(
        messages(&output).contains("ended 3 times before it was ready"),
        "{}",
        messages(&output)
    );
    let output = faulty(&bench, "kill:train", &["--workers", "2"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", messages(&output));
    assert!(messages(&output).contains("4 trials in a row"), "{}", messages(&output));
    assert_eq!(
        bench.count("select count(*) as n from trial where state = 'running'"),
        0
    );
    // Nothing was learned of their settings: they are run again.
    Bench::succeed(bench.search("0.01", &[]));
    let complete = bench.count("select count(*) as n from trial where state = 'complete'");
    assert_eq!(complete, bench.sound(&Finished::new()).len() as u64);
}

#[test]
fn a_process_that_is_killed_from_outside_is_repeated_and_what_it_had_is_not_kept() {
    let bench = Bench::new();
    let search = Bench::start(bench.search("1.0", &["--trials", "2"]));
    bench.wait_for("select count(*) as n from trial where phase = 'train'");
    let workers = children(search.id());
    assert!(
        workers.iter().any(|(_, words)| words.contains(" worker")),
        "{workers:?}"
    );
    workers.iter().for_each(|(worker, _)| signal(*worker, libc::SIGKILL));
    let output = search.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    assert_eq!(outcome(&bench, 0), ("complete".to_owned(), Value::Null, 2));
    let steps = bench.count("select count(*) as n from step where trial_id = (select id from trial where number = 0)");
    assert_eq!(steps, 4, "the steps of the attempt that counts");
}

#[test]
fn more_memory_than_the_trial_or_the_process_may_have_is_out_of_memory_at_once() {
    let space = super::bench::SPACE.replace("trial: {", "trial: {memory_limit: 48 MiB, ");
    for fault in ["oom:profile", "oom_system:profile"] {
        let bench = Bench::of(&space);
        // Real trials: what limits them is what is tested.
        let mut search = bench.command(&["search", "space.yaml", "--trials", "2", "--log-level", "info"]);
        search.env("PEFT_TUNE_FAULT", format!("{fault},trial=0"));
        let killed_before = killed_by_kernel();
        let output = search.output().unwrap();
        let log = messages(&output);
        assert_eq!(output.status.code(), Some(0), "{log}");
        assert_eq!(
            outcome(&bench, 0),
            ("failed".to_owned(), "out_of_memory".into(), 1),
            "{fault}"
        );
        assert_eq!(log.matches("started a worker").count(), 2, "{log}");
        // Where the process can have a control group, it is the kernel that ends it.
        if fault.starts_with("oom_system") && log.contains("memory_limiter=Cgroup") {
            assert!(killed_by_kernel() > killed_before, "{log}");
        }
        assert_eq!(outcome(&bench, 1).0, "complete", "{fault}");
        assert_eq!(bench.count("select count(*) as n from lost_attempt"), 0);
        bench.sound(&Finished::new());
    }
}

/// Trials on one device and on two, by what the database says of them.
fn on_devices(bench: &Bench, what: &str) -> Vec<(u64, Value)> {
    let rows = bench.rows(&format!(
        "select params.value as devices, {what} as found from trial_param as params where params.name = 'devices' order by trial"
    ));
    let of = |row: &Value| (row["devices"].as_f64().unwrap() as u64, row["found"].clone());
    rows.iter().map(of).collect()
}

#[test]
fn a_trial_on_two_devices_has_the_places_of_two_workers() {
    let space = super::bench::SPACE.replace("  precision", "  devices: [1, 2]\n  global_batch: 8\n  precision");
    let bench = Bench::of(&space);
    let arguments = ["--trials", "24", "--workers", "2", "--measure", "shared"];
    Bench::succeed(bench.search("0.2", &arguments));
    // What takes its loss over is not counted.
    assert!(bench.sound(&Finished::new()).len() >= 24);
    let neighbours = "(select value from trial_metric where trial = params.trial and name = 'neighbours')";
    let inherits = "(select count(*) from trial_inherited where trial = params.trial and part = 'cost')";
    let found = on_devices(&bench, &format!("iif({inherits} = 0, {neighbours}, null)"));
    let most = |devices| {
        let values = found.iter().filter(|(of, _)| *of == devices);
        values.filter_map(|(_, value)| value.as_f64()).fold(-1.0, f64::max)
    };
    // Nothing runs beside a trial that has both places.
    assert_eq!((most(1), most(2)), (1.0, 0.0), "{found:?}");
}

#[test]
fn a_trial_trains_on_the_processors_of_two_workers() {
    let space = super::bench::SPACE
        .replace("[2, 4, 8, 16]", "[2, 4]")
        .replace("[1, 2, 4]", "1")
        .replace("  precision", "  devices: [1, 2, 3]\n  global_batch: 6\n  precision")
        .replace("{low: 1e-4, high: 1e-2, scale: log}", "1e-3");
    let bench = Bench::of(&space.replace("random", "grid"));
    Bench::succeed(bench.command(&["search", "space.yaml", "--trials", "6", "--workers", "2"]));
    assert_eq!(bench.sound(&Finished::new()).len(), 6);
    let found = on_devices(&bench, "(select state from trial where number = params.trial)");
    assert!(found.iter().all(|(_, state)| state == "complete"), "{found:?}");
    let devices: Vec<u64> = found.iter().map(|(devices, _)| *devices).collect();
    assert!([1, 2, 3].iter().all(|one| devices.contains(one)), "{devices:?}");
}

/// Processes that the kernel of this machine has ended for lack of memory.
fn killed_by_kernel() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[test]
fn a_loss_that_is_no_number_is_a_diverged_trial() {
    let bench = Bench::new();
    let mut search = bench.command(&["search", "space.yaml", "--trials", "2"]);
    search.env("PEFT_TUNE_FAULT", "nan:train,trial=0");
    Bench::succeed(search);
    assert_eq!(outcome(&bench, 0), ("failed".to_owned(), "diverged".into(), 1));
    assert_eq!(outcome(&bench, 1).0, "complete");
    bench.sound(&Finished::new());
}

#[test]
fn a_panic_inside_a_trial_fails_the_trial_and_keeps_the_worker() {
    let bench = Bench::new();
    let mut search = bench.command(&["search", "space.yaml", "--trials", "2", "--log-level", "info"]);
    search.env("PEFT_TUNE_FAULT", "panic:train,trial=0");
    let output = search.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    assert_eq!(outcome(&bench, 0), ("failed".to_owned(), "crashed".into(), 1));
    assert_eq!(
        messages(&output).matches("started a worker").count(),
        1,
        "{}",
        messages(&output)
    );
}

#[test]
fn a_profile_phase_has_the_processors_to_itself_or_is_marked() {
    for (how, crowd) in [("alone", false), ("shared", true)] {
        let bench = Bench::new();
        let arguments = ["--trials", "12", "--workers", "3", "--measure", how];
        Bench::succeed(bench.search("0.2", &arguments));
        assert_eq!(bench.sound(&Finished::new()).len(), 12);
        let rows = bench.rows("select value from trial_metric where name = 'neighbours'");
        assert!(!rows.is_empty());
        assert_eq!(
            rows.iter().any(|row| row["value"].as_f64().unwrap() > 0.0),
            crowd,
            "{how}: {rows:?}"
        );
    }
}
