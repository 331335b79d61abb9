//! `peft-tune init`: writes a study file for one model, one data set and one memory limit.

mod around;
mod ask;
mod chat;
mod chosen;
mod columns;
mod find;
mod fit;
mod from;
mod longer;
mod needs;
mod plan;
mod rate_range;
mod row_tokens;
mod text;
mod token_lengths;
mod trial_size;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::cli::export::model_folder;
use crate::cli::forecast::Rows;
use crate::cli::row_formats::WholeOutput;
use crate::cli::show_rows::first_row;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_result};
use crate::report::{bytes, printable};
use crate::shell::shell_word;
use crate::space::{Bytes, ReadOptions, Study, StudyFile};
use crate::tune::{CostSurvey, Forecast};
use ask::Asker;
use chosen::Chosen;
use columns::{Renames, format_of, parse_columns};
use find::Machine;
use needs::Needs;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{DataFormat, HubDataSet};
use peft_tune_engine::hub::{cached_data_files, data_files};
use plan::Plan;
use row_tokens::RowTokens;

/// Write a study file for your model, data and memory, with what cannot fit left out
///
/// Ask for what is not given, and offer what is found: models in the Hugging Face cache, data files in this folder, the
/// memory of this machine. With --yes, or without a terminal, take the first of each. With --from ask nothing: the file
/// spans the neighbours of the setting that your config has.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Base model: a directory, or a hub id such as Qwen/Qwen2.5-0.5B
    #[arg(long, value_name = "DIR|ID")]
    model: Option<String>,
    /// Training data: JSONL, JSON, CSV, Parquet or text
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Which of the data's columns are what, such as `prompt=question,completion=answer`; found by their names where absent
    #[arg(long, value_name = "NAME=COLUMN,..", value_parser = parse_columns, requires = "data")]
    columns: Option<Renames>,
    /// Device memory that trials may use, such as 16GiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// A config of yours to search around: of TRL (YAML, command line or script), axolotl, LLaMA-Factory, torchtune, unsloth, or
    /// PEFT's adapter_config.json
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "space.yaml")]
    output: PathBuf,
    /// Ask nothing
    #[arg(long)]
    yes: bool,
    /// Overwrite an existing file
    #[arg(long)]
    force: bool,
}

/// What the file is written from.
struct Answers {
    model: String,
    data: PathBuf,
    format: DataFormat,
    columns: Renames,
    /// The columns of prompts and completions, where these are trained as chats instead.
    as_plain: Option<Renames>,
    memory_bytes: u64,
    machine: Machine,
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
    if let Some(from) = &args.from {
        return from::run(&args, from);
    }
    let mut answers = answers(&args)?;
    let architecture = architecture(&answers.model)?;
    let rows = row_tokens(&mut answers);
    let plan = Plan::new(architecture.as_ref(), &rows, &answers).map_err(CliError::bad_input)?;
    let longer = rows.longer(plan.sequence_length);
    let text = text::study_file(&answers, &plan, longer.as_ref(), &args.output);
    // Checked as a search will read it, before anything is written.
    let options = ReadOptions { check_files: true };
    let study = StudyFile::parse(&args.output, &text, options).map_err(|error| {
        CliError::failed(anyhow::anyhow!(
            "the file that init makes is not valid: {}",
            error.rendered(false)
        ))
    })?;
    for left_out in &plan.left_out {
        tell(format_args!("left out: {left_out}"));
    }
    if let Some(architecture) = &architecture {
        tell(format_args!("{}", survey(&study, architecture, &answers.machine)));
    }
    write(&args, &text)?;
    show_first_row(&args.output, &answers);
    let chosen = Chosen {
        plan: &plan,
        rows: &rows,
        longer: longer.as_ref(),
    };
    tell(chosen.table());
    if let Some(note) = plan.size.slow_note(answers.machine.is_gpu) {
        tell(format_args!("warning: {note}"));
    }
    Ok(())
}

/// How long the rows are, and whether they are trained as chats, which is told.
fn row_tokens(answers: &mut Answers) -> RowTokens {
    let counted = chat::count(answers);
    if answers.as_plain.is_some() {
        tell(format_args!(
            "prompts and completions are trained as chats, by the model's chat template: `format: alpaca` in the file, \
             which says how to train them as plain text"
        ));
    }
    if answers.format == DataFormat::PromptCompletion && chat::is_unknown(&answers.model) {
        tell(format_args!(
            "the model's tokenizer is not here: rows are trained as plain prompt and completion; where it has a chat \
             template, run `init` again once it is on this machine"
        ));
    }
    match counted {
        Some(lengths) => RowTokens::Counted(lengths),
        None => RowTokens::guessed(find::row_lengths(&first_file(&answers.data))),
    }
}

