//! Other programs on the processors of a watched run, and processes of it that outlive the command.

use std::io::Read;
use std::process::{Command, Stdio};

use super::Bench;
use crate::faults::bench::messages;

/// Lets a command run on one processor alone: the first that this program may use.
#[cfg(target_os = "linux")]
fn on_one_processor(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    // SAFETY: a plain structure, for which zeros are a value, and which outlives the calls; between fork and exec nothing but a system
    // call is made.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let size = std::mem::size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut allowed), 0);
        let most = usize::try_from(libc::CPU_SETSIZE).unwrap();
        let first = (0..most).find(|number| libc::CPU_ISSET(*number, &allowed)).unwrap();
        let mut one: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(first, &mut one);
        command.pre_exec(move || match libc::sched_setaffinity(0, size, &raw const one) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_program_on_the_runs_own_processor_is_named() {
    // Where threads' waits are not counted nothing is named.
    if !std::path::Path::new("/proc/self/schedstat").exists() {
        return;
    }
    let bench = Bench::new();
    let script = format!(
        "{} i=0; while [ $i -le 60 ]; do bar $i 60; i=$((i + 1)); work; done",
        super::SHELL
    );
    let mut command = bench.watch(&[], &["sh", "-c", &script]);
    on_one_processor(&mut command);
    let mut beside = Command::new("sh");
    on_one_processor(beside.args(["-c", "while :; do :; done"]));
    let mut beside = beside.spawn().unwrap();
    let output = command.output().unwrap();
    beside.kill().unwrap();
    beside.wait().unwrap();
    let report = bench.report();
    let causes = report["causes"].as_array().unwrap();
    let others = causes.iter().find(|cause| cause["name"] == "other_programs");
    let evidence = others.and_then(|cause| cause["evidence"].as_str()).unwrap_or_default();
    assert!(
        evidence.contains("of the 1 processors"),
        "{evidence}: {}",
        messages(&output)
    );
    assert!(
        !bench.causes().contains(&"data_wait".to_owned()),
        "{}",
        messages(&output)
    );
}

#[test]
fn processes_that_a_command_leaves_behind_keep_their_output() {
    let bench = Bench::new();
    let script = "(while [ ! -e go ]; do sleep 0.05; done; echo late) & echo early";
    let mut command = bench.watch(&[], &["sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(bench.report()["ending"]["leaves_others"], true);
    std::fs::write(bench.folder().join("go"), "").unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(text, "early\nlate\n");
}

#[test]
fn processes_that_go_on_behind_the_command_are_told_though_they_print_nothing() {
    let bench = Bench::new();
    let script = "(while [ ! -e go ]; do sleep 0.05; done) >/dev/null 2>&1 & sleep 1";
    let output = bench.run(script);
    std::fs::write(bench.folder().join("go"), "").unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    assert_eq!(bench.report()["ending"]["leaves_others"], true);
    assert!(messages(&output).contains("go on, unwatched"), "{}", messages(&output));
    bench.run("sleep 0.2 & wait");
    assert_eq!(bench.report()["ending"]["leaves_others"], false);
}

#[test]
fn a_log_that_is_a_pipe_holds_nothing_up() {
    let bench = Bench::new();
    let made = Command::new("mkfifo")
        .arg(bench.folder().join("pipe"))
        .status()
        .unwrap();
    assert!(made.success());
    let mut command = bench.watch(&["--log", "pipe", "--trace", "pipe"], &["echo", "ran"]);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"ran\n"[..])
    );
}
