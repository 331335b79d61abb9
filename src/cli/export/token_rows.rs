//! The rows that were trained on, written as token ids and labels for a tool that would read their files otherwise.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::args::Args;
use super::preference_rows;
use super::row_files::RowFiles;
use super::saved_dataset;
use super::token_row::TokenRow;
use crate::cli::CliError;
use crate::cli::data::known_offline::KnownFacts;
use crate::export::{ExportError, ExportFormat};
use crate::report::bytes;
use crate::tools::Tool;
use crate::tools::export::{ExportInput, TokenFiles};
use peft_tune_core::recipe::{DataFormat, DataSettings, HeldOut, Recipe, TrainingData, TrainingSet};
use peft_tune_core::whole_file::{WholeFile, make_folder};
use peft_tune_engine::data::{DocumentSet, PreparedData};
use peft_tune_engine::hub::{HubSettings, ModelFiles};
use peft_tune_kernels::ops::loss_head::IGNORE;

/// The rows to train on, unless sets are mixed, which have a number each.
const TRAIN: &str = "train.jsonl";
const HELD_OUT: &str = "held_out.jsonl";
/// The folder of rows for the `datasets` library.
const SAVED: &str = "tokens";

/// The rows of a recipe as they are trained on.
pub(super) struct TrainedTokens(PreparedData);

/// Rows that were written.
pub(super) struct WrittenRows {
    /// What the tool reads in the place of the recipe's data; `None` where its file names a folder beside them.
    pub data: Option<DataSettings>,
    /// The folder that the `datasets` library loads.
    pub saved: Option<PathBuf>,
    pub files: Vec<PathBuf>,
    /// Line that says what was written.
    line: String,
}

/// Rows that a tool is given beside its file, in the place of those that were trained on.
#[derive(Default)]
pub(super) struct RowsForTool {
    pub written: Option<WrittenRows>,
    /// Lines that tell people of these rows.
    pub lines: Vec<String>,
}

impl RowsForTool {
    /// Writes the rows for `format` into `folder`, where the tool would train something else than the trials if it read the files of
    /// `input` by itself; with `--no-data` that is only told.
    ///
    /// # Errors
    /// Bad input: rows that cannot be read any more without `--no-data`, a file that is in the way, a folder that cannot be written to.
    pub(super) fn of(
        input: &ExportInput<'_>,
        format: ExportFormat,
        facts: &KnownFacts,
        folder: &Path,
        args: &Args,
    ) -> Result<Self, CliError> {
        let Some((tool, token_files)) = format.tool().and_then(|tool| Some((tool, tool.token_files()?))) else {
            return Ok(Self::default());
        };
        let rows = match TrainedTokens::of(input.recipe, facts) {
            Ok(rows) => rows,
            Err(why) => {
                let untold = format!("whether the tool reads the rows as the trials did cannot be told: {why}");
                if !args.no_data {
                    return Err(CliError::bad(format!(
                        "{untold}; put that right, or leave the rows as they are with --no-data"
                    )));
                }
                let lines = vec![format!("warning: `data.train`: {untold}")];
                return Ok(Self { written: None, lines });
            }
        };
        let Some(why) = rows.misread(tool, input, facts) else {
            return Ok(Self::default());
        };
        let is_mixed = !input.recipe.data.train.sets().is_empty();
        if args.no_data || is_mixed && !tool.mixes_tokens() {
            let mut lines = vec![format!("warning: `data.train`: {why}")];
            if tool.counts_first_tokens() {
                lines.extend(rows.counted_first_tokens(tool));
            }
            return Ok(Self { written: None, lines });
        }
        let written = match input.recipe.trainer.is_sft() {
            true => rows.write(input.recipe, token_files, folder, args.force)?,
            false => rows.write_preferences(input.recipe, facts, folder, args.force)?,
        };
        Ok(Self {
            lines: vec![format!("{why}; {}", written.line)],
            written: Some(written),
        })
    }
}

impl TrainedTokens {
    /// Makes the rows of `recipe` ready, from the cache where a search has left them there.
    ///
    /// # Errors
    /// Why they cannot be had: the model or a file of data is not there, or cannot be read any more.
    fn of(recipe: &Recipe, facts: &KnownFacts) -> Result<Self, String> {
        let prepared = PreparedData::of_training(recipe, &model_files(recipe, facts)?);
        prepared.map(Self).map_err(|error| error.to_string())
    }

