//! Folders that cannot be written or are not there, and a hub that cannot be reached: each is told with what to do, or does no harm.

use std::process::{Command, Output};

use super::bench::{Bench, messages};

/// Runs a line of the shell in the study's folder, after the folders of `read_only` were made so; nobody else sees that. `None` where
/// the system allows no file systems of one's own.
fn shut(bench: &Bench, read_only: &[&str], line: &str) -> Option<Output> {
    let mut script = String::from("set -e\n");
    for folder in read_only {
        std::fs::create_dir_all(bench.path(folder)).unwrap();
        script += &format!("{{ mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}; }} || exit 77\n");
    }
    script += &format!("set +e\n{line}\n");
    let program = bench.command(&[]);
    let mut shell = Command::new("unshare");
    shell.args(["-rm", "sh", "-c", &script]).current_dir(bench.path(""));
    shell.env("PROGRAM", program.get_program()).env("PEFT_TUNE_MOCK", "0");
    shell.env("PEFT_TUNE_DB", bench.path("study.db")).env_remove("RUST_LOG");
    shell.env("HOME", bench.path("home")).env_remove("XDG_CACHE_HOME");
    shell.env_remove("HF_HOME").env_remove("PEFT_TUNE_CACHE");
    let output = shell.output().ok()?;
    let said = messages(&output);
    if output.status.code() == Some(77) || said.starts_with("unshare:") {
        eprintln!("skipped: no file systems of one's own here: {said}");
        return None;
    }
    Some(output)
}

/// Runs it, and expects this code and these words.
fn expect(bench: &Bench, (read_only, line): (&[&str], &str), code: i32, words: &[&str]) {
    let Some(output) = shut(bench, read_only, line) else {
        return;
    };
    let said = messages(&output) + &String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(code), "{line}: {said}");
    for word in words {
        assert!(said.contains(word), "{line}: `{word}` is missing in {said}");
    }
}

#[test]
fn a_home_or_a_cache_that_cannot_be_written_costs_time_alone() {
    let bench = Bench::new();
    let search = "\"$PROGRAM\" search space.yaml --trials 2";
    let told = ["cannot be written", "tokenised again next time", "2 complete"];
    expect(&bench, (&["home"], search), 0, &told);
    let cache = "PEFT_TUNE_CACHE=$PWD/shut/cache \"$PROGRAM\" search space.yaml --trials 2 --as cache";
    expect(&bench, (&["shut"], cache), 0, &told);
}

#[test]
fn a_folder_for_temporary_files_that_is_missing_or_shut_is_not_needed() {
    let bench = Bench::new();
    for (name, folder) in [("missing", "/nonexistent"), ("shut", "$PWD/shut")] {
        let search = format!("TMPDIR={folder} \"$PROGRAM\" search space.yaml --trials 2 --as {name}");
        expect(&bench, (&["shut"], &search), 0, &["2 complete"]);
    }
    let report = "TMPDIR=/nonexistent \"$PROGRAM\" report --output page.html";
    expect(&bench, (&[], report), 0, &["wrote page.html"]);
}

#[test]
fn results_in_a_read_only_folder_are_read_and_what_would_write_says_where_else() {
    let bench = Bench::new();
    Bench::succeed(bench.search("0", &["--trials", "2"]));
    std::fs::create_dir(bench.path("results")).unwrap();
    std::fs::rename(bench.path("study.db"), bench.path("results/study.db")).unwrap();
    let shut = |command: &str| format!("cd results && export PEFT_TUNE_DB=study.db && \"$PROGRAM\" {command}");
    for command in [
        "show",
        "pareto",
        "studies",
        "status",
        "query 'select 1 as one'",
        "report --output ../page.html",
    ] {
        expect(&bench, (&["results"], &shut(command)), 0, &[]);
    }
    for (command, words) in [
        (
            "report",
            &["cannot write faults.html: Read-only file system (os error 30); choose another path with `--output`"][..],
        ),
        (
            "report --charts pictures",
            &["cannot write pictures: Read-only", "`--charts`"],
        ),
        (
            "export --format recipe --trial 0 --output out",
            &["cannot write out", "Read-only", "`--output`"],
        ),
        (
            "quickstart",
            &["cannot write peft-tune-quickstart", "Read-only", "`--output`"],
        ),
        (
            "query 'select 1 as one' --output rows.csv",
            &["cannot write rows.csv: Read-only", "`--output`"],
        ),
        (
            "search ../space.yaml",
            &["study.db or its folder cannot be written", "`--db`"],
        ),
        ("vacuum", &["study.db or its folder cannot be written", "`--db`"]),
    ] {
        expect(&bench, (&["results"], &shut(command)), 2, words);
    }
    // What is measured of the machine is all that they would keep.
    let told = &["what is measured of this machine is not kept", "plan of study faults"];
    expect(&bench, (&["results"], &shut("plan ../space.yaml")), 0, told);
    expect(
        &bench,
        (&["results"], &shut("doctor")),
        0,
        &["is not kept", "measured ceilings"],
    );
}

#[test]
fn a_hub_that_cannot_be_reached_is_told_with_the_ways_around_it() {
    let bench = Bench::new();
    let text = std::fs::read_to_string(bench.path("space.yaml")).unwrap();
    let model = text.lines().find(|line| line.starts_with("model: ")).unwrap();
    std::fs::write(bench.path("hub.yaml"), text.replace(model, "model: some/model")).unwrap();
    let refused = "HF_ENDPOINT=http://127.0.0.1:9 \"$PROGRAM\" search hub.yaml";
    let told = [
        "cannot reach the hub for model some/model",
        "connect to the network",
        "give a local model directory",
    ];
    expect(&bench, (&[], refused), 2, &told);
    let offline = "HF_HUB_OFFLINE=1 \"$PROGRAM\" search hub.yaml";
    let told = ["is not complete in the cache", "HF_HUB_OFFLINE forbids downloading"];
    expect(&bench, (&[], offline), 2, &told);
}
