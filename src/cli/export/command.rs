//! `peft-tune export`: the settings of a trial as a file of the tool that is to train.

use std::path::PathBuf;

use super::args::{Args, Format};
use super::chosen_trials::{Chosen, choose};
use super::receipt::{self, Exported};
use super::study;
use super::token_rows::RowsForTool;
use super::tool_needs::Need;
use crate::cli::CliError;
use crate::cli::data::known_offline::{KnownFacts, answer_marks, turn_end};
use crate::cli::terminal::output::{tell, write_exact};
use crate::export;
use crate::export::{ExportError, ExportFormat};
use crate::tools::Tool;
use crate::tools::export::{ExportInput, Known};
use peft_tune_core::recipe::{DataFormat, Recipe, TemplateTargets};

/// Exports a whole study, or trials of the results database.
///
/// # Errors
/// Bad input where a trial has no recipe, a file is in the way or the format cannot say the recipe; a failure where the file
/// cannot be written; with `--check` what the tool refuses; with `--receipt` steps that differ from the engine's.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    export_chosen(args, choose)
}

/// Exports a whole study, or the trials that `choose` finds for the arguments.
fn export_chosen(args: Args, choose: impl FnOnce(&Args) -> Result<Vec<Chosen>, CliError>) -> Result<(), CliError> {
    let format = match args.format {
        Format::Trial(format) => format,
        Format::Study(format) => {
            args.check.is_for(None)?;
            args.receipt.is_for(None)?;
            return study::run(&args, format);
        }
    };
    args.check.is_for(Some(format))?;
    args.receipt.is_for(Some(format))?;
    let chosen = choose(&args)?;
    let exports: Result<Vec<TrialExport<'_>>, CliError> = chosen
        .iter()
        .map(|chosen| TrialExport::of(chosen, format, &args))
        .collect();
    let exports = exports?;
    if let Some(tool) = format.tool().filter(|_| args.receipt.receipt) {
        exports.iter().try_for_each(|export| export.exported().check(tool))?;
    }
    for written in write_all(&exports, format, &args)? {
        written.lines.iter().for_each(tell);
        for file in &written.files {
            write_exact(&format!("{}\n", file.display()))?;
        }
    }
    let folders: Vec<PathBuf> = exports.iter().map(|export| export.folder.clone()).collect();
    args.check.run(format, &folders)?;
    match format.tool().filter(|_| args.receipt.receipt) {
        None => Ok(()),
        Some(tool) => {
            let exported: Vec<Exported<'_>> = exports.iter().map(TrialExport::exported).collect();
            receipt::run(&args.receipt, args.check.python(), tool, &exported)
        }
    }
}

/// Writes all exports. Where one fails, the folders that were made for them go again, and what is left of the others is
/// told.
fn write_all(exports: &[TrialExport<'_>], format: ExportFormat, args: &Args) -> Result<Vec<Written>, CliError> {
    let folders = exports.iter().map(|export| &export.folder);
    let is_new = |folder: &&PathBuf| folder.symlink_metadata().is_err();
    let new: Vec<&PathBuf> = std::iter::once(&args.output).chain(folders).filter(is_new).collect();
    let mut written: Vec<Written> = Vec::with_capacity(exports.len());
    for export in exports {
        match export.write(format, args) {
            Ok(one) => written.push(one),
            Err(error) => {
                for folder in new {
                    let _ = std::fs::remove_dir_all(folder);
                }
                let left = written.iter().flat_map(|one| &one.files).filter(|file| file.exists());
                left.for_each(|file| tell(format_args!("{} is written, and others are not", file.display())));
                return Err(error);
            }
        }
    }
    Ok(written)
}

/// A trial's export before anything of it is written.
struct TrialExport<'a> {
    chosen: &'a Chosen,
    folder: PathBuf,
    facts: KnownFacts,
    need: Option<Need>,
}

/// Files of an export, and what is told of them.
struct Written {
    files: Vec<PathBuf>,
    lines: Vec<String>,
}

