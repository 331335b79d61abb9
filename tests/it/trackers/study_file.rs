//! The key `track` of a study file.

use super::{Bench, SPACE, files};
use crate::mocked;

impl Bench {
    /// Makes a bench with a study file that lies in a folder of its own and names trackers.
    fn with_track(track: &str) -> Self {
        let bench = Self::new();
        std::fs::create_dir(bench.path("studies")).unwrap();
        let text = SPACE
            .replace("model: base", "model: ../base")
            .replace("train.jsonl, held_out: held", "../train.jsonl, held_out: ../held");
        std::fs::write(bench.path("studies/space.yaml"), format!("{text}{track}\n")).unwrap();
        bench
    }

    fn has(&self, folder: &str) -> usize {
        files(&self.path(folder)).len()
    }
}

/// Text that a command writes to standard output.
fn text_of(output: &std::process::Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

const SEARCH: [&str; 2] = ["search", "studies/space.yaml"];

#[test]
fn a_search_tracks_where_its_file_says_and_a_resumed_one_goes_on() {
    let bench = Bench::with_track("track: [tensorboard=runs, wandb=sub/offline, tensorboard=./runs]");
    let said = bench.said(&SEARCH);
    let runs = bench.path("studies/runs");
    let line = format!(
        "tracked  tensorboard={}, wandb={}",
        runs.display(),
        bench.path("studies/sub/offline").display()
    );
    assert!(said.contains(&line), "{said}");
    assert_eq!((bench.has("studies/runs"), bench.has("runs")), (3, 0));
    let before = files(&runs);
    bench.said(&[&SEARCH[..], &["--trials", "4"]].concat());
    let after = files(&runs);
    assert_eq!(after.len(), 4);
    assert!(
        before.iter().all(|one| after.contains(one)),
        "a trial was written twice"
    );
}

#[test]
fn the_command_line_adds_to_the_file_or_takes_its_place() {
    let bench = Bench::with_track("track: [tensorboard=runs]");
    // The same folder, from where the command runs; and another one.
    let more = [
        "--track",
        "tensorboard=studies/runs",
        "--track",
        "tensorboard=more",
        "--trials",
        "1",
    ];
    let said = bench.said(&[&SEARCH[..], &more].concat());
    let line = said
        .lines()
        .find(|line| line.trim_start().starts_with("tracked  "))
        .unwrap();
    assert_eq!(line.matches("tensorboard=").count(), 2, "{line}");
    assert_eq!((bench.has("studies/runs"), bench.has("more")), (1, 1));
    let instead = ["--no-track", "--track", "tensorboard=other", "--trials", "2"];
    bench.said(&[&SEARCH[..], &instead].concat());
    assert_eq!((bench.has("studies/runs"), bench.has("other")), (1, 2));
    let said = bench.said(&[&SEARCH[..], &["--no-track", "--trials", "3"]].concat());
    assert!(!said.contains("tracked  "), "{said}");
    assert_eq!((bench.has("studies/runs"), bench.has("other")), (1, 2));
}

#[test]
fn where_a_study_is_tracked_makes_it_no_other_study() {
    let bench = Bench::with_track("");
    bench.said(&SEARCH);
    let path = bench.path("studies/space.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}track: [optuna=studies.db]\n")).unwrap();
    let said = bench.said(&SEARCH);
    assert!(
        !said.contains("loading") && !said.contains("complete"),
        "a trial ran again: {said}"
    );
    assert!(bench.path("studies/studies.db").is_file());
    let listed = bench.run(&["query", "select count(*) as trials from trial"]);
    let listed = text_of(&listed) + &mocked::errors_of(&listed);
    assert!(listed.lines().any(|line| line.trim() == "3"), "{listed}");
}

#[test]
fn plans_and_dry_runs_name_the_trackers_and_write_nothing_there() {
    let bench = Bench::with_track("track: [mlflow=http://127.0.0.1:9, tensorboard=runs]");
    for command in [
        ["plan", "studies/space.yaml", "--json"],
        ["search", "studies/space.yaml", "--dry-run"],
    ] {
        let output = bench.run(&command);
        let (said, errors) = (text_of(&output), mocked::errors_of(&output));
        assert!(output.status.success(), "{errors}");
        assert!(
            said.contains("mlflow=http://127.0.0.1:9") && said.contains("tensorboard=/"),
            "{said}"
        );
    }
    assert!(!bench.path("studies/runs").exists());
}

#[test]
fn mistakes_name_file_key_and_what_to_write() {
    for (track, expected) in [
        (
            "track: [tensorboard=runs, comet=x]",
            "space.yaml:12:27: key `track[1]`: there is no tracker `comet`",
        ),
        ("track: [tensorboard]", "say where: `tensorboard=a folder`"),
        ("track: [mlflow=sqlite:///a.db]", "start `mlflow server` on it"),
        ("track: tensorboard=runs", "write a list"),
        ("track: [3]", "`track[0]`"),
    ] {
        let bench = Bench::with_track(track);
        let output = bench.run(&SEARCH);
        let errors = mocked::errors_of(&output);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(
            errors.contains(expected) && errors.contains("space.yaml:12:"),
            "{track}: {errors}"
        );
        assert!(!bench.path("study.db").exists());
    }
}
