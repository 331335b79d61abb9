//! Signals that reach a watched command, sent by others or typed at its terminal.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::Bench;
use crate::faults::bench::signal;
use crate::faults::terminals::typed;

#[test]
fn signals_go_on_to_the_command_which_answers_them() {
    for (trap, code) in [("exit 7", 7), ("", 0)] {
        let bench = Bench::new();
        let script = format!(
            "trap '{trap}' TERM; echo ready; n=0; while [ $n -lt 30 ]; do n=$((n + 1)); sleep 0.05; done; exit 0"
        );
        let mut command = bench.watch(&[], &["sh", "-c", &script]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut printed = BufReader::new(child.stdout.take().unwrap());
        printed.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        signal(child.id(), libc::SIGTERM);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(code), "trap `{trap}`");
    }
}

#[test]
fn a_signal_that_comes_twice_at_once_goes_on_once() {
    let bench = Bench::new();
    let script =
        "n=0; trap 'n=$((n + 1))' USR1; echo ready; while [ ! -e go ] || [ $n = 0 ]; do sleep 0.05; done; exit $n";
    let mut command = bench.watch(&[], &["sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    printed.read_line(&mut line).unwrap();
    let began = Instant::now();
    signal(child.id(), libc::SIGUSR1);
    // The shell answers each of two that are apart.
    std::thread::sleep(Duration::from_millis(300));
    signal(child.id(), libc::SIGUSR1);
    std::thread::sleep(Duration::from_millis(200));
    std::fs::write(bench.folder().join("go"), "").unwrap();
    let code = child.wait().unwrap().code();
    // On a busy machine the second may be handed on a second behind the first.
    let are_near = began.elapsed() < Duration::from_secs(1);
    assert!(code == Some(1) || !are_near, "{code:?}");
}

#[test]
fn output_goes_on_behind_a_signal_to_the_whole_group() {
    let bench = Bench::new();
    let script = "trap 'echo heard' USR1; echo ready; while [ ! -e go ]; do sleep 0.05; done; echo late";
    let mut command = bench.watch(&[], &["sh", "-c", script]);
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let mut text = String::new();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    printed.read_line(&mut text).unwrap();
    let group = libc::pid_t::try_from(child.id()).unwrap();
    // SAFETY: sending a signal has no precondition.
    unsafe { libc::kill(-group, libc::SIGUSR1) };
    printed.read_line(&mut text).unwrap();
    std::fs::write(bench.folder().join("go"), "").unwrap();
    printed.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("ready\nheard\n") && text.ends_with("late\n"), "{text}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

/// Counts Ctrl-C, and goes on for a second behind the first one.
const COUNTS: &str = r#"n=0; trap 'n=$((n + 1)); printf "heard %s\n" "$n"' INT; printf 'ready\n'
i=0; while [ $i -lt 200 ]; do [ $n -gt 0 ] && [ $i -lt 190 ] && i=190; i=$((i + 1)); sleep 0.1; done; exit $((40 + n))"#;

#[test]
fn what_is_typed_reaches_the_command_once_and_the_watch_waits_for_it() {
    let bench = Bench::new();
    let (text, code) = typed(bench.watch(&[], &["sh", "-c", COUNTS]), "ready\r\n", b"\x03");
    assert_eq!(code, Some(41), "{text}");
    assert!(text.contains("heard 1") && !text.contains("heard 2"), "{text}");
    assert_eq!(bench.report()["ending"]["exit_code"], 41);
}

#[test]
fn what_a_command_does_not_heed_ends_neither_it_nor_the_watch() {
    let bench = Bench::new();
    let script = "trap '' INT; printf 'ready\\n'; sleep 0.5; exit 6";
    let (text, code) = typed(bench.watch(&[], &["sh", "-c", script]), "ready\r\n", b"\x03");
    assert_eq!(code, Some(6), "{text}");
    assert_eq!(bench.report()["ending"]["exit_code"], 6);
}
