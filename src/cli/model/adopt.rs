//! `peft-tune adopt`: lets a model with a `model_type` of its own be read as one of a known family.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::cli::CliError;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::write_result;
use peft_tune_core::architecture::{Architecture, Family};
use peft_tune_core::python_json;
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::BaseModel;
use peft_tune_engine::hub::ModelFiles;

/// Make a model folder that says which family's layers a model has, where its own `model_type` is not known.
///
/// Nothing is converted. Every key of `config.json` is read as the family reads it, and every tensor of the checkpoint must be
/// there under the family's names and with its shapes. The folder holds a changed `config.json` and links to all other files.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// The model: a directory or a hub id.
    #[arg(value_name = "DIR|ID")]
    model: String,
    /// The family whose layers it has, by its `model_type`.
    #[arg(long, value_name = "FAMILY", value_parser = family)]
    as_family: Family,
    /// Folder to make.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
}

fn family(name: &str) -> Result<Family, String> {
    let known = || Family::all().map(Family::name).collect::<Vec<_>>().join(", ");
    Family::from_model_type(name).ok_or_else(|| format!("no such family; there are: {}", known()))
}

/// Checks the model, makes the folder and prints what it is.
pub(in crate::cli) fn run(args: &Args) -> Result<(), CliError> {
    let files =
        ModelFiles::resolve_weights(&args.model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    let config = adopted_config(&files.config, args.as_family).map_err(CliError::bad_input)?;
    let architecture = Architecture::from_json(&files.config, &config).map_err(CliError::bad_input)?;
    BaseModel::check(&files.folder, &architecture).map_err(CliError::bad_input)?;
    write(&files.folder, &args.output, &config).map_err(CliError::bad_input)?;
    write_result(&format!(
        "{} is read as {}: {} layers, {} parameters; every tensor fits\n",
        args.output.display(),
        args.as_family.name(),
        architecture.layers.len(),
        architecture.parameter_count().total(),
    ))
}

/// The text of `config.json` with another `model_type`, and what it was.
fn adopted_config(path: &Path, family: Family) -> anyhow::Result<String> {
    use anyhow::Context;
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut config: Map<String, Value> =
        python_json::from_str(&text).with_context(|| format!("{} is not valid JSON", path.display()))?;
    let before = config.insert("model_type".to_owned(), family.name().into());
    config.insert("adopted_model_type".to_owned(), before.unwrap_or_default());
    Ok(format!("{:#}\n", Value::Object(config)))
}

/// Makes `output` with `config` and links to the other files of `source`; where that fails, nothing of it is left.
fn write(source: &Path, output: &Path, config: &str) -> anyhow::Result<()> {
    use anyhow::Context;
    std::fs::create_dir(output)
        .with_context(|| format!("cannot make {}; give another `--output`", output.display()))?;
    let filled = fill(source, output, config);
    if filled.is_err() {
        let _ = std::fs::remove_dir_all(output);
    }
    filled
}

/// Fills `output`, which is empty, with `config` and links to the other files of `source`.
fn fill(source: &Path, output: &Path, config: &str) -> anyhow::Result<()> {
    use anyhow::Context;
    for entry in std::fs::read_dir(source).with_context(|| format!("cannot read {}", source.display()))? {
        let from = entry?.path();
        let Some(name) = from.file_name().filter(|name| *name != "config.json") else {
            continue;
        };
        if from.is_file() {
            let to = output.join(name);
            link(&from.canonicalize()?, &to).with_context(|| format!("cannot write {}", to.display()))?;
        }
    }
    let path = output.join("config.json");
    write_whole(&path, config.as_bytes(), false).with_context(|| format!("cannot write {}", path.display()))
}

/// A link to a file; a copy where there are no links.
fn link(from: &Path, to: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    if std::os::unix::fs::symlink(from, to).is_ok() {
        return Ok(());
    }
    std::fs::copy(from, to).map(drop)
}
