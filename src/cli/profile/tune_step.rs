//! `peft-tune tune-step`: profile, change, profile again, until no change pays.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::args::parse_percent;
use super::bench::{Bench, BenchSettings};
use super::command::{check_plain_file, store};
use super::record::record_of;
use super::source::{ProfileSource, SourceArgs};
use crate::cli::CliError;
use crate::cli::machine::record::machine;
use crate::cli::options::compute::ComputeArgs;
use crate::cli::options::database::DatabaseArgs;
use crate::cli::terminal::output::{show, show_part, tell};
use crate::report::{cost_text, tried_text, tuning_text};
use crate::space::{Bytes, RecipeFile, Seconds};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::profile::Profile;
use peft_tune_engine::profile::diagnosis::{Altering, Change, Finding, Outcome, Tried, Tuning, TuningBench, tune};

/// Make a recipe's steps faster: apply what `profile` proposes, one change after the other, and keep what pays.
///
/// Each change runs in turn with what stands without it, so that a machine that slows down decides nothing; it is kept where its gain is
/// above what measuring leaves open. After each that is kept the diagnosis is made anew. Changes that alter what is learned are only
/// proposed, unless `--allow` admits them. The recipe is written after each change that is kept.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    source: SourceArgs,
    /// File for the tuned recipe [default: the recipe's name with `-tuned`].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite that file.
    #[arg(long)]
    force: bool,
    /// Changes that alter what is learned and may be tried all the same: losses are not compared here.
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',')]
    allow: Vec<Allowed>,
    /// Time after which no further change is tried, such as `10m` [default: until none is left].
    #[arg(long, value_name = "TIME")]
    time: Option<Seconds>,
    /// Time that one measurement may take, such as `30s`; each change takes four.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    budget: Seconds,
    /// End a measurement earlier, once the throughput is known to this many percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = parse_percent)]
    interval: f64,
    /// Device memory that a training may use, such as `24GB` [default: all of it].
    #[arg(long, value_name = "BYTES")]
    memory_limit: Option<Bytes>,
    /// Print what was tried as JSON.
    #[arg(long)]
    json: bool,
    /// Store no profile in the database.
    #[arg(long)]
    no_store: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Changes that `--allow` admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Allowed {
    /// Rows hold several documents, so that a step sees more of them.
    Packing,
    /// Another precision of base weights and activations.
    Precision,
    /// A lower rank of the adapter.
    Rank,
    /// An optimizer whose state has 8 bits.
    Optimizer,
}

impl Allowed {
    fn kind(self) -> Altering {
        match self {
            Self::Packing => Altering::Packing,
            Self::Precision => Altering::Precision,
            Self::Rank => Altering::Rank,
            Self::Optimizer => Altering::Optimizer,
        }
    }
}

/// Tunes, and says what each change gave.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let source = ProfileSource::read(&args.source, &args.database)?;
    source.other_engine().into_iter().for_each(tell);
    let output = output_of(&args, &source);
    check_output(&output, args.force)?;
    let mut bench = StepBench::load(&args, &source, &output)?;
    let allows = |change: &Change| {
        Altering::of(change).is_none_or(|kind| args.allow.iter().any(|allowed| allowed.kind() == kind))
    };
    let tuning = tune(&source.recipe, &mut bench, &allows).map_err(|message| {
        let error = anyhow::Error::msg(message);
        CliError::failed(error.context(format!("{} cannot be tuned", source.name)))
    })?;
    bench.verified.extend(tuning.left.iter().cloned());
    bench.store(&tuning.after);
    match args.json {
        true => show(json(&tuning, &output)?),
        false => show_part(tuning_text(&tuning)),
    }
    if tuning.total.is_some() {
        tell(format_args!("the tuned recipe is {}", output.display()));
    }
    bench.not_stored.map_or(Ok(()), Err)
}

/// File that the tuned recipe goes to: beside the recipe's own, or in this folder, under the trial's name.
fn output_of(args: &Args, source: &ProfileSource) -> PathBuf {
    if let Some(path) = &args.output {
        return path.clone();
    }
    match (args.source.recipe(), source.trial) {
        (Some(path), _) => {
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            path.with_file_name(format!("{stem}-tuned.yaml"))
        }
        (None, Some((_, number))) => PathBuf::from(format!("trial-{number}-tuned.yaml")),
        (None, None) => PathBuf::from("recipe-tuned.yaml"),
    }
}

/// Finds out before minutes of measuring that the recipe cannot be written.
fn check_output(path: &Path, force: bool) -> Result<(), CliError> {
    check_plain_file("--output", path)?;
    if path.exists() && !force {
        let shown = path.display();
        let message = format!("{shown} is already there; give another `--output`, or `--force` to replace it");
        return Err(CliError::bad_input(anyhow::Error::msg(message)));
    }
    Ok(())
}

