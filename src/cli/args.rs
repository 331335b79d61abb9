//! The top-level arguments, and which file runs which subcommand.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use super::model::{ComputeArgs, KERNELS_VARIABLE};
use super::{
    CliError, adopt, attach, choose, compare, completions, dashboard, delete, doctor, explain, export, generate,
    gpu_check, import, infer_bench, init, logging, merge, pareto, plan, prepare, profile, query, quickstart, rank,
    report, schema, search, show, status, stop, studies, threads, train, try_kernels, vacuum, worker,
};
use peft_tune_engine::profile::HostMemory;

/// Finds the LoRA/QLoRA fine-tuning settings worth using for one model, one data set and one machine.
#[derive(Debug, Parser)]
#[command(name = "peft-tune", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::Args),
    Init(init::Args),
    Search(search::Args),
    Attach(attach::Args),
    Status(status::Args),
    Stop(stop::Args),
    Plan(plan::Args),
    Show(show::Args),
    Explain(explain::Args),
    Pareto(pareto::Args),
    Compare(compare::Args),
    Report(report::Args),
    Dashboard(dashboard::Args),
    Query(query::Args),
    Studies(studies::Args),
    Delete(delete::Args),
    Import(import::Args),
    Vacuum(vacuum::Args),
    Export(export::Args),
    Train(train::Args),
    Merge(merge::Args),
    Adopt(adopt::Args),
    Generate(generate::Args),
    Profile(profile::Args),
    InferBench(infer_bench::Args),
    Doctor(doctor::Args),
    Schema(schema::Args),
    Completions(completions::Args),
    #[command(hide = true)]
    GpuCheck(gpu_check::Args),
    #[command(hide = true)]
    Prepare(prepare::Args),
    #[command(hide = true)]
    Rank(rank::Args),
    #[command(hide = true)]
    TryKernels(try_kernels::Args),
    #[command(hide = true)]
    Worker(worker::Args),
}

/// Keeps backtraces out of the messages of errors; panics have theirs where `RUST_BACKTRACE` asks for them.
fn keep_messages_short() {
    let name = "RUST_LIB_BACKTRACE";
    if std::env::var_os(name).is_none() {
        // SAFETY: no other thread is running yet that could read the environment at the same time.
        unsafe { std::env::set_var(name, "0") };
    }
}

/// Takes an empty variable for none, which clap would take for a value.
fn forget_empty(name: &str) {
    if std::env::var_os(name).is_some_and(|value| value.is_empty()) {
        // SAFETY: as above.
        unsafe { std::env::remove_var(name) };
    }
}

/// Makes the threads that a command computes with. Processes that others start for a part of their work have their own, behind
/// their choice of processors.
fn make_threads(command: &Command) -> Result<(), CliError> {
    let compute = match command {
        Command::Rank(_) | Command::Worker(_) | Command::Prepare(_) | Command::TryKernels(_) => return Ok(()),
        Command::Train(args) => return threads::make(args.compute.threads(), args.processes()),
        Command::Profile(args) => Some(&args.compute),
        Command::Merge(args) => Some(&args.compute),
        Command::Generate(args) => Some(&args.compute),
        Command::InferBench(args) => Some(&args.compute),
        _ => None,
    };
    threads::make(compute.and_then(ComputeArgs::threads), 1)
}

/// Runs the program and returns its exit code: `docs/exit-codes.md` lists them.
pub fn main() -> ExitCode {
    HostMemory::keep_freed();
    keep_messages_short();
    forget_empty(KERNELS_VARIABLE);
    try_kernels::set_up();
    let arguments = Arguments::parse();
    match make_threads(&arguments.command).and_then(|()| run(arguments.command)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be a terminal that was closed.
            let _ = writeln!(std::io::stderr(), "error: {}", error.shown());
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(command: Command) -> Result<(), CliError> {
    if !matches!(command, Command::Search(_) | Command::Quickstart(_)) {
        logging::begin_plainly();
    }
    match command {
        Command::Quickstart(args) => run(Arguments::parse_from(quickstart::arguments(args)?).command),
        Command::Init(args) => init::run(args),
        Command::Search(args) => search::run(args),
        Command::Attach(args) => attach::run(args),
        Command::Status(args) => status::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Show(args) => show::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Pareto(args) => pareto::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Report(args) => report::run(args),
        Command::Dashboard(args) => dashboard::run(args),
        Command::Query(args) => query::run(args),
        Command::Studies(args) => studies::run(args),
        Command::Delete(args) => delete::run(args),
        Command::Import(args) => import::run(args),
        Command::Vacuum(args) => vacuum::run(args),
        Command::Export(args) => export::run(args, choose::choose),
        Command::Train(args) => train::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Adopt(args) => adopt::run(&args),
        Command::Generate(args) => generate::run(args),
        Command::Profile(args) => profile::run(args),
        Command::InferBench(args) => infer_bench::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Completions(args) => completions::run(args, Arguments::command()),
        Command::GpuCheck(args) => gpu_check::run(args),
        Command::Prepare(args) => prepare::run(args),
        Command::Rank(args) => rank::run(args),
        Command::TryKernels(args) => try_kernels::run(args),
        Command::Worker(args) => worker::run(args),
    }
}
