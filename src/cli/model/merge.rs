//! `peft-tune merge`: folds an adapter into its base model.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::trained_recipe::{recipe_beside, take_template, write_template};
use crate::cli::CliError;
use crate::cli::data::prepare::prepared_for_training;
use crate::cli::options::compute::{ComputeArgs, base_of};
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_result};
use crate::cli::terminal::reading_progress::Reading;
use crate::report::bytes;
use crate::space::{Bytes, RecipeFile};
use peft_tune_core::recipe::{Precision, QuantizationAware, Recipe, Sharding};
use peft_tune_core::whole_file::{make_folder, write_whole};
use peft_tune_engine::data::evaluation_batches;
use peft_tune_engine::hub::ModelFiles;
use peft_tune_engine::tokenizer::Tokenizer;
use peft_tune_engine::{
    BaseModel, Generator, GgufFile, GgufType, LossKept, MergedModel, ModelDirectory, Trainer, WeightQuantization,
    WrittenDtype,
};

/// Fold an adapter into its base model: W + scaling B A, rounded once to the dtype in which the base stores W.
///
/// The output is a model directory as transformers and this program load it, with the base's configuration and tokenizer, or a
/// GGUF file for llama.cpp.
/// An adapter that was trained on quantized weights is merged into the weights that `--model` names.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Base model: a directory or a hub id; the one that the adapter names if absent.
    #[arg(long, value_name = "DIR|ID")]
    model: Option<String>,
    /// PEFT adapter directory.
    #[arg(long, value_name = "DIR")]
    adapter: PathBuf,
    /// Directory to write into; created if missing.
    #[arg(long, value_name = "DIR")]
    output: PathBuf,
    /// Write into a directory that is not empty.
    #[arg(long)]
    force: bool,
    /// Largest weight file; a larger model is written in several [default: 5GB].
    #[arg(long, value_name = "SIZE")]
    max_shard_size: Option<Bytes>,
    /// Form of the output.
    #[arg(long, value_enum, default_value = "safetensors")]
    format: Format,
    /// How a GGUF file holds the weights; as the base model does if absent, in BF16 where that is quantized.
    #[arg(long, value_enum, value_name = "TYPE")]
    outtype: Option<OutType>,
    /// Quantize the merged weights of the linear layers, in bitsandbytes' form.
    #[arg(long, value_enum, value_name = "FORM")]
    quantize: Option<Quantize>,
    /// Measure what the quantization costs: on the held-out rows of the recipe that `train` has left beside the adapter, against
    /// the adapter beside unquantized weights.
    #[arg(long, requires = "quantize")]
    check: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
}

/// Forms of a merged model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// A model directory of Hugging Face.
    Safetensors,
    /// A file for llama.cpp and what builds on it (Ollama, LM Studio), named model.gguf.
    Gguf,
}

/// Forms of quantized weights in a model directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Quantize {
    /// 8 bits, with a scale for each row (LLM.int8()).
    Int8,
    /// 4-bit NormalFloat, with a scale for each 64 elements.
    Nf4,
}

impl Quantize {
    /// The training that takes this form into account.
    fn aware(self) -> QuantizationAware {
        match self {
            Self::Int8 => QuantizationAware::Int8,
            Self::Nf4 => QuantizationAware::Nf4,
        }
    }

    fn written(self) -> WeightQuantization {
        match self {
            Self::Int8 => WeightQuantization::Int8,
            Self::Nf4 => WeightQuantization::Nf4,
        }
    }
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

    /// The type of a model that is stored in this precision.
    fn of(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 => Self::F32,
            Precision::Fp16 => Self::F16,
            _ => Self::Bf16,
        }
    }
}

