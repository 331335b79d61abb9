//! Files and folders that appear under their name only when they are whole and on the disk.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes a file beside `path` and gives it that name once it is on the disk. Where that fails, what had been at `path` is
/// still there and nothing else is.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_whole_with(path, |file| file.write_all(bytes))
}

/// As `write_whole`, for a file that `write` fills piece by piece.
pub fn write_whole_with(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let partial = beside(path, "partial");
    let written = write_partial(&partial, write).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // If even this fails, there is nothing better to do than to tell of the first error.
        let _ = fs::remove_file(&partial);
    }
    written?;
    sync_parent(path)
}

fn write_partial(partial: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(partial)?);
    write(&mut file)?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()
}

/// An empty folder beside `path` to fill; [`put_in_place`] then gives it that name.
pub(crate) fn start_folder(path: &Path) -> io::Result<PathBuf> {
    let partial = beside(path, "partial");
    remove(&partial)?;
    fs::create_dir_all(&partial)?;
    Ok(partial)
}

/// Gives the filled folder of [`start_folder`] the name `path`, in place of what had it. A crash in between leaves the
/// old folder under another name, where [`recover_folder`] finds it.
pub(crate) fn put_in_place(path: &Path) -> io::Result<()> {
    let (partial, old) = (beside(path, "partial"), beside(path, "old"));
    sync(&partial)?;
    remove(&old)?;
    if path.exists() {
        fs::rename(path, &old)?;
    }
    fs::rename(&partial, path)?;
    sync_parent(path)?;
    remove(&old)
}

/// Puts back what a crash of [`put_in_place`] left under another name, and removes what [`start_folder`] left unfinished.
pub(crate) fn recover_folder(path: &Path) -> io::Result<()> {
    let old = beside(path, "old");
    if old.exists() && !path.exists() {
        fs::rename(&old, path)?;
    }
    remove(&old)?;
    remove(&beside(path, "partial"))
}

/// Removes a file, or a folder with all that is in it; what is not there is no error.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
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

fn sync_parent(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        _ => Ok(()),
    }
}

/// Brings a folder's list of names to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
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
            write_whole(&partial.join("file"), content.as_bytes()).unwrap();
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
