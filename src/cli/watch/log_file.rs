//! A log file that a training writes, followed as it grows; also when it is rotated, or appears late.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::output_lines::OutputLines;

/// Most that is read of it at once.
const BLOCK: usize = 1 << 20;

/// A file that is followed.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Number of the file on its disk: another one means that it was rotated.
    number: u64,
    at: u64,
    lines: OutputLines,
}

impl LogFile {
    /// Follows a file from its end on, or from its beginning where it is not there yet.
    pub(super) fn follow(path: PathBuf) -> Self {
        let open = Open::at(&path, true);
        Self { path, open }
    }

    /// Tells the lines that were written since the last look.
    pub(super) fn look(&mut self, mut line: impl FnMut(&str)) {
        let now = std::fs::metadata(&self.path).ok();
        if let (Some(open), Some(now)) = (&mut self.open, &now) {
            let is_other = now.ino() != open.number;
            open.read(&mut line);
            if is_other {
                self.open = None;
            } else if now.len() < open.at {
                // It was cut, and begins again.
                open.at = 0;
                open.read(&mut line);
            }
        }
        if self.open.is_none() && now.is_some() {
            self.open = Open::at(&self.path, false);
            if let Some(open) = &mut self.open {
                open.read(&mut line);
            }
        }
    }
}

impl Open {
    fn at(path: &PathBuf, from_end: bool) -> Option<Self> {
        let file = File::open(path).ok()?;
        let found = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self {
            number: found.ino(),
            at: if from_end { found.len() } else { 0 },
            file,
            lines: OutputLines::default(),
        })
    }

    fn read(&mut self, line: &mut impl FnMut(&str)) {
        if self.file.seek(SeekFrom::Start(self.at)).is_err() {
            return;
        }
        let mut block = Vec::new();
        let count = (&mut self.file).take(BLOCK as u64).read_to_end(&mut block).unwrap_or(0);
        self.at += count as u64;
        self.lines.take(&block[..count], line);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn looked(log: &mut LogFile) -> Vec<String> {
        let mut lines = Vec::new();
        log.look(|line| lines.push(line.to_owned()));
        lines
    }

    #[test]
    fn what_is_added_is_told_once_and_rotation_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let mut log = LogFile::follow(path.clone());
        assert!(looked(&mut log).is_empty());
        std::fs::write(&path, "a\nb").unwrap();
        assert_eq!(looked(&mut log), ["a"]);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"c\nd\n").unwrap();
        assert_eq!(looked(&mut log), ["bc", "d"]);
        assert!(looked(&mut log).is_empty());
        // Rotated, with a last line in the old file.
        file.write_all(b"e\n").unwrap();
        std::fs::rename(&path, folder.path().join("log.jsonl.1")).unwrap();
        std::fs::write(&path, "f\n").unwrap();
        assert_eq!(looked(&mut log), ["e", "f"]);
        // Cut and begun again.
        std::fs::write(&path, "").unwrap();
        assert!(looked(&mut log).is_empty());
        std::fs::write(&path, "g\n").unwrap();
        assert_eq!(looked(&mut log), ["g"]);
        std::fs::remove_file(&path).unwrap();
        assert!(looked(&mut log).is_empty());
    }

    #[test]
    fn a_file_that_is_there_is_followed_from_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        std::fs::write(&path, "old\n").unwrap();
        let mut log = LogFile::follow(path.clone());
        std::fs::write(&path, "old\nnew\n").unwrap();
        assert_eq!(looked(&mut log), ["new"]);
    }
}