/// Merges, and prints where the model is.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    args.compute.set_up();
    let model = match &args.model {
        Some(model) => model.clone(),
        None => base_of(&args.adapter)?,
    };
    let mut files =
        ModelFiles::resolve_weights(&model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    check_output(&args, &files)?;
    check_form(&args)?;
    let stored = BaseModel::stored_precision(&files.folder).map_err(CliError::bad_input)?;
    let recipe = recipe_beside(&args.adapter)?;
    let precision = merging_precision(stored, recipe.as_ref());
    if let Some(recipe) = &recipe {
        tell_ignored(recipe, args.quantize);
    }
    let base = Arc::new(args.compute.load_under(&files, precision, Some(&args.adapter))?);
    let measured = args.quantize.filter(|_| args.check);
    let kept = measured
        .map(|form| kept(&args.adapter, &files, &base, form))
        .transpose()?;
    let template = take_template(recipe.as_ref(), &mut files);
    let merged = Generator::new(base, Some(&args.adapter)).map_err(CliError::bad_input)?;
    let merged = merged.merged().map_err(CliError::bad_input)?;
    if args.format == Format::Gguf {
        return write_gguf(&args, &files, OutType::of(stored), &merged);
    }
    let directory = ModelDirectory {
        source: &files.folder,
        dtype: WrittenDtype::AsStored,
        shard_bytes: args.max_shard_size.map_or(ModelDirectory::SHARD_BYTES, shard_bytes),
        quantization: args.quantize.map(Quantize::written),
    };
    directory.write(&args.output, &merged).map_err(CliError::failed)?;
    if let Some(template) = &template {
        write_template(template, &args.output)?;
    }
    if let Some(end) = write_turn_end(&args.output, &files)? {
        tell(format_args!(
            "generation ends at `{end}` too, with which the chat template ends answers: generation_config.json of the merged model \
             has it beside the others"
        ));
    }
    let size = weight_bytes(&args.output).map_err(CliError::failed)?;
    if let Some(kept) = kept {
        write_result(&kept)?;
    }
    write_result(&format!(
        "merged model in {} ({} of weights)\n",
        args.output.display(),
        bytes(size as f64)
    ))
}

/// A size that was asked for, as this machine counts bytes.
fn shard_bytes(size: Bytes) -> usize {
    usize::try_from(size.0).unwrap_or(usize::MAX)
}

/// Adds the token with which the chat template ends answers to the ends of generation, where the model's files do not name it: a
/// training on chats taught it. Returns its text.
///
/// # Errors
/// A tokenizer or a `generation_config.json` that cannot be read, or one that cannot be written.
fn write_turn_end(output: &Path, files: &ModelFiles) -> Result<Option<String>, CliError> {
    if !files.tokenizer.are_there() {
        return Ok(None);
    }
    let tokenizer = Tokenizer::open(&files.tokenizer).map_err(CliError::bad_input)?;
    let (named, ids) = (tokenizer.stop_ids(), tokenizer.chat_stop_ids());
    let Some(end) = ids.last().copied().filter(|_| ids.len() > named.len()) else {
        return Ok(None);
    };
    let path = output.join("generation_config.json");
    let mut config: serde_json::Map<String, serde_json::Value> = match std::fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map_err(CliError::bad_input)?,
        Err(error) if error.kind() == ErrorKind::NotFound => serde_json::Map::new(),
        Err(error) => {
            let message = format!("cannot read {}", path.display());
            return Err(CliError::bad_input(anyhow::Error::new(error).context(message)));
        }
    };
    config.insert("eos_token_id".to_owned(), ids.into());
    let text = serde_json::to_string_pretty(&config).map_err(CliError::failed)? + "\n";
    write_whole(&path, text.as_bytes(), true).map_err(|error| CliError::cannot_write(&path, &error, "--output"))?;
    tokenizer.decode(&[end], false).map(Some).map_err(CliError::failed)
}

/// How the base weights are held that an adapter is merged into. Codes are widened: what is merged are plain weights, and is quantized
/// only where that is asked for. A training that took it into account rounded sums of the weights as its recipe held them.
fn merging_precision(stored: Precision, recipe: Option<&Recipe>) -> Precision {
    match recipe.filter(|recipe| !recipe.quantization_aware.is_none()) {
        Some(recipe) => recipe.precision,
        None if stored.is_quantized() => Precision::Fp32,
        None => stored,
    }
}

