//! Data for the commands that read them: made ready in a process of their own, and `peft-tune prepare`, that process.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::CliError;
use super::machine::usable_memory_bytes;
use super::output::tell;
use crate::worker::{PrepareRequest, prepare_apart, serve_prepare};
use peft_tune_core::recipe::{DataSettings, HeldOut, Recipe};
use peft_tune_engine::data::PreparedData;
use peft_tune_engine::hub::ModelFiles;

/// Longest time without a row, in seconds; `PEFT_TUNE_ROW_TIMEOUT_S` says otherwise.
const ROW_S: f64 = 60.0;
/// Memory that reading data may take whatever their size.
const MEMORY_BYTES: u64 = 1 << 30;
/// Memory for each byte of a data file: rows are held while they are tokenised, and Parquet packs them.
const FOR_A_BYTE: u64 = 40;
/// Share of the machine's memory that reading data may take at most.
const MOST_MEMORY: f64 = 0.8;

/// What this process had made ready.
static READY: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Makes the data ready that its parent asks for. A command starts this by itself.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Serves one request.
pub fn run(_: Args) -> Result<(), CliError> {
    let input = std::io::BufReader::new(std::io::stdin());
    serve_prepare(input, std::io::stdout()).map_err(CliError::failed)
}

/// The data of a recipe. A process of its own reads them first: whatever is in them, in the tokenizer and in the chat template, does
/// not end this one.
///
/// # Errors
/// Bad input: data, a tokenizer or a template that cannot be used.
pub fn prepared(recipe: &Recipe, files: &ModelFiles) -> Result<PreparedData, CliError> {
    let program = std::env::current_exe().map_err(CliError::failed)?;
    let tokenizer = size_of(&files.tokenizer.tokenizer);
    let wanted = MEMORY_BYTES + FOR_A_BYTE.saturating_mul(tokenizer.saturating_add(data_bytes(&recipe.data)));
    let there = usable_memory_bytes().map_or(u64::MAX, |bytes| (MOST_MEMORY * bytes as f64) as u64);
    let request = PrepareRequest {
        recipe: Box::new(recipe.clone()),
        files: files.clone(),
        memory_limit_bytes: wanted.min(there),
    };
    let given = std::env::var("PEFT_TUNE_ROW_TIMEOUT_S").ok();
    let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(ROW_S);
    let stuck_after = Duration::try_from_secs_f64(seconds).map_err(CliError::bad_input)?;
    let asked = serde_json::to_string(&request).map_err(CliError::failed)?;
    let mut ready = READY.lock().unwrap_or_else(PoisonError::into_inner);
    if !ready.contains(&asked) {
        let logged = prepare_apart(&program, &request, stuck_after).map_err(CliError::bad_input)?;
        if !logged.is_empty() {
            tell(logged.trim_end());
        }
        ready.push(asked);
    }
    PreparedData::of_recipe(recipe, files).map_err(CliError::bad_input)
}

fn data_bytes(data: &DataSettings) -> u64 {
    let held_out = match &data.held_out {
        HeldOut::Fraction(_) => Vec::new(),
        HeldOut::File(path) => vec![path],
        HeldOut::Files(paths) => paths.iter().collect(),
    };
    data.train.iter().chain(held_out).map(|path| size_of(path)).sum()
}

fn size_of(path: &std::path::Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
