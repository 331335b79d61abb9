//! Event files.

use super::{Bench, files};
use crate::mocked;

const SEARCH: [&str; 4] = ["search", "space.yaml", "--track", "tensorboard=runs"];
const TRACK: [&str; 4] = ["track", "tracked", "--to", "tensorboard=runs"];

/// The contents of the records of an event file, all of which have to be whole.
pub(super) fn records(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut records = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        records.push(rest[4..4 + length].to_vec());
        bytes = &rest[4 + length + 4..];
    }
    assert!(bytes.is_empty());
    records
}

#[test]
fn a_search_leaves_what_an_export_of_it_writes_and_adds_nothing_when_it_is_resumed() {
    let bench = Bench::new();
    bench.said(&SEARCH);
    let tracked = files(&bench.path("runs"));
    assert_eq!(tracked.len(), 3);
    bench.said(&["export", "--format", "tensorboard", "--output", "exported"]);
    let exported = files(&bench.path("exported"));
    for ((path, live), (_, whole)) in tracked.iter().zip(&exported) {
        assert!(
            path.to_string_lossy().contains("runs/tracked/trial-000"),
            "{}",
            path.display()
        );
        let (live, whole) = (records(live), records(whole));
        assert!(whole.iter().all(|record| live.contains(record)));
        assert_eq!(live.last(), whole.last());
        // Version, columns and row, steps of both phases, an evaluation or more, metrics, end.
        assert!(whole.len() > 10, "{}", whole.len());
    }
    bench.said(&SEARCH);
    bench.said(&TRACK);
    assert!(files(&bench.path("runs")) == tracked, "something was written twice");
}

#[test]
fn what_a_kill_left_is_continued_to_the_same_bytes() {
    let bench = Bench::new();
    bench.said(&["search", "space.yaml"]);
    bench.said(&TRACK);
    let whole = files(&bench.path("runs"));
    let (path, bytes) = &whole[1];
    for kept in (0..bytes.len()).step_by(97) {
        std::fs::write(path, &bytes[..kept]).unwrap();
        bench.said(&TRACK);
        assert!(files(&bench.path("runs")) == whole, "after {kept} bytes");
    }
    std::fs::write(path, b"something else").unwrap();
    bench.said(&TRACK);
    assert!(files(&bench.path("runs")) == whole);
}

#[test]
fn a_folder_that_cannot_be_written_leaves_the_search_alone_and_is_told_twice() {
    let bench = Bench::new();
    std::fs::write(bench.path("runs"), "a file").unwrap();
    let said = bench.said(&SEARCH);
    assert_eq!(said.matches("does not take the study now").count(), 1, "{said}");
    assert!(said.contains("tensorboard=runs lacks 3 trials"), "{said}");
    let command = said
        .split('`')
        .find(|part| part.starts_with("peft-tune track"))
        .unwrap();
    assert!(
        command.ends_with("--to tensorboard=runs") && command.contains("tracked"),
        "{command}"
    );
    let output = bench.run(&TRACK);
    assert_eq!(output.status.code(), Some(1), "{}", mocked::errors_of(&output));
    std::fs::remove_file(bench.path("runs")).unwrap();
    bench.said(&TRACK);
    assert_eq!(files(&bench.path("runs")).len(), 3);
}

#[test]
fn another_study_of_the_same_name_is_left_alone() {
    let bench = Bench::new();
    bench.said(&SEARCH);
    let before = files(&bench.path("runs"));
    std::fs::remove_file(bench.path("study.db")).unwrap();
    // Studies are told apart by when they began, in seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let said = bench.said(&SEARCH);
    assert!(said.contains("holds another study of this name"), "{said}");
    assert!(files(&bench.path("runs")) == before);
}