/// Shows the first row as it is trained, where the model's tokenizer is here, and says where it is no chat though it could
/// be one.
fn show_first_row(output: &Path, answers: &Answers) {
    let Some(row) = first_row(output) else { return };
    tell(format_args!(
        "the first row as it is trained, with what is learnt in brackets:\n{}",
        row.text.trim_end()
    ));
    let is_plain = answers.format == DataFormat::PromptCompletion && !row.is_chat;
    if is_plain && chat::has_template(&answers.model) {
        tell(format_args!(
            "rows are trained as plain prompt and completion, although the model has a chat template: to train chats, write \
             the rows as `messages` (docs/data.md)"
        ));
    }
}

/// Writes the file, and says what to do with it.
fn write(args: &Args, text: &str) -> Result<(), CliError> {
    let (whole, mut output) = WholeOutput::create(&args.output, args.force)?;
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(CliError::failed)?;
    drop(output);
    whole.keep()?;
    let file = printable(&args.output.display().to_string());
    let word = shell_word(&args.output.to_string_lossy());
    write_result(&format!(
        "wrote {file}; next: peft-tune plan {word}, or peft-tune search {word}\n"
    ))
}

/// How many settings the file spans and how many of them are predicted to fit, rows taken as full.
fn survey(study: &Study, architecture: &Architecture, machine: &Machine) -> String {
    let length = study.base.as_ref().map_or(0, |base| base.batch.sequence_length);
    let predictor = Needs::new(architecture, machine, length).into_predictor();
    let survey = CostSurvey::new(study, &Forecast::new(study, predictor, Rows::new()));
    let kinds = survey.settings.len();
    let fitting = survey.settings.iter().filter(|one| one.fits).count();
    format!("{kinds} settings differ in memory or time; {fitting} of them are predicted to fit")
}

fn answers(args: &Args) -> Result<Answers, CliError> {
    let machine = Machine::look();
    let mut asker = Asker::new(!args.yes && std::io::stdin().is_terminal());
    let model = match &args.model {
        Some(model) => model.clone(),
        None => asker.choose("Base model", "--model", &find::models(), check_model)?,
    };
    let data = match &args.data {
        Some(data) => data.clone(),
        None => {
            let files = find::data_files(Path::new("."));
            let check = |path: &str| format_of(Path::new(path), None).map(drop);
            PathBuf::from(asker.choose("Training data", "--data", &files, check)?)
        }
    };
    let (format, columns) = format_of(&data, args.columns.as_ref())?;
    // Who named them knows.
    for (name, column) in columns.iter().filter(|_| args.columns.is_none()) {
        tell(format_args!(
            "the column `{column}` is taken as `{name}`; --columns says otherwise"
        ));
    }
    let memory_bytes = match args.memory {
        Some(memory) => memory.0,
        None => {
            let offered = bytes(machine.usable_bytes as f64);
            asker.memory(&offered, machine.usable_bytes)?
        }
    };
    Ok(Answers {
        model,
        data,
        format,
        columns,
        as_plain: None,
        memory_bytes,
        machine,
    })
}

/// Models of this machine, those of this folder first.
pub(super) fn models_here() -> Vec<String> {
    find::models()
}

/// Data files of this folder.
pub(super) fn data_files_here() -> Vec<String> {
    find::data_files(Path::new("."))
}

/// Rows of a file whose rows are lines, about.
pub(super) fn about_rows(path: &Path) -> Option<u64> {
    let files = cached_data_files(path).ok()?;
    let rows = files
        .iter()
        .map(|file| find::row_lengths(file).map(|lengths| lengths.rows));
    rows.sum()
}

/// The file itself, or the first one of a data set of the hub.
fn first_file(data: &Path) -> PathBuf {
    let files = cached_data_files(data).unwrap_or_default();
    files.into_iter().next().unwrap_or_else(|| data.to_owned())
}

fn check_data(path: &Path) -> Result<(), CliError> {
    if HubDataSet::is_written(path) {
        let files = data_files(path, &mut DownloadProgress::default());
        return files.map(drop).map_err(CliError::bad_input);
    }
    match path.is_file() {
        true => Ok(()),
        false => Err(CliError::bad_input(anyhow::anyhow!(
            "no data at {}: name a file of rows, or hf://datasets/OWNER/NAME, with `--data`",
            path.display()
        ))),
    }
}

/// Whether it is a model on this machine, or could be one on the hub.
fn check_model(model: &str) -> Result<(), CliError> {
    let is_path = Path::new(model).is_absolute() || model.starts_with('.') || model.matches('/').count() != 1;
    if is_path && model_folder(model).is_none() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "no model at {model}: name a directory with config.json, or a hub id such as Qwen/Qwen2.5-0.5B"
        )));
    }
    Ok(())
}

/// The model's dimensions where it is on this machine; a hub id that is not is planned for without.
fn architecture(model: &str) -> Result<Option<Architecture>, CliError> {
    check_model(model)?;
    let Some(folder) = model_folder(model) else {
        tell(format_args!(
            "{model} is not on this machine yet: `search` downloads it; nothing is left out for its size"
        ));
        return Ok(None);
    };
    Architecture::from_config(&folder.join("config.json"))
        .map(Some)
        .map_err(CliError::bad_input)
}
