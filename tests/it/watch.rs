//! `peft-tune watch` around small programs of a shell, each with a fault: what passes through unchanged, how it ends, and which
//! cause is named.

/// Logs that a run writes beside its output.
mod logs;
/// Others on the machine, and processes that go on behind their command.
mod others;
/// Signals, and keys that are typed.
mod signals;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::faults::bench::{messages, signal};
use crate::faults::terminals::shown;
use crate::signals::heeds_signals;

/// A folder for what a run writes.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }

    /// A command that is watched every twentieth of a second, with its report in `run.json`.
    fn watch(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = crate::program();
        command.current_dir(self.folder());
        command.args(["watch", "--every", "0.05", "--report", "run.json"]);
        command.args(options).arg("--").args(words);
        command.env("PEFT_TUNE_DB", self.folder().join("study.db"));
        command.env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX");
        // Nothing here runs on a GPU, whatever the machine has.
        command.env("CUDA_VISIBLE_DEVICES", "");
        heeds_signals(&mut command);
        command
    }

    /// A script of a shell that is watched to its end.
    fn run(&self, script: &str) -> Output {
        self.watch(&[], &["sh", "-c", script]).output().unwrap()
    }

    fn report(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.folder().join("run.json")).unwrap()).unwrap()
    }

    /// Names of the causes that the report has.
    fn causes(&self) -> Vec<String> {
        let report = self.report();
        let causes = report["causes"].as_array().unwrap();
        causes
            .iter()
            .map(|cause| cause["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Draws a bar of steps as the Trainer does, and computes or waits a while.
const SHELL: &str = r#"
bar() { printf '\r%3d%%|##        | %d/%d [00:01<00:09,  1.00it/s]' $((100 * $1 / $2)) "$1" "$2" >&2; }
work() { n=0; while [ $n -lt 20000 ]; do n=$((n + 1)); done; }
"#;

#[test]
fn bytes_and_the_exit_code_pass_through() {
    let bench = Bench::new();
    let output = bench.run(r"printf 'a\000b\377\r\n\033[31mc'; printf 'on stderr\n' >&2; exit 3");
    assert_eq!(output.stdout, b"a\0b\xff\r\n\x1b[31mc");
    assert_eq!(output.status.code(), Some(3), "{}", messages(&output));
    let said = messages(&output);
    assert!(said.contains("on stderr\n") && said.contains("exit code 3"), "{said}");
    assert!(!said.contains("error:"), "{said}");
    assert_eq!(bench.report()["ending"]["exit_code"], 3);
    let fine = bench.run("cat; exit 0");
    assert_eq!(fine.status.code(), Some(0), "{}", messages(&fine));
}

#[test]
fn what_cannot_be_started_has_the_codes_of_a_shell() {
    let bench = Bench::new();
    let missing = bench.watch(&[], &["no-such-program-here"]).output().unwrap();
    assert_eq!(missing.status.code(), Some(127), "{}", messages(&missing));
    assert!(messages(&missing).contains("cannot run `no-such-program-here`"));
    std::fs::write(bench.folder().join("plain"), "x").unwrap();
    let plain = bench.watch(&[], &["./plain"]).output().unwrap();
    assert_eq!(plain.status.code(), Some(126), "{}", messages(&plain));
    let nothing = bench.watch(&[], &[]).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2), "{}", messages(&nothing));
    let mut folder = crate::program();
    folder.args(["watch", "--report", "no/such/run.json", "--", "true"]);
    let folder = folder.current_dir(bench.folder()).output().unwrap();
    assert_eq!(folder.status.code(), Some(2));
    assert!(
        messages(&folder).contains("there is no folder no/such"),
        "{}",
        messages(&folder)
    );
}

#[test]
fn a_command_that_is_killed_is_reported_with_its_signal() {
    let bench = Bench::new();
    let output = bench.run("echo before; kill -9 $$");
    assert_eq!(output.status.code(), Some(137), "{}", messages(&output));
    assert_eq!(output.stdout, b"before\n");
    assert_eq!(bench.report()["ending"]["signal"], 9);
}

#[cfg(target_os = "linux")]
#[test]
fn output_that_cannot_be_written_is_told() {
    let bench = Bench::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = bench.watch(&[], &["echo", "lost"]);
    let output = command.stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", messages(&output));
    let unknown = bench.report()["unknown"].to_string();
    assert!(
        unknown.contains("a part of the output could not be written"),
        "{unknown}"
    );
    bench.run("echo kept");
    let unknown = bench.report()["unknown"].to_string();
    assert!(!unknown.contains("output could not"), "{unknown}");
}

#[test]
fn both_streams_into_one_file_keep_their_order() {
    let bench = Bench::new();
    let path = bench.folder().join("both");
    let file = std::fs::File::create(&path).unwrap();
    let script = "i=0; while [ $i -lt 500 ]; do echo \"o$i\"; echo \"e$i\" >&2; i=$((i + 1)); done";
    let mut command = bench.watch(&[], &["sh", "-c", script]);
    let status = command.stdout(file.try_clone().unwrap()).stderr(file).status().unwrap();
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(status.code(), Some(0), "{text}");
    let is_scripts = |line: &&str| {
        let number = line.strip_prefix(['o', 'e']);
        number.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let printed: Vec<&str> = text.lines().filter(is_scripts).collect();
    let expected: Vec<String> = (0..500).flat_map(|i| [format!("o{i}"), format!("e{i}")]).collect();
    assert!(printed == expected, "{text}");
    assert!(text.contains("exit code 0"), "{text}");
}

#[test]
fn megabytes_pass_whole() {
    let bench = Bench::new();
    let script = "seq 1 2000000; head -c 5000000 /dev/zero; printf '\\n' >&2";
    let mut command = bench.watch(&[], &["sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut printed = child.stdout.take().unwrap();
    let mut all = vec![0; 1000];
    printed.read_exact(&mut all).unwrap();
    // A reader that stands still holds the output up, and loses none of it.
    std::thread::sleep(Duration::from_millis(500));
    printed.read_to_end(&mut all).unwrap();
    let mut expected: Vec<u8> = (1..=2_000_000)
        .flat_map(|number| format!("{number}\n").into_bytes())
        .collect();
    expected.extend(std::iter::repeat_n(0, 5_000_000));
    assert!(all == expected, "{} bytes", all.len());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_watch_that_is_killed_takes_neither_the_run_nor_its_output_away() {
    let bench = Bench::new();
    let script = "echo ready; sleep 1; echo late; echo done > ended";
    let mut command = bench.watch(&[], &["sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut printed = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    printed.read_line(&mut text).unwrap();
    signal(child.id(), libc::SIGKILL);
    child.wait().unwrap();
    printed.read_to_string(&mut text).unwrap();
    assert_eq!(text, "ready\nlate\n");
    let began = Instant::now();
    while !bench.folder().join("ended").exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "the run did not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn untouched_streams_are_the_commands_own() {
    let bench = Bench::new();
    let mut command = bench.watch(
        &["--untouched"],
        &["sh", "-c", "echo out; echo '10%|# | 1/2 [00:01<00:01, 1it/s]' >&2"],
    );
    let output = command.output().unwrap();
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(bench.report()["measured"]["steps"], 0);
}

/// Functions of awk: a bar of steps, and a text of so many bytes or more.
const AWK: &str = r#"
function bar(done, total) { printf "\r%3d%%|##   | %d/%d [00:01<00:09,  1.00it/s]", 100 * done / total, done, total > "/dev/stderr" }
function wait(seconds) { fflush(); fflush("/dev/stderr"); system("sleep " seconds) }
function text(bytes, s) { s = "x"; while (length(s) < bytes) s = s s; return s }
function now(line, words) { getline line < "/proc/uptime"; close("/proc/uptime"); split(line, words, " "); return words[1] + 0 }
"#;

#[test]
fn memory_that_grows_is_named() {
    let bench = Bench::new();
    // Memory follows the clock, in one process, so that the line is one however slow the machine is.
    let program = format!(
        "{AWK} BEGIN {{ s = text(1000000); began = now(); n = 0
         for (i = 0; i <= 60; i++) {{ bar(i, 60); fflush(\"/dev/stderr\")
           do {{ t = now() - began; while (n < 30 * t) {{ a[n] = s n; n++ }} }} while (t < i / 10) }} }}"
    );
    let output = bench.watch(&[], &["awk", &program]).output().unwrap();
    let causes = bench.causes();
    assert!(
        causes.contains(&"memory_grows".to_owned()),
        "{causes:?}: {}",
        messages(&output)
    );
    let measured = &bench.report()["measured"];
    assert_eq!((&measured["steps"], &measured["total_steps"]), (&60.into(), &60.into()));
    assert!(
        measured["peak_memory_bytes"].as_u64().unwrap() > 150_000_000,
        "{measured:#}"
    );
}

#[test]
fn waits_are_named_and_a_run_that_computes_has_none() {
    let bench = Bench::new();
    let waits = format!("{SHELL} i=0; while [ $i -le 30 ]; do bar $i 30; i=$((i + 1)); sleep 0.08; done");
    let output = bench.run(&waits);
    assert_eq!(
        bench.causes().first().map(String::as_str),
        Some("data_wait"),
        "{}",
        messages(&output)
    );
    let computes = format!("{SHELL} i=0; while [ $i -le 40 ]; do bar $i 40; i=$((i + 1)); work; done");
    let output = bench.run(&computes);
    let causes = bench.causes();
    for absent in [
        "data_wait",
        "memory_grows",
        "evaluation_peak",
        "swapping",
        "out_of_memory",
        "memory_limit",
    ] {
        assert!(
            !causes.contains(&absent.to_owned()),
            "{causes:?}: {}",
            messages(&output)
        );
    }
}

#[test]
fn a_step_in_which_nothing_computes_is_a_stall() {
    let bench = Bench::new();
    let script =
        format!("{SHELL} i=0; while [ $i -le 40 ]; do bar $i 40; [ $i -eq 30 ] && sleep 4; i=$((i + 1)); work; done");
    let output = bench.run(&script);
    let report = bench.report();
    let causes = report["causes"].as_array().unwrap();
    let stall = causes.iter().find(|cause| cause["name"] == "stall");
    let evidence = stall.and_then(|stall| stall["evidence"].as_str()).unwrap_or_default();
    assert!(evidence.contains("in step 31"), "{evidence}: {}", messages(&output));
}

#[test]
fn an_evaluation_s_peak_is_told_apart_from_that_of_steps() {
    let bench = Bench::new();
    let program = format!(
        "{AWK} BEGIN {{ for (i = 0; i <= 10; i++) {{ bar(i, 20); wait(0.05) }}
         bar(0, 7); wait(0.1); s = text(100000000); bar(3, 7); wait(0.5); bar(7, 7); s = \"\"
         print \"{{'eval_loss': 2.5, 'eval_runtime': 1.0}}\"
         for (; i <= 20; i++) {{ bar(i, 20); wait(0.05) }} }}"
    );
    let output = bench.watch(&[], &["awk", &program]).output().unwrap();
    let causes = bench.causes();
    assert!(
        causes.contains(&"evaluation_peak".to_owned()),
        "{causes:?}: {}",
        messages(&output)
    );
    assert!(bench.report()["measured"]["evaluation_s"].as_f64() > Some(0.4));
}

const AXOLOTL: &str = "base_model: ./model\nadapter: lora\nlora_r: 16\nlora_target_linear: true\nmicro_batch_size: 2\n\
                       gradient_accumulation_steps: 4\nsequence_len: 1024\noutput_dir: out\n";

/// A stand-in for axolotl, which prints other settings than its file has and goes on without flash attention.
fn axolotl(bench: &Bench) {
    let folder = bench.folder();
    std::fs::create_dir(folder.join("model")).unwrap();
    std::fs::write(folder.join("model/config.json"), crate::plan::LLAMA_1B).unwrap();
    std::fs::write(folder.join("axolotl.yaml"), AXOLOTL).unwrap();
    let script = format!(
        "#!/bin/sh\n{SHELL}
         echo '  Instantaneous batch size per device = 2'
         echo '  Gradient Accumulation steps = 8'
         echo '  Total optimization steps = 12'
         echo 'Flash attention is not available. Falling back to eager attention'
         i=0; while [ $i -le 12 ]; do bar $i 12; i=$((i + 1)); sleep 0.05; done
         echo \"{{'loss': 1.25, 'num_tokens': 4096}}\"\n"
    );
    let program = folder.join("axolotl");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_tools_file_is_read_and_its_prediction_stands_beside_what_was_measured() {
    let bench = Bench::new();
    axolotl(&bench);
    let words = ["./axolotl", "train", "axolotl.yaml", "--micro-batch-size", "2"];
    let output = bench.watch(&["--device", "L4"], &words).output().unwrap();
    let said = messages(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let report = bench.report();
    assert!(report["expected"]["step_s"].as_f64() > Some(0.0), "{said}");
    assert_eq!(report["expected"]["device"], "L4");
    assert!(
        report["read"]["tool"].as_str().unwrap().starts_with("axolotl"),
        "{report:#}"
    );
    assert_eq!(report["read"]["setting"]["gradient_accumulation"], 4);
    assert_eq!(report["measured"]["loss"], 1.25);
    let metrics: Vec<&str> = report["gaps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gap| gap["metric"].as_str().unwrap())
        .collect();
    assert_eq!(metrics, ["step_s", "tokens_per_s"]);
    let causes = bench.causes();
    for expected in ["other_setting", "fallback"] {
        assert!(causes.contains(&expected.to_owned()), "{causes:?}");
    }
    assert!(said.contains("gradient accumulation is 8 and not 4"), "{said}");
    assert!(
        said.contains("expected: ") && said.contains("beyond the prediction's error"),
        "{said}"
    );
}

#[test]
fn a_run_is_held_against_an_earlier_report() {
    let bench = Bench::new();
    axolotl(&bench);
    let first = bench
        .watch(&["--device", "L4"], &["./axolotl", "train", "axolotl.yaml"])
        .output()
        .unwrap();
    assert_eq!(first.status.code(), Some(0), "{}", messages(&first));
    std::fs::rename(bench.folder().join("run.json"), bench.folder().join("earlier.json")).unwrap();
    let words = ["./axolotl", "train", "axolotl.yaml", "--micro-batch-size", "4"];
    let second = bench
        .watch(&["--device", "L4", "--against", "earlier.json"], &words)
        .output()
        .unwrap();
    let said = messages(&second);
    assert!(
        said.contains("against the earlier run") && said.contains("setting micro_batch: 2 then, 4 now"),
        "{said}"
    );
    std::fs::write(bench.folder().join("earlier.json"), "[]").unwrap();
    let wrong = bench.watch(&["--against", "earlier.json"], &["true"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2), "{}", messages(&wrong));
}

#[test]
fn what_cannot_be_read_keeps_nothing_from_running() {
    let bench = Bench::new();
    std::fs::write(bench.folder().join("c.yaml"), "neither: here\nnor: there\n").unwrap();
    let output = bench
        .watch(&[], &["sh", "-c", "echo ran; exit 5", "c.yaml"])
        .output()
        .unwrap();
    let said = messages(&output);
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(5), &b"ran\n"[..]),
        "{said}"
    );
    assert!(
        said.contains("nothing is predicted") && said.contains("c.yaml"),
        "{said}"
    );
    // A processor that cannot be measured is no reason either.
    let mut command = bench.watch(&["--device", "cpu"], &["echo", "ran"]);
    let output = command.env("PEFT_TUNE_DB", "/dev/null/study.db").output().unwrap();
    let said = messages(&output);
    assert!(output.status.success() && output.stdout == b"ran\n", "{said}");
    assert!(said.contains("no speed is predicted"), "{said}");
    let unknown = bench.watch(&["--device", "abacus"], &["true"]).output().unwrap();
    assert_eq!(unknown.status.code(), Some(2), "{}", messages(&unknown));
}

#[test]
fn a_terminal_stays_one_and_its_last_line_tells_the_progress() {
    let bench = Bench::new();
    let script = format!(
        "{SHELL} test -t 1 && test -t 2 && printf 'both %s\\n' terminals
         i=0; while [ $i -le 20 ]; do bar $i 20; i=$((i + 1)); sleep 0.06; done; exit 4"
    );
    let (text, code) = shown(bench.watch(&[], &["sh", "-c", &script]), 100);
    assert_eq!(code, Some(4), "{text}");
    assert!(text.contains("both terminals\r\n"), "{text}");
    assert!(
        text.contains("\u{1b}[24;1H") && (5..=15).any(|step| text.contains(&format!("step {step}/20"))),
        "{text}"
    );
    // All of its lines are the terminal's again.
    let (_, behind) = text.rsplit_once("\u{1b}[24;1H").unwrap();
    assert!(behind.contains("\u{1b}[r"), "{behind:?}");
}

/// A trace of PyTorch's profiler with one op, as one line.
const TRACE: &str =
    r#"{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 5, "dur": 40}]}"#;

#[test]
fn a_trace_that_the_run_writes_is_read_behind_it() {
    let bench = Bench::new();
    std::fs::write(bench.folder().join("text"), TRACE).unwrap();
    let output = bench
        .watch(
            &["--trace", "trace.json"],
            &["sh", "-c", "sleep 0.1; cp text trace.json"],
        )
        .output()
        .unwrap();
    assert!(messages(&output).contains("aten::mm"), "{}", messages(&output));
    assert_eq!(bench.report()["trace"]["profile"]["ops"][0]["name"], "aten::mm");
    // The same file, which the next run leaves alone.
    for (file, reason) in [
        ("trace.json", "is not of this run"),
        ("none.json", "the run wrote no trace"),
    ] {
        let output = bench.watch(&["--trace", file], &["true"]).output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(messages(&output).contains(reason), "{}", messages(&output));
        assert!(bench.report()["trace"].is_null());
    }
}

#[test]
fn a_trace_is_read_without_a_command_too() {
    let bench = Bench::new();
    std::fs::write(bench.folder().join("trace.json"), TRACE).unwrap();
    let mut command = crate::program();
    command
        .current_dir(bench.folder())
        .args(["watch", "--trace", "trace.json"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("aten::mm") && text.contains("taken as one step"),
        "{text}"
    );
    for options in [
        &["--report", "run.json"][..],
        &["--against", "run.json"],
        &["--log", "log.jsonl"],
        &["--config", "c.yaml"],
        &["--every", "5"],
        &["--untouched"],
    ] {
        let mut command = crate::program();
        command
            .current_dir(bench.folder())
            .args(["watch", "--trace", "trace.json"])
            .args(options);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", messages(&output));
        assert!(
            messages(&output).contains("name the command behind `--`"),
            "{options:?}: {}",
            messages(&output)
        );
    }
}
