//! `peft-tune profile`: one setting in depth.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::CliError;
use super::database::{DatabaseArgs, block_on};
use super::download::DownloadProgress;
use super::machine::machine;
use super::model::ComputeArgs;
use super::output::{tell, terminal_width, write_result};
use super::prepare::prepared;
use super::profile_machine::MachineCeilings;
use super::profile_record::record_of;
use super::profile_source::{ProfileSource, SourceArgs};
use super::profile_stored::stored_profile;
use super::train_watch::TrainWatch;
use crate::report::{ProfileText, comparison_text, findings_text, profile_text};
use crate::space::{Bytes, Seconds};
use crate::store::{ProfileId, Store};
use peft_tune_core::recipe::{Precision, Recipe};
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::diagnosis;
use peft_tune_engine::profile::diagnosis::{Evidence, Finding, Oracle};
use peft_tune_engine::profile::sample::sampler_of;
use peft_tune_engine::profile::{
    Comparison, DeviceMemory, Measured, Profile, ProfileError, ProfileInputs, ProfileSettings, Reference, StepLog,
    TensorBoard,
};
use peft_tune_engine::{BaseModel, BaseSource};
use peft_tune_kernels::device;
use peft_tune_kernels::device::Device;

/// Profiles one setting in depth: where a step's time and memory go, and what would help.
///
/// Runs steps of the recipe until the throughput is known to 2% or the time is spent, then prints phases, modules, ops,
/// memory at the peak and a diagnosis, and stores them. Nothing is trained: the adapter is discarded.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// Time that measuring may take, such as `90s`; each change of `--verify` may take as much.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    budget: Seconds,
    /// Ends earlier, once the throughput is known to this many percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = parse_percent)]
    interval: f64,
    /// Writes a trace that ui.perfetto.dev and chrome://tracing open.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Writes an event file for TensorBoard into this folder.
    #[arg(long, value_name = "DIR")]
    tensorboard: Option<PathBuf>,
    /// Logs one measured step in N, as `train --log-every` does.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    log_every: u64,
    /// Runs the changes that the diagnosis proposes, and shows measured beside predicted gains.
    #[arg(long)]
    verify: bool,
    /// Throughput from elsewhere, such as a paper's, in tokens per second: shown as a share of this device's peak.
    #[arg(long, value_name = "TOKENS_PER_S", value_parser = parse_positive)]
    reference_throughput: Option<f64>,
    /// Device memory that a training may use, such as `24GB` [default: all of it].
    #[arg(long, value_name = "BYTES")]
    memory_limit: Option<Bytes>,
    /// Compares with an earlier profile, by its number in the database.
    #[arg(long, value_name = "NUMBER")]
    against: Option<i64>,
    /// Shows every op and every layer.
    #[arg(long)]
    all: bool,
    /// Prints the profile as JSON.
    #[arg(long)]
    json: bool,
    /// Stores nothing in the database.
    #[arg(long)]
    no_store: bool,
    #[command(flatten)]
    pub(super) compute: ComputeArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Profiles, and prints what was found.
pub(super) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let source = ProfileSource::read(&args.source, &args.database)?;
    check_place(args.trace.as_deref())?;
    let earlier = args.against.map(|id| stored_profile(&args.database, id)).transpose()?;
    let mut bench = Bench::load(&args, &source.recipe)?;
    let measured = bench.measure(&source.recipe, args.log_every)?;
    let mut findings = diagnosis::diagnose(&Evidence {
        profile: &measured.profile,
        recipe: &source.recipe,
        oracle: bench.oracle(),
        faster_type: bench.faster_type(source.recipe.precision),
        losses_by_rank: &source.losses_by_rank,
    });
    if args.verify {
        verify(&mut bench, &mut findings, &measured.profile, &source.recipe);
    }
    write_files(&args, &measured)?;
    if !args.no_store {
        let record = record_of(&source, &measured.profile, &findings, machine())?;
        let id = store(&args.database, &record)?;
        tell(format_args!(
            "stored as profile {} in {}",
            id.0,
            args.database.path().display()
        ));
    }
    let text = match args.json {
        true => json(&measured.profile, &findings)?,
        false => shown(&args, &measured.profile, &findings, earlier.as_ref()),
    };
    write_result(&text)
}

