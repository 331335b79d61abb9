//! `peft-tune merge`: folds an adapter into its base model.

use std::path::{Path, PathBuf};

use super::CliError;
use super::download::DownloadProgress;
use super::model::{ComputeArgs, base_of};
use super::output::{tell, write_result};
use crate::report::bytes;
use crate::space::{Bytes, RecipeFile};
use peft_tune_core::recipe::Precision;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::{BaseModel, Generator, GgufFile, GgufType, MergedModel, ModelDirectory, WrittenDtype};

/// Folds an adapter into its base model: W + scaling B A, rounded once to the dtype in which the base stores W.
///
/// The output is a model directory as transformers and this program load it, with the base's configuration and tokenizer, or a
/// GGUF file for llama.cpp.
/// An adapter that was trained on quantized weights is merged into the weights that `--model` names.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Base model: a directory or a hub id; the one that the adapter names if absent.
    #[arg(long, value_name = "DIR|ID")]
    model: Option<String>,
    /// PEFT adapter directory.
    #[arg(long, value_name = "DIR")]
    adapter: PathBuf,
    /// Directory to write into; created if missing.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Writes into a directory that is not empty.
    #[arg(long)]
    force: bool,
    /// Largest weight file; a larger model is written in several.
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    max_shard_size: Bytes,
    /// Form of the output.
    #[arg(long, value_enum, default_value = "safetensors")]
    format: Format,
    /// How a GGUF file holds the weights; as the base model does if absent, in BF16 where that is quantized.
    #[arg(long, value_enum, value_name = "TYPE")]
    outtype: Option<OutType>,
    #[command(flatten)]
    pub(super) compute: ComputeArgs,
}

/// Forms of a merged model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A model directory of Hugging Face.
    Safetensors,
    /// A file for llama.cpp and what builds on it (Ollama, LM Studio), named model.gguf.
    Gguf,
}

/// Types of a GGUF file's weights, as llama.cpp's converter names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OutType {
    F32,
    F16,
    Bf16,
    /// 8 bits, with a scale for each block of 32.
    #[value(name = "q8_0")]
    Q8,
}

impl OutType {
    fn stored(self) -> GgufType {
        match self {
            Self::F32 => GgufType::F32,
            Self::F16 => GgufType::F16,
            Self::Bf16 => GgufType::Bf16,
            Self::Q8 => GgufType::Q8_0,
        }
    }

    /// That of a model which is stored in this precision.
    fn of(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 => Self::F32,
            Precision::Fp16 => Self::F16,
            _ => Self::Bf16,
        }
    }
}

/// Merges, and prints where the model is.
pub(super) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let model = match &args.model {
        Some(model) => model.clone(),
        None => base_of(&args.adapter)?,
    };
    let files = ModelFiles::resolve_weights(&model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    check_output(&args, &files)?;
    if args.outtype.is_some() && args.format != Format::Gguf {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "`--outtype` is for `--format gguf`; safetensors keep the dtypes of the base model"
        )));
    }
    // Codes are widened and not quantized again: merged weights are plain ones.
    let stored = BaseModel::stored_precision(&files.folder).map_err(CliError::bad_input)?;
    let precision = if stored.is_quantized() { Precision::Fp32 } else { stored };
    tell_ignored(&args.adapter);
    let base = args.compute.load(&files, precision)?;
    let merged = Generator::new(base, Some(&args.adapter)).map_err(CliError::bad_input)?;
    let merged = merged.merged().map_err(CliError::bad_input)?;
    if args.format == Format::Gguf {
        return write_gguf(&args, &files, OutType::of(stored), &merged);
    }
    let directory = ModelDirectory {
        source: &files.folder,
        dtype: WrittenDtype::AsStored,
        shard_bytes: usize::try_from(args.max_shard_size.0).unwrap_or(usize::MAX),
    };
    directory.write(&args.output, &merged).map_err(CliError::failed)?;
    let size = weight_bytes(&args.output).map_err(CliError::failed)?;
    write_result(&format!(
        "merged model in {} ({} of weights)\n",
        args.output.display(),
        bytes(size as f64)
    ))
}

/// Says what of the adapter's training has no place in a merged model.
fn tell_ignored(adapter: &Path) {
    let Ok(recipe) = RecipeFile::read(&adapter.join("recipe.yaml")) else {
        return;
    };
    let activations = recipe.activation_quantization;
    if !activations.is_none() {
        tell(format_args!(
            "the adapter was trained with `activation_quantization: {activations}`, which is no part of a merged model: its activations are \
             not quantized"
        ));
    }
}

fn write_gguf(args: &Args, files: &ModelFiles, stored: OutType, merged: &MergedModel<'_>) -> Result<(), CliError> {
    std::fs::create_dir_all(&args.output).map_err(CliError::failed)?;
    let path = args.output.join("model.gguf");
    let file = GgufFile {
        source: files,
        stored: args.outtype.unwrap_or(stored).stored(),
    };
    for note in file.write(&path, merged).map_err(CliError::failed)? {
        tell(format_args!("warning: {note}"));
    }
    let size = std::fs::metadata(&path).map_err(CliError::failed)?.len();
    write_result(&format!(
        "merged model in {} ({})\n",
        path.display(),
        bytes(size as f64)
    ))
}

fn check_output(args: &Args, files: &ModelFiles) -> Result<(), CliError> {
    let output = args.output.display();
    let real = |path: &std::path::Path| std::fs::canonicalize(path).ok();
    if real(&args.output).is_some_and(|path| Some(path) == real(&files.folder)) {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "{output} is the base model's own directory; give another `--output`"
        )));
    }
    let mut entries = std::fs::read_dir(&args.output).into_iter().flatten();
    if !args.force && entries.next().is_some() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "{output} is not empty; give another `--output`, or `--force` to write into it"
        )));
    }
    Ok(())
}

fn weight_bytes(folder: &std::path::Path) -> std::io::Result<u64> {
    let mut total = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "safetensors")
        {
            total += entry.metadata()?.len();
        }
    }
    Ok(total)
}
