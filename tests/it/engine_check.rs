//! Checks of the built-in engine on a GPU, and what `backend: auto` makes of them. A program plays the GPU and the checks on
//! it; choosing, limits, what is kept and what is said are real.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::mocked::errors_of;
use crate::trl_families::engine_line;
use crate::trl_search::{GPU, SPACE, bench, command, python_with, queried, stand_in};

/// Results of `gpu-check` that all passed.
const PASSES: &str = r#"echo '{"parity": [{}, {}], "memory": {}, "failed": []}' > "$5""#;
/// Results of `gpu-check` of which two did not pass.
const FAILS: &str =
    r#"echo '{"parity": [{}, {}], "memory": null, "failed": ["attention bf16: 3.1e-1 apart", "rope"]}' > "$5"; exit 1"#;
/// Engines that agree, as `check --json` prints it.
const AGREES: &str = r#"echo '{"agrees": true, "reasons": []}'"#;
const DIFFERS: &str = r#"echo '{"agrees": false, "reasons": ["losses differ by up to 2.0e-2"]}'; exit 11"#;

/// Puts a program there that plays a GPU: what it does for a check against the CPU, and for one against TRL.
fn plays(folder: &Path, against_cpu: &str, against_trl: &str) {
    let path = folder.join("gpu");
    let script = format!(
        "#!/bin/sh\necho \"$*\" >> asked\ncase $1 in\nname) echo 'NVIDIA L4' ;;\ngpu-check) {against_cpu} ;;\n\
         check) {against_trl} ;;\nesac\n"
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// A folder with a study that leaves its engine open, a Python that sees a GPU, and what plays that for the engine.
fn bench_with(against_cpu: &str, against_trl: &str) -> tempfile::TempDir {
    let folder = bench(&format!("{SPACE}backend: {{auto: {{python: ./python}}}}\n"));
    python_with(folder.path(), "1.16.0", &[GPU]);
    plays(folder.path(), against_cpu, against_trl);
    folder
}

fn on_gpu(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = command(folder, arguments);
    command.env("PEFT_TUNE_MOCK_GPU", folder.join("gpu"));
    command
}

fn ended(mut command: Command, code: i32) -> Output {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", errors_of(&output));
    output
}

/// What a search says as a study of this name.
fn searched(folder: &Path, name: &str, more: &[&str]) -> String {
    let arguments = [&["search", "space.yaml", "--as", name], more].concat();
    errors_of(&ended(on_gpu(folder, &arguments), 0))
}

/// How often each check was made: against the CPU, and against TRL.
fn checks(folder: &Path) -> [usize; 2] {
    let asked = std::fs::read_to_string(folder.join("asked")).unwrap_or_default();
    ["gpu-check ", "check "].map(|word| asked.lines().filter(|line| line.starts_with(word)).count())
}

#[test]
fn an_engine_that_passes_on_a_gpu_is_taken_and_checked_once_for_all_that_it_depends_on() {
    let folder = bench_with(PASSES, AGREES);
    let folder = folder.path();
    let said = searched(folder, "first", &[]);
    for part in [
        "checking the built-in engine on NVIDIA L4 against the CPU, once",
        "5m 00s at most, which no budget counts",
        "the built-in engine passed on NVIDIA L4: 3 comparisons with the CPU in ",
        "checking the built-in engine on NVIDIA L4 against TRL, once",
        "the built-in engine passed on NVIDIA L4: 2 comparisons with TRL in ",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let line = engine_line(&said);
    assert!(
        line.starts_with(
            "auto takes the built-in engine: it has the family `llama`, and its checks on NVIDIA L4 passed: 3 comparisons with the CPU"
        ),
        "{line}"
    );
    let stored = "select definition ->> '$.settings.backend.trl' is not null as in_trl from study";
    assert_eq!(queried(folder, stored), "in_trl\n0");
    assert_eq!(checks(folder), [1, 2]);
    let asked = std::fs::read_to_string(folder.join("asked")).unwrap();
    for precision in ["fp32", "bf16"] {
        let compared = format!("check --backend trl --json --device cuda:0 --precision {precision} --python ");
        assert!(asked.contains(&compared), "{asked}");
    }

    let said = searched(folder, "second", &[]);
    assert!(!said.contains("checking the built-in engine"), "{said}");
    assert_eq!((engine_line(&said), checks(folder)), (line, [1, 2]));
    // Other packages are another reference, and other kernels another engine, which TRL's trials have no part of.
    python_with(folder, "1.17.0", &[GPU]);
    searched(folder, "third", &[]);
    assert_eq!(checks(folder), [1, 4]);
    searched(folder, "fourth", &["--kernels", "reference"]);
    assert_eq!(checks(folder), [2, 4]);
    searched(folder, "fifth", &["--devices", "cpu"]);
    assert_eq!(checks(folder), [2, 4]);
}

#[test]
fn an_engine_that_fails_is_never_taken_and_the_search_says_by_what() {
    let folder = bench_with(FAILS, AGREES);
    let folder = folder.path();
    let said = searched(folder, "first", &[]);
    assert!(
        said.contains("warning: the built-in engine failed on NVIDIA L4, against the CPU in "),
        "{said}"
    );
    let line = engine_line(&said);
    for part in [
        "auto takes TRL: the built-in engine cannot train this study (it failed its check on NVIDIA L4, against the CPU in ",
        ": attention bf16: 3.1e-1 apart, and 1 more; `peft-tune doctor --check` checks it again",
        "/python has TRL",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(said.contains("trials train in TRL: "), "{said}");
    assert_eq!(engine_line(&searched(folder, "second", &[])), line);
    // Nobody holds an engine against TRL that is wrong already.
    assert_eq!(checks(folder), [1, 0]);

    stand_in(folder, "echo no TRL here >&2; exit 1");
    let output = ended(on_gpu(folder, &["search", "space.yaml", "--as", "third"]), 2);
    let told = errors_of(&output);
    for part in [
        "no engine can train this study: not the built-in one (it failed its check on NVIDIA L4",
        "attention bf16",
        "`--devices cpu` trains on the processor",
        "no TRL here",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let line = engine_line(&searched(folder, "third", &["--devices", "cpu"]));
    assert!(line.contains("trials run on the CPU"), "{line}");
}

#[test]
fn an_engine_that_differs_from_trl_is_never_taken_and_one_that_cannot_be_compared_is() {
    let folder = bench_with(PASSES, DIFFERS);
    let line = engine_line(&searched(folder.path(), "first", &[]));
    assert!(
        line.starts_with("auto takes TRL: ")
            && line.contains(", against TRL in ")
            && line.contains("fp32: losses differ by"),
        "{line}"
    );
    let broken = bench_with(PASSES, "echo the driver is gone >&2; exit 1");
    let line = engine_line(&searched(broken.path(), "first", &[]));
    assert!(
        line.contains("fp32: it ended with exit status: 1: the driver is gone"),
        "{line}"
    );
    // A PyTorch without GPUs computes nothing there that could be compared.
    python_with(folder.path(), "1.16.0", &[]);
    let line = engine_line(&searched(folder.path(), "second", &[]));
    assert!(
        line.starts_with("auto takes the built-in engine: ") && !line.contains("comparisons with TRL"),
        "{line}"
    );
}

#[test]
fn a_comparison_that_bad_input_keeps_from_being_made_is_asked_for_again() {
    let folder = bench_with(PASSES, "echo the model is not here >&2; exit 2");
    let folder = folder.path();
    let line = engine_line(&searched(folder, "first", &[]));
    assert!(
        line.starts_with("auto takes TRL: ")
            && line.contains("it cannot be made: fp32: it ended with exit status: 2: the model is not here"),
        "{line}"
    );
    assert_eq!(checks(folder), [1, 1]);
    plays(folder, PASSES, AGREES);
    let line = engine_line(&searched(folder, "second", &[]));
    assert!(line.starts_with("auto takes the built-in engine: "), "{line}");
    assert_eq!(checks(folder), [1, 3]);
}

#[test]
fn a_check_that_crashes_hangs_or_says_nothing_has_failed_and_the_search_goes_on() {
    for (check, told) in [
        ("kill -SEGV $$", "it ended with signal: 11"),
        ("exec sleep 600", "it was not done within 1.0 s"),
        ("exit 0", "it ended with exit status: 0"),
        (
            "echo 'ok   rope bf16'; echo out of memory >&2; exit 1",
            "it ended with exit status: 1, behind ok   rope bf16: out of memory",
        ),
        (r#"echo nonsense > "$5""#, "it ended with exit status: 0"),
    ] {
        let folder = bench_with(check, AGREES);
        let folder = folder.path();
        let mut search = on_gpu(folder, &["search", "space.yaml"]);
        let limit = if check.contains("sleep") { "1" } else { "100" };
        search.env("PEFT_TUNE_GPU_CHECK_SECONDS", limit);
        let line = engine_line(&errors_of(&ended(search, 0)));
        assert!(
            line.starts_with("auto takes TRL: ") && line.contains(told),
            "{check}: {line}"
        );
        let complete = queried(folder, "select count(*) as n from trial where state = 'complete'");
        assert_eq!(complete, "n\n3", "{check}");
    }
}

#[test]
fn nothing_is_checked_where_nothing_runs_or_the_study_goes_on_in_trl() {
    let folder = bench_with(PASSES, AGREES);
    let folder = folder.path();
    let line = engine_line(&searched(folder, "first", &["--dry-run"]));
    assert!(
        line.starts_with(
            "auto takes TRL: the built-in engine has not been checked against the CPU on NVIDIA L4 so far"
        ),
        "{line}"
    );
    searched(folder, "first", &["--backend", "trl"]);
    let line = engine_line(&searched(folder, "first", &["--trials", "4"]));
    assert_eq!(line, "the study goes on in TRL, as it began");
    assert_eq!(checks(folder), [0, 0]);
    searched(folder, "second", &[]);
    let line = engine_line(&searched(folder, "first", &["--trials", "5"]));
    assert!(
        line.starts_with("the study goes on in TRL, as it began; auto would take the built-in engine now: "),
        "{line}"
    );
    assert_eq!(checks(folder), [1, 2]);
}

#[test]
fn doctor_shows_what_is_known_of_the_engine_on_the_gpu_and_checks_it_again() {
    let folder = bench_with(FAILS, AGREES);
    let folder = folder.path();
    let doctor = |more: &[&str]| {
        let arguments = [&["doctor", "--json", "--python", "./python"], more].concat();
        let output = ended(on_gpu(folder, &arguments), 0);
        let mut found: Value = serde_json::from_slice(&output.stdout).unwrap();
        found["auto"].take()
    };
    searched(folder, "first", &[]);
    let failed = doctor(&[]);
    assert_eq!(failed["known_family"], "trl");
    assert_eq!(failed["built_in"]["failed"]["verdict"]["failed"][1], "rope");
    // What failed by chance is checked again where a person asks for it.
    plays(folder, PASSES, AGREES);
    let passed = doctor(&["--check"]);
    assert_eq!(passed["known_family"], "native");
    let verdicts = passed["built_in"]["passed"]["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 2, "{passed}");
    assert_eq!(checks(folder), [2, 2]);
    let line = engine_line(&searched(folder, "second", &[]));
    assert!(line.starts_with("auto takes the built-in engine: "), "{line}");

    let mut without = command(folder, &["doctor", "--check"]);
    without.env("PEFT_TUNE_MOCK_GPU", "/bin/false");
    let told = errors_of(&ended(without, 2));
    assert!(
        told.contains("`--check`: the built-in engine has no GPU here"),
        "{told}"
    );
}
