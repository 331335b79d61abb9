//! What `init` is asked for.

use std::path::PathBuf;

use super::columns::parse_columns;
use crate::draft::Renames;
use crate::space::Bytes;

/// Write a study file for your model, data and memory, with what cannot fit left out
///
/// Ask for what is not given, and offer what is found: models in the Hugging Face cache, data files in this folder, the
/// memory of this machine. With --yes, or without a terminal, take the first of each. With --from ask nothing: the file
/// spans the neighbours of the setting that your config has.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Base model: a directory, or a hub id such as Qwen/Qwen2.5-0.5B
    #[arg(long, value_name = "DIR|ID")]
    pub model: Option<String>,
    /// Training data: JSONL, JSON, CSV, Parquet or text
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Which of the data's columns are what, such as `prompt=question,completion=answer`; found by their names where absent
    #[arg(long, value_name = "NAME=COLUMN,..", value_parser = parse_columns, requires = "data", conflicts_with = "from")]
    pub columns: Option<Renames>,
    /// Device memory that trials may use, such as 16GiB
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// A config of yours to search around: of TRL (YAML or command line), axolotl, LLaMA-Factory or torchtune, a script or notebook
    /// that trains with TRL, transformers or unsloth, or PEFT's adapter_config.json
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Tool that the config is for, where its keys do not tell: peft, trl, axolotl, llamafactory, torchtune or unsloth
    #[arg(long, value_name = "TOOL", requires = "from")]
    pub stack: Option<String>,
    /// Name the keys of that config, too, that change nothing here
    #[arg(long, requires = "from")]
    pub verbose: bool,
    /// File to write
    #[arg(long, value_name = "FILE", default_value = "space.yaml")]
    pub output: PathBuf,
    /// Ask nothing
    #[arg(long)]
    pub yes: bool,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
}
