//! Files that appear under their name only when they are whole and on the disk. Whatever is written whole is written here.
//!
//! A file is written beside the one that it will be, brought to the disk and renamed, and then the folder is brought to the disk.
//! On Linux it has no name before it is whole, so that nothing is left of it however its process ends. Where the file system
//! cannot do that it has a free name that ends in `.tmp`, which goes with the [`WholeFile`]; only a process that is killed leaves it.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

/// A file that nobody sees under the name that it will have before [`finish`](Self::finish). One that is dropped leaves nothing, and
/// what had its name as it was.
#[derive(Debug)]
pub struct WholeFile {
    file: BufWriter<File>,
    draft: Draft,
    path: PathBuf,
    force: bool,
}

/// Name of a file as long as it is not whole.
#[derive(Debug)]
enum Draft {
    Nameless,
    Named(TempPath),
    /// Name of the file itself: it is no file.
    InPlace,
}

impl WholeFile {
    /// Begins the file that will be at `path`, in a folder that is there; one that is there then is replaced only with `force`. It gets
    /// the permissions of any new file. What is no file, such as `/dev/stdout`, is written to as it is.
    ///
    /// # Errors
    /// The folder is not there or cannot be written to.
    pub fn create(path: &Path, force: bool) -> io::Result<Self> {
        if is_no_file(path) {
            let file = File::options().append(true).open(path)?;
            return Ok(Self::new(file, Draft::InPlace, path, force));
        }
        match nameless(folder_of(path)) {
            Some(file) => Ok(Self::new(file, Draft::Nameless, path, force)),
            None => Ok(Self::create_named(path, force)?.0),
        }
    }

    /// Begins a file as [`create`](Self::create) does, for something that opens it by itself: with the name that the file has as long
    /// as it is not whole.
    ///
    /// # Errors
    /// The folder is not there or cannot be written to.
    pub fn create_named(path: &Path, force: bool) -> io::Result<(Self, PathBuf)> {
        let (file, draft) = draft_of(path, |draft| {
            File::options().read(true).write(true).create_new(true).open(draft)
        })?
        .into_parts();
        let name = draft.to_path_buf();
        Ok((Self::new(file, Draft::Named(draft), path, force), name))
    }

    fn new(file: File, draft: Draft, path: &Path, force: bool) -> Self {
        Self {
            file: BufWriter::with_capacity(1 << 16, file),
            draft,
            path: path.to_owned(),
            force,
        }
    }

    /// The file itself, for something that writes to one of its own; it is to be done with that before [`finish`](Self::finish).
    ///
    /// # Errors
    /// The process has too many open files.
    pub fn handle(&self) -> io::Result<File> {
        self.file.get_ref().try_clone()
    }

    /// Puts the file, which is whole, under its name, with all of it on the disk.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] without `force`, and what the file system says.
    pub fn finish(self) -> io::Result<()> {
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        if matches!(self.draft, Draft::InPlace) {
            return Ok(());
        }
        file.sync_all()?;
        let draft = match self.draft {
            Draft::Named(draft) => draft,
            // A name that is taken cannot be given, and can be replaced.
            _ => draft_of(&self.path, |draft| name(&file, draft))?.into_temp_path(),
        };
        let placed = match self.force {
            true => draft.persist(&self.path),
            false => draft.persist_noclobber(&self.path),
        };
        placed.map_err(|error| error.error)?;
        sync_name(&self.path)
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a [`WholeFile`] of these bytes.
///
/// # Errors
/// [`io::ErrorKind::AlreadyExists`] without `force`, and what the file system says.
pub fn write_whole(path: &Path, bytes: &[u8], force: bool) -> io::Result<()> {
    let mut file = WholeFile::create(path, force)?;
    file.write_all(bytes)?;
    file.finish()
}

/// Removes a file, also from the disk; one that is not there is no error.
///
/// # Errors
/// What the file system says.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_name(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a folder and those above it that are missing, also on the disk.
///
/// # Errors
/// What the file system says.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = folder.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(folder)?;
    missing.into_iter().try_for_each(sync_name)
}

/// Brings the name of a file or folder to the disk, where the file system can do that and this user may read the folder that it is in.
///
/// # Errors
/// What the file system says.
pub fn sync_name(path: &Path) -> io::Result<()> {
    use io::ErrorKind::{InvalidInput, PermissionDenied, Unsupported};
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        Err(error) if matches!(error.kind(), InvalidInput | PermissionDenied | Unsupported) => Ok(()),
        synced => synced,
    }
}

