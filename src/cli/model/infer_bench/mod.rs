//! `peft-tune infer-bench`: how fast a model answers, with and without adapters.

mod forms;
mod prompts;
mod records;
mod shown;

use std::path::PathBuf;
use std::sync::Arc;

use crate::cli::CliError;
use crate::cli::machine::record::machine;
use crate::cli::options::compute::{BaseArgs, ComputeArgs};
use crate::cli::options::count::counts;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_result};
use crate::report::charts::curve_svg;
use crate::space::Seconds;
use crate::store::Store;
use forms::{Bench, FormPoints};
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::Sparsity;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::DeviceMemory;
use peft_tune_kernels::device;
use prompts::Prompts;

/// Measure how fast a model answers: base, adapter beside the base weights, and adapter merged into them.
///
/// Each point reads prompts and then generates token by token, several sequences side by side: time until the first
/// token, time of each further one (median, 95th and 99th percentile), tokens per second, memory. Stored, and drawn as a
/// curve of time against throughput over batch sizes. `--adapters` and `--together` measure several adapters on one base
/// model, and `--prompts` whole requests, from text to text.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    base: BaseArgs,
    /// Ranks of fresh adapters on all linear layers, instead of `--adapter`.
    #[arg(long, value_name = "RANKS", value_delimiter = ',', conflicts_with = "adapter", default_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    ranks: Vec<u32>,
    /// PEFT adapters that one base model answers with: each sequence of a batch has one of them, in turn.
    #[arg(long, value_name = "DIR,DIR", value_delimiter = ',', requires = "model", conflicts_with_all = ["adapter", "ranks", "together"])]
    adapters: Vec<PathBuf>,
    /// The same with so many fresh adapters of each rank.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', conflicts_with = "adapter", value_parser = clap::value_parser!(u32).range(2..=1024))]
    together: Vec<u32>,
    /// Measure requests too: a text file with a prompt in each line. Tokenizing and decoding count, and an answer ends where
    /// the model ends it.
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Sequences that are answered at once.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1,2,4,8", value_parser = counts::<u32>(1..=u64::MAX))]
    batch_sizes: Vec<u32>,
    /// Lengths of the prompts, in tokens.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "128", value_parser = counts::<u32>(1..=u64::MAX))]
    prompt_lengths: Vec<u32>,
    /// Tokens to generate for each prompt; of requests, the most.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = counts::<u32>(2..=u64::MAX))]
    new_tokens: u32,
    /// Time to spend on each point; three repetitions are made in any case.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    budget: Seconds,
    /// Write the curve as an SVG file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print the points as JSON.
    #[arg(long)]
    json: bool,
    /// Store nothing in the database.
    #[arg(long)]
    no_store: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Measures all forms, and prints what was found.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let model = args.base.name()?;
    let files = match &args.prompts {
        None => ModelFiles::resolve_weights(&model, &mut DownloadProgress::default()),
        Some(_) => ModelFiles::resolve_watched(&model, &mut DownloadProgress::default()),
    };
    let files = files.map_err(CliError::bad_input)?;
    let prompts = args
        .prompts
        .as_deref()
        .map(|path| Prompts::read(path, &files))
        .transpose()?;
    let precision = args.base.precision(&files)?;
    refuse_sparse(&args.adapters)?;
    let program_bytes = bytes_without_model(&args.compute)?;
    let base = args
        .compute
        .load_under(&files, precision, args.base.adapter.as_deref())?;
    let base = Arc::new(base);
    forms::check_lengths(&args, &base)?;
    let bench = Bench {
        args: &args,
        prompts: prompts.as_ref(),
        program_bytes,
    };
    let measured = bench.measure(&model, base)?;
    if let Some(path) = &args.svg {
        let svg = curve_svg(
            &shown::curve(&measured),
            &format!("{model}: time of a token against throughput"),
        );
        write_whole(path, svg.as_bytes(), true).map_err(|error| CliError::cannot_write(path, &error, "--svg"))?;
        tell(format_args!("drawing in {}", path.display()));
    }
    if !args.no_store {
        let bench = store(&args.database, &records::Records::new(&model, precision, &measured))?;
        tell(format_args!(
            "stored as bench {bench} in {}",
            args.database.path().display()
        ));
    }
    write_result(&match args.json {
        true => shown::json(&measured)?,
        false => shown::text(&measured),
    })
}

/// Adapters side by side share a base model: none may have been trained on one of its own.
fn refuse_sparse(adapters: &[PathBuf]) -> Result<(), CliError> {
    for adapter in adapters {
        if let Some(sparsity) = Sparsity::of_adapter(adapter).map_err(CliError::bad_input)? {
            return Err(CliError::bad_input(anyhow::anyhow!(
                "the adapter {} was trained with `weight_sparsity: {}`, which is no base model for others; measure it by itself \
                 (`--adapter`)",
                adapter.display(),
                sparsity.kind()
            )));
        }
    }
    Ok(())
}

/// Bytes of the device that are in use before the model is there, and which are no part of its peaks.
fn bytes_without_model(compute: &ComputeArgs) -> Result<u64, CliError> {
    let device = device::open(compute.device_name()).map_err(CliError::bad_input)?;
    let memory = DeviceMemory::of(&device).map_err(CliError::failed)?;
    device::prepare(&device).map_err(CliError::failed)?;
    Ok(memory.in_use_bytes())
}

fn store(database: &DatabaseArgs, records: &records::Records) -> Result<i64, CliError> {
    block_on(async {
        let store = Store::open(&database.path()).await?;
        let bench = store
            .record_inference(Some(&machine()), &records.points, &records.requests)
            .await?;
        store.close().await?;
        Ok(bench)
    })
}
