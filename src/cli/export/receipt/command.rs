//! Receipts of exported folders: the engine's adapter, the tool's steps, the engine's on the same rows, and what is made of them.

use std::path::Path;

use super::engine_run::{EngineRun, numbers_in};
use super::evidence::{Evidence, StepRows, comparable};
use super::taken::Receipt;
use super::text;
use super::tool_run::{Asked, IdsAndLabels, PlainLoop, ToolTraining, is_plain};
use crate::cli::CliError;
use crate::cli::engines::{Bound, Products, Trained, folder};
use crate::cli::export::receipt_args::ReceiptArgs;
use crate::cli::export::tool_python::ToolPython;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_exact};
use crate::report::printable;
use crate::space::Seconds;
use crate::tools::Tool;
use peft_tune_core::recipe::{OptimizerKind, Precision, Recipe};
use peft_tune_core::whole_file::write_whole;
use peft_tune_engine::data::{BatchSource, MicroBatch, PreparedData};
use peft_tune_engine::hub::ModelFiles;
use peft_tune_kernels::device;
use peft_tune_kernels::ops::loss_head::IGNORE;

/// Steps that both make.
const STEPS: u64 = 10;
/// Rows that the tool reads for each that its steps train on: some are held out, and others are left out.
const ROWS_FOR_ONE: usize = 2;
/// Rows that it reads for each where several make one.
const ROWS_FOR_ONE_PACKED: usize = 16;
/// Rows that it reads in any case.
const ROWS: usize = 64;
const JSON: &str = "receipt.json";
const TABLE: &str = "receipt.txt";

/// A folder of exported files, with what they are to train.
pub(in crate::cli::export) struct Exported<'a> {
    pub folder: &'a Path,
    pub recipe: &'a Recipe,
    /// Whether a chat template makes the text of a row.
    pub is_chat: bool,
}

impl Exported<'_> {
    /// Refuses what no receipt can be taken of.
    ///
    /// # Errors
    /// Bad input, with the key.
    pub(in crate::cli::export) fn check(&self, tool: Tool) -> Result<(), CliError> {
        let recipe = self.recipe;
        let refused = |key: &str, why: &str| {
            Err(CliError::bad(format!(
                "key `{key}`: no receipt is taken of it, for {why}; export without --receipt"
            )))
        };
        if !recipe.trainer.is_sft() {
            return refused("trainer", "the built-in engine does not compare answers");
        }
        if recipe.batch.devices > 1 {
            return refused("batch.devices", "the steps of a receipt are made on one device");
        }
        if !is_plain(tool) {
            return Ok(());
        }
        if dtype_of(recipe.precision).is_none() {
            return refused("precision", "PEFT's file does not say how a base is quantized");
        }
        if recipe.optimizer.kind != OptimizerKind::AdamW || recipe.optimizer.loraplus_ratio.is_some() {
            return refused(
                "optimizer.kind",
                "a plain loop over PEFT's model trains with AdamW alone",
            );
        }
        Ok(())
    }
}