/// Whether a path names something that a file cannot take the place of: a device, a pipe, an open file of a process.
pub fn is_no_file(path: &Path) -> bool {
    let is_other = fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir());
    is_other || fs::read_link(path).is_ok_and(|to| to.starts_with("/proc"))
}

fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

/// File that `make` makes under a free name beside `path`, with that name.
fn draft_of<T>(path: &Path, make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<NamedTempFile<T>> {
    let mut names = tempfile::Builder::new();
    names.suffix(".tmp").make_in(folder_of(path), make)
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

/// Path at which the system shows an open file of this process.
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
    use super::*;

    type Create = fn(&Path, bool) -> io::Result<WholeFile>;

    const CREATE: [Create; 2] = [WholeFile::create, |path, force| {
        WholeFile::create_named(path, force).map(|(file, _)| file)
    }];

    fn names(folder: &Path) -> usize {
        fs::read_dir(folder).unwrap().count()
    }

    #[test]
    fn a_file_that_is_given_up_leaves_what_was_there_and_nothing_else() {
        for create in CREATE {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file.txt");
            for text in ["first", "second"] {
                let mut file = create(&path, true).unwrap();
                file.handle().unwrap().write_all(&text.as_bytes()[..2]).unwrap();
                file.write_all(&text.as_bytes()[2..]).unwrap();
                file.finish().unwrap();
                assert_eq!(fs::read_to_string(&path).unwrap(), text);
            }
            let mut given_up = create(&path, true).unwrap();
            given_up.write_all(b"third, in part").unwrap();
            drop(given_up);
            assert_eq!(
                (fs::read_to_string(&path).unwrap().as_str(), names(folder.path())),
                ("second", 1)
            );
        }
    }

    #[test]
    fn a_file_that_is_there_is_replaced_only_by_force() {
        for create in CREATE {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("file.txt");
            let write = |text: &str, force| {
                let mut file = create(&path, force)?;
                file.write_all(text.as_bytes())?;
                file.finish()
            };
            write("one", false).unwrap();
            assert_eq!(write("two", false).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(
                (fs::read_to_string(&path).unwrap().as_str(), names(folder.path())),
                ("one", 1)
            );
            write("two", true).unwrap();
            assert_eq!(
                (fs::read_to_string(&path).unwrap().as_str(), names(folder.path())),
                ("two", 1)
            );
            let nowhere = create(&folder.path().join("none/file.txt"), true).unwrap_err();
            assert_eq!(nowhere.to_string(), "No such file or directory (os error 2)");
        }
    }

    #[test]
    fn a_file_has_the_permissions_of_any_other() {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let folder = tempfile::tempdir().unwrap();
        let any = folder.path().join("any");
        File::create(&any).unwrap();
        for (create, name) in CREATE.into_iter().zip(["nameless", "named"]) {
            let path = folder.path().join(name);
            create(&path, false).unwrap().finish().unwrap();
            assert_eq!(mode(&path), mode(&any), "{name}");
        }
    }

    #[test]
    fn folders_are_made_and_files_removed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/file");
        for _ in 0..2 {
            make_folder(path.parent().unwrap()).unwrap();
            write_whole(&path, b"", false).unwrap();
            remove_file(&path).unwrap();
            remove_file(&path).unwrap();
        }
        write_whole(&path, b"", false).unwrap();
        assert!(make_folder(&path.join("below")).is_err());
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        assert!(write_whole(Path::new("/dev/full"), b"one", true).is_err());
        write_whole(Path::new("/dev/null"), b"one", false).unwrap();
        assert!(is_no_file(Path::new("/dev/full")) && is_no_file(Path::new("/dev/null")));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_link_to_an_open_file_stays_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("open"), folder.path().join("stdout"));
        let open = File::create(&path).unwrap();
        std::os::unix::fs::symlink(own_link(&open), &link).unwrap();
        write_whole(&link, b"one", false).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"one");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_unfinished_file_has_no_name_where_the_file_system_can_do_that() {
        let folder = tempfile::tempdir().unwrap();
        let Some(_file) = nameless(folder.path()) else {
            return;
        };
        let _unfinished = WholeFile::create(&folder.path().join("file"), true).unwrap();
        assert_eq!(names(folder.path()), 0);
    }
}
