//! Folders that appear under their name only when they are whole and on the disk.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use peft_tune_core::whole_file::{make_folder, sync_name};

/// An empty folder beside `path` to fill; [`put_in_place`] then gives it that name.
pub(super) fn start_folder(path: &Path) -> io::Result<PathBuf> {
    let partial = beside(path, "partial");
    remove(&partial)?;
    make_folder(&partial)?;
    Ok(partial)
}

/// Gives the filled folder of [`start_folder`], whose files are on the disk, the name `path`, in place of what had it. A crash in
/// between leaves the old folder under another name, where [`recover_folder`] finds it.
pub(super) fn put_in_place(path: &Path) -> io::Result<()> {
    let (partial, old) = (beside(path, "partial"), beside(path, "old"));
    remove(&old)?;
    if path.exists() {
        fs::rename(path, &old)?;
    }
    fs::rename(&partial, path)?;
    sync_name(path)?;
    remove(&old)
}

/// Puts back what a crash of [`put_in_place`] left under another name, and removes what [`start_folder`] left unfinished.
pub(super) fn recover_folder(path: &Path) -> io::Result<()> {
    let old = beside(path, "old");
    if old.exists() && !path.exists() {
        fs::rename(&old, path)?;
    }
    remove(&old)?;
    remove(&beside(path, "partial"))
}

/// Removes a file, or a folder with all that is in it; what is not there is no error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// `.name.suffix` in the same folder: a hidden name that nothing else takes.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_replaces_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let best = folder.path().join("best");
        for content in ["first", "second"] {
            let partial = start_folder(&best).unwrap();
            fs::write(partial.join("file"), content).unwrap();
            put_in_place(&best).unwrap();
            assert_eq!(fs::read_to_string(best.join("file")).unwrap(), content);
            assert_eq!(names(folder.path()), ["best"]);
        }
    }

    #[test]
    fn a_crash_loses_neither_the_old_nor_the_new() {
        let folder = tempfile::tempdir().unwrap();
        let best = folder.path().join("best");
        // Killed between the two renames.
        fs::create_dir(folder.path().join(".best.old")).unwrap();
        fs::create_dir(folder.path().join(".best.partial")).unwrap();
        recover_folder(&best).unwrap();
        assert_eq!(names(folder.path()), ["best"]);
        // Killed before the old one was removed.
        fs::create_dir(folder.path().join(".best.old")).unwrap();
        recover_folder(&best).unwrap();
        assert_eq!(names(folder.path()), ["best"]);
    }
}
