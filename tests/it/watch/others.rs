//! Processes of a watched run that outlive its command, and pipes that nobody writes into.

use std::io::Read;
use std::process::{Command, Stdio};

use super::Bench;
use crate::faults::bench::messages;

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
