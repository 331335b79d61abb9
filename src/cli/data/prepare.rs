//! Data for the commands that read them: made ready in a process of their own, and `peft-tune prepare`, that process.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::cli::CliError;
use crate::cli::machine::record::usable_memory_bytes;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::tell;
use crate::cli::terminal::reading_progress::Reading;
use crate::report::{bytes, grouped, thread_count};
use crate::worker::{Preparation, PrepareRequest, Prepared, prepare_apart, serve_prepare};
use peft_tune_core::recipe::{DataSettings, Recipe};
use peft_tune_engine::data::{LookAt, PreparedData, RowsSeen, Tokenized, bring};
use peft_tune_engine::hub::ModelFiles;

/// Longest time without a row, in seconds; `PEFT_TUNE_ROW_TIMEOUT_S` says otherwise.
const ROW_S: f64 = 60.0;
/// Seconds of tokenising from which on it is told.
const LONG_S: f64 = 1.0;
/// Memory that reading data may take whatever their size.
const MEMORY_BYTES: u64 = 1 << 30;
/// Memory for each byte of what is held: a tokenizer, or a data file that is read whole. Parquet packs its rows.
const FOR_A_BYTE: u64 = 40;
/// Bytes of rows that are read at once from files of lines, the longest line among them.
const LINE_BYTES: u64 = 32 << 20;
/// Bytes of a group of rows of a Parquet file.
const GROUP_BYTES: u64 = 256 << 20;
/// Share of the machine's memory that reading data may take at most.
const MOST_MEMORY: f64 = 0.8;

/// What this process had made ready.
static READY: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Make the data ready that its parent asks for. A command starts this by itself.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {}

/// Serves one request.
pub(in crate::cli) fn run(_: Args) -> Result<(), CliError> {
    let input = std::io::BufReader::new(std::io::stdin());
    serve_prepare(input, std::io::stdout()).map_err(CliError::failed)
}

/// The data of a recipe, downloaded where they are on the hub. A process of its own reads them first: whatever is in
/// them, in the tokenizer and in the chat template, does not end this one. `reading` shows how far it is.
///
/// # Errors
/// Bad input: data, a tokenizer or a template that cannot be used.
pub(in crate::cli) fn prepared(
    recipe: &Recipe,
    files: &ModelFiles,
    mut reading: Reading,
) -> Result<PreparedData, CliError> {
    let here = bring(&recipe.data, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    let request = PrepareRequest {
        work: Preparation::Data(Box::new(recipe.clone())),
        files: files.clone(),
        memory_limit_bytes: memory_limit_bytes(files, data_bytes(&here)),
    };
    let asked = serde_json::to_string(&request).map_err(CliError::failed)?;
    let mut ready = READY.lock().unwrap_or_else(PoisonError::into_inner);
    if !ready.contains(&asked) {
        made_apart(&request, &mut reading)?;
        ready.push(asked);
    }
    drop(reading);
    PreparedData::of_recipe(recipe, files).map_err(CliError::bad_input)
}

/// The data of a recipe like [`prepared`], without the rows of `data.retain`, for commands that evaluate nothing on them.
///
/// # Errors
/// Errors of [`prepared`].
pub(in crate::cli) fn prepared_for_training(
    recipe: &Recipe,
    files: &ModelFiles,
    reading: Reading,
) -> Result<PreparedData, CliError> {
    let mut recipe = recipe.clone();
    recipe.data.retain.clear();
    prepared(&recipe, files, reading)
}

/// The tokens of a text or of a chat, made in a process of their own as [`prepared`] does it.
///
/// # Errors
/// Bad input: a tokenizer or a template that cannot be used.
pub(in crate::cli) fn prompt_tokens(prompt: Preparation, files: &ModelFiles) -> Result<Vec<u32>, CliError> {
    let request = PrepareRequest {
        work: prompt,
        files: files.clone(),
        memory_limit_bytes: memory_limit_bytes(files, 0),
    };
    Ok(made_apart(&request, &mut Reading::unseen())?.tokens)
}

/// Rows of a recipe's data as they are trained, read in a process of their own as [`prepared`] does it.
///
/// # Errors
/// Bad input: data, a tokenizer or a template that cannot be used.
pub(super) fn rows_seen(
    recipe: &Recipe,
    files: &ModelFiles,
    asked: LookAt,
    mut reading: Reading,
) -> Result<RowsSeen, CliError> {
    let here = bring(&recipe.data, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    let request = PrepareRequest {
        work: Preparation::Rows(Box::new(recipe.clone()), asked),
        files: files.clone(),
        memory_limit_bytes: memory_limit_bytes(files, data_bytes(&here)),
    };
    Ok(made_apart(&request, &mut reading)?.rows.unwrap_or_default())
}

fn made_apart(request: &PrepareRequest, reading: &mut Reading) -> Result<Prepared, CliError> {
    let program = std::env::current_exe().map_err(CliError::failed)?;
    let given = std::env::var("PEFT_TUNE_ROW_TIMEOUT_S").ok();
    let seconds = given.and_then(|text| text.parse().ok()).unwrap_or(ROW_S);
    let stuck_after = Duration::try_from_secs_f64(seconds).map_err(CliError::bad_input)?;
    let made =
        prepare_apart(&program, request, stuck_after, &mut |now| reading.takes(now)).map_err(CliError::bad_input)?;
    if !made.logged.is_empty() {
        tell(made.logged.trim_end());
    }
    if let Some(took) = made.tokenized.filter(|took| took.seconds >= LONG_S) {
        tell(tokenized_text(&took));
    }
    Ok(made)
}

/// `tokenised 120,000 rows (86.1 MiB) in 12.3 s on 2 threads (7.0 MiB/s)`.
fn tokenized_text(took: &Tokenized) -> String {
    format!(
        "tokenised {} rows ({}) in {:.1} s on {} ({}/s)",
        grouped(took.rows as f64),
        bytes(took.bytes as f64),
        took.seconds,
        thread_count(took.workers),
        bytes(took.bytes as f64 / took.seconds)
    )
}

/// Bytes that reading so many bytes of data may take.
fn memory_limit_bytes(files: &ModelFiles, data_bytes: u64) -> u64 {
    let tokenizer = size_of(&files.tokenizer.tokenizer);
    let wanted = MEMORY_BYTES + FOR_A_BYTE.saturating_mul(tokenizer.saturating_add(data_bytes));
    let there = usable_memory_bytes().map_or(u64::MAX, |bytes| (MOST_MEMORY * bytes as f64) as u64);
    wanted.min(there)
}

/// Bytes of the files that a recipe reads its data from.
pub(in crate::cli) fn file_bytes(data: &DataSettings) -> u64 {
    let files = data.train.files().chain(data.held_out.files()).chain(&data.retain);
    files.map(|path| size_of(path)).sum()
}

/// Bytes of the data that a reader may hold at once.
fn data_bytes(data: &DataSettings) -> u64 {
    let files = data.train.files().chain(data.held_out.files()).chain(&data.retain);
    files.map(|path| held_bytes(path)).sum()
}

/// Bytes of a file that its reader holds: rows of JSONL, CSV and Parquet are read one after the other, Parquet's by groups.
fn held_bytes(path: &std::path::Path) -> u64 {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let most = match ending.as_deref() {
        Some("jsonl" | "ndjson" | "csv" | "tsv") => LINE_BYTES,
        Some("parquet" | "pq") => GROUP_BYTES,
        _ => u64::MAX,
    };
    size_of(path).min(most)
}

fn size_of(path: &std::path::Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}
