//! `peft-tune quickstart`: the search that shows the program at work, from files that it has in itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use peft_tune_core::whole_file::write_whole;

/// Files of `search_spaces`, each with its content.
macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../search_spaces/", $name)).as_slice())),*]
    };
}

/// Files of the quickstart: the space, its model and its data.
const FILES: [(&str, &[u8]); 7] = shipped![
    "quickstart.yaml",
    "quickstart/base/config.json",
    "quickstart/base/model.safetensors",
    "quickstart/base/tokenizer.json",
    "quickstart/base/tokenizer_config.json",
    "quickstart/train.jsonl",
    "quickstart/held_out.jsonl",
];
const SPACE: &str = FILES[0].0;

/// Write a small model, its data and a search space, and search it: two minutes on any machine, and nothing is downloaded.
///
/// Example: `peft-tune quickstart`, then `peft-tune report --output quickstart.html`.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Folder for the files.
    #[arg(long, value_name = "DIR", default_value = "peft-tune-quickstart")]
    output: PathBuf,
    /// Options of `search`, such as `--trials 20`.
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    search: Vec<OsString>,
}

/// The arguments of the search that follows.
pub(in crate::cli) fn search_arguments(args: &Args) -> Vec<OsString> {
    let space = args.output.join(SPACE).into_os_string();
    let command = ["peft-tune".into(), "search".into(), space];
    command.into_iter().chain(args.search.iter().cloned()).collect()
}

/// Writes the files.
///
/// # Errors
/// A folder that cannot be written to, or that has other files of these names.
pub(in crate::cli) fn write_files(args: &Args) -> Result<(), CliError> {
    lay_down(&args.output, "--output")?;
    let space = args.output.join(SPACE);
    tell(format_args!(
        "{} and the files beside it are written; a search of your own begins with a copy of it",
        space.display()
    ));
    Ok(())
}

/// Lays the files down below a folder, which `option` names.
///
/// # Errors
/// A folder that cannot be written to, or that has other files of these names.
pub(in crate::cli) fn lay_down(folder: &Path, option: &str) -> Result<(), CliError> {
    let mut files = FILES.iter();
    files.try_for_each(|(name, content)| write(&folder.join(name), content, option))
}

/// Leaves a file alone that has this content already.
fn write(path: &Path, content: &[u8], option: &str) -> Result<(), CliError> {
    if std::fs::read(path).is_ok_and(|known| known == content) {
        return Ok(());
    }
    if path.exists() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "{} is there with other content: give another folder with {option}, or search it as it is with `peft-tune search`",
            path.display()
        )));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    let failed = |error: std::io::Error| CliError::cannot_write(path, &error, option);
    std::fs::create_dir_all(folder).map_err(failed)?;
    write_whole(path, content, false).map_err(failed)
}
