//! Event files of TensorBoard that a training writes, followed while they grow.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::log_fields::LogFields;
use super::paced::{Paced, SPARING};
use peft_tune_engine::profile::{EventReader, ScalarEvent};

/// Part of the names of event files.
const MARK: &str = "tfevents";
/// Folders that the Trainer and PyTorch's writer take where nobody names one.
const USUAL: [&str; 2] = ["runs", "trainer_output"];
/// Variable with the folder that transformers writes event files to.
const VARIABLE: &str = "TENSORBOARD_LOGGING_DIR";
/// Depth of folders that are looked through, and most entries at one search.
const DEEPEST: usize = 3;
const MOST_ENTRIES: usize = 20_000;
/// Looks from one search for new files to the next.
const LOOKS: u32 = 5;
/// Most files that are followed.
const MOST_FILES: usize = 32;
/// Bytes that are read at once, and of one file at one look while the run goes on.
const BLOCK: usize = 1 << 16;
const MOST_READ: usize = 64 * BLOCK;

/// Event files below some folders.
#[derive(Debug)]
pub(super) struct EventFiles {
    roots: Vec<PathBuf>,
    /// Lengths of files that were there before the run; one that grows is the run's too.
    before: BTreeMap<PathBuf, u64>,
    files: Vec<EventFile>,
    looks: u32,
    searches: Paced,
    /// Whether the folders have more entries than were looked through.
    is_cut: bool,
    /// Most bytes of one file that a look reads.
    most_read: usize,
    began_s: f64,
}

/// A file that is followed.
#[derive(Debug)]
struct EventFile {
    path: PathBuf,
    file: Option<File>,
    reader: EventReader,
}

impl EventFiles {
    /// Follows what a run writes from now on, below the folder of its output, the usual ones, and the one that a person names.
    /// That one may come late, and may be an event file itself; a file of another kind is left alone.
    pub(super) fn follow(named: Option<PathBuf>, output: Option<PathBuf>) -> Self {
        let told = std::env::var_os(VARIABLE).map(PathBuf::from);
        let usual = USUAL.map(PathBuf::from);
        let roots: Vec<PathBuf> = named.into_iter().chain(told).chain(output).chain(usual).collect();
        let length = |path: PathBuf| {
            let length = path.metadata().map_or(0, |metadata| metadata.len());
            (path, length)
        };
        let mut searches = Paced::new(SPARING);
        let Search { files, left } = searches.look(|| Search::of(&roots));
        Self {
            before: files.into_iter().map(length).collect(),
            roots,
            files: Vec::new(),
            looks: 0,
            searches,
            is_cut: left == 0,
            most_read: MOST_READ,
            began_s: since_1970(),
        }
    }

    /// Searches for new files, where that is due.
    pub(super) fn search(&mut self) {
        let is_last = self.most_read == usize::MAX;
        if is_last || (self.looks.is_multiple_of(LOOKS) && self.searches.is_due(Duration::ZERO)) {
            self.find();
        }
        self.looks = self.looks.wrapping_add(1);
    }

    /// Reads what is new: the numbers of each event with the seconds since the run began. Returns what could not be read.
    pub(super) fn look(&mut self, mut take: impl FnMut(&LogFields, f64)) -> Vec<String> {
        let began_s = self.began_s;
        let ended_s = since_1970() - began_s;
        let mut each = |event: ScalarEvent| {
            let at_s = event.wall_time_s - began_s;
            // Of an earlier run, in a file that goes on.
            if at_s >= 0.0
                && let Some(fields) = fields_of(&event)
            {
                take(&fields, at_s.min(ended_s));
            }
        };
        let most = self.most_read;
        let read = self
            .files
            .iter_mut()
            .filter_map(|file| file.read(most, &mut each).err());
        read.collect()
    }

    /// Makes the next search and the next look the last ones: for what a training wrote in its last moments, and to the ends of all
    /// files.
    pub(super) fn end(&mut self) {
        self.most_read = usize::MAX;
    }

    /// Whether an event file may be where nobody looked.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn find(&mut self) {
        let Search { files, left } = self.searches.look(|| Search::of(&self.roots));
        self.is_cut |= left == 0;
        for path in files {
            let is_known = self.files.iter().any(|file| file.path == path);
            if is_known || self.files.len() >= MOST_FILES {
                continue;
            }
            let length = path.metadata().map_or(0, |metadata| metadata.len());
            if self.before.get(&path) == Some(&length) {
                continue;
            }
            self.files.push(EventFile {
                file: File::open(&path).ok(),
                path,
                reader: EventReader::default(),
            });
        }
    }
}

