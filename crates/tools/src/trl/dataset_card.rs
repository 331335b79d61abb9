//! The card of a folder (`README.md`) by which the `datasets` library finds a split for training and one for evaluation among files
//! that may lie anywhere: the one way in which `trl sft` (1.16) evaluates files beside those it trains on. Its `datasets` are one split.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::import::{parsed, text_of};

/// The folder, beside TRL's file.
pub(super) const FOLDER: &str = "trl_data";
/// The card in it.
pub(super) const FILE: &str = "trl_data/README.md";
/// Names of the splits, which TRL takes where it is told no others.
pub(super) const TRAIN: &str = "train";
pub(super) const HELD_OUT: &str = "test";

/// Files of rows by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SplitFiles {
    pub train: Vec<PathBuf>,
    pub held_out: Vec<PathBuf>,
}

impl SplitFiles {
    /// The card that names these files for a `config`, absolute, since the library looks for others in the folder of the card.
    pub(super) fn to_card(&self, config: &str) -> String {
        let line = |split: &str, files: &[PathBuf]| {
            let files = files
                .iter()
                .map(|file| std::path::absolute(file).unwrap_or_else(|_| file.clone()));
            let files: Vec<_> = files.map(|file| file.to_string_lossy().into_owned()).collect();
            // A list in JSON is one in YAML.
            format!("  - split: {split}\n    path: {}\n", json!(files))
        };
        format!(
            "---\nconfigs:\n- config_name: default\n  data_files:\n{}{}---\n\nThe files that {config} trains on and evaluates.\n",
            line(TRAIN, &self.train),
            line(HELD_OUT, &self.held_out),
        )
    }

    /// The files that the card in `folder` names for two splits; `None` where there is no card, or it names none.
    pub(super) fn of_folder(folder: &Path, [train, held_out]: [&str; 2]) -> Option<Self> {
        let path = folder.join("README.md");
        let text = text_of(&path).ok()?;
        let (card, _) = text.strip_prefix("---\n")?.split_once("\n---")?;
        let card = parsed(&path, card).ok()?.values;
        let parts = card.get("configs")?.as_array()?.first()?["data_files"].as_array()?;
        let files_of = |split: &str| -> Vec<PathBuf> {
            let paths = parts
                .iter()
                .filter(|part| part["split"] == split)
                .map(|part| &part["path"]);
            let paths = paths.flat_map(|path| match path {
                Value::Array(all) => all.as_slice(),
                one => std::slice::from_ref(one),
            });
            paths.filter_map(Value::as_str).map(|path| folder.join(path)).collect()
        };
        let found = Self {
            train: files_of(train),
            held_out: files_of(held_out),
        };
        (!found.train.is_empty()).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_names_the_files_that_were_written_into_it() {
        let folder = tempfile::tempdir().unwrap();
        let files = SplitFiles {
            train: vec!["/data/train: 1.jsonl".into(), "/data/more.jsonl".into()],
            held_out: vec!["/data/held_out.jsonl".into()],
        };
        std::fs::write(folder.path().join("README.md"), files.to_card("trl_sft.yaml")).unwrap();
        assert_eq!(SplitFiles::of_folder(folder.path(), [TRAIN, HELD_OUT]), Some(files));
        assert_eq!(SplitFiles::of_folder(folder.path(), ["train_sft", HELD_OUT]), None);
    }

    #[test]
    fn files_of_a_card_lie_beside_it_unless_they_say_where() {
        let folder = tempfile::tempdir().unwrap();
        let card = "---\nlicense: mit\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a.jsonl\n---\nRows.\n";
        std::fs::write(folder.path().join("README.md"), card).unwrap();
        let found = SplitFiles::of_folder(folder.path(), [TRAIN, HELD_OUT]).unwrap();
        assert_eq!(found.train, [folder.path().join("a.jsonl")]);
        assert!(found.held_out.is_empty());
    }
}
