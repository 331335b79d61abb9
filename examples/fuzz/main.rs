//! Mutates real inputs of every reader of files from elsewhere, and looks for panics, hangs and memory without bound.
//!
//! `cargo run --release --example fuzz -- [--cases 100000] [--seed 1] [--from 0] [--jobs 2] [--reader NAME]`
//!
//! Each job is a process of its own, so that a case that ends its process is found and the next one begun. The last line
//! sums up; the exit code is 1 where anything was found. A case is made again by `--from CASE --cases 1`.

#![expect(clippy::print_stdout, reason = "a program that prints what it finds")]

mod readers;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Parser;
use peft_tune_engine::profile::{CountingAllocator, HostMemory};
use readers::{Corpus, READERS, all_inputs, case};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Longest time that a case may take.
const HANG: Duration = Duration::from_secs(10);
/// Most memory that a case may take, in bytes.
const MEMORY: u64 = 512 << 20;
/// Says that this process is the tuner: the database to begin with is one of a real search.
const AS_PROGRAM: &str = "PEFT_TUNE_FUZZ_AS_PROGRAM";

#[derive(Clone, Debug, Parser)]
struct Args {
    #[arg(long, default_value_t = 100_000)]
    cases: u64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// First case.
    #[arg(long, default_value_t = 0)]
    from: u64,
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Only the cases of this reader.
    #[arg(long)]
    reader: Option<String>,
    /// Runs the cases in this process, and says how far it is in this file.
    #[arg(long, hide = true)]
    progress: Option<PathBuf>,
    /// The database to begin with.
    #[arg(long, hide = true)]
    database: Option<PathBuf>,
}

fn main() -> ExitCode {
    if std::env::var_os(AS_PROGRAM).is_some() {
        return peft_tune::cli::main();
    }
    let args = Args::parse();
    match args.progress.clone() {
        Some(progress) => run(&args, &progress),
        None => supervise(&args),
    }
}

/// Runs cases, and prints what is found, a line each.
fn run(args: &Args, progress: &Path) -> ExitCode {
    std::panic::set_hook(Box::new(|_| {}));
    let folder = tempfile::tempdir_in(shared_memory()).expect("a folder to write to");
    let database = args
        .database
        .as_ref()
        .and_then(|path| std::fs::read(path).ok())
        .unwrap_or_default();
    let corpus = Corpus::new(Path::new(env!("CARGO_MANIFEST_DIR")), folder.path(), database);
    let inputs = all_inputs(&corpus);
    let mut highest = 0;
    for number in args.from..args.from + args.cases {
        let (reader, bytes) = case(&inputs, args.seed, number);
        if args.reader.as_ref().is_some_and(|only| only != reader.name) {
            continue;
        }
        std::fs::write(progress, format!("{number} {}", reader.name)).expect("the progress can be written");
        let before = HostMemory::in_use_bytes();
        HostMemory::reset_peak();
        HostMemory::set_limit(Some(before + 4 * MEMORY));
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| (reader.read)(&corpus, &bytes)));
        HostMemory::set_limit(None);
        let took = began.elapsed();
        let memory = HostMemory::peak_bytes().saturating_sub(before);
        highest = highest.max(memory);
        let name = reader.name;
        if let Err(panic) = outcome {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            println!("panic in case {number} ({name}): {}", text.unwrap_or_default());
        }
        if took > HANG {
            println!("case {number} ({name}) took {:.1} s", took.as_secs_f64());
        }
        if memory > MEMORY {
            println!("case {number} ({name}) took {} MiB", memory >> 20);
        }
    }
    println!("highest {highest}");
    ExitCode::SUCCESS
}

/// Runs all cases in processes, and begins another behind each case that ends one.
fn supervise(args: &Args) -> ExitCode {
    let began = Instant::now();
    let folder = tempfile::tempdir().expect("a folder to write to");
    let database = real_database(folder.path());
    let share = args.cases.div_ceil(args.jobs.max(1));
    let jobs: Vec<_> = (0..args.jobs.max(1))
        .map(|job| {
            let (args, database) = (args.clone(), database.clone());
            let progress = folder.path().join(format!("progress-{job}"));
            let from = args.from + job * share;
            let to = (from + share).min(args.from + args.cases);
            std::thread::spawn(move || watch(&args, &database, &progress, from, to))
        })
        .collect();
    let mut found = Vec::new();
    let mut highest = 0;
    for job in jobs {
        let (of_job, memory) = job.join().expect("a job ends");
        found.extend(of_job);
        highest = highest.max(memory);
    }
    found.iter().for_each(|line| println!("{line}"));
    println!(
        "{} cases of {} readers, seed {}, in {:.0} s: {} found; at most {} MiB a case",
        args.cases,
        READERS.len(),
        args.seed,
        began.elapsed().as_secs_f64(),
        found.len(),
        highest >> 20
    );
    if found.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn watch(args: &Args, database: &Path, progress: &Path, mut from: u64, to: u64) -> (Vec<String>, u64) {
    let (mut found, mut highest) = (Vec::new(), 0);
    while from < to {
        let said = progress.with_extension("said");
        let output = std::fs::File::create(&said).expect("a file to write to");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--from", &from.to_string(), "--cases", &(to - from).to_string()]);
        command.args(["--seed", &args.seed.to_string()]);
        if let Some(reader) = &args.reader {
            command.args(["--reader", reader]);
        }
        command.arg("--progress").arg(progress).arg("--database").arg(database);
        let mut child = command.stdout(output).stderr(Stdio::null()).spawn().expect("a process");
        let at = || std::fs::read_to_string(progress).unwrap_or_default();
        let (mut last, mut moved) = (at(), Instant::now());
        let ended = loop {
            if let Some(status) = child.try_wait().expect("a process") {
                break Some(status);
            }
            std::thread::sleep(Duration::from_millis(100));
            let now = at();
            if now != last {
                (last, moved) = (now, Instant::now());
            } else if moved.elapsed() > 3 * HANG {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        };
        let lines = std::fs::read_to_string(&said).unwrap_or_default();
        for line in lines.lines() {
            match line.strip_prefix("highest ").and_then(|bytes| bytes.parse().ok()) {
                Some(bytes) => highest = highest.max(bytes),
                None => found.push(line.to_owned()),
            }
        }
        match ended {
            Some(status) if status.success() => break,
            ended => {
                let how = ended.map_or("did not end".to_owned(), |status| {
                    format!("ended its process ({status})")
                });
                let last = at();
                found.push(format!("case {last} {how}"));
                let number = last.split(' ').next().and_then(|number| number.parse::<u64>().ok());
                from = number.unwrap_or(to).saturating_add(1);
            }
        }
    }
    (found, highest)
}

/// The database of a search with made-up trials.
fn real_database(folder: &Path) -> PathBuf {
    let path = folder.join("study.db");
    let space = Path::new(env!("CARGO_MANIFEST_DIR")).join("search_spaces/quickstart.yaml");
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .arg("search")
        .arg(space)
        .args(["--trials", "6", "--db"])
        .arg(&path);
    command
        .env(AS_PROGRAM, "1")
        .env("PEFT_TUNE_MOCK", "0")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if !command.status().is_ok_and(|status| status.success()) {
        let _ = writeln!(
            std::io::stderr(),
            "there is no database to begin with: its reader meets empty files"
        );
    }
    path
}

/// Folder in which files are written fastest.
fn shared_memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    }
}
