//! `peft-tune infer-bench`: how fast a model answers, with and without an adapter.

use std::path::PathBuf;
use std::sync::Arc;

use super::CliError;
use super::database::{DatabaseArgs, block_on};
use super::download::DownloadProgress;
use super::machine::machine;
use super::model::{BaseArgs, ComputeArgs};
use super::output::{tell, terminal_width, write_result};
use crate::report::{Align, CurveLine, CurvePoint, TextTable, bytes, curve_svg, curve_text, duration};
use crate::space::Seconds;
use crate::store::{InferenceRecord, Store};
use peft_tune_core::recipe::{DataSettings, Precision, Recipe};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::{DeviceMemory, InferenceLoad, InferencePoint, Latency, measure_inference, write_whole};
use peft_tune_engine::{BaseModel, Generator, TrainError};
use peft_tune_kernels::device;

/// Measures how fast a model answers: base, adapter beside the base weights, and adapter merged into them.
///
/// Each point reads prompts and then generates token by token, several sequences side by side: time until the first
/// token, time of each further one (median, 95th and 99th percentile), tokens per second, memory. Stored, and drawn as a
/// curve of time against throughput over batch sizes.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    base: BaseArgs,
    /// Ranks of fresh adapters on all linear layers, instead of `--adapter`.
    #[arg(long, value_name = "RANKS", value_delimiter = ',', conflicts_with = "adapter", default_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Vec<u32>,
    /// Sequences that are answered at once.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u32).range(1..))]
    batch_sizes: Vec<u32>,
    /// Lengths of the prompts, in tokens.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "128", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_lengths: Vec<u32>,
    /// Tokens to generate for each prompt.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..))]
    new_tokens: u32,
    /// Time to spend on each point; three repetitions are made in any case.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    budget: Seconds,
    /// Writes the curve as an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Prints the points as JSON.
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

/// A form of the model, with its points.
struct FormPoints {
    /// `base`, `adapter` or `merged`.
    form: &'static str,
    rank: Option<usize>,
    points: Vec<InferencePoint>,
}

/// Measures all forms, and prints what was found.
pub(super) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let model = args.base.name()?;
    let files = ModelFiles::resolve_weights(&model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    let precision = args.base.precision(&files)?;
    let program_bytes = bytes_without_model(&args.compute)?;
    let base = Arc::new(args.compute.load(&files, precision)?);
    check_lengths(&args, &base)?;
    let measured = measure_forms(&args, &model, base, program_bytes)?;
    if let Some(path) = &args.svg {
        let svg = curve_svg(
            &curve(&measured),
            &format!("{model}: time of a token against throughput"),
        );
        write_whole(path, |file| file.write_all(svg.as_bytes())).map_err(CliError::failed)?;
        tell(format_args!("drawing in {}", path.display()));
    }
    let records = records(&model, precision, &measured);
    if !args.no_store {
        let bench = store(&args.database, &records)?;
        tell(format_args!(
            "stored as bench {bench} in {}",
            args.database.path().display()
        ));
    }
    write_result(&match args.json {
        true => json(&measured)?,
        false => shown(&measured),
    })
}

/// Bytes of the device that are in use before the model is there, and which are no part of its peaks.
fn bytes_without_model(compute: &ComputeArgs) -> Result<u64, CliError> {
    let device = device::open(compute.device_name()).map_err(CliError::bad_input)?;
    let memory = DeviceMemory::of(&device).map_err(CliError::failed)?;
    device::prepare(&device).map_err(CliError::failed)?;
    Ok(memory.in_use_bytes())
}

/// Base, then adapter and merged for each rank or for the given adapter.
fn measure_forms(
    args: &Args,
    model: &str,
    base: Arc<BaseModel>,
    program_bytes: u64,
) -> Result<Vec<FormPoints>, CliError> {
    let failed = |error: TrainError| match error.out_of_memory() {
        true => CliError::failed(error),
        false => CliError::bad_input(error),
    };
    let mut measured = Vec::new();
    let mut measure = |form: &'static str, rank: Option<usize>, mut generator: Generator| {
        let points = points(args, form, rank, &mut generator, program_bytes).map_err(failed)?;
        measured.push(FormPoints { form, rank, points });
        Ok::<Generator, CliError>(generator)
    };
    measure("base", None, Generator::new(Arc::clone(&base), None).map_err(failed)?)?;
    let adapted: Vec<(Option<usize>, Generator)> = match &args.base.adapter {
        Some(folder) => {
            let generator = Generator::new(Arc::clone(&base), Some(folder)).map_err(failed)?;
            vec![(generator.adapter_rank(), generator)]
        }
        None => {
            let with_rank = |rank: &u32| {
                let recipe = recipe(model, *rank as usize);
                let generator = Generator::with_fresh_adapter(Arc::clone(&base), &recipe).map_err(failed)?;
                Ok((Some(*rank as usize), generator))
            };
            args.ranks.iter().map(with_rank).collect::<Result<_, CliError>>()?
        }
    };
    // The merged model stands for itself: the base model is released where nothing else needs it.
    drop(base);
    for (rank, generator) in adapted {
        let generator = measure("adapter", rank, generator)?;
        measure("merged", rank, generator.into_merged().map_err(failed)?)?;
    }
    Ok(measured)
}

/// Every batch size with every prompt length.
fn points(
    args: &Args,
    form: &str,
    rank: Option<usize>,
    generator: &mut Generator,
    program_bytes: u64,
) -> Result<Vec<InferencePoint>, TrainError> {
    let mut points = Vec::new();
    for prompt_tokens in &args.prompt_lengths {
        for batch in &args.batch_sizes {
            let name = line_name(form, rank);
            tell(format_args!("{name}: batch {batch}, prompts of {prompt_tokens} tokens"));
            let load = InferenceLoad {
                batch: *batch as usize,
                prompt_tokens: *prompt_tokens as usize,
                new_tokens: args.new_tokens as usize,
            };
            points.push(measure_inference(generator, load, args.budget.0, program_bytes)?);
        }
    }
    Ok(points)
}

