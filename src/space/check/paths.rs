//! Paths in a file: they are relative to its folder, and what they name must be there.

use std::path::{Component, Path, PathBuf};

use super::Context;
use crate::space::SpaceError;
use peft_tune_core::recipe::{DataSettings, HeldOut, HubDataSet, TrainingData, WeightFault};

/// Most threads that tokenise.
const MOST_WORKERS: usize = 1_024;

impl Context<'_> {
    /// A path of the file as an absolute one, `.` and empty parts left out.
    pub(super) fn absolute(&self, path: &Path) -> PathBuf {
        let joined = self.document.folder().join(path);
        let absolute = std::path::absolute(&joined).unwrap_or(joined);
        absolute
            .components()
            .filter(|part| *part != Component::CurDir)
            .collect()
    }

    /// A folder that must be there.
    pub(super) fn folder(&self, keys: &[&str], path: &Path) -> Result<PathBuf, SpaceError> {
        let absolute = self.absolute(path);
        if self.options.check_files && !absolute.is_dir() {
            return Err(self.missing(keys, "folder", path));
        }
        Ok(absolute)
    }

    /// An interpreter that must be there. Links are not followed: an environment's own is a link, and belongs to it by its place.
    pub(super) fn interpreter(&self, keys: &[&str], path: &Path) -> Result<PathBuf, SpaceError> {
        let absolute = self.absolute(path);
        if self.options.check_files && absolute.is_dir() {
            return Err(SpaceError::Rejected {
                at: self.document.value(keys),
                message: "this is a folder; name the interpreter in it, such as `bin/python` in that of an environment"
                    .into(),
            });
        }
        if self.options.check_files && !absolute.is_file() {
            return Err(self.missing(keys, "interpreter", path));
        }
        Ok(absolute)
    }

    /// A file that must be there. What a data set of the hub has is seen where it is read.
    fn file(&self, keys: &[&str], path: &Path) -> Result<PathBuf, SpaceError> {
        match HubDataSet::of(path) {
            Some(Ok(_)) => return Ok(path.to_owned()),
            Some(Err(error)) => {
                return Err(SpaceError::Rejected {
                    at: self.document.value(keys),
                    message: error.to_string(),
                });
            }
            None => {}
        }
        let absolute = self.absolute(path);
        if self.options.check_files && !absolute.is_file() {
            return Err(self.missing(keys, "file", path));
        }
        Ok(absolute)
    }

    fn missing(&self, keys: &[&str], what: &'static str, path: &Path) -> SpaceError {
        SpaceError::MissingPath {
            at: self.document.value(keys),
            what,
            path: path.to_owned(),
        }
    }

    /// A model: a directory with a `config.json`, as an absolute path, or a hub id as it stands. What looks like
    /// `owner/name` is a hub id unless a folder of that name, or at least `owner`, is there.
    pub(super) fn resolve_model(&self, model: &str) -> Result<String, SpaceError> {
        let keys = ["model"];
        let path = Path::new(model);
        let local = self.absolute(path);
        if local.is_dir() {
            if self.options.check_files && !local.join("config.json").is_file() {
                return Err(self.missing(&keys, "file", &path.join("config.json")));
            }
            return Ok(local.to_string_lossy().into_owned());
        }
        let owner_is_a_folder = path.parent().is_some_and(|owner| self.absolute(owner).is_dir());
        if is_hub_id(model) && !owner_is_a_folder {
            return Ok(model.to_owned());
        }
        if self.options.check_files {
            return Err(self.missing(&keys, "model directory", path));
        }
        Ok(local.to_string_lossy().into_owned())
    }

    /// Checks the `data` section and makes its paths absolute.
    pub(super) fn resolve_data(&self, data: &mut DataSettings) -> Result<(), SpaceError> {
        if data.train.is_empty() {
            return Err(SpaceError::NoChoices {
                at: self.document.key(&["data", "train"]),
            });
        }
        data.train = self.training_data(&data.train)?;
        data.held_out = match &data.held_out {
            HeldOut::Fraction(fraction) if *fraction > 0.0 && *fraction < 1.0 => HeldOut::Fraction(*fraction),
            HeldOut::Fraction(fraction) => {
                return Err(SpaceError::IllegalValue {
                    at: self.document.value(&["data", "held_out"]),
                    parameter: "held_out".into(),
                    value: format!("`{fraction}`"),
                    legal: "a fraction above 0 and below 1, or a file".into(),
                });
            }
            HeldOut::File(path) => HeldOut::File(self.file(&["data", "held_out"], path)?),
            HeldOut::Files(paths) => HeldOut::Files(self.files(&["data", "held_out"], paths)?),
        };
        if data.retain.is_empty() && self.document.has(&["data", "retain"]) {
            return Err(SpaceError::NoChoices {
                at: self.document.key(&["data", "retain"]),
            });
        }
        data.retain = self.files(&["data", "retain"], &data.retain)?;
        let mut used = data.train.files().chain(data.held_out.files());
        if let Some(path) = used.find(|path| data.retain.contains(path)) {
            return Err(SpaceError::Rejected {
                at: self.document.value(&["data", "retain"]),
                message: format!(
                    "{} has the study's own rows; name a file of rows that the training has nothing to do with",
                    path.display()
                ),
            });
        }
        if let Some(template) = &data.chat_template {
            data.chat_template = Some(self.file(&["data", "chat_template"], template)?);
        }
        if data.held_out_length.is_some_and(|length| length < 2) {
            return Err(SpaceError::Rejected {
                at: self.document.value(&["data", "held_out_length"]),
                message: "a held-out row needs 2 tokens, one to predict from and one to predict; write 2 or more"
                    .into(),
            });
        }
        if data.max_rows == Some(0) {
            return Err(SpaceError::Rejected {
                at: self.document.value(&["data", "max_rows"]),
                message: "0 rows teach nothing; write 1 or more, or remove the key".into(),
            });
        }
        if data
            .tokenizing_workers
            .is_some_and(|workers| !(1..=MOST_WORKERS).contains(&workers))
        {
            return Err(SpaceError::Rejected {
                at: self.document.value(&["data", "tokenizing_workers"]),
                message: format!("write 1 to {MOST_WORKERS} threads, or remove the key: as many as the machine has"),
            });
        }
        Ok(())
    }

    /// Training files as absolute paths, and the weights of a mixture as shares.
    fn training_data(&self, train: &TrainingData) -> Result<TrainingData, SpaceError> {
        let keys = ["data", "train"];
        let is_mixture = !train.sets().is_empty();
        // As it is written, which messages then quote; two ways to write one path show only as absolute ones.
        let bad_mixture = |(number, fault)| self.bad_mixture(number, fault);
        train.normalized().map_err(bad_mixture)?;
        let resolved = train.replaced(|(number, index), path| {
            let (number, index) = (number.to_string(), index.to_string());
            let within = match is_mixture {
                true => [&keys[..], &[&number, "file", &index]].concat(),
                false => [&keys[..], &[&number]].concat(),
            };
            self.file(self.deepest(&within), path).map(|path| vec![path])
        })?;
        resolved.normalized().map_err(bad_mixture)
    }

    fn bad_mixture(&self, number: Option<usize>, fault: WeightFault) -> SpaceError {
        let number = number.map(|number| number.to_string());
        let key = match fault {
            WeightFault::NotPositive { .. } => "weight",
            _ => "file",
        };
        let keys: Vec<&str> = ["data", "train"]
            .into_iter()
            .chain(number.as_deref())
            .chain([key])
            .collect();
        SpaceError::Rejected {
            at: self.document.value(self.deepest(&keys)),
            message: fault.to_string(),
        }
    }

    /// First of the keys, as many as the document has.
    fn deepest<'a>(&self, keys: &'a [&'a str]) -> &'a [&'a str] {
        let there = (1..=keys.len())
            .rev()
            .find(|length| self.document.has(&keys[..*length]));
        &keys[..there.unwrap_or(0)]
    }

    fn files(&self, keys: &[&str], paths: &[PathBuf]) -> Result<Vec<PathBuf>, SpaceError> {
        let resolve = |(index, path): (usize, &PathBuf)| {
            let index = index.to_string();
            let in_list = [keys, &[&index]].concat();
            let keys = if self.document.has(&in_list) { &in_list } else { keys };
            self.file(keys, path)
        };
        paths.iter().enumerate().map(resolve).collect()
    }
}

/// Whether a text has the form `owner/name`.
fn is_hub_id(text: &str) -> bool {
    let part = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    text.split_once('/')
        .is_some_and(|(owner, name)| part(owner) && part(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hub_ids_have_an_owner_and_a_name() {
        assert!(is_hub_id("Qwen/Qwen2.5-7B"));
        for wrong in ["./base", "base", "/models/base", "a/b/c", "../up", "owner/", "C:/x y"] {
            assert!(!is_hub_id(wrong), "{wrong}");
        }
    }
}
