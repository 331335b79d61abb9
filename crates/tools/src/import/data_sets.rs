//! Data sets of a file, as its reader takes them: their files, shares and splits.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::data::{Split, files, hub_file, is_file, located, on_hub, train_names};
use super::{Keys, Reader, StackFileError};
use peft_tune_core::recipe::{DataFormat, TemplateTargets, TrainingData, TrainingSet};

/// What a row of a data set is, with the names of its columns.
pub(crate) type Layout = (DataFormat, BTreeMap<String, String>);

impl Reader<'_> {
    /// Says that a data set is neither a file nor on the hub.
    pub(crate) fn not_a_file(&mut self, key: &str, name: &str) {
        self.data_note(format!(
            "`{key}: {name}` is neither a file of rows nor a data set of the hub: name one with `--data`"
        ));
    }

    /// Files of a data set that stands in the file by the words of the `datasets` library: on this machine, or on the hub. `key` is that
    /// of its path, and `name` what messages call it.
    pub(crate) fn files_of_set(
        &mut self,
        set: &Keys<'_>,
        key: &str,
        name: &str,
    ) -> Result<Vec<PathBuf>, StackFileError> {
        let path = set.text(key)?.unwrap_or_default();
        let named = files(set, "data_files");
        let found = match named.is_empty() {
            true if is_file(self.keys.path(), &path) => vec![located(self.keys.path(), &path)],
            true => match on_hub(set, key)? {
                none if none.is_empty() && set.has("ds_type") => vec![located(self.keys.path(), &path)],
                found => found,
            },
            false if named.iter().any(|file| file.is_file()) => named,
            false => files_on_hub(set, &path)?.unwrap_or(named),
        };
        if found.is_empty() {
            self.not_a_file(name, &path);
        }
        Ok(found)
    }

    /// The share of rows that a key holds out. A whole number is one of rows, which is a share once they are counted.
    pub(crate) fn held_out_share(&mut self, keys: &Keys<'_>, key: &str) -> Result<Option<f64>, StackFileError> {
        let said = keys.number(key)?.filter(|said| *said > 0.0);
        self.later.held_out = said.filter(|rows| *rows >= 1.0).map(|rows| rows as u64);
        Ok(said.filter(|share| *share < 1.0))
    }

    /// Sets of files with shares, as far as there is one above 0 for each; else the files, which is told.
    pub(crate) fn mixture(&mut self, key: &str, sets: Vec<Vec<PathBuf>>, weights: Option<Vec<f64>>) -> TrainingData {
        let weights = weights.filter(|weights| weights.len() == sets.len());
        if let Some(weights) = weights {
            let of = |(files, weight)| TrainingSet { files, weight };
            let mixture = TrainingData::Mixture(sets.iter().cloned().zip(weights).map(of).collect());
            if let Ok(mixture) = mixture.normalized() {
                return mixture;
            }
        }
        self.data_note(format!(
            "`{key}` has no share above 0 for each of the {} data sets, which are read one after another: write weights in \
             `data.train`",
            sets.len()
        ));
        sets.concat().into()
    }

    /// The layout that was read of a data set, which leaves none for the next one.
    pub(crate) fn layout_of_set(&mut self) -> Layout {
        let data = &mut self.recipe.data;
        (std::mem::take(&mut data.format), std::mem::take(&mut data.columns))
    }

    /// Takes the layout that all data sets have. Rows of several ones are read by their columns, which is told with the key.
    pub(crate) fn take_layout(&mut self, key: &str, layouts: Vec<Layout>) {
        let is_one = layouts.windows(2).all(|pair| pair[0] == pair[1]);
        let Some((format, columns)) = layouts.into_iter().next() else {
            return;
        };
        if is_one {
            (self.recipe.data.format, self.recipe.data.columns) = (format, columns);
            return;
        }
        self.recipe.data.template_targets = TemplateTargets::default();
        self.data_note(format!(
            "rows of the data sets have several layouts (`{key}`): all are read by the columns of the first row; name rows of one layout \
             with `--data`"
        ));
    }

    /// Takes a number of rows, or a share of them, from the texts of the splits of all data sets. One that is for a part of them alone
    /// is told.
    pub(crate) fn splits(&mut self, key: &str, texts: &[Option<String>]) {
        let Some(text) = texts.iter().flatten().find(|text| Split::of(text) != Some(Split::All)) else {
            return;
        };
        let split = Split::of(text);
        let is_of_all = texts
            .iter()
            .all(|one| one.as_deref().is_some_and(|one| Split::of(one) == split));
        match split.filter(|_| is_of_all) {
            Some(Split::First(rows)) => self.recipe.data.max_rows = Some(rows),
            Some(Split::Percent(percent)) => self.later.read = Some(percent / 100.0),
            Some(Split::All) | None => self.unknown_word(key, text, "all of the rows"),
        }
    }
}

/// Files of a repository of the hub that a data set names beside its id; `None` where that is no id, or one of them no file there.
fn files_on_hub(set: &Keys<'_>, id: &str) -> Result<Option<Vec<PathBuf>>, StackFileError> {
    let revision = set.text("revision")?;
    let of_file = |name: String| hub_file(id, revision.clone(), name);
    Ok(train_names(set, "data_files").into_iter().map(of_file).collect())
}
