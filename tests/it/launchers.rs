//! Searches whose trial processes are started by something else: stand-ins for srun, ssh and kubectl keep their command line and
//! then run the worker, so that real trials go through. `scripts/clusters/slurm-test.sh` does it with Slurm itself.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

/// Keeps the command line, passes over the options, and runs the rest.
const SRUN: &str = r#"#!/bin/sh
echo "srun $*" >> "$LAUNCHER_LOG"
while [ $# -gt 0 ]; do case "$1" in --*) shift ;; *) break ;; esac; done
exec "$@"
"#;

/// Stand-in for ssh: joins the words behind `--` and hands them to a shell.
const SSH: &str = r#"#!/bin/sh
echo "ssh $*" >> "$LAUNCHER_LOG"
while [ "$1" != -- ]; do shift; done
shift
exec sh -c "$*"
"#;

const KUBECTL: &str = r#"#!/bin/sh
echo "kubectl $*" >> "$LAUNCHER_LOG"
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"#;

/// A folder with the stand-ins, this program under its own name, and a study.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(bench.path("bin")).unwrap();
        for (name, text) in [("srun", SRUN), ("ssh", SSH), ("kubectl", KUBECTL)] {
            let path = bench.path("bin").join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        }
        let program = Path::new(env!("CARGO_BIN_EXE_peft-tune"));
        std::os::unix::fs::symlink(program, bench.path("bin").join("peft-tune")).unwrap();
        bench
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs two trials through `launcher` and returns the output, and the command lines of the stand-ins.
    fn search(&self, launcher: &str) -> (Output, String) {
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart");
        let assets = assets.display();
        let text = format!(
            "study: away\nmodel: {assets}/base\ndata: {{train: {assets}/train.jsonl, held_out: {assets}/held_out.jsonl, \
             max_rows: 32}}\nobjectives: [throughput, peak_memory]\nspace: {{rank: [2, 4], sequence_length: 32}}\n\
             trial: {{profile_steps: 2, profile_warmup: 1}}\nsampler: grid\nconfirm: none\nlauncher: {launcher}\n"
        );
        std::fs::write(self.path("space.yaml"), text).unwrap();
        let path = format!("{}:{}", self.path("bin").display(), std::env::var("PATH").unwrap());
        let output = crate::program()
            .args(["search", "space.yaml", "--db", "results.db", "--json", "--threads", "1"])
            .current_dir(self.folder.path())
            .env("PATH", path)
            .env("PEFT_TUNE_CACHE", self.path("cache"))
            .env("LAUNCHER_LOG", self.path("log"))
            .output()
            .unwrap();
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        (output, log)
    }

    /// Checks that both trials are complete.
    fn assert_complete(&self, output: &Output) {
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        let states = crate::program()
            .args([
                "query",
                "select state from trial",
                "--db",
                "results.db",
                "--format",
                "csv",
            ])
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let states = String::from_utf8(states.stdout).unwrap();
        assert_eq!(
            states.lines().collect::<Vec<_>>(),
            ["state", "complete", "complete"],
            "{errors}"
        );
    }
}

#[test]
fn trials_run_as_tasks_of_slurm_with_the_resources_of_the_file() {
    let bench = Bench::new();
    let (output, log) = bench.search("{slurm: {partition: gpu, gpus: 1, cpus: 4, memory: 8G, time: '1:00:00'}}");
    bench.assert_complete(&output);
    // One task runs both trials.
    let lines: Vec<&str> = log.lines().collect();
    let [line] = lines[..] else { panic!("{log}") };
    assert!(
        line.starts_with(
            "srun --nodes=1 --ntasks=1 --unbuffered --job-name=peft-tune-0 --partition=gpu --cpus-per-task=4 --mem=8G \
             --time=1:00:00 --gres=gpu:1 "
        ),
        "{line}"
    );
    assert!(line.contains("/peft-tune worker"), "{line}");
}

#[test]
fn trials_run_on_another_machine_through_ssh() {
    let bench = Bench::new();
    let (output, log) = bench.search("{ssh: {hosts: [me@gpu1], env: {WORDS: 'two words'}}}");
    bench.assert_complete(&output);
    assert!(log.starts_with("ssh -T -o BatchMode=yes"), "{log}");
    assert!(
        log.contains("me@gpu1 -- exec env 'WORDS=two words' peft-tune worker"),
        "{log}"
    );
}

#[test]
fn trials_run_in_pods_of_kubernetes() {
    let bench = Bench::new();
    let (output, log) = bench.search("{kubernetes: {image: 'registry/peft-tune:1', gpus: 1, memory: 16Gi}}");
    bench.assert_complete(&output);
    assert!(
        log.starts_with("kubectl run peft-tune-") && log.contains("--stdin"),
        "{log}"
    );
    assert!(
        log.contains(r#""limits":{"nvidia.com/gpu":"1","memory":"16Gi"}"#),
        "{log}"
    );
    assert!(log.contains("--command -- peft-tune worker"), "{log}");
}

#[test]
fn any_words_may_stand_before_the_program() {
    let bench = Bench::new();
    let (output, _) = bench.search("{command: [env, 'PLACE=worker-{worker}']}");
    bench.assert_complete(&output);
}

#[test]
fn a_launcher_that_is_not_there_or_makes_no_sense_says_so() {
    let bench = Bench::new();
    let (output, _) = bench.search("{command: [no-such-launcher]}");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && errors.contains("no-such-launcher"),
        "{errors}"
    );
    for (launcher, wanted) in [
        ("{ssh: {hosts: []}}", "there is no machine"),
        ("{command: []}", "there is no program"),
        ("{slurm: {gpu: 1}}", "gpus"),
        ("{pbs: {}}", "slurm"),
    ] {
        let (output, _) = bench.search(launcher);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{launcher}: {errors}");
        assert!(
            errors.contains(wanted) && errors.contains("launcher"),
            "{launcher}: {errors}"
        );
    }
}
