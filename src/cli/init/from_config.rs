//! `init --from`: a study around the setting of a config that people have.

use std::path::{Path, PathBuf};

use super::args::Args;
use super::base_model::family;
use super::study_file::{survey, write};
use crate::cli::CliError;
use crate::cli::data::data_files::is_here;
use crate::cli::data::known_offline::model_folder;
use crate::cli::data::model_config::model_shape;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::data::uncut_rows::longest_of;
use crate::cli::terminal::output::tell;
use crate::draft::{Around, Machine, first_file, left_out, rows_of, study_around};
use crate::space::{ReadOptions, StudyFile};
use crate::tools::Tool;
use crate::tools::import::{self, Imported, take_length};
use peft_tune_core::predict::stack::{StoredWeights, WeightForm};
use peft_tune_core::recipe::{DataFormat, HeldOut, HubDataSet, LossOn, Precision, TemplateTargets, TrainingData};
use peft_tune_engine::data::{check_first_row, recognise};

/// Writes the file.
///
/// # Errors
/// Bad input: a config that cannot be read, without a model or without rows that can be read here.
pub(super) fn run(args: &Args, from: &Path) -> Result<(), CliError> {
    let stack = args.stack.as_deref().map(Tool::from_name).transpose();
    let stack = stack.map_err(CliError::bad_input)?;
    let mut imported = import::read_recipe(from, stack).map_err(CliError::bad_input)?;
    model(args, from, &mut imported)?;
    data(args, from, &mut imported)?;
    let family = family(&imported.recipe.model)?;
    let rows = rows_of(&imported.recipe.data.train);
    let rows = imported.with_rows(rows);
    of_model(&mut imported, family.as_ref())?;
    let machine = Machine::look();
    let memory_bytes = args.memory.map_or(machine.usable_bytes, |memory| memory.0);
    let around = Around {
        from,
        imported: &imported,
        output: &args.output,
        memory_bytes,
        machine: &machine,
        rows,
        trains_in_trl: matches!(family, Some(ModelFamily::Other(_))) || !imported.recipe.trainer.is_sft(),
    };
    let text = study_around(&around);
    // Checked as a search will read it, before anything is written.
    let study = StudyFile::parse(&args.output, &text, ReadOptions { check_files: true })
        .map_err(|error| CliError::bad_input(anyhow::anyhow!("{}: {}", from.display(), error.rendered(false))))?;
    for note in notes(&imported, around.trains_in_trl) {
        tell(format_args!("warning: {note}"));
    }
    if args.verbose && !imported.silent.is_empty() {
        let keys = imported.silent.join("`, `");
        tell(format_args!("without effect on a study: `{keys}`"));
    }
    // The built-in engine's settings are counted, which has no trainers of preferences.
    let predicted = family.as_ref().filter(|_| imported.recipe.trainer.is_sft());
    if let Some(architecture) = predicted.and_then(ModelFamily::architecture) {
        tell(format_args!("{}", survey(&study, architecture, &machine)));
    }
    write(args, &text)
}

/// What the file could not say here: first what trains otherwise there.
fn notes(imported: &Imported, trains_in_trl: bool) -> Vec<String> {
    let mut all = imported.told.clone();
    all.extend(imported.notes.iter().cloned());
    all.extend(imported.data_notes.iter().cloned());
    all.extend(left_out(&imported.recipe, trains_in_trl));
    all.extend(imported.unread_note());
    all
}

/// What the model decides: target modules by their names, the length of rows, and codes that its weights are in.
fn of_model(imported: &mut Imported, family: Option<&ModelFamily>) -> Result<(), CliError> {
    let told = imported.match_targets(family.and_then(ModelFamily::architecture));
    imported.notes.extend(told.map_err(CliError::bad_input)?);
    let positions = family.and_then(positions_of);
    if imported.is_uncut {
        let longest = longest_of(&imported.recipe);
        let told = take_length(&mut imported.recipe, longest, positions);
        imported.notes.push(told);
    }
    let length = imported.recipe.batch.sequence_length;
    if let Some(positions) = positions.filter(|positions| length as u64 > *positions) {
        imported.recipe.batch.sequence_length = positions as usize;
        imported.notes.push(format!(
            "rows of {length} tokens are longer than the {positions} positions of the model: {positions} tokens are taken \
             (`sequence_length`)"
        ));
    }
    let config = model_folder(&imported.recipe.model).map(|folder| folder.join("config.json"));
    if let Some(stored) = config.and_then(|config| model_shape(&config).ok()?.stored) {
        let told = take_weights(imported, &stored);
        imported.notes.push(told);
    }
    Ok(())
}

/// Positions of a model, as far as its file tells them.
fn positions_of(family: &ModelFamily) -> Option<u64> {
    match family {
        ModelFamily::Known(architecture) => Some(architecture.max_positions as u64),
        ModelFamily::Other(other) => other.shape.as_ref().ok()?.max_positions,
    }
}

/// Takes the precision of a checkpoint that bitsandbytes quantized, and says what becomes of one that something else did.
fn take_weights(imported: &mut Imported, stored: &StoredWeights) -> String {
    let (method, recipe) = (&stored.method, &mut imported.recipe);
    let own = match stored.form {
        WeightForm::Int8 => Some(Precision::Int8),
        WeightForm::Nf4 => Some(Precision::Nf4),
        WeightForm::Nf4Double => Some(Precision::Nf4Double),
        WeightForm::Numbers | WeightForm::Gptq4 | WeightForm::Gptq8 => None,
    };
    match own.filter(|_| recipe.adapter.is_some()) {
        Some(precision) => {
            recipe.precision = precision;
            format!(
                "the model's config.json says that its weights are quantized ({method}): `precision: {precision}` is taken"
            )
        }
        None => format!(
            "the model's config.json says that its weights are quantized ({method}): other tools keep them so, and the built-in engine \
             has them in {}",
            recipe.precision
        ),
    }
}

