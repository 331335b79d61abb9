//! The top-level arguments, and which file runs which subcommand.

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli::data::prepare;
use crate::cli::data::rows;
use crate::cli::database::{import, query, vacuum};
use crate::cli::export::trial_files;
use crate::cli::help::{command_groups, completions, man, reference_page, schema};
use crate::cli::machine::{doctor, gpu_check, threads};
use crate::cli::model::{adopt, generate, infer_bench, merge};
use crate::cli::options::compute::{ComputeArgs, KERNELS_VARIABLE};
use crate::cli::options::environment;
use crate::cli::processes::{rank, try_kernels, worker};
use crate::cli::profile::tune_step;
use crate::cli::search::{attach, quickstart, status, stop};
use crate::cli::study::{compare, dashboard, delete, explain, pareto, report, show, studies, track};
use crate::cli::terminal::line_breaks::fitted;
use crate::cli::terminal::logging;
use crate::cli::terminal::output::messages_width;
use crate::cli::{CliError, check, export, init, mcp, no_command, plan, profile, search, train, watch};
use peft_tune_engine::profile::HostMemory;

/// Find the LoRA/QLoRA fine-tuning settings worth using for one model, one data set and one machine.
#[derive(Debug, Parser)]
#[command(name = "peft-tune", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

impl Arguments {
    /// The command line as help and completions show it.
    fn arranged() -> clap::Command {
        command_groups::arranged(Self::command())
    }

