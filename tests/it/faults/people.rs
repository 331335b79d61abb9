//! Ctrl-C, schedulers, closed terminals; searches in the background.

use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::bench::{Bench, Finished, messages, signal};

const RUNNING: &str = "select count(*) as n from trial where phase = 'train' and state = 'running'";

fn ended(search: Child) -> (Output, Duration) {
    let began = Instant::now();
    (search.wait_with_output().unwrap(), began.elapsed())
}

#[test]
fn ctrl_c_once_finishes_the_trials_under_way() {
    for (sent, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        let bench = Bench::new();
        let search = Bench::start(bench.search("1.2", &["--workers", "2"]));
        bench.wait_for(RUNNING);
        signal(search.id(), sent);
        let (output, _) = ended(search);
        let text = messages(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains("finishing "), "{text}");
        assert!(
            text.contains("`peft-tune search space.yaml --workers 2 --db "),
            "{text}"
        );
        let finished = bench.sound(&Finished::new());
        assert!((1..8).contains(&finished.len()), "{}", finished.len());
        assert_eq!(
            bench.count("select count(*) as n from trial where state <> 'complete'"),
            0
        );
        assert_eq!(bench.rows("select kind from study_ending")[0]["kind"], "interrupted");
    }
}

#[test]
fn ctrl_c_before_the_first_trial_ends_the_search_and_says_so() {
    use std::io::{BufRead, BufReader, Read};

    let folder = tempfile::tempdir().unwrap();
    let space = concat!(env!("CARGO_MANIFEST_DIR"), "/search_spaces/quickstart.yaml");
    let mut command = crate::program();
    command
        .args(["search", space, "--db", "a.db"])
        .current_dir(folder.path())
        // Nothing is known of the machine there, so it is measured first.
        .env("PEFT_TUNE_CACHE", folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    crate::signals::heeds_signals(&mut command);
    let mut search = command.spawn().unwrap();
    let mut told = BufReader::new(search.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("measuring this machine") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "the search ended unasked");
    }
    signal(search.id(), libc::SIGINT);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!(search.wait().unwrap().code(), Some(130), "{rest}");
    assert!(
        rest.contains("stopped before the first trial") && rest.contains("--db a.db` begins again"),
        "{rest}"
    );
}