/// What the model keeps that is merged and quantized, in words.
///
/// # Errors
/// No recipe beside the adapter, data that cannot be read, an adapter whose merged weights are more than a sum.
fn kept(adapter: &Path, files: &ModelFiles, base: &Arc<BaseModel>, form: Quantize) -> Result<String, CliError> {
    let path = adapter.join("recipe.yaml");
    let mut plain = RecipeFile::read(&path).map_err(|error| {
        let message = format!("`--check` reads the held-out rows that {} names", path.display());
        CliError::bad_input(anyhow::Error::new(error).context(message))
    })?;
    if !plain.weight_sparsity.is_none() {
        let sparsity = plain.weight_sparsity;
        return Err(CliError::bad_input(anyhow::anyhow!(
            "`--check` does not measure adapters of sparse weights (`weight_sparsity: {sparsity}`); merge without it, and measure the \
             merged model"
        )));
    }
    let data = prepared_for_training(&plain, files, Reading::shown())?;
    plain = Recipe {
        precision: base.precision(),
        ..plain.in_fp32()
    };
    // This process has all weights.
    (plain.batch.devices, plain.batch.sharding) = (1, Sharding::None);
    if let Some(settings) = &mut plain.adapter {
        settings.adapter_init = Some(adapter.to_owned());
        // Nothing is dropped where nothing trains.
        settings.dropout = 0.0;
    }
    let mut rounded = plain.clone();
    rounded.quantization_aware = form.aware();
    let trainer = |recipe| Trainer::new(base.clone(), recipe, 1).map_err(CliError::bad_input);
    let (mut rounded, mut plain_trainer) = (trainer(&rounded)?, trainer(&plain)?);
    let rows = plain.training.evaluation_rows;
    let batches: Vec<_> = evaluation_batches(data.held_out(), plain.batch.micro_batch, rows).collect();
    let kept = LossKept::measure(&mut rounded, &mut plain_trainer, &batches).map_err(CliError::failed)?;
    Ok(format!(
        "held-out loss {:.4} merged and quantized, {:.4} with the adapter beside its base weights: {:.2}% of it kept\n\
         the same token most likely at {:.2}% of the targets\n",
        kept.loss,
        kept.loss_f32,
        kept.percent(),
        100.0 * kept.agreement
    ))
}

/// Says what of the adapter's training has no place in a merged model, or wants it in another form.
fn tell_ignored(recipe: &Recipe, form: Option<Quantize>) {
    let aware = recipe.quantization_aware;
    if !aware.is_none() && form.map(Quantize::aware) != Some(aware) {
        tell(format_args!(
            "warning: the adapter was trained with `quantization_aware: {aware}`; in another form than `--quantize {aware}` the merged \
             model was never measured"
        ));
    }
    let activations = recipe.activation_quantization;
    if !activations.is_none() {
        tell(format_args!(
            "the adapter was trained with `activation_quantization: {activations}`, which is no part of a merged model: its activations are \
             not quantized"
        ));
    }
}

fn write_gguf(args: &Args, files: &ModelFiles, stored: OutType, merged: &MergedModel<'_>) -> Result<(), CliError> {
    make_folder(&args.output).map_err(CliError::failed)?;
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

/// Refuses options of the form that is not written.
fn check_form(args: &Args) -> Result<(), CliError> {
    if args.outtype.is_some() && args.format != Format::Gguf {
        return Err(CliError::bad(
            "`--outtype` is for `--format gguf`; safetensors keep the dtypes of the base model",
        ));
    }
    if args.max_shard_size.is_some() && args.format != Format::Safetensors {
        return Err(CliError::bad(
            "`--max-shard-size` is for `--format safetensors`; a GGUF model is one file",
        ));
    }
    if args.quantize.is_some() && args.format != Format::Safetensors {
        return Err(CliError::bad(
            "`--quantize` is for `--format safetensors`; a GGUF file is quantized with `--outtype q8_0` or by llama.cpp's `llama-quantize`",
        ));
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