impl<'a> TrialExport<'a> {
    /// Finds the folder and what the tool needs, and refuses what is known not to be written.
    fn of(chosen: &'a Chosen, format: ExportFormat, args: &Args) -> Result<Self, CliError> {
        let folder = match args.front {
            true => args.output.join(format!("trial-{}", chosen.trial)),
            false => args.output.clone(),
        };
        let facts = KnownFacts::of(&chosen.recipe);
        let need = Need::of(chosen, format, &facts, args)?;
        format
            .may_be_written(&chosen.recipe, &folder, args.force)
            .map_err(CliError::bad_input)?;
        Ok(Self {
            chosen,
            folder,
            facts,
            need,
        })
    }

    /// The recipe that is written: the trial's, or one that fits.
    fn recipe(&self) -> &Recipe {
        self.need.as_ref().map_or(&self.chosen.recipe, |need| &need.recipe)
    }

    /// The export for who trains from it.
    fn exported(&self) -> Exported<'_> {
        let format = self.facts.data_format.unwrap_or(self.chosen.recipe.data.format);
        Exported {
            folder: &self.folder,
            recipe: self.recipe(),
            is_chat: matches!(format, DataFormat::Messages | DataFormat::Sharegpt | DataFormat::Alpaca),
        }
    }

    fn write(&self, format: ExportFormat, args: &Args) -> Result<Written, CliError> {
        let Self {
            chosen,
            folder,
            facts,
            need,
        } = self;
        let recipe = self.recipe();
        let asks_for_marks = format.tool().is_some_and(Tool::asks_for_answer_marks);
        let marks = asks_for_marks
            .then(|| answer_marks(recipe, facts.model_folder.as_deref()))
            .flatten();
        let template_targets = format.tool().and_then(Tool::template_targets);
        let turn_end = (template_targets == Some(TemplateTargets::StopTokens))
            .then(|| turn_end(recipe, facts.model_folder.as_deref()))
            .flatten();
        let mut input = ExportInput {
            recipe,
            study: &chosen.study,
            trial: chosen.trial,
            metrics: &chosen.metrics,
            reasons: &chosen.reasons,
            known: Known {
                architecture: facts.architecture.as_ref(),
                model_folder: facts.model_folder.as_deref(),
                data_format: facts.data_format,
                trained: chosen.trained,
                marks: marks.as_ref(),
                turn_end: turn_end.as_deref(),
                saved_rows: None,
            },
        };
        let rows = RowsForTool::of(&input, format, facts, folder, args)?;
        let with_rows;
        if let Some(written) = &rows.written {
            if let Some(data) = &written.data {
                with_rows = Recipe {
                    data: data.clone(),
                    ..recipe.clone()
                };
                input.recipe = &with_rows;
            }
            input.known.saved_rows = written.saved.as_deref();
        }
        let exported = export::write(format, &input, folder, args.force).map_err(|error| match error {
            ExportError::Exists { .. }
            | ExportError::NoOptimizer { .. }
            | ExportError::Tool(_)
            | ExportError::Write { .. } => CliError::bad_input(error),
            ExportError::Recipe(_) => CliError::failed(error),
        })?;
        let warnings = exported.warnings.iter().map(|warning| format!("warning: {warning}"));
        let lines = chosen.reasons.iter().cloned().chain(warnings).chain(rows.lines);
        let lines = lines.chain(need.iter().flat_map(|need| need.lines.iter().cloned()));
        let files = rows.written.into_iter().flat_map(|written| written.files);
        Ok(Written {
            lines: lines.collect(),
            files: exported.files.into_iter().chain(files).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::export::args::tests::parse;
    use peft_tune_core::recipe::DataSettings;
    use peft_tune_core::study::{Metrics, TrialNumber};

    #[test]
    fn the_chosen_trial_is_written_and_a_second_time_refused() {
        let folder = tempfile::tempdir().unwrap();
        let line = format!("--format peft --output {}", folder.path().display());
        let choose = |_: &Args| {
            Ok(vec![Chosen {
                recipe: Recipe::new("model", DataSettings::default()),
                study: "s".into(),
                trial: TrialNumber(3),
                metrics: Metrics::default(),
                target: None,
                reasons: vec!["it is the knee of the front".into()],
                trained: None,
            }])
        };
        export_chosen(parse(&line).unwrap(), choose).unwrap();
        assert!(folder.path().join("adapter_config.json").is_file());
        assert_eq!(export_chosen(parse(&line).unwrap(), choose).unwrap_err().exit_code(), 2);
        export_chosen(parse(&format!("{line} --force")).unwrap(), choose).unwrap();
    }
}