/// Takes a receipt of each folder, and leaves it there.
///
/// # Errors
/// Steps that differ, unless they are accepted; a tool that refuses its file, is not installed, or takes too long; whatever keeps the
/// engine from training.
pub(in crate::cli::export) fn run(
    args: &ReceiptArgs,
    python: &Path,
    tool: Tool,
    exports: &[Exported<'_>],
) -> Result<(), CliError> {
    let python = ToolPython {
        path: python,
        tool: tool.name(),
    };
    let mut differing = Vec::new();
    for export in exports {
        let mut receipt = take(&python, args.receipt_within, tool, export)?;
        receipt.accepted = args.accept && !receipt.agrees;
        for (name, content) in [
            (
                JSON,
                serde_json::to_string_pretty(&receipt).map_err(CliError::failed)? + "\n",
            ),
            (TABLE, text::of(&receipt)),
        ] {
            let path = export.folder.join(name);
            // It is of the files that were just written, and of no others.
            write_whole(&path, content.as_bytes(), true)
                .map_err(|error| CliError::cannot_write(&path, &error, "--output"))?;
            write_exact(&format!("{}\n", path.display()))?;
        }
        let verdict = text::verdict(&receipt);
        match receipt.agrees || args.accept {
            true => tell(printable(&verdict)),
            false => differing.push(verdict),
        }
    }
    match differing.is_empty() {
        true => Ok(()),
        false => Err(CliError::EnginesDiffer(format!(
            "{}; `--accept` takes the receipt as it is",
            differing.join("\n")
        ))),
    }
}

fn take(
    python: &ToolPython<'_>,
    within: Option<Seconds>,
    tool: Tool,
    export: &Exported<'_>,
) -> Result<Receipt, CliError> {
    let recipe = export.recipe;
    let files =
        ModelFiles::resolve_weights(&recipe.model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?;
    let data = PreparedData::of_training(recipe, &files).map_err(CliError::bad_input)?;
    let source = BatchSource::of_recipe(&data, recipe).map_err(CliError::bad_input)?;
    let total_steps = source.steps(recipe.training.length);
    let device = if device::gpu_count() > 0 { "cuda:0" } else { "cpu" };
    let scratch = folder::temporary("take a receipt")?;
    let adapter = scratch.path().join("adapter");
    let mut engine = EngineRun::new(recipe, device, total_steps);
    let steps = STEPS.min(total_steps);
    tell(format_args!(
        "training {steps} of {total_steps} steps in {} and in the built-in engine, on {device}",
        tool.title()
    ));
    let first = engine.with_adapter(&adapter, if is_plain(tool) { steps } else { 1 })?;
    let exported = std::path::absolute(export.folder).map_err(CliError::bad_input)?;
    let asked = Asked {
        tool: python.tool,
        folder: &exported,
        scratch: scratch.path(),
        steps,
        total_steps,
        rows: rows_read(recipe, steps),
        device,
        adapter: recipe.adapter.is_some().then_some(adapter.as_path()),
        plain_loop: is_plain(tool).then(|| plain_loop(recipe, &source, &first)).flatten(),
    };
    let training = asked.train(python, within)?;
    let mut changed = std::mem::take(&mut engine.changed);
    if training.rows_cut {
        changed.push(format!(
            "{} read the first {} rows of each set",
            tool.title(),
            asked.rows
        ));
    }
    let rows = StepRows::of(&training, &data);
    let trained = engine_steps(&engine, &training, &rows, &adapter, scratch.path())?;
    Ok(Receipt::of(Evidence {
        recipe,
        tool: tool.title(),
        device,
        training: &training,
        rows: &rows,
        engine: trained,
        parameters: numbers_in(&adapter),
        bound: Bound::of(recipe.precision, Products::of(device, &recipe.torch)),
        changed,
        total_steps,
        is_chat: export.is_chat,
    }))
}

/// The engine's steps on the rows of the tool's: on those of all first steps that it can make, which come again where the tool made
/// more, for their learning rates.
fn engine_steps(
    engine: &EngineRun,
    training: &ToolTraining,
    rows: &[StepRows],
    adapter: &Path,
    scratch: &Path,
) -> Result<Option<Trained>, CliError> {
    let compared = &rows[..comparable(rows)];
    let Some(first) = compared.first() else {
        return Ok(None);
    };
    let all: Vec<_> = compared.iter().flat_map(|step| &step.rows).cloned().collect();
    let steps = training.steps.len() as u64;
    let trained = engine.on_rows(&all, first.rows.len(), adapter, scratch, steps)?;
    Ok(Some(trained))
}

/// Rows that the tool reads at most.
fn rows_read(recipe: &Recipe, steps: u64) -> usize {
    let batch = &recipe.batch;
    let for_one = if batch.packing {
        ROWS_FOR_ONE_PACKED
    } else {
        ROWS_FOR_ONE
    };
    let trained = batch.micro_batch * batch.gradient_accumulation * steps as usize;
    trained * for_one + ROWS
}

/// What a loop over PEFT's model trains with; `None` for a precision that it has not.
fn plain_loop(recipe: &Recipe, source: &BatchSource, trained: &Trained) -> Option<PlainLoop> {
    let optimizer = &recipe.optimizer;
    let of_step = |step: u64| source.global_batch(step).iter().map(documents).collect::<Vec<_>>();
    Some(PlainLoop {
        learning_rates: trained.steps.iter().map(|step| step.learning_rate).collect(),
        steps: (0..trained.steps.len() as u64).map(of_step).collect(),
        betas: [optimizer.beta1, optimizer.beta2()],
        epsilon: optimizer.epsilon,
        weight_decay: optimizer.weight_decay,
        max_grad_norm: optimizer.max_grad_norm,
        dtype: dtype_of(recipe.precision)?,
    })
}

/// The documents of a micro-batch as ids and labels, which are not shifted.
fn documents(batch: &MicroBatch) -> Vec<IdsAndLabels> {
    let bounds = batch
        .offsets
        .windows(2)
        .map(|bounds| bounds[0] as usize..bounds[1] as usize);
    let document = |bounds: std::ops::Range<usize>| {
        let predicted = batch.targets[bounds.start..bounds.end - 1].iter().copied();
        let labels = std::iter::once(IGNORE).chain(predicted).collect();
        (batch.input_ids[bounds].to_vec(), labels)
    };
    bounds.map(document).collect()
}

/// PyTorch's name of what a base that is not quantized is computed in.
fn dtype_of(precision: Precision) -> Option<&'static str> {
    match precision {
        Precision::Fp32 => Some("float32"),
        Precision::Bf16 => Some("bfloat16"),
        Precision::Fp16 => Some("float16"),
        Precision::Nf4 | Precision::Nf4Double | Precision::Int8 => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::recipe::{DataSettings, TrainerKind};
    use peft_tune_engine::data::Document;

    #[test]
    fn documents_are_handed_over_with_labels_as_files_have_them() {
        let one = Document {
            input_ids: vec![5, 6, 7],
            labels: vec![IGNORE, IGNORE, 7],
        };
        let other = Document {
            input_ids: vec![8, 9],
            labels: vec![8, 9],
        };
        let found = documents(&MicroBatch::from_documents([&one, &other]));
        let expected = vec![(vec![5, 6, 7], vec![IGNORE, IGNORE, 7]), (vec![8, 9], vec![IGNORE, 9])];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_no_receipt_can_be_taken_of_is_refused_by_its_key() {
        let refused = |tool, change: fn(&mut Recipe)| {
            let mut recipe = Recipe::new("model", DataSettings::default());
            recipe.precision = Precision::Fp32;
            change(&mut recipe);
            let exported = Exported {
                folder: Path::new("out"),
                recipe: &recipe,
                is_chat: false,
            };
            exported.check(tool).err().map(|error| error.to_string())
        };
        let key = |told: Option<String>| told.and_then(|told| told.split('`').nth(1).map(str::to_owned));
        assert_eq!(refused(Tool::Trl, |_| {}), None);
        assert_eq!(refused(Tool::Trl, |recipe| recipe.precision = Precision::Nf4), None);
        let quantized = refused(Tool::Peft, |recipe| recipe.precision = Precision::Nf4);
        assert_eq!(key(quantized).as_deref(), Some("precision"));
        let other = refused(Tool::Peft, |recipe| recipe.optimizer.kind = OptimizerKind::Lion);
        assert_eq!(key(other).as_deref(), Some("optimizer.kind"));
        let pairs = refused(Tool::Trl, |recipe| recipe.trainer = TrainerKind::Dpo);
        assert_eq!(key(pairs).as_deref(), Some("trainer"));
        let several = refused(Tool::Trl, |recipe| recipe.batch.devices = 2);
        assert_eq!(key(several).as_deref(), Some("batch.devices"));
    }
}
