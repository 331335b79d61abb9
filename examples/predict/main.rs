//! How good predictions are.
//!
//! `cargo run --release --example predict -- memory [CASES] [SEED] [FIRST]` prints predicted against counted peak memory of
//! random recipes on small random models of all families, as a Markdown table, from the FIRST on; `together [CASES] [SEED]`
//! does so for three of them that train together; `throughput FILE [SETTINGS] [SEED]` predicts, measures and compares
//! settings of a study file.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints a table")]

mod cases;
mod throughput;

use std::path::Path;

use peft_tune_engine::profile::{CountingAllocator, HostMemory, ceilings};

/// Counts every allocation, so that peak memory is exact.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() {
    HostMemory::keep_freed();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| {
        let given = arguments.get(place).and_then(|text| text.parse().ok());
        given.unwrap_or(default)
    };
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["memory", ..] => memory(number(1, 64) as usize, number(2, 1), number(3, 0) as usize),
        ["together", ..] => together(number(1, 64) as usize, number(2, 1)),
        ["throughput", file, ..] => throughput::run(Path::new(file), number(2, 30) as usize, number(3, 1)),
        _ => eprintln!(
            "usage: memory [CASES] [SEED] [FIRST] | together [CASES] [SEED] | throughput FILE [SETTINGS] [SEED]"
        ),
    }
}

/// Tokens of a row.
const LENGTHS: [usize; 5] = [128, 200, 384, 512, 700];

/// One line for each group, those that train alone only left out.
fn together(count: usize, seed: u64) {
    let host = ceilings::host();
    for case in cases::draw(count, seed, &LENGTHS) {
        if let Some((counted, predicted)) = case.run_together(host) {
            let error = predicted.total() as f64 / counted as f64 - 1.0;
            println!(
                "| {} | {:.2} | {:.2} | {:+.2}% |",
                case.describe(),
                counted as f64 / 1e6,
                predicted.total() as f64 / 1e6,
                100.0 * error
            );
        }
    }
}

/// One line for each case, the median and the largest error at the end.
fn memory(count: usize, seed: u64, first: usize) {
    let host = ceilings::host();
    println!(
        "| family | precision | checkpointing | optimizer | adapter | batch | counted MB | predicted MB | error |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let (mut errors, mut equal) = (Vec::new(), 0);
    for case in cases::draw(count, seed, &LENGTHS).into_iter().skip(first) {
        let outcome = case.run(host);
        let error = outcome.error();
        println!(
            "| {} | {:.2} | {:.2} | {:+.2}% |",
            case.describe(),
            outcome.counted as f64 / 1e6,
            outcome.predicted.total() as f64 / 1e6,
            100.0 * error
        );
        if std::env::var_os("PREDICT_PARTS").is_some() {
            let parts = outcome
                .predicted
                .iter()
                .map(|(part, bytes)| format!("{} {bytes}", part.name()));
            let parts: Vec<String> = parts.collect();
            println!("  {} counted, {}", outcome.counted, parts.join(", "));
            println!("  {}", case.config.replace('\n', " "));
        }
        equal += usize::from(outcome.counted_saved == outcome.predicted_saved);
        errors.push(error.abs());
    }
    errors.sort_by(f64::total_cmp);
    println!(
        "\n{} cases: median error {:.2}%, largest {:.2}%; saved activations equal to the byte in {equal}",
        errors.len(),
        100.0 * errors[errors.len() / 2],
        100.0 * errors[errors.len() - 1]
    );
}