/// A recipe whose only purpose is its adapter.
fn recipe(model: &str, rank: usize) -> Recipe {
    let mut recipe = Recipe::new(model, DataSettings::default());
    if let Some(adapter) = &mut recipe.adapter {
        (adapter.rank, adapter.alpha) = (rank, 2.0 * rank as f64);
    }
    recipe
}

fn check_lengths(args: &Args, base: &BaseModel) -> Result<(), CliError> {
    let positions = base.architecture().max_positions;
    let longest = args.prompt_lengths.iter().max().map_or(0, |length| *length as usize);
    let needed = longest + args.new_tokens as usize;
    if needed <= positions {
        return Ok(());
    }
    let message = format!(
        "prompts of {longest} tokens and {} new ones need {needed} positions, and this model has {positions}; lower \
         `--prompt-lengths` or `--new-tokens`",
        args.new_tokens
    );
    Err(CliError::bad_input(anyhow::anyhow!(message)))
}

fn records(model: &str, precision: Precision, measured: &[FormPoints]) -> Vec<InferenceRecord> {
    let precision = match serde_json::to_value(precision) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    };
    let times = |latency: Latency| [latency.p50_s, latency.p95_s, latency.p99_s];
    let record = |form: &FormPoints, point: &InferencePoint| InferenceRecord {
        model: model.to_owned(),
        precision: precision.clone(),
        form: form.form.to_owned(),
        rank: form.rank.map(|rank| rank as u64),
        batch: point.batch as u64,
        prompt_tokens: point.prompt_tokens as u64,
        new_tokens: point.new_tokens as u64,
        first_token_s: times(point.first_token),
        token_s: times(point.token),
        prefill_tokens_per_s: point.prefill_tokens_per_s,
        decode_tokens_per_s: point.decode_tokens_per_s,
        peak_memory_bytes: point.peak_bytes,
        cache_bytes: point.cache_bytes,
    };
    let all = measured
        .iter()
        .flat_map(|form| form.points.iter().map(move |point| (form, point)));
    all.map(|(form, point)| record(form, point)).collect()
}

fn store(database: &DatabaseArgs, records: &[InferenceRecord]) -> Result<i64, CliError> {
    block_on(async {
        let store = Store::open(&database.path()).await?;
        let bench = store.record_inference(Some(&machine()), records).await?;
        store.close().await?;
        Ok(bench)
    })
}

fn line_name(form: &str, rank: Option<usize>) -> String {
    match rank {
        Some(rank) => format!("{form} r{rank}"),
        None => form.to_owned(),
    }
}

/// A line for each form and prompt length.
fn curve(measured: &[FormPoints]) -> Vec<CurveLine> {
    let mut lines: Vec<CurveLine> = Vec::new();
    let lengths: std::collections::BTreeSet<usize> = measured
        .iter()
        .flat_map(|form| form.points.iter().map(|point| point.prompt_tokens))
        .collect();
    for form in measured {
        for length in &lengths {
            let name = line_name(form.form, form.rank);
            let name = if lengths.len() > 1 {
                format!("{name}, prompt {length}")
            } else {
                name
            };
            let points = form.points.iter().filter(|point| point.prompt_tokens == *length);
            let mut points: Vec<CurvePoint> = points
                .map(|point| CurvePoint {
                    batch: point.batch,
                    token_s: point.token.p50_s,
                    tokens_per_s: point.decode_tokens_per_s,
                })
                .collect();
            points.sort_by_key(|point| point.batch);
            lines.push(CurveLine { name, points });
        }
    }
    lines
}

fn shown(measured: &[FormPoints]) -> String {
    let columns = [
        ("model", Align::Left),
        ("batch", Align::Right),
        ("prompt", Align::Right),
        ("first token p50", Align::Right),
        ("p95", Align::Right),
        ("token p50", Align::Right),
        ("p95", Align::Right),
        ("p99", Align::Right),
        ("prefill tok/s", Align::Right),
        ("decode tok/s", Align::Right),
        ("peak memory", Align::Right),
        ("cache", Align::Right),
    ];
    let mut table = TextTable::new(columns.map(|(name, align)| (name.to_owned(), align)));
    for form in measured {
        for point in &form.points {
            table.push([
                line_name(form.form, form.rank),
                point.batch.to_string(),
                point.prompt_tokens.to_string(),
                time(point.first_token.p50_s),
                time(point.first_token.p95_s),
                time(point.token.p50_s),
                time(point.token.p95_s),
                time(point.token.p99_s),
                format!("{:.0}", point.prefill_tokens_per_s),
                format!("{:.0}", point.decode_tokens_per_s),
                bytes(point.peak_bytes as f64),
                bytes(point.cache_bytes as f64),
            ]);
        }
    }
    let width = terminal_width();
    format!(
        "{}\n\n{}",
        table.to_text(width),
        curve_text(&curve(measured), width.unwrap_or(80))
    )
}

fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 1.0 => format!("{:.2} ms", 1e3 * seconds),
        seconds => duration(seconds),
    }
}

fn json(measured: &[FormPoints]) -> Result<String, CliError> {
    let form = |form: &FormPoints| serde_json::json!({"form": form.form, "rank": form.rank, "points": form.points});
    let forms: Vec<serde_json::Value> = measured.iter().map(form).collect();
    Ok(serde_json::to_string_pretty(&forms).map_err(CliError::failed)? + "\n")
}
