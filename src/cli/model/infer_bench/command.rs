//! `peft-tune infer-bench`: how fast a model answers, with and without adapters.

use std::path::PathBuf;
use std::sync::Arc;

use super::args::Args;
use super::drawing::draw;
use super::forms::{Bench, check_lengths};
use super::points_text;
use super::prompts::Prompts;
use super::records::Records;
use super::served;
use crate::cli::CliError;
use crate::cli::machine::record::machine;
use crate::cli::options::compute::ComputeArgs;
use crate::cli::options::database::{DatabaseArgs, block_on};
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{first_failure, tell, write_result};
use crate::store::Store;
use peft_tune_engine::Sparsity;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::profile::DeviceMemory;
use peft_tune_kernels::device;

/// Measures all forms, and prints what was found.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    if let Some(url) = &args.url {
        return served::run(&args, url);
    }
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
    check_lengths(&args, &base)?;
    let bench = Bench {
        args: &args,
        prompts: prompts.as_ref(),
        program_bytes,
    };
    let measured = bench.measure(&model, base)?;
    let text = match args.json {
        true => points_text::json(&measured)?,
        false => points_text::text(&measured),
    };
    let title = format!("{model}: time of a token against throughput");
    // What was measured goes everywhere that it can go: a place that fails takes it from no other.
    first_failure([
        write_result(&text),
        draw(&args, &title, &points_text::curve(&measured)),
        keep(&args, &Records::new(&model, precision, &measured)),
    ])
}

/// Stores what was measured, unless nothing is to be stored.
fn keep(args: &Args, records: &Records) -> Result<(), CliError> {
    if args.no_store {
        return Ok(());
    }
    let bench = store(&args.database, records)?;
    tell(format_args!(
        "stored as bench {bench} in {}",
        args.database.path().display()
    ));
    Ok(())
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

fn store(database: &DatabaseArgs, records: &Records) -> Result<i64, CliError> {
    block_on(async {
        let store = Store::open(&database.path()).await?;
        let bench = store
            .inference_benches()
            .record(Some(&machine()), &records.points, &records.requests)
            .await?;
        store.close().await?;
        Ok(bench)
    })
}