    /// What was asked for; help and mistakes end the program.
    fn read() -> Self {
        let matches = Self::arranged().get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
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
    Rows(rows::Args),
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
    Track(track::Args),
    Train(train::Args),
    Merge(merge::Args),
    Adopt(adopt::Args),
    Generate(generate::Args),
    Profile(profile::Args),
    TuneStep(tune_step::Args),
    Check(check::Args),
    Watch(watch::Args),
    InferBench(infer_bench::Args),
    Mcp(mcp::Args),
    Doctor(doctor::Args),
    Schema(schema::Args),
    Completions(completions::Args),
    Man(man::Args),
    #[command(hide = true)]
    GpuCheck(gpu_check::Args),
    #[command(hide = true)]
    Prepare(prepare::Args),
    #[command(hide = true)]
    Rank(rank::Args),
    #[command(hide = true)]
    TrialFiles(trial_files::Args),
    #[command(hide = true)]
    TryKernels(try_kernels::Args),
    #[command(hide = true)]
    Worker(worker::Args),
}

/// What the program would say is wrong with the words of a command line, of which the first is its name. Nothing is run.
pub fn command_line_error(words: &[String]) -> Option<String> {
    let error = Arguments::arranged().try_get_matches_from(words).err()?;
    // Asking for help is no mistake.
    error.use_stderr().then(|| error.to_string())
}

/// Every command and its options, as the documentation's page on them has it.
pub fn command_reference() -> String {
    reference_page::page(&Arguments::arranged())
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
        Command::Rank(_)
        | Command::Worker(_)
        | Command::Prepare(_)
        | Command::TrialFiles(_)
        | Command::TryKernels(_) => return Ok(()),
        Command::Train(args) => return threads::make(args.compute.threads(), args.processes()),
        Command::Profile(args) => Some(&args.compute),
        Command::TuneStep(args) => Some(&args.compute),
        Command::Check(args) => Some(&args.compute),
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
    match answer(Arguments::read()) {
        Ok(()) => ExitCode::SUCCESS,
        // The command said itself why.
        Err(error @ CliError::CommandEnded { .. }) => ExitCode::from(error.exit_code()),
        Err(error) => {
            // Standard error may be a terminal that was closed.
            let message = format!("error: {}", error.shown());
            let _ = writeln!(std::io::stderr(), "{}", fitted(&message, messages_width()));
            ExitCode::from(error.exit_code())
        }
    }
}

fn answer(arguments: Arguments) -> Result<(), CliError> {
    let Some(command) = arguments.command else {
        return no_command::run();
    };
    environment::check()?;
    make_threads(&command)?;
    run(command)
}

fn run(command: Command) -> Result<(), CliError> {
    if !matches!(command, Command::Search(_) | Command::Quickstart(_)) {
        logging::begin_plainly();
    }
    match command {
        Command::Quickstart(args) => {
            // Before anything is written: a mistyped option ends the program here.
            let search = Arguments::parse_from(quickstart::search_arguments(&args));
            quickstart::write_files(&args)?;
            search.command.map_or(Ok(()), run)
        }
        Command::Init(args) => init::run(args),
        Command::Search(args) => search::run(args),
        Command::Attach(args) => attach::run(args),
        Command::Status(args) => status::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Rows(args) => rows::run(args),
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
        Command::Export(args) => export::run(args),
        Command::Track(args) => track::run(args),
        Command::Train(args) => train::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Adopt(args) => adopt::run(&args),
        Command::Generate(args) => generate::run(args),
        Command::Profile(args) => profile::run(args),
        Command::TuneStep(args) => tune_step::run(args),
        Command::Check(args) => check::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::InferBench(args) => infer_bench::run(args),
        Command::Mcp(args) => mcp::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Schema(args) => schema::run(args),
        Command::Completions(args) => completions::run(args, &Arguments::arranged()),
        Command::Man(args) => man::run(&args, &Arguments::arranged()),
        Command::GpuCheck(args) => gpu_check::run(args),
        Command::Prepare(args) => prepare::run(args),
        Command::Rank(args) => rank::run(args),
        Command::TrialFiles(args) => trial_files::run(args),
        Command::TryKernels(args) => try_kernels::run(args),
        Command::Worker(args) => worker::run(args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line's words; double quotes keep blanks.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('"').enumerate();
        let words = parts.flat_map(|(number, part)| match number % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.collect()
    }

    #[test]
    fn every_command_that_shows_is_in_one_group_and_has_examples() {
        let command = Arguments::command();
        let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
        let mut shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let mut grouped = command_groups::tests::grouped();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(shown, grouped);
    }

    #[test]
    fn examples_are_command_lines_that_the_program_takes() {
        let wrong: Vec<String> = command_groups::tests::examples()
            .filter_map(|line| {
                let line = line.split(" > ").next().unwrap_or(line);
                Some(format!("{line}: {}", command_line_error(&words(line))?))
            })
            .collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Nouns that sentences of the help begin with and that end as "prints" does.
    const NOUNS: &str = "Attempts Changes Columns Devices Files Kernels Lengths Numbers Options Ranks Results Rows Sequences \
                         Settings Tables Threads Tokens Trials Variants";

    /// What the help of a command says: of itself, of its arguments and of their values.
    fn descriptions(command: &clap::Command) -> Vec<String> {
        let about = command.get_long_about().or(command.get_about());
        let mut texts: Vec<String> = about.map(ToString::to_string).into_iter().collect();
        for argument in command.get_arguments().filter(|one| !one.is_hide_set()) {
            let help = argument.get_long_help().or(argument.get_help());
            texts.extend(help.map(ToString::to_string));
            let values = argument.get_possible_values();
            let values = values.iter().filter(|value| !value.is_hide_set());
            texts.extend(values.filter_map(|value| Some(value.get_help()?.to_string())));
        }
        texts
    }

    /// The first sentence that begins with a verb as in "Prints JSON", or with a noun that looks like one.
    fn third_person(text: &str) -> Option<&str> {
        let mut sentences = text.split("\n\n").flat_map(|paragraph| paragraph.split(". "));
        sentences.find(|sentence| {
            let word = sentence.split_whitespace().next().unwrap_or_default();
            let word = word.trim_end_matches([',', ':', ';', '.']);
            word.ends_with('s') && !word.ends_with("ss") && NOUNS.split(' ').all(|noun| noun != word)
        })
    }

    #[test]
    fn help_says_print_and_not_prints() {
        assert_eq!(third_person("Rows to show. Prints JSON"), Some("Prints JSON"));
        let program = Arguments::command();
        let shown = program.get_subcommands().filter(|one| !one.is_hide_set());
        let mut wrong = Vec::new();
        for command in std::iter::once(&program).chain(shown) {
            for text in descriptions(command) {
                wrong.extend(third_person(&text).map(|sentence| format!("{}: {sentence}", command.get_name())));
            }
        }
        assert!(
            wrong.is_empty(),
            "neither imperative nor a noun of NOUNS:\n{}",
            wrong.join("\n")
        );
    }
}