#[test]
fn a_failed_trial_is_a_line_with_the_command_that_looks_closer() {
    let folder = tempfile::tempdir().unwrap();
    let space = "study: failing\nbackend: {command: [sh, -c, 'echo no such flag >&2; exit 3']}\nobjectives: [loss]\n\
                 space: {x: {low: 1, high: 9, affects: [loss]}}\nbudget: {trials: 2}\n";
    std::fs::write(folder.path().join("space.yaml"), space).unwrap();
    let output = crate::program()
        .args(["search", "space.yaml", "--db", "a.db", "--keep-going"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let told = messages(&output);
    let line = told
        .lines()
        .find(|line| line.starts_with("trial 0 failed: "))
        .unwrap_or(&told);
    assert!(line.contains("no such flag"), "{told}");
    assert!(
        line.ends_with("look closer: `peft-tune show --trial 0 failing --db a.db`"),
        "{told}"
    );
}

#[test]
fn ctrl_c_twice_hands_the_trials_under_way_back_at_once() {
    let bench = Bench::of_trainings();
    let search = Bench::start(bench.search("60", &["--workers", "2"]));
    // Both of them.
    bench.wait_for(&RUNNING.replace("count(*)", "max(0, count(*) - 1)"));
    signal(search.id(), libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    signal(search.id(), libc::SIGINT);
    let (output, took) = ended(search);
    assert_eq!(output.status.code(), Some(130), "{}", messages(&output));
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(messages(&output).contains("stopping now"), "{}", messages(&output));
    assert_eq!(
        bench.count("select count(*) as n from trial where state = 'waiting'"),
        2
    );
    assert_eq!(bench.count("select count(*) as n from lost_attempt"), 0);
    Bench::succeed(bench.search("0.01", &["--trials", "3"]));
    assert_eq!(bench.sound(&Finished::new()).len(), 3);
    assert_eq!(bench.count("select count(*) as n from trial where attempt = 2"), 2);
}

#[test]
fn a_terminal_that_is_closed_ends_the_search_after_the_trials_under_way() {
    let bench = Bench::new();
    let (mut controller, mut terminal) = (0, 0);
    let null = std::ptr::null_mut();
    // SAFETY: both numbers outlive the call; the rest is left to the system.
    let opened = unsafe { libc::openpty(&raw mut controller, &raw mut terminal, null, null.cast(), null.cast()) };
    assert_eq!(opened, 0);
    // A terminal is closed when nobody has its other end any more, so no child may inherit that.
    // SAFETY: setting a flag of an open descriptor has no precondition.
    unsafe { libc::fcntl(controller, libc::F_SETFD, libc::FD_CLOEXEC) };
    // SAFETY: both were just opened and belong to nobody else.
    let (controller, terminal) = unsafe { (OwnedFd::from_raw_fd(controller), OwnedFd::from_raw_fd(terminal)) };
    let mut search = bench.search("1.2", &["--workers", "2"]);
    let stream = || Stdio::from(terminal.try_clone().unwrap());
    search.stdin(stream()).stdout(stream()).stderr(stream());
    let lead = || {
        // SAFETY: the process has just been forked and may become the leader of a session; standard input is the terminal.
        unsafe {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
        }
        Ok(())
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { search.pre_exec(lead) };
    let mut child = search.spawn().unwrap();
    drop(search);
    drop(terminal);
    bench.wait_for(RUNNING);
    drop(controller);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(129), "{status}");
    assert!(!bench.sound(&Finished::new()).is_empty());
    assert_eq!(
        bench.count("select count(*) as n from trial where state <> 'complete'"),
        0
    );
}

#[test]
fn a_search_in_the_background_is_watched_and_stopped_from_elsewhere() {
    let bench = Bench::new();
    let said = Bench::succeed(bench.search("0.5", &["--trials", "1000", "--workers", "2", "--detach"]));
    assert!(said.contains("study faults runs in the background"), "{said}");
    let status: Value = serde_json::from_str(&Bench::succeed(bench.command(&["status", "--json"]))).unwrap();
    assert_eq!(status["running"], true, "{status}");
    let process = status["process"].as_u64().unwrap();
    assert!(said.contains(&format!("process {process}")), "{said}");
    let outlook = &status["outlook"];
    assert_eq!(
        (&outlook["stage"], &outlook["budget_trials"]),
        (&"trials".into(), &1000.into())
    );
    // SAFETY: asking for a session has no precondition.
    let session = unsafe { libc::getsid(libc::pid_t::try_from(process).unwrap()) };
    assert_eq!(u64::try_from(session).unwrap(), process, "a session of its own");
    bench.wait_for("select count(*) as n from trial where state = 'complete'");
    let watcher = Bench::start(bench.command(&["attach"]));
    std::thread::sleep(Duration::from_millis(1500));
    let stopped = Bench::succeed(bench.command(&["stop", "--wait"]));
    assert!(stopped.contains("was stopped"), "{stopped}");
    let (output, _) = ended(watcher);
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    assert!(messages(&output).contains("complete"), "{}", messages(&output));
    let text = Bench::succeed(bench.command(&["status"]));
    assert!(
        text.contains("not running; its last search ended: it was asked to stop") && text.contains(" of 1000 trials, "),
        "{text}"
    );
    let log = std::fs::read_to_string(bench.path("study.db-faults.log")).unwrap();
    assert!(
        log.contains("a trial ended") && log.contains("the search ended"),
        "{log}"
    );
    assert_eq!(
        Bench::succeed(bench.command(&["stop"])),
        "study faults is not running\n"
    );
    bench.sound(&Finished::new());
}

#[test]
fn a_search_in_the_background_that_cannot_begin_says_so_with_its_own_code() {
    let bench = Bench::new();
    let first = Bench::start(bench.search("30", &["--trials", "2"]));
    bench.wait_for("select count(*) as n from trial where state = 'running'");
    let second = bench.search("0.1", &["--detach"]).output().unwrap();
    assert_eq!(second.status.code(), Some(4), "{}", messages(&second));
    assert!(
        messages(&second).contains("is being run by process"),
        "{}",
        messages(&second)
    );
    assert!(Bench::succeed(bench.command(&["stop", "--now", "--wait"])).contains("was stopped"));
    assert_eq!(ended(first).0.status.code(), Some(143));
}

#[test]
fn a_search_that_was_lost_is_told_from_one_that_ended() {
    let bench = Bench::new();
    let mut search = Bench::start(bench.search("30", &["--trials", "2"]));
    bench.wait_for("select count(*) as n from trial where state = 'running'");
    search.kill().unwrap();
    search.wait().unwrap();
    let output = bench.command(&["attach"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", messages(&output));
    assert!(
        messages(&output).contains("was lost with its process"),
        "{}",
        messages(&output)
    );
}

#[test]
fn trials_that_take_more_gpus_than_are_named_are_refused() {
    for (space, is_refused) in [
        ("space: {rank: [2, 4], devices: [1, 2]}\nconfirm: none\n", false),
        ("space: {rank: [2, 4], devices: [1, 4]}\nconfirm: none\n", true),
        ("space: {rank: [2, 4], devices: 3}\nconfirm: none\n", true),
        ("space: {rank: [2, 4]}\nconfirm: none\n", false),
    ] {
        let bench = Bench::of(space);
        let mut search = bench.search("0", &["--dry-run", "--devices", "0,1"]);
        let output = search.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{space}: {}", messages(&output));
        let refused = messages(&output).contains("in the space file goes up to");
        assert_eq!(refused, is_refused, "{space}: {}", messages(&output));
        // Here are no such devices, and nothing else is wrong.
        assert!(
            refused || messages(&output).contains("cuda:0 cannot be used"),
            "{}",
            messages(&output)
        );
    }
}

#[test]
fn a_dry_run_tells_what_would_run_and_leaves_nothing() {
    let bench = Bench::new();
    let text = Bench::succeed(bench.search("0", &["--dry-run", "--workers", "2"]));
    assert!(text.contains("nothing was run") && text.contains("worker 1"), "{text}");
    assert!(!bench.path("study.db").exists());
    let shown: Value = serde_json::from_str(&Bench::succeed(bench.search("0", &["--dry-run", "--json"]))).unwrap();
    assert_eq!(shown["next"].as_array().unwrap().len(), 8);
    Bench::succeed(bench.search("0", &[]));
    let params = bench.rows("select trial, name, value from trial_param where name = 'rank' order by trial");
    for (trial, planned) in params.iter().zip(shown["next"].as_array().unwrap()) {
        assert_eq!(trial["value"], planned["rank"], "what was told is what runs");
    }
    let after = Bench::succeed(bench.search("0", &["--dry-run"]));
    assert!(after.contains("the budget is spent"), "{after}");
}

#[test]
fn a_log_has_an_object_a_line_for_every_start_and_end() {
    let bench = Bench::new();
    let arguments = [
        "--trials",
        "3",
        "--log-format",
        "json",
        "--log-level",
        "info",
        "--log-file",
        "log.json",
    ];
    Bench::succeed(bench.search("0", &arguments));
    let log = std::fs::read_to_string(bench.path("log.json")).unwrap();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |message: &str| lines.iter().filter(|line| line["message"] == message).count();
    assert_eq!((count("the search starts"), count("the search ended")), (1, 1), "{log}");
    assert_eq!((count("a trial begins"), count("a trial ended")), (3, 3), "{log}");
    assert!(
        count("a worker is ready") == 1 && lines.iter().all(|line| line["timestamp"].is_string()),
        "{log}"
    );
    let output = bench.search("0", &["--log-level", "loud!"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", messages(&output));
}

#[test]
fn a_study_that_runs_again_has_not_ended_and_hints_name_its_database() {
    let bench = Bench::new();
    let search = Bench::start(bench.search("0.4", &["--trials", "30"]));
    bench.wait_for("select count(*) as n from trial where state = 'complete'");
    let stopped = Bench::succeed(bench.command(&["stop"]));
    let resume = "peft-tune search space.yaml --as faults --db ";
    assert!(stopped.contains(resume), "{stopped}");
    search.wait_with_output().unwrap();
    let status = Bench::succeed(bench.command(&["status"]));
    assert!(
        status.contains(resume) && status.contains("it was asked to stop"),
        "{status}"
    );
    assert!(Bench::succeed(bench.command(&["show"])).contains("it was asked to stop"));
    let before = bench.count("select count(*) as n from trial");
    let search = Bench::start(bench.search("0.4", &["--trials", "30"]));
    bench.wait_for(&format!("select count(*) > {before} as n from trial"));
    for command in ["show", "explain"] {
        let text = Bench::succeed(bench.command(&[command]));
        assert!(!text.contains("it was asked to stop"), "{command}: {text}");
    }
    signal(search.id(), libc::SIGTERM);
    search.wait_with_output().unwrap();
}
