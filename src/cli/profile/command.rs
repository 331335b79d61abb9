//! `peft-tune profile`: one setting in depth.

use std::path::Path;

use super::args::{Args, ReferenceRate};
use super::bench::Bench;
use super::compared_rate::ComparedRate;
use super::read::read_trace;
use super::record::{record_of, record_of_trace};
use super::source::ProfileSource;
use super::trl;
use crate::cli::CliError;
use crate::cli::machine::record::machine;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::study::stored_profile::stored_profile;
use crate::cli::terminal::output::{first_failure, tell, terminal_width, write_result};
use crate::cli::whole_output::check_place;
use crate::report::{ProfileText, comparison_text, findings_text, profile_text};
use crate::space::Loader;
use crate::store::{ProfileId, ProfileRecord, Store};
use peft_tune_core::recipe::Recipe;
use peft_tune_engine::profile::diagnosis;
use peft_tune_engine::profile::diagnosis::{Evidence, Finding};
use peft_tune_engine::profile::{Comparison, DeviceMemory, Measured, Profile, TensorBoard, Trace};

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
    if let Some(path) = &args.read {
        return read(&args, path);
    }
    args.compute.set_up();
    let source = ProfileSource::read(&args.source, &args.database)?;
    let backend = args.backend(&source)?;
    if let Some(path) = &args.trace {
        check_plain_file("--trace", path)?;
    }
    let earlier = args.against.map(|id| stored_profile(&args.database, id)).transpose()?;
    let Profiled {
        profile,
        findings,
        trace,
    } = match backend.loader() {
        None => in_engine(&args, &source)?,
        Some(loader) => in_python(&args, loader, &source)?,
    };
    let compared = match args.reference_throughput {
        None => ComparedRate::default(),
        Some(ReferenceRate::TokensPerS(rate)) => ComparedRate::given(rate, &profile),
        Some(ReferenceRate::Published) => ComparedRate::published(&source.recipe, &profile),
    };
    let text = text_of(&args, &profile, &findings, &compared, earlier.as_ref())?;
    // What was measured goes everywhere that it can go: a place that fails takes it from no other.
    first_failure([
        write_result(&text),
        write_trace(&args, &trace),
        write_events(&args, &profile),
        keep(&args, || record_of(&source, &profile, &findings, machine())),
    ])
}

/// Shows and stores a trace as what was measured is.
fn read(args: &Args, path: &Path) -> Result<(), CliError> {
    let rate = match args.reference_throughput {
        None => None,
        Some(ReferenceRate::TokensPerS(rate)) => Some(rate),
        Some(ReferenceRate::Published) => {
            return Err(CliError::bad(
                "a trace does not tell its recipe: give --reference-throughput a number",
            ));
        }
    };
    let earlier = args.against.map(|id| stored_profile(&args.database, id)).transpose()?;
    let (profile, findings) = read_trace(path)?;
    let compared = rate.map_or_else(ComparedRate::default, |rate| ComparedRate::given(rate, &profile));
    let name = path.display().to_string();
    first_failure([
        write_result(&text_of(args, &profile, &findings, &compared, earlier.as_ref())?),
        write_events(args, &profile),
        keep(args, || Ok(record_of_trace(name, &profile, &findings))),
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

fn in_python(args: &Args, loader: Loader, source: &ProfileSource) -> Result<Profiled, CliError> {
    let (profile, trace_error) = trl::measured(args, loader, &source.recipe)?;
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

/// Stores the record of a profile, unless nothing is to be stored.
fn keep(args: &Args, record: impl FnOnce() -> Result<ProfileRecord, CliError>) -> Result<(), CliError> {
    if args.no_store {
        return Ok(());
    }
    let id = store(&args.database, &record()?)?;
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

/// Refuses a path that cannot be written, or that is no plain file, before minutes are spent on measuring.
pub(super) fn check_plain_file(option: &str, path: &Path) -> Result<(), CliError> {
    check_place(option, path)?;
    // A device or a pipe would be replaced by the whole file.
    if path.exists() && !path.is_file() {
        return Err(CliError::bad(format!(
            "{option} {} is not a plain file; name another",
            path.display()
        )));
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

pub(super) fn store(database: &DatabaseArgs, record: &ProfileRecord) -> Result<ProfileId, CliError> {
    block_on(async {
        let store = Store::open(&database.path()).await?;
        let id = store.profiles().record(record).await?;
        store.close().await?;
        Ok(id)
    })
}

fn text_of(
    args: &Args,
    profile: &Profile,
    findings: &[Finding],
    compared: &ComparedRate,
    earlier: Option<&(String, Profile)>,
) -> Result<String, CliError> {
    match args.json {
        true => json(profile, findings, compared),
        false => Ok(shown(args, profile, findings, compared, earlier)),
    }
}

fn shown(
    args: &Args,
    profile: &Profile,
    findings: &[Finding],
    compared: &ComparedRate,
    earlier: Option<&(String, Profile)>,
) -> String {
    let shown = ProfileText {
        width: terminal_width(),
        all: args.all,
        reference: compared.reference.as_ref(),
        published: compared.published.as_deref(),
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

fn json(profile: &Profile, findings: &[Finding], compared: &ComparedRate) -> Result<String, CliError> {
    let value = serde_json::json!({
        "profile": profile,
        "diagnosis": findings,
        "reference": compared.reference,
        "published": compared.published,
    });
    Ok(serde_json::to_string_pretty(&value).map_err(CliError::failed)? + "\n")
}