/// What can be profiled: the recipe's model and data, loaded, and others where a change asks for them.
struct Bench<'a> {
    args: &'a Args,
    files: ModelFiles,
    data: PreparedData,
    /// The base model that was used last, where it stays frozen.
    base: Option<Arc<BaseModel>>,
    /// Absent where they are not known: of a GPU that cannot be measured and has no data sheet.
    ceilings: Option<MachineCeilings>,
    memory_limit_bytes: Option<u64>,
}

impl<'a> Bench<'a> {
    fn load(args: &'a Args, recipe: &Recipe) -> Result<Self, CliError> {
        let files = ModelFiles::resolve_weights(&recipe.model, &mut DownloadProgress::default())
            .map_err(CliError::bad_input)?;
        let data = prepared(recipe, &files)?;
        for warning in data.warnings() {
            tell(format_args!("warning: {warning}"));
        }
        let device = device::open(args.compute.device_name()).map_err(CliError::bad_input)?;
        let database = (!args.no_store).then_some(&args.database);
        let ceilings = MachineCeilings::of(&device, recipe, (&files, &data), database)?;
        let limit = args.memory_limit.map(|limit| limit.0);
        Ok(Self {
            args,
            ceilings,
            files,
            data,
            base: None,
            memory_limit_bytes: limit.or_else(|| whole_memory(&device)),
        })
    }

    /// Profiles `recipe`, with one step in `log_every` written down.
    fn measure(&mut self, recipe: &Recipe, log_every: u64) -> Result<Measured, CliError> {
        let (base, program_bytes) = self.base_for(recipe)?;
        let log = step_log(&base, log_every)?;
        let sampler = sampler_of(base.device());
        let inputs = ProfileInputs {
            recipe,
            base,
            data: &self.data,
            program_bytes,
            memory_limit_bytes: self.memory_limit_bytes,
            ceiling: self.ceilings.as_ref().and_then(|known| known.ceiling(recipe.precision)),
            sampler,
            log,
        };
        let settings = ProfileSettings {
            budget_s: self.args.budget.0,
            interval: self.args.interval / 100.0,
            ..ProfileSettings::default()
        };
        peft_tune_engine::profile::profile(inputs, &settings).map_err(error_of)
    }

    /// The base model for `recipe`, and the bytes that were in use without it. Where every parameter trains, the trainer
    /// loads its own.
    fn base_for(&mut self, recipe: &Recipe) -> Result<(BaseSource, u64), CliError> {
        let compute = &self.args.compute;
        self.base
            .take_if(|base| recipe.adapter.is_none() || base.precision() != recipe.precision);
        let device = device::open(compute.device_name()).map_err(CliError::bad_input)?;
        let memory = DeviceMemory::of(&device).map_err(CliError::failed)?;
        device::prepare(&device).map_err(CliError::failed)?;
        let held = self.base.as_ref().map_or(0, |base| base.bytes() as u64);
        let program_bytes = memory.in_use_bytes().saturating_sub(held);
        if recipe.adapter.is_none() {
            let fresh = BaseSource::Fresh {
                folder: self.files.folder.clone(),
                precision: recipe.precision,
                device,
            };
            return Ok((fresh, program_bytes));
        }
        let base = match &self.base {
            Some(base) => Arc::clone(base),
            None => Arc::new(compute.load(&self.files, recipe.precision)?),
        };
        self.base = Some(Arc::clone(&base));
        Ok((BaseSource::Kept(base), program_bytes))
    }

