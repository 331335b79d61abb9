//! Kills searches and workers at random moments, then runs a large study in peace, and once more with the search and all workers
//! killed every minute.
//!
//! `cargo run --release --example kills -- 200 [--seed 200] [--trials 10000] [--every 60]`
//!
//! One line a part says what was done; the exit code is 1 where a finished trial was lost or run again, a worker outlived its
//! search, or a database was damaged.

#![allow(clippy::unwrap_used, reason = "a panic is how a part of it reports")]
#![allow(clippy::print_stdout, reason = "a program that prints what it finds")]

#[path = "../../tests/it/faults/bench.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod bench;
/// Folders as the tests have them, but on the disk: there a kill also meets commits that wait.
mod folders {
    /// A folder that is removed in the end.
    pub(crate) fn for_database() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }
}
#[path = "../../tests/it/signals.rs"]
mod signals;
mod suite;

use std::panic::{UnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use peft_tune_engine::profile::CountingAllocator;

/// Allocator of the program: its workers measure memory.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Says that this process is the tuner.
const AS_PROGRAM: &str = "PEFT_TUNE_KILLS_AS_PROGRAM";

#[derive(Debug, Parser)]
struct Args {
    /// Kills of searches and workers.
    #[arg(default_value_t = 200)]
    kills: u64,
    /// Decides when and whom it kills.
    #[arg(long, default_value_t = 200)]
    seed: u64,
    /// Trials of the large studies; 0 leaves them out.
    #[arg(long, default_value_t = 10_000)]
    trials: u64,
    /// Seconds between the kills of a large study.
    #[arg(long, default_value_t = 60)]
    every: u64,
}

/// The program that is killed: this one, which is the tuner when asked.
pub fn program() -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a running program has a path"));
    command.env(AS_PROGRAM, "1");
    command
}

fn main() -> ExitCode {
    if std::env::var_os(AS_PROGRAM).is_some() {
        return peft_tune::cli::main();
    }
    let args = Args::parse();
    let every = Duration::from_secs(args.every);
    let mut failed = u64::from(!passes(|| suite::kill(args.kills, args.seed)));
    if args.trials > 0 {
        failed += u64::from(!passes(|| suite::many_trials(args.trials, None)));
        failed += u64::from(!passes(|| suite::many_trials(args.trials, Some(every))));
    }
    println!("seed {}: {failed} parts failed", args.seed);
    ExitCode::from(u8::from(failed > 0))
}

/// Runs a part and prints what it did. Whether everything held; what did not was printed by its panic.
fn passes(part: impl FnOnce() -> String + UnwindSafe) -> bool {
    let said = catch_unwind(part);
    if let Ok(said) = &said {
        println!("{said}");
    }
    said.is_ok()
}