    /// Why the tool has to be given the rows as tokens; `None` where it reads their files as the trials did.
    fn misread(&self, tool: Tool, input: &ExportInput<'_>, facts: &KnownFacts) -> Option<String> {
        let learns_others = input
            .marked_template()
            .is_some_and(|template| !self.is_same_with(template, input.recipe, facts));
        tool.misreads(input, self.0.oddities(), learns_others)
    }

    /// Whether a chat template makes the same tokens and targets of the rows.
    fn is_same_with(&self, template: &str, recipe: &Recipe, facts: &KnownFacts) -> bool {
        let again = || {
            let mut file = tempfile::NamedTempFile::new().ok()?;
            file.write_all(template.as_bytes()).ok()?;
            let mut recipe = recipe.clone();
            recipe.data.chat_template = Some(file.path().to_owned());
            Self::of(&recipe, facts).ok()
        };
        again().is_some_and(|again| again.0.fingerprint() == self.0.fingerprint())
    }

    /// What is told of first tokens that a tool makes labels of, where everything of a row is learnt: no token predicts them, and it
    /// divides losses by their number, too.
    fn counted_first_tokens(&self, tool: Tool) -> Option<String> {
        let train = self.0.train();
        let documents = (0..train.len()).map(|index| train.document(index));
        let counted = documents.filter(|document| document.labels().next().is_some_and(|label| label != IGNORE));
        let (counted, targets) = (counted.count() as u64, train.statistics().target_tokens);
        (counted > 0).then(|| {
            format!(
                "warning: `data.loss_on`: {} divides losses by {counted} first tokens of rows too, which nothing predicts: with {targets} \
                 targets its losses and gradients are {:.1}% smaller",
                tool.title(),
                100.0 * counted as f64 / (counted + targets) as f64,
            )
        })
    }

    /// Writes the rows of `recipe` into `folder`. A file that is there is replaced only with `force`, unless it holds the same.
    ///
    /// # Errors
    /// Bad input: another file is in the way, or the folder cannot be written to.
    fn write(
        &self,
        recipe: &Recipe,
        token_files: TokenFiles,
        folder: &Path,
        force: bool,
    ) -> Result<WrittenRows, CliError> {
        let (train, held_out) = (self.0.train(), self.0.held_out());
        let folder = made(folder)?;
        let (mut data, mut saved) = (None, None);
        let files = match token_files {
            TokenFiles::SavedDataset => {
                let saved = &*saved.insert(folder.join(SAVED));
                let all = trained(train, 0..train.len());
                saved_dataset::write(saved, force, self.0.fingerprint(), all, scored(held_out))?
            }
            TokenFiles::Jsonl => {
                let mixed = !recipe.data.train.sets().is_empty();
                let mut files = Vec::new();
                for (index, range) in train.set_ranges().into_iter().enumerate() {
                    let name = match mixed {
                        true => format!("train_{}.jsonl", index + 1),
                        false => TRAIN.to_owned(),
                    };
                    files.push(folder.join(name));
                    write_jsonl(&files[index], force, trained(train, range))?;
                }
                let held_out_file = folder.join(HELD_OUT);
                write_jsonl(&held_out_file, force, scored(held_out))?;
                data = Some(settings(&recipe.data, &files, &held_out_file));
                files.push(held_out_file);
                files
            }
        };
        let sizes = files.iter().filter_map(|file| file.metadata().ok());
        let line = format!(
            "so the rows are written as token ids and labels: {} to train on, {} held out, {} in all (--no-data leaves that out)",
            train.len(),
            held_out.len(),
            bytes(sizes.map(|file| file.len()).sum::<u64>() as f64),
        );
        Ok(WrittenRows {
            data,
            saved,
            files,
            line,
        })
    }
}

impl TrainedTokens {
    /// Writes the rows of a recipe whose trainer compares answers into `folder`: as text, which such trainers tokenise themselves.
    ///
    /// # Errors
    /// Bad input: another file is in the way, or the folder cannot be written to.
    fn write_preferences(
        &self,
        recipe: &Recipe,
        facts: &KnownFacts,
        folder: &Path,
        force: bool,
    ) -> Result<WrittenRows, CliError> {
        let folder = made(folder)?;
        let files = model_files(recipe, facts).map_err(CliError::bad)?;
        let rows = RowFiles {
            train: folder.join(TRAIN),
            held_out: folder.join(HELD_OUT),
        };
        let refuse = |path: &Path, error: &io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => CliError::bad_input(ExportError::Exists { path: path.to_owned() }),
            _ => CliError::cannot_write(path, error, "--output"),
        };
        preference_rows::write(&rows, recipe, &files, force, &refuse)?;
        Ok(WrittenRows {
            data: Some(preference_rows::settings(&recipe.data, &rows)),
            saved: None,
            line: format!(
                "so the rows are written as they are compared: {} to train on, {} held out (--no-data leaves that out)",
                self.0.train().len(),
                self.0.held_out().len(),
            ),
            files: vec![rows.train, rows.held_out],
        })
    }
}