impl EventFile {
    /// Reads what has been added, up to so many bytes and a block.
    fn read(&mut self, most: usize, each: &mut impl FnMut(ScalarEvent)) -> Result<(), String> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut block = vec![0u8; BLOCK];
        let mut all = 0;
        while all < most {
            // What cannot be read now may be at the next look.
            let count = file.read(&mut block).unwrap_or(0);
            if count == 0 {
                break;
            }
            all = all.saturating_add(count);
            if let Err(error) = self.reader.take(&block[..count], &mut *each) {
                self.file = None;
                let path = self.path.display();
                return Err(format!("event file {path} was not read to its end: {error}"));
            }
        }
        Ok(())
    }
}

/// The numbers of an event under the names that the Trainer's own log has for them; `None` of other tags.
fn fields_of(event: &ScalarEvent) -> Option<LogFields> {
    let name = match event.tag.as_str() {
        "train_loss" | "Loss/train" | "loss/train" => "loss".to_owned(),
        tag => match tag.split_once('/') {
            Some(("train", name)) => name.to_owned(),
            Some(("eval", name)) => format!("eval_{name}"),
            Some(_) => return None,
            None => tag.to_owned(),
        },
    };
    Some(LogFields::from([
        ("step".to_owned(), event.step as f64),
        (name, event.value),
    ]))
}

/// Whether a path has the name of an event file.
pub(super) fn is_event_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().contains(MARK)
}

/// A search for event files at or below some folders.
struct Search {
    files: Vec<PathBuf>,
    /// Entries that may still be looked at.
    left: usize,
}

impl Search {
    fn of(roots: &[PathBuf]) -> Self {
        let mut search = Self {
            files: Vec::new(),
            left: MOST_ENTRIES,
        };
        for root in roots {
            search.look_at(root, DEEPEST);
        }
        search.files.sort_unstable();
        search.files.dedup();
        search
    }

    fn look_at(&mut self, path: &Path, depth: usize) {
        if is_event_file(path) && path.is_file() {
            self.files.push(path.to_owned());
            return;
        }
        let Ok(entries) = std::fs::read_dir(path) else { return };
        for entry in entries.flatten() {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            let path = entry.path();
            // Followed links could lead in a circle.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_event_file(&path) || (is_folder && depth > 0) {
                self.look_at(&path, depth.saturating_sub(1));
            }
        }
    }
}

fn since_1970() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.as_ref().map_or(0.0, Duration::as_secs_f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(tag: &str, value: f64) -> ScalarEvent {
        ScalarEvent {
            wall_time_s: 1.0,
            step: 3,
            tag: tag.to_owned(),
            value,
        }
    }

    #[test]
    fn tags_have_the_names_of_the_trainers_log() {
        for (tag, name) in [
            ("train/loss", Some("loss")),
            ("train/num_input_tokens_seen", Some("num_input_tokens_seen")),
            ("eval/runtime", Some("eval_runtime")),
            ("loss", Some("loss")),
            ("Loss/train", Some("loss")),
            ("memory/peak", None),
        ] {
            let expected = name.map(|name| LogFields::from([("step".to_owned(), 3.0), (name.to_owned(), 2.5)]));
            assert_eq!(fields_of(&event(tag, 2.5)), expected, "{tag}");
        }
    }

    #[test]
    fn files_of_earlier_runs_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("out/runs/now");
        std::fs::create_dir_all(&runs).unwrap();
        std::fs::write(runs.join("events.out.tfevents.1.host"), b"old").unwrap();
        let mut files = EventFiles::follow(None, Some(folder.path().join("out")));
        files.search();
        assert!(files.look(|_, _| {}).is_empty() && files.files.is_empty());
        std::fs::write(runs.join("events.out.tfevents.2.host"), [0; 20]).unwrap();
        files.end();
        files.search();
        let told = files.look(|_, _| {});
        assert!(
            told[0].contains("tfevents.2.host was not read to its end: a record is broken at byte 0"),
            "{told:?}"
        );
        assert!(files.look(|_, _| {}).is_empty());
    }

    #[test]
    fn a_search_does_not_go_on_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("now");
        std::fs::create_dir(&runs).unwrap();
        std::fs::write(runs.join("events.out.tfevents.1.host"), b"old").unwrap();
        let mut search = Search {
            files: Vec::new(),
            left: 2,
        };
        search.look_at(folder.path(), DEEPEST);
        assert_eq!((search.files.len(), search.left), (1, 0));
        search.look_at(folder.path(), DEEPEST);
        assert_eq!(search.files.len(), 1);
        assert_eq!(Search::of(&[folder.path().to_owned()]).left, MOST_ENTRIES - 2);
    }
}
