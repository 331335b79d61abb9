//! The files that a study's trials read: when one of them changes under way, later trials would measure something else.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files with what they looked like when the search began.
#[derive(Clone, Debug, Default)]
pub struct Inputs(Vec<(PathBuf, Stamp)>);

/// What tells two versions of a file apart without reading it. The time is only compared, never reckoned with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self {
            bytes: metadata.len(),
            modified: metadata.modified().ok(),
        })
    }
}

impl Inputs {
    /// Keeps what `paths` look like now; the files in a folder, where one is named. What is not there is left out.
    pub fn of(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut files = Vec::new();
        for path in paths {
            match std::fs::read_dir(&path) {
                Ok(entries) => files.extend(entries.flatten().map(|entry| entry.path())),
                Err(_) => files.push(path),
            }
        }
        let stamped = files.into_iter().filter(|path| path.is_file());
        Self(
            stamped
                .filter_map(|path| Some((path.clone(), Stamp::of(&path).ok()?)))
                .collect(),
        )
    }

    /// The first file that is gone or not what it was.
    pub fn changed(&self) -> Option<&Path> {
        let is_other = |(path, stamp): &&(PathBuf, Stamp)| Stamp::of(path).ok() != Some(*stamp);
        self.0.iter().find(is_other).map(|(path, _)| path.as_path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_cut_or_gone_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        std::fs::write(&file, "weights").unwrap();
        let inputs = Inputs::of([folder.path().to_owned(), folder.path().join("absent")]);
        assert_eq!(inputs.changed(), None);
        std::fs::write(&file, "wei").unwrap();
        assert_eq!(inputs.changed(), Some(file.as_path()));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(inputs.changed(), Some(file.as_path()));
    }
}
