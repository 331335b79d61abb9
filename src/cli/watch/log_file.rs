//! A log file that a training writes, followed as it grows; also when it is rotated, or appears late.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use super::output_lines::OutputLines;

/// Bytes that are read at once, and at one look while the run goes on.
const BLOCK: usize = 1 << 16;
const MOST_READ: usize = 16 * BLOCK;

/// A file that is followed.
#[derive(Debug)]
pub(super) struct LogFile {
    path: PathBuf,
    open: Option<Open>,
    /// Most bytes that a look reads.
    most_read: usize,
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
    /// Follows a file from its end on, or from its beginning where it is not there yet. A folder has no lines.
    pub(super) fn follow(path: PathBuf) -> Self {
        let open = Open::at(&path, true);
        Self {
            path,
            open,
            most_read: MOST_READ,
        }
    }

    /// Makes the next look the last one, which reads to the end.
    pub(super) fn end(&mut self) {
        self.most_read = usize::MAX;
    }

    /// Tells the lines that were written since the last look.
    pub(super) fn look(&mut self, mut line: impl FnMut(&str)) {
        let now = std::fs::metadata(&self.path).ok();
        if let Some(open) = &mut self.open {
            if now.as_ref().is_some_and(|now| now.ino() != open.number) {
                // Nobody looks at it again.
                open.read(usize::MAX, &mut line);
                open.tell_last(&mut line);
                self.open = None;
            } else {
                if now.as_ref().is_some_and(|now| now.len() < open.at) {
                    // It was cut, and begins again.
                    (open.at, open.lines) = (0, OutputLines::default());
                }
                open.read(self.most_read, &mut line);
            }
        }
        if self.open.is_none() && now.is_some() {
            self.open = Open::at(&self.path, false);
            if let Some(open) = &mut self.open {
                open.read(self.most_read, &mut line);
            }
        }
        if let Some(open) = self.open.as_mut().filter(|_| self.most_read == usize::MAX) {
            open.tell_last(&mut line);
        }
    }
}

impl Open {
    fn at(path: &PathBuf, from_end: bool) -> Option<Self> {
        // A pipe, which would wait for whoever writes into it, and lose what this reads of it, is left alone.
        std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
        let mut options = File::options();
        let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
        let found = file.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some(Self {
            number: found.ino(),
            at: if from_end { found.len() } else { 0 },
            file,
            lines: OutputLines::default(),
        })
    }

    /// Reads what has been added, up to so many bytes and a block.
    fn read(&mut self, most: usize, line: &mut impl FnMut(&str)) {
        if self.file.seek(SeekFrom::Start(self.at)).is_err() {
            return;
        }
        let (mut block, mut all) = (vec![0u8; BLOCK], 0usize);
        while all < most {
            // What cannot be read now may be at the next look.
            let count = self.file.read(&mut block).unwrap_or(0);
            if count == 0 {
                break;
            }
            all = all.saturating_add(count);
            self.at += count as u64;
            self.lines.take(&block[..count], &mut *line);
        }
    }

    /// Tells a last line that nothing ends.
    fn tell_last(&mut self, line: &mut impl FnMut(&str)) {
        if let Some(last) = std::mem::take(&mut self.lines).unfinished() {
            line(&last);
        }
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
        // Cut and begun again, in the middle of a line.
        std::fs::write(&path, "f\nhalf").unwrap();
        assert!(looked(&mut log).is_empty());
        std::fs::write(&path, "").unwrap();
        assert!(looked(&mut log).is_empty());
        std::fs::write(&path, "g\n").unwrap();
        assert_eq!(looked(&mut log), ["g"]);
        let mut file = File::options().append(true).open(&path).unwrap();
        file.write_all(b"last").unwrap();
        log.end();
        assert_eq!(looked(&mut log), ["last"]);
        std::fs::remove_file(&path).unwrap();
        assert!(looked(&mut log).is_empty());
    }

    #[test]
    fn the_last_look_reads_to_the_end_and_so_does_that_at_a_rotated_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let lines = MOST_READ / 4;
        let text = "longer\n".repeat(lines);
        let mut log = LogFile::follow(path.clone());
        std::fs::write(&path, &text).unwrap();
        let first = looked(&mut log).len();
        assert!((1..lines).contains(&first), "{first}");
        std::fs::rename(&path, folder.path().join("log.jsonl.1")).unwrap();
        std::fs::write(&path, &text).unwrap();
        let second = looked(&mut log).len();
        assert!(first + second >= lines && first + second < 2 * lines, "{second}");
        log.end();
        assert_eq!(first + second + looked(&mut log).len(), 2 * lines);
    }

    #[test]
    fn a_path_that_turns_out_to_be_a_folder_has_no_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs");
        let mut log = LogFile::follow(path.clone());
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("log.jsonl"), "a\n").unwrap();
        assert!(looked(&mut log).is_empty());
        // A file in its place is read.
        std::fs::remove_dir_all(&path).unwrap();
        std::fs::write(&path, "b\n").unwrap();
        assert_eq!(looked(&mut log), ["b"]);
    }

    #[test]
    fn a_pipe_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log.jsonl");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the name outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let mut log = LogFile::follow(path);
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