/// The model: as it is given, or as the file names it, beside the file where it lies there.
fn model(args: &Args, from: &Path, imported: &mut Imported) -> Result<(), CliError> {
    let model = &mut imported.recipe.model;
    if let Some(given) = &args.model {
        model.clone_from(given);
    }
    if model.is_empty() {
        return Err(CliError::bad(format!(
            "{} names no model; give its folder or hub id with `--model`",
            from.display()
        )));
    }
    let beside = from.parent().unwrap_or(Path::new("")).join(&*model);
    if model_folder(model).is_none() && beside.join("config.json").is_file() {
        *model = beside.to_string_lossy().into_owned();
    }
    Ok(())
}

/// The rows: as they are given, or as the file names them; what they are is looked up in the first of them.
fn data(args: &Args, from: &Path, imported: &mut Imported) -> Result<(), CliError> {
    if let Some(given) = &args.data {
        replace_rows(imported, given);
    }
    let data = &mut imported.recipe.data;
    let Some(first) = data.train.files().next().cloned() else {
        let why = match imported.data_notes.as_slice() {
            [] => "it names no files of rows".to_owned(),
            notes => notes.join("; "),
        };
        let from = from.display().to_string();
        // Lines on scripts begin with their place, and say what to do.
        let place = if why.starts_with(&from) {
            String::new()
        } else {
            format!("{from}: ")
        };
        let instead = if why.contains("--data") {
            ""
        } else {
            "; give a file of rows with `--data`"
        };
        return Err(CliError::bad(format!("{place}{why}{instead}")));
    };
    let mut away = Vec::new();
    for path in data.train.files() {
        if !is_here(path)? {
            away.push(path.display().to_string());
        }
    }
    held_out(imported);
    if away.is_empty() {
        return format(&first, imported);
    }
    imported.data_notes.push(format!(
        "{} cannot be had now: `search` downloads it, and its columns are taken as the file says",
        away.join(", ")
    ));
    Ok(())
}

/// Puts other rows in the place of the file's own, with all that it says of these.
fn replace_rows(imported: &mut Imported, given: &Path) {
    let data = &mut imported.recipe.data;
    data.train = TrainingData::from(given);
    // Rows of preferences have the layout of their trainer.
    if imported.recipe.trainer.is_sft() {
        data.format = DataFormat::Auto;
    }
    data.columns.clear();
    imported.later.read = None;
    imported.data_notes.clear();
    if let Some(rows) = data.max_rows.take() {
        imported.data_notes.push(format!(
            "the first {rows} rows are read there, and all of `--data` here (`data.max_rows`)"
        ));
    }
    if !data.held_out.files().is_empty() {
        data.held_out = HeldOut::Files(Vec::new());
        imported
            .data_notes
            .push("the file's held-out rows are its own data's, and none of `--data`".to_owned());
    }
}

/// Held-out rows that are not here, or not named, are a share of the others.
fn held_out(imported: &mut Imported) {
    let data = &mut imported.recipe.data;
    let missing: Vec<&PathBuf> = data
        .held_out
        .files()
        .iter()
        .filter(|path| !path.is_file() && !HubDataSet::is_written(path))
        .collect();
    let note = match (missing.first(), &data.held_out) {
        (Some(path), _) => Some(format!(
            "no data at {}: a tenth of the training rows is held out; name the file in `data.held_out`",
            path.display()
        )),
        (None, HeldOut::Files(none)) if none.is_empty() => {
            Some("no held-out rows are named: a tenth of the training rows is held out".to_owned())
        }
        (None, _) => None,
    };
    if note.is_some() {
        data.held_out = HeldOut::default();
    }
    // A number of rows becomes a share of them.
    let note = note.filter(|_| imported.later.held_out.is_none());
    imported.data_notes.extend(note);
}

fn format(first: &Path, imported: &mut Imported) -> Result<(), CliError> {
    let named = imported.recipe.data.format;
    let columns = match named {
        // Names that belong to the format in the file.
        DataFormat::Auto => Default::default(),
        _ => imported.recipe.data.columns.clone(),
    };
    let no_rows = || CliError::bad(format!("{} has no rows", first.display()));
    if !imported.recipe.trainer.is_sft() {
        // Columns alone do not tell answers from preferences.
        let has_rows = check_first_row(&first_file(first), named, &columns).map_err(CliError::bad_input)?;
        return has_rows.then_some(()).ok_or_else(no_rows);
    }
    let found = recognise(&first_file(first), &columns).map_err(CliError::bad_input)?;
    let found = found.ok_or_else(no_rows)?;
    if named != DataFormat::Auto && named != found {
        imported.data_notes.push(format!(
            "{} has other columns than the file says: they are taken as they are",
            first.display()
        ));
        imported.recipe.data.columns.clear();
        imported.recipe.data.loss_on = LossOn::Completions;
        imported.recipe.data.template_targets = TemplateTargets::All;
    }
    if !matches!(found, DataFormat::Messages | DataFormat::Sharegpt) {
        imported.recipe.data.template_targets = TemplateTargets::All;
    }
    imported.recognised(found);
    Ok(())
}
