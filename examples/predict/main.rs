//! How good predictions are: `cargo run --example predict -- memory [CASES] [SEED]` prints a table of predicted against
//! counted peak memory.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

mod cases;

use peft_tune::profile::ceilings;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let _ = arguments.next();
    let mut number = |default: u64| arguments.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    memory(number(64) as usize, number(1));
}

/// One line for each case, the worst error and the median at the end.
fn memory(count: usize, seed: u64) {
    let host = ceilings::host();
    println!("| family | precision | checkpointing | optimizer | adapter | batch | counted MB | predicted MB | error |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut errors = Vec::new();
    for case in cases::draw(count, seed) {
        let outcome = case.run(host);
        let error = outcome.error();
        println!(
            "| {} | {:.2} | {:.2} | {:+.2}% |",
            case.describe(),
            outcome.counted as f64 / 1e6,
            outcome.predicted.total() as f64 / 1e6,
            100.0 * error
        );
        if std::env::var_os("PARTS").is_some() {
            let parts: Vec<String> = outcome.predicted.iter().map(|(part, bytes)| format!("{} {bytes}", part.name())).collect();
            println!("  off {} saved {} {} {}", outcome.predicted.total() as i64 - outcome.counted as i64, outcome.counted_saved, outcome.predicted_saved, parts.join(", "));
            println!("  {}", case.config.replace('\n', " "));
        }
        errors.push(error.abs());
    }
    errors.sort_by(f64::total_cmp);
    println!(
        "\n{count} cases: median error {:.2}%, largest {:.2}%",
        100.0 * errors[errors.len() / 2],
        100.0 * errors[errors.len() - 1]
    );
}
