//! `peft-tune profile`: one setting in depth.

use std::path::{Path, PathBuf};

use super::bench::{Bench, BenchSettings};
use super::record::record_of;
use super::source::{ProfileSource, SourceArgs};
use super::stored::stored_profile;
use super::trl;
use crate::cli::CliError;
use crate::cli::machine::record::machine;
use crate::cli::options::backend::BackendName;
use crate::cli::options::compute::ComputeArgs;
use crate::cli::options::count::counts;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::output::{first_failure, tell, terminal_width, write_result};
use crate::report::{ProfileText, comparison_text, findings_text, profile_text};
use crate::space::{Bytes, Seconds};
use crate::store::{ProfileId, Store};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::profile::diagnosis;
use peft_tune_engine::profile::diagnosis::{Evidence, Finding};
use peft_tune_engine::profile::{Comparison, DeviceMemory, Measured, Profile, Reference, TensorBoard, Trace};

/// Profile one setting in depth: where a step's time and memory go, and what would help.
///
/// Run steps of the recipe until the throughput is known to 2% or the time is spent, then print phases, modules, ops,
/// memory at the peak and a diagnosis, and store them. Nothing is trained: the adapter is discarded. With `--backend trl` the
/// steps are TRL's, timed by PyTorch's profiler.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Engine that trains the steps [default: the one that trained the trial, else the built-in one].
    #[arg(long, value_enum)]
    backend: Option<BackendName>,
    /// Python that has TRL, for `--backend trl` [default: that of the active environment, else python3].
    #[arg(long, value_name = "PATH")]
    pub(super) python: Option<PathBuf>,
    /// Time that measuring may take, such as `90s`; each change of `--verify` may take as much.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(super) budget: Seconds,
    /// End earlier, once the throughput is known to this many percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = parse_percent)]
    pub(super) interval: f64,
    /// Write a trace that ui.perfetto.dev and chrome://tracing open.
    #[arg(long, value_name = "FILE")]
    pub(super) trace: Option<PathBuf>,
    /// Write an event file for TensorBoard into this folder.
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
    /// Log one measured step in N, as `train --log-every` does.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = counts::<u64>(1..=u64::MAX))]
    pub(super) log_every: u64,
    /// Run the changes that the diagnosis proposes, and show measured beside predicted gains.
    #[arg(long)]
    pub(super) verify: bool,
    /// Throughput from elsewhere, such as a paper's, in tokens per second: shown as a share of this device's peak.
    #[arg(long, value_name = "TOKENS_PER_S", value_parser = parse_positive)]
    reference_throughput: Option<f64>,
    /// Device memory that a training may use, such as `24GB` [default: all of it].
    #[arg(long, value_name = "BYTES")]
    pub(super) memory_limit: Option<Bytes>,
    /// Compare with an earlier profile, by its number in the database.
    #[arg(long, value_name = "NUMBER")]
    against: Option<i64>,
    /// Show every op and every layer.
    #[arg(long)]
    all: bool,
    /// Print the profile as JSON.
    #[arg(long, conflicts_with_all = ["against", "all", "reference_throughput"])]
    json: bool,
    /// Store nothing in the database.
    #[arg(long)]
    no_store: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

impl Args {
    fn bench_settings(&self) -> BenchSettings<'_> {
        BenchSettings {
            budget_s: self.budget.0,
            interval: self.interval / 100.0,
            memory_limit: self.memory_limit,
            compute: &self.compute,
            database: (!self.no_store).then_some(&self.database),
        }
    }

    /// The engine that was asked for, else the one that trained the trial.
    fn backend(&self, source: &ProfileSource) -> Result<BackendName, CliError> {
        let own = match source.trained_in_trl {
            true => BackendName::Trl,
            false => BackendName::Native,
        };
        let backend = self.backend.unwrap_or(own);
        if backend == BackendName::Native && self.python.is_some() {
            return Err(CliError::bad(
                "`--python`: the built-in engine runs in no Python; leave it out, or add `--backend trl`",
            ));
        }
        Ok(backend)
    }
}

/// Profile of a setting with its trace, and what was found in it.
struct Profiled {
    profile: Profile,
    findings: Vec<Finding>,
    trace: Traced,
}

/// Trace of the steps.
enum Traced {
    /// Spans of the built-in engine, to be written.
    Spans(Trace),
    /// PyTorch's own file, with the error where it could not be written.
    ByTorch(Option<String>),
}

/// Profiles, and prints what was found.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let source = ProfileSource::read(&args.source, &args.database)?;
    let backend = args.backend(&source)?;
    if let Some(path) = &args.trace {
        check_place("--trace", path)?;
    }
    let earlier = args.against.map(|id| stored_profile(&args.database, id)).transpose()?;
    let Profiled {
        profile,
        findings,
        trace,
    } = match backend {
        BackendName::Native => in_engine(&args, &source)?,
        BackendName::Trl => in_trl(&args, &source)?,
    };
    let text = match args.json {
        true => json(&profile, &findings)?,
        false => shown(&args, &profile, &findings, earlier.as_ref()),
    };
    // What was measured goes everywhere that it can go: a place that fails takes it from no other.
    first_failure([
        write_result(&text),
        write_trace(&args, &trace),
        write_events(&args, &profile),
        keep(&args, &source, &profile, &findings),
    ])
}