/// The files of a recipe's model on this machine.
fn model_files(recipe: &Recipe, facts: &KnownFacts) -> Result<ModelFiles, String> {
    let Some(folder) = &facts.model_folder else {
        return Err(format!("the files of `{}` are not on this machine", recipe.model));
    };
    let settings = HubSettings::from_env().map_err(|error| error.to_string())?;
    ModelFiles::resolve_with(&folder.to_string_lossy(), &settings).map_err(|error| error.to_string())
}

/// The folder, made where it is missing, by its whole path.
fn made(folder: &Path) -> Result<PathBuf, CliError> {
    make_folder(folder)
        .and_then(|()| std::path::absolute(folder))
        .map_err(|error| CliError::cannot_write(folder, &error, "--output"))
}

/// The documents of a range.
pub(super) fn trained(set: &DocumentSet, range: std::ops::Range<usize>) -> impl Iterator<Item = TokenRow> + '_ {
    range.map(|index| set.document(index).into())
}

/// The documents as they are scored: those that are longer than a sequence in windows of one.
pub(super) fn scored(set: &DocumentSet) -> impl Iterator<Item = TokenRow> + '_ {
    (0..set.len()).flat_map(|index| {
        let windows: Vec<_> = set.windows(index).collect();
        match &windows[..] {
            [one] if one.input_ids.len() == set.tokens(index) => vec![set.document(index).into()],
            _ => {
                let rows = windows.into_iter().map(|window| TokenRow {
                    labels: window.labels().collect(),
                    ids: window.input_ids,
                });
                rows.collect()
            }
        }
    })
}

/// The data of a recipe as these files hold them.
pub(super) fn settings(data: &DataSettings, train: &[PathBuf], held_out: &Path) -> DataSettings {
    let sets = data.train.sets().iter().zip(train);
    let mixed = sets.map(|(set, file)| TrainingSet {
        files: vec![file.clone()],
        weight: set.weight,
    });
    let train = match data.train.sets() {
        [] => TrainingData::Files(train.to_vec()),
        _ => TrainingData::Mixture(mixed.collect()),
    };
    DataSettings {
        train,
        held_out: HeldOut::File(held_out.to_owned()),
        format: DataFormat::Tokenized,
        tokenizing_workers: data.tokenizing_workers,
        ..DataSettings::default()
    }
}

/// Writes rows of tokens as lines of JSON. A file that is there is replaced only with `force`, unless it holds the same.
///
/// # Errors
/// Bad input: another file is in the way, or the folder cannot be written to.
pub(super) fn write_jsonl(path: &Path, force: bool, rows: impl Iterator<Item = TokenRow>) -> Result<(), CliError> {
    let failed = |error: io::Error| CliError::cannot_write(path, &error, "--output");
    let write_to = |output: &mut dyn Write| -> io::Result<()> {
        for TokenRow { ids, labels } in rows {
            let mask = vec![1; ids.len()];
            let row = json!({"input_ids": ids, "attention_mask": mask, "labels": labels});
            serde_json::to_writer(&mut *output, &row)?;
            output.write_all(b"\n")?;
        }
        output.flush()
    };
    if !force && path.symlink_metadata().is_ok() {
        // What another tool was given in this folder may be the same.
        let mut comparison = Comparison::with(path).map_err(failed)?;
        write_to(&mut comparison).map_err(failed)?;
        return match comparison.found_the_same().map_err(failed)? {
            true => Ok(()),
            false => Err(CliError::bad_input(ExportError::Exists { path: path.to_owned() })),
        };
    }
    let mut file = WholeFile::create(path, force).map_err(failed)?;
    write_to(&mut file).map_err(failed)?;
    file.finish().map_err(failed)
}

/// Takes what would be written, and looks whether a file holds just that.
struct Comparison {
    file: io::BufReader<std::fs::File>,
    differs: bool,
}

impl Comparison {
    fn with(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: io::BufReader::new(std::fs::File::open(path)?),
            differs: false,
        })
    }

    /// Whether the file ends where the writing ended, and nothing differed.
    fn found_the_same(mut self) -> io::Result<bool> {
        Ok(!self.differs && self.file.read(&mut [0])? == 0)
    }
}

impl Write for Comparison {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.differs {
            let mut found = vec![0; bytes.len()];
            self.differs = self.file.read_exact(&mut found).is_err() || found != bytes;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
