//! A short form of `cargo run --release --example fuzz`: mutated inputs of every reader end in a value or in an error.

use std::path::Path;
use std::time::{Duration, Instant};

use super::bench::Bench;
use readers::{Corpus, all_inputs, case};

#[path = "../../../examples/fuzz/readers.rs"]
mod readers;

#[test]
fn mutated_inputs_of_every_reader_end_no_process() {
    let bench = Bench::new();
    Bench::succeed(bench.search("0", &["--trials", "3"]));
    let database = std::fs::read(bench.path("study.db")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let corpus = Corpus::new(Path::new(env!("CARGO_MANIFEST_DIR")), folder.path(), database);
    let inputs = all_inputs(&corpus);
    let began = Instant::now();
    for number in 0..3000 {
        let (reader, bytes) = case(&inputs, 20_261_123, number);
        let started = Instant::now();
        (reader.read)(&corpus, &bytes);
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "case {number}: {}",
            reader.name
        );
        if began.elapsed() > Duration::from_secs(30) {
            break;
        }
    }
}