/// The model and its data, and what is written down between measurements.
struct StepBench<'a> {
    args: &'a Args,
    source: &'a ProfileSource,
    output: &'a Path,
    bench: Bench<'a>,
    begun: Instant,
    tried: usize,
    /// The recipe with the changes that were kept.
    standing: ProfileSource,
    /// Findings about it that were run, with what that gave.
    verified: Vec<Finding>,
    is_first: bool,
    /// The first failure to store a profile: the command ends with it once it has shown what it measured.
    not_stored: Option<CliError>,
}

impl<'a> StepBench<'a> {
    fn load(args: &'a Args, source: &'a ProfileSource, output: &'a Path) -> Result<Self, CliError> {
        let settings = BenchSettings {
            budget_s: args.budget.0,
            interval: args.interval / 100.0,
            memory_limit: args.memory_limit,
            compute: &args.compute,
            database: (!args.no_store).then_some(&args.database),
        };
        Ok(Self {
            bench: Bench::load(settings, &source.recipe)?,
            args,
            source,
            output,
            begun: Instant::now(),
            tried: 0,
            standing: source.clone(),
            verified: Vec::new(),
            is_first: true,
            not_stored: None,
        })
    }

    /// Keeps the profile of the standing recipe with its findings in the database. A database that fails ends no
    /// tuning.
    fn store(&mut self, profile: &Profile) {
        if self.args.no_store {
            return;
        }
        let record = record_of(&self.standing, profile, &self.verified, machine());
        match record.and_then(|record| store(&self.args.database, &record)) {
            Ok(id) => tell(format_args!(
                "stored as profile {} in {}",
                id.0,
                self.args.database.path().display()
            )),
            Err(error) => _ = self.not_stored.get_or_insert(error),
        }
    }

    fn write(&self, recipe: &Recipe) -> Result<(), String> {
        let text = RecipeFile::to_yaml(recipe).map_err(|error| error.to_string())?;
        let text = format!(
            "# {}, with the changes that `peft-tune tune-step` kept\n{text}",
            self.source.name.replace(['\n', '\r'], " ")
        );
        // What stands there now is this command's own, or was given up by `--force`.
        write_whole(self.output, text.as_bytes(), true)
            .map_err(|error| format!("cannot write {}: {error}", self.output.display()))
    }
}

impl TuningBench for StepBench<'_> {
    fn profile(&mut self, recipe: &Recipe) -> Result<Profile, String> {
        let measured = self.bench.measure(recipe, 1).map_err(|error| error.to_string())?;
        if self.is_first {
            self.is_first = false;
            tell(format_args!("{}: {}", self.source.name, cost_text(&measured.profile)));
        }
        Ok(measured.profile)
    }

    fn diagnose(&self, recipe: &Recipe, profile: &Profile) -> Vec<Finding> {
        self.bench.diagnose(recipe, profile, &self.source.losses_by_rank)
    }

    fn is_over(&self) -> bool {
        let limit = self.args.time.map(|time| Duration::from_secs_f64(time.0));
        limit.is_some_and(|limit| self.begun.elapsed() >= limit)
    }

    fn tried(&mut self, tried: &Tried, recipe: &Recipe, before: &Profile) -> Result<(), String> {
        self.tried += 1;
        if !self.args.json {
            show_part(tried_text(self.tried, tried));
        }
        self.verified.push(tried.finding.clone());
        if tried.outcome != Outcome::Kept {
            return Ok(());
        }
        self.store(before);
        self.verified.clear();
        self.standing = ProfileSource {
            name: format!("{} with {}", self.standing.name, tried.finding.change),
            recipe: recipe.clone(),
            trial: None,
            losses_by_rank: self.standing.losses_by_rank.clone(),
            loader: self.standing.loader,
        };
        self.write(recipe)
    }
}

fn json(tuning: &Tuning, output: &Path) -> Result<String, CliError> {
    let cost = |profile: &Profile| {
        serde_json::json!({
            "throughput": profile.steps.tokens_per_s,
            "interval": profile.steps.interval,
            "peak_memory_bytes": profile.memory.peak_bytes,
        })
    };
    let value = serde_json::json!({
        "before": cost(&tuning.before),
        "after": cost(&tuning.after),
        "throughput_ratio": tuning.total,
        "tried": tuning.tried,
        "left": tuning.left,
        "recipe": tuning.recipe,
        "output": tuning.total.map(|_| output),
    });
    serde_json::to_string_pretty(&value).map_err(CliError::failed)
}
