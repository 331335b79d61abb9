//! `peft-tune init`: writes a study file for one model, one data set and one memory limit.

mod around;
mod ask;
mod find;
mod from;
mod longer;
mod needs;
mod plan;
mod text;

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use super::CliError;
use super::download::DownloadProgress;
use super::export::model_folder;
use super::forecast::Rows;
use super::output::{tell, write_result};
use super::rows::WholeOutput;
use super::show_rows::first_row;
use crate::report::{bytes, printable};
use crate::shell::shell_word;
use crate::space::{Bytes, ReadOptions, Study, StudyFile};
use crate::tune::{CostSurvey, Forecast};
use ask::Asker;
use find::Machine;
use longer::LongerRows;
use needs::Needs;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::recipe::{DataFormat, HubDataSet};
use peft_tune_engine::data::recognise;
use peft_tune_engine::hub::{cached_data_files, data_files};
use plan::Plan;

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

/// A format's names of columns, and the data's own.
type Renames = BTreeMap<String, String>;

/// Names that columns of questions and answers often have, for `prompt` and `completion`.
const USUAL_COLUMNS: [(&str, &str); 9] = [
    ("question", "answer"),
    ("question", "response"),
    ("prompt", "response"),
    ("prompt", "answer"),
    ("query", "response"),
    ("query", "answer"),
    ("instruction", "response"),
    ("input", "output"),
    ("problem", "solution"),
];

/// What the file is written from.
struct Answers {
    model: String,
    data: PathBuf,
    format: DataFormat,
    columns: Renames,
    memory_bytes: u64,
    machine: Machine,
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
    if let Some(from) = &args.from {
        return from::run(&args, from);
    }
    let answers = answers(&args)?;
    let architecture = architecture(&answers.model)?;
    let rows = find::row_lengths(&first_file(&answers.data));
    let plan = Plan::new(architecture.as_ref(), rows, &answers).map_err(CliError::bad_input)?;
    let longer = LongerRows::count(&answers, plan.sequence_length);
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
    if let Some(row) = first_row(&args.output) {
        tell(format_args!(
            "the first row as it is trained, with what is learnt in brackets:\n{}",
            row.trim_end()
        ));
    }
    Ok(())
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
        None => asker.choose(("Base model", "--model"), &find::models(), check_model)?,
    };
    let data = match &args.data {
        Some(data) => data.clone(),
        None => {
            let files = find::data_files(Path::new("."));
            let check = |path: &str| format_of(Path::new(path), None).map(drop);
            PathBuf::from(asker.choose(("Training data", "--data"), &files, check)?)
        }
    };
    let (format, columns) = format_of(&data, args.columns.as_ref())?;
    for (name, column) in &columns {
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

/// What the rows of a file are, with the columns that have other names than the format's.
fn format_of(data: &Path, given: Option<&Renames>) -> Result<(DataFormat, Renames), CliError> {
    check_data(data)?;
    let data = &*first_file(data);
    let as_named = given.cloned().unwrap_or_default();
    let error = match recognise(data, &as_named) {
        Ok(Some(format)) => return Ok((format, as_named)),
        Ok(None) => return Err(CliError::bad(format!("{} has no rows", data.display()))),
        Err(error) => error,
    };
    let usual = USUAL_COLUMNS
        .into_iter()
        .filter(|_| given.is_none())
        .find_map(|(prompt, completion)| {
            let columns = [("prompt", prompt), ("completion", completion)].into_iter();
            let columns: Renames = columns
                .filter(|(name, column)| name != column)
                .map(|(name, column)| (name.to_owned(), column.to_owned()))
                .collect();
            let format = recognise(data, &columns).ok().flatten()?;
            Some((format, columns))
        });
    usual.ok_or_else(|| {
        CliError::bad_input(anyhow::Error::new(error).context(
            "the data's columns have no names that are known: say which is what, such as \
             `--data FILE --columns prompt=question,completion=answer`",
        ))
    })
}

fn parse_columns(text: &str) -> Result<Renames, String> {
    let pair = |part: &str| match part.split_once('=') {
        Some((name, column)) if !name.trim().is_empty() && !column.trim().is_empty() => {
            Ok((name.trim().to_owned(), column.trim().to_owned()))
        }
        _ => Err(format!("`{part}` is no NAME=COLUMN, such as prompt=question")),
    };
    text.split(',').map(pair).collect()
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
