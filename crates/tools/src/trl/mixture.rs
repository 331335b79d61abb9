//! Data sets that are put together: those of TRL's own list, and those of open-r1's and the alignment-handbook's recipes for its trainer.

use std::path::PathBuf;

use serde_json::Value;

use crate::import::data::{hub_set, is_file, located};
use crate::import::{Keys, Reader, StackFileError};
use peft_tune_core::recipe::{DataFormat, HeldOut, TrainingData};

/// Reads all of them: files one after another, or a mixture where there are shares of one.
///
/// # Errors
/// A value of another kind.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<TrainingData, StackFileError> {
    let keys = reader.keys;
    let (mut sets, mut fractions, mut splits) = (Vec::new(), Vec::new(), Vec::new());
    for set in keys.items("datasets", "datasets.") {
        let found = reader.files_of_set(&set, "path", "datasets.path")?;
        if found.is_empty() {
            continue;
        }
        if set.text("path")?.as_deref() == Some("text") {
            reader.recipe.data.format = DataFormat::Text;
        }
        sets.push(found);
        fractions.extend(set.number("fraction")?);
        splits.push(set.text("split")?);
        reader.part_unread(&set, "datasets.");
    }
    reader.splits("datasets.split", &splits);
    if !fractions.is_empty() && sets.len() > 1 {
        return Ok(reader.mixture("datasets.fraction", sets, Some(fractions)));
    }
    let mut files = sets.concat();
    if let Some(mixture) = keys.part("dataset_mixture", "dataset_mixture.") {
        files.extend(of_mixture(reader, &mixture)?);
    }
    files.extend(of_mixer(reader)?);
    Ok(files.into())
}

/// Files of `dataset_mixture`, each set of which has a share of its own rows.
fn of_mixture(reader: &mut Reader<'_>, mixture: &Keys<'_>) -> Result<Vec<PathBuf>, StackFileError> {
    const PLACE: &str = "dataset_mixture.datasets.";
    let (mut files, mut splits) = (Vec::new(), Vec::new());
    for set in mixture.items("datasets", PLACE) {
        let id = set.text("id")?.unwrap_or_default();
        let split = set.text("split")?;
        let name = split.as_deref().and_then(|split| split.split('[').next());
        files.extend(one(reader, &id, set.text("config")?, name));
        part_of(reader, "dataset_mixture.datasets.weight", set.number("weight")?);
        splits.push(split);
        reader.part_unread(&set, PLACE);
    }
    reader.splits("datasets.split", &splits);
    if let Some(share) = reader.held_out_share(mixture, "test_split_size")? {
        reader.recipe.data.held_out = HeldOut::Fraction(share);
    }
    reader.part_unread(mixture, "dataset_mixture.");
    Ok(files)
}

/// Files of `dataset_mixer`, a map of shares by data set, in the splits of `dataset_splits`.
fn of_mixer(reader: &mut Reader<'_>) -> Result<Vec<PathBuf>, StackFileError> {
    let keys = reader.keys;
    let splits = keys.names("dataset_splits")?;
    let Some(mixer) = keys.raw("dataset_mixer").and_then(Value::as_object) else {
        return Ok(Vec::new());
    };
    let splits = splits.unwrap_or_else(|| vec!["train".to_owned()]);
    let (held_out, trained): (Vec<&String>, Vec<&String>) = splits.iter().partition(|split| split.contains("test"));
    let mut files = Vec::new();
    for (id, share) in mixer {
        for split in &trained {
            files.extend(one(reader, id, None, Some(split.as_str())));
        }
        part_of(reader, "dataset_mixer", share.as_f64());
    }
    let mut evaluated: Vec<PathBuf> = Vec::new();
    for id in mixer.keys() {
        evaluated.extend(
            held_out
                .iter()
                .filter_map(|split| hub_set(id, None, Some(split.as_str()))),
        );
    }
    reader.recipe.data.held_out = evaluated.into();
    Ok(files)
}

/// A file, or a split of a data set of the hub; what is neither is told.
fn one(reader: &mut Reader<'_>, id: &str, configuration: Option<String>, split: Option<&str>) -> Option<PathBuf> {
    let path = reader.keys.path();
    let found = match is_file(path, id) {
        true => Some(located(path, id)),
        false => hub_set(id, configuration, split),
    };
    if found.is_none() {
        reader.not_a_file("dataset_mixture", id);
    }
    found
}

/// Says that a data set has a share of its rows there, and all of them here.
fn part_of(reader: &mut Reader<'_>, key: &str, share: Option<f64>) {
    if let Some(share) = share.filter(|share| *share != 1.0) {
        reader.data_note(format!(
            "`{key}: {share}` is a share of the rows of one data set there: all of its rows are read here"
        ));
    }
}
