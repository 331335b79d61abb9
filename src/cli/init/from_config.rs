//! `init --from`: a study around the setting of a config that people have.

use std::path::{Path, PathBuf};

use super::args::Args;
use super::base_model::family;
use super::study_file::{survey, write};
use crate::cli::CliError;
use crate::cli::data::data_files::check_data;
use crate::cli::data::known_offline::model_folder;
use crate::cli::data::model_family::ModelFamily;
use crate::cli::terminal::output::tell;
use crate::draft::{Around, Machine, about_rows, first_file, left_out, study_around};
use crate::space::{ReadOptions, StudyFile};
use crate::tools::import::{self, Imported};
use peft_tune_core::recipe::{DataFormat, HeldOut, HubDataSet, LossOn, TemplateTargets, TrainingData};
use peft_tune_engine::data::{check_first_row, recognise};

/// Writes the file.
///
/// # Errors
/// Bad input: a config that cannot be read, without a model or without rows that can be read here.
pub(super) fn run(args: &Args, from: &Path) -> Result<(), CliError> {
    let mut imported = import::read_recipe(from, None).map_err(CliError::bad_input)?;
    model(args, from, &mut imported)?;
    data(args, from, &mut imported)?;
    let family = family(&imported.recipe.model)?;
    let machine = Machine::look();
    let memory_bytes = args.memory.map_or(machine.usable_bytes, |memory| memory.0);
    let around = Around {
        from,
        imported: &imported,
        output: &args.output,
        memory_bytes,
        machine: &machine,
        rows: rows_of(&imported),
        trains_in_trl: matches!(family, Some(ModelFamily::Other(_))) || !imported.recipe.trainer.is_sft(),
    };
    let text = study_around(&around);
    // Checked as a search will read it, before anything is written.
    let study = StudyFile::parse(&args.output, &text, ReadOptions { check_files: true })
        .map_err(|error| CliError::bad_input(anyhow::anyhow!("{}: {}", from.display(), error.rendered(false))))?;
    for note in notes(&imported, around.trains_in_trl) {
        tell(format_args!("warning: {note}"));
    }
    // The built-in engine's settings are counted, which has no trainers of preferences.
    let predicted = family.as_ref().filter(|_| imported.recipe.trainer.is_sft());
    if let Some(architecture) = predicted.and_then(ModelFamily::architecture) {
        tell(format_args!("{}", survey(&study, architecture, &machine)));
    }
    write(args, &text)
}

/// Rows that are read of the data, about.
fn rows_of(imported: &Imported) -> Option<u64> {
    let data = &imported.recipe.data;
    let rows: Option<u64> = data.train.files().map(|path| about_rows(path)).sum();
    rows.map(|rows| rows.min(data.max_rows.unwrap_or(usize::MAX) as u64))
}

/// What the file could not say here.
fn notes(imported: &Imported, trains_in_trl: bool) -> Vec<String> {
    let mut all = imported.notes.clone();
    all.extend(imported.data_notes.iter().cloned());
    all.extend(left_out(&imported.recipe, trains_in_trl));
    if !imported.unread.is_empty() {
        all.push(format!(
            "passed over, as no setting is called so: `{}`; check their spelling",
            imported.unread.join("`, `")
        ));
    }
    all
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
        take(given, imported);
    }
    let data = &mut imported.recipe.data;
    let Some(first) = data.train.files().next().cloned() else {
        let why = match imported.data_notes.as_slice() {
            [] => "it names no files of rows".to_owned(),
            notes => notes.join("; "),
        };
        return Err(CliError::bad(format!(
            "{}: {why}; give a file of rows with `--data`",
            from.display()
        )));
    };
    data.train.files().try_for_each(|path| check_data(path))?;
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
    imported.data_notes.extend(note);
    share(imported);
    format(args, &first, imported)
}

/// Takes the rows that are given in the place of those that the file names, with all that it says of these.
fn take(given: &Path, imported: &mut Imported) {
    let data = &mut imported.recipe.data;
    data.train = TrainingData::from(given);
    data.columns.clear();
    data.max_rows = None;
    if !matches!(data.held_out, HeldOut::Fraction(_)) {
        data.held_out = HeldOut::Files(Vec::new());
    }
    imported.share_of_rows = None;
    imported.data_notes.clear();
}

/// Takes a share of the rows for so many of them.
fn share(imported: &mut Imported) {
    let Some(share) = imported.share_of_rows else { return };
    let data = &mut imported.recipe.data;
    let rows: Option<u64> = data.train.files().map(|path| about_rows(path)).sum();
    let percent = (share * 1e4).round() / 100.0;
    imported.data_notes.push(match rows {
        Some(rows) => {
            let taken = (rows as f64 * share).round().max(1.0) as usize;
            data.max_rows = Some(taken);
            format!("the file trains on {percent}% of the rows: the first {taken} of about {rows} are read (`data.max_rows`)")
        }
        None => format!(
            "the file trains on {percent}% of the rows, and how many these are is not known here: all are read; write \
             `data.max_rows`"
        ),
    });
}

fn format(args: &Args, first: &Path, imported: &mut Imported) -> Result<(), CliError> {
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
        // Of rows that are given the file says nothing.
        if args.data.is_none() {
            imported.data_notes.push(format!(
                "{} has other columns than the file says: they are taken as they are",
                first.display()
            ));
        }
        imported.recipe.data.columns.clear();
        imported.recipe.data.loss_on = LossOn::Completions;
        imported.recipe.data.template_targets = TemplateTargets::All;
    }
    imported.recognised(found);
    Ok(())
}
