//! A file of the cache that is not whole yet.
//!
//! On Linux it has no name before it is whole, so that nothing is left of it however its process ends. Where the file system
//! cannot do that it has a name of its own, is removed when it is given up, and a day later where its process was killed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A file that nobody sees under the name that it will have.
#[derive(Debug)]
pub(super) struct UnfinishedFile {
    path: PathBuf,
    /// The name that it has, or that it gets for a moment.
    beside: PathBuf,
    is_named: bool,
}

impl UnfinishedFile {
    /// Begins the file that will be at `path`.
    ///
    /// # Errors
    /// The folder cannot be written to.
    pub(super) fn create(path: &Path) -> io::Result<(Self, File)> {
        if let Some(file) = path.parent().and_then(nameless) {
            return Ok((Self::new(path, false), file));
        }
        Self::create_named(path)
    }

    fn create_named(path: &Path) -> io::Result<(Self, File)> {
        let unfinished = Self::new(path, true);
        let file = File::create(&unfinished.beside)?;
        Ok((unfinished, file))
    }

    fn new(path: &Path, is_named: bool) -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            path: path.to_owned(),
            beside: path.with_extension(format!("{}-{number}.tmp", std::process::id())),
            is_named,
        }
    }

    /// Puts the file, which is whole, under its name. One that is there already is replaced.
    ///
    /// # Errors
    /// The folder cannot be written to any more.
    pub(super) fn publish(&mut self, file: &File) -> io::Result<()> {
        if !self.is_named {
            // A name that is taken cannot be given, and can be replaced.
            name(file, &self.beside)?;
            self.is_named = true;
        }
        std::fs::rename(&self.beside, &self.path)
    }
}

impl Drop for UnfinishedFile {
    fn drop(&mut self) {
        if self.is_named {
            // It is not there any more where it was published. Nothing can be done about one that cannot even be removed.
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

/// A file without a name; `None` where that cannot be had, or could not be named later.
#[cfg(target_os = "linux")]
fn nameless(folder: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE);
    let file = options.open(folder).ok()?;
    own_link(&file).exists().then_some(file)
}

#[cfg(not(target_os = "linux"))]
fn nameless(_: &Path) -> Option<File> {
    None
}

/// Where the system shows an open file of this process.
#[cfg(target_os = "linux")]
fn own_link(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Gives a name to a file that has none.
#[cfg(target_os = "linux")]
fn name(file: &File, path: &Path) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;
    let link = CString::new(own_link(file).as_os_str().as_bytes())?;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths end in a zero and outlive the call.
    match unsafe { libc::linkat(here, link.as_ptr(), here, path.as_ptr(), follow) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn name(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    type Create = fn(&Path) -> io::Result<(UnfinishedFile, File)>;

    #[test]
    fn a_file_is_there_when_it_is_whole_and_nothing_is_left_of_one_that_is_given_up() {
        for create in [UnfinishedFile::create as Create, UnfinishedFile::create_named] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.tokens");
            let names = || std::fs::read_dir(folder.path()).unwrap().count();
            for text in ["first", "second"] {
                let (mut unfinished, mut file) = create(&path).unwrap();
                file.write_all(text.as_bytes()).unwrap();
                unfinished.publish(&file).unwrap();
                drop(unfinished);
                assert_eq!((std::fs::read_to_string(&path).unwrap().as_str(), names()), (text, 1));
            }
            let (given_up, file) = create(&path).unwrap();
            drop((given_up, file));
            assert_eq!(
                (std::fs::read_to_string(&path).unwrap().as_str(), names()),
                ("second", 1)
            );
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_unfinished_file_has_no_name_where_the_file_system_can_do_that() {
        let folder = tempfile::tempdir().unwrap();
        let Some(_file) = nameless(folder.path()) else {
            return;
        };
        let _unfinished = UnfinishedFile::create(&folder.path().join("a.tokens")).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