    /// What knows the cost of other settings.
    fn oracle(&self) -> &dyn Oracle {
        match &self.ceilings {
            Some(known) => known.oracle(),
            None => &(),
        }
    }

    /// A number type that this device multiplies faster, and how many times as fast.
    fn faster_type(&self, precision: Precision) -> Option<(&'static str, f64)> {
        self.ceilings.as_ref()?.faster_type(precision)
    }
}

/// All memory that trainings on a device have; `None` where the system does not say.
fn whole_memory(device: &Device) -> Option<u64> {
    let bytes = match device::facts(device) {
        Some(gpu) => gpu.memory_bytes,
        None => machine().memory_bytes,
    };
    (bytes > 0).then_some(bytes)
}

fn error_of(error: ProfileError) -> CliError {
    match &error {
        ProfileError::Train(inner) if inner.out_of_memory() => CliError::failed(error),
        ProfileError::Thread(_) => CliError::failed(error),
        _ => CliError::bad_input(error),
    }
}

fn verify(bench: &mut Bench<'_>, findings: &mut [Finding], profile: &Profile, recipe: &Recipe) {
    diagnosis::verify(findings, profile, recipe, &mut |changed| {
        tell(format_args!("running a change that the diagnosis proposes"));
        let log_every = changed.log_every.unwrap_or(bench.args.log_every);
        let measured = bench.measure(&changed.recipe, log_every);
        measured
            .map(|measured| measured.profile)
            .map_err(|error| error.to_string())
    });
}

/// Writes steps down where a training would do it: in the working directory. `None` where no file can be made there; the
/// profile then does not tell what that costs.
fn step_log(base: &BaseSource, every: u64) -> Result<Option<StepLog>, CliError> {
    let memory = DeviceMemory::of(base.device()).map_err(CliError::failed)?;
    match TrainWatch::unseen(Path::new("."), memory) {
        Ok(watch) => Ok(Some(StepLog {
            observer: Box::new(watch),
            every,
        })),
        Err(error) => {
            tell(format_args!(
                "warning: no steps are logged, as a training would do: {error}"
            ));
            Ok(None)
        }
    }
}

/// Finds a place that cannot be written before minutes are spent on measuring.
fn check_place(trace: Option<&Path>) -> Result<(), CliError> {
    let Some(path) = trace else { return Ok(()) };
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if path.is_dir() {
        let message = format!("--trace {} is a folder; name a file in it", path.display());
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    // A device or a pipe would be replaced by the whole file.
    if path.exists() && !path.is_file() {
        let message = format!("--trace {} is not a plain file; name another", path.display());
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    if !folder.is_dir() {
        let message = format!(
            "--trace {}: there is no folder {}; create it first",
            path.display(),
            folder.display()
        );
        return Err(CliError::bad_input(anyhow::anyhow!(message)));
    }
    Ok(())
}

fn write_files(args: &Args, measured: &Measured) -> Result<(), CliError> {
    if let Some(path) = &args.trace {
        measured.trace.write(path).map_err(CliError::failed)?;
        tell(format_args!("trace in {}: open it at ui.perfetto.dev", path.display()));
    }
    if let Some(folder) = &args.tensorboard {
        let written = TensorBoard::create(folder, 0, DeviceMemory::Host)
            .and_then(|mut file| file.profile(&measured.profile).map(|()| file));
        let file = written.map_err(|error| {
            let message = format!("cannot write an event file into {}", folder.display());
            CliError::failed(anyhow::Error::new(error).context(message))
        })?;
        tell(format_args!("event file {}", file.path().display()));
    }
    Ok(())
}

fn store(database: &DatabaseArgs, record: &crate::store::ProfileRecord) -> Result<ProfileId, CliError> {
    block_on(async {
        let store = Store::open(&database.path()).await?;
        let id = store.record_profile(record).await?;
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

fn parse_percent(text: &str) -> Result<f64, String> {
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