fn in_engine(args: &Args, source: &ProfileSource) -> Result<Profiled, CliError> {
    source.other_engine().into_iter().for_each(tell);
    let mut bench = Bench::load(args.bench_settings(), &source.recipe)?;
    let Measured { profile, trace } = bench.measure(&source.recipe, args.log_every)?;
    let mut findings = bench.diagnose(&source.recipe, &profile, &source.losses_by_rank);
    if args.verify {
        verify(&mut bench, &mut findings, &profile, &source.recipe, args.log_every);
    }
    let trace = Traced::Spans(trace);
    Ok(Profiled {
        profile,
        findings,
        trace,
    })
}

fn in_trl(args: &Args, source: &ProfileSource) -> Result<Profiled, CliError> {
    let (profile, trace_error) = trl::measured(args, &source.recipe)?;
    // Nothing is predicted of a step in TRL: gains are parts of the measured one.
    let findings = diagnosis::diagnose(&Evidence {
        profile: &profile,
        recipe: &source.recipe,
        oracle: &(),
        faster_type: None,
        losses_by_rank: &source.losses_by_rank,
    });
    Ok(Profiled {
        profile,
        findings,
        trace: Traced::ByTorch(trace_error),
    })
}

/// Stores a profile with its findings, unless nothing is to be stored.
fn keep(args: &Args, source: &ProfileSource, profile: &Profile, findings: &[Finding]) -> Result<(), CliError> {
    if args.no_store {
        return Ok(());
    }
    let record = record_of(source, profile, findings, machine())?;
    let id = store(&args.database, &record)?;
    tell(format_args!(
        "stored as profile {} in {}",
        id.0,
        args.database.path().display()
    ));
    Ok(())
}

fn verify(bench: &mut Bench<'_>, findings: &mut [Finding], profile: &Profile, recipe: &Recipe, log_every: u64) {
    diagnosis::verify(findings, profile, recipe, &mut |changed| {
        tell(format_args!("running a change that the diagnosis proposes"));
        let log_every = changed.log_every.unwrap_or(log_every);
        let measured = bench.measure(&changed.recipe, log_every);
        measured
            .map(|measured| measured.profile)
            .map_err(|error| error.to_string())
    });
}

/// Finds a place that cannot be written before minutes are spent on measuring.
pub(super) fn check_place(option: &str, path: &Path) -> Result<(), CliError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.is_dir() {
        let message = format!("{option} {} is a folder; name a file in it", path.display());
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    // A device or a pipe would be replaced by the whole file.
    if path.exists() && !path.is_file() {
        let message = format!("{option} {} is not a plain file; name another", path.display());
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    if !folder.is_dir() {
        let message = format!(
            "{option} {}: there is no folder {}; create it first",
            path.display(),
            folder.display()
        );
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    Ok(())
}

/// Writes the trace of the built-in engine; PyTorch has written its own by now.
fn write_trace(args: &Args, trace: &Traced) -> Result<(), CliError> {
    if let Some(path) = &args.trace {
        match trace {
            Traced::Spans(trace) => trace.write(path).map_err(CliError::failed)?,
            Traced::ByTorch(None) => {}
            Traced::ByTorch(Some(error)) => {
                return Err(CliError::failed(anyhow::anyhow!(
                    "cannot write the trace {}: {error}; make room there, or name another file with `--trace`",
                    path.display()
                )));
            }
        }
        tell(format_args!("trace in {}: open it at ui.perfetto.dev", path.display()));
    }
    Ok(())
}

fn write_events(args: &Args, profile: &Profile) -> Result<(), CliError> {
    if let Some(folder) = &args.tensorboard {
        let written = TensorBoard::create(folder, 0, DeviceMemory::Host)
            .and_then(|mut file| file.profile(profile).map(|()| file));
        let file = written.map_err(|error| {
            let message = format!("cannot write an event file into {}", folder.display());
            CliError::failed(anyhow::Error::new(error).context(message))
        })?;
        tell(format_args!("event file {}", file.path().display()));
    }
    Ok(())
}

pub(super) fn store(database: &DatabaseArgs, record: &crate::store::ProfileRecord) -> Result<ProfileId, CliError> {
    block_on(async {
        let store = Store::open(&database.path()).await?;
        let id = store.profiles().record(record).await?;
        store.close().await?;
        Ok(id)
    })
}

fn shown(args: &Args, profile: &Profile, findings: &[Finding], earlier: Option<&(String, Profile)>) -> String {
    let reference = args.reference_throughput.map(|rate| Reference::new(profile, rate));
    let shown = ProfileText {
        width: terminal_width(),
        all: args.all,
        reference: reference.as_ref(),
    };
    let mut text = profile_text(profile, &shown);
    text.push('\n');
    text.push_str(&findings_text(findings));
    if let Some((name, earlier)) = earlier {
        text.push('\n');
        let comparison = Comparison::new(earlier, profile);
        text.push_str(&comparison_text(&comparison, name, "this profile", terminal_width()));
    }
    text
}

fn json(profile: &Profile, findings: &[Finding]) -> Result<String, CliError> {
    let value = serde_json::json!({"profile": profile, "diagnosis": findings});
    Ok(serde_json::to_string_pretty(&value).map_err(CliError::failed)? + "\n")
}

pub(super) fn parse_percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent < 100.0 => Ok(percent),
        _ => Err("write a number of percent above 0, such as 2".to_owned()),
    }
}

fn parse_positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("write a number above 0, such as 12000".to_owned()),
    }
}
