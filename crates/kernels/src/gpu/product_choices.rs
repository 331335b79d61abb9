//! Choices of the fastest algorithm for a product of some shape, and of the faster of two ways to a sum of products,
//! kept on disk from one process to the next.
//!
//! One JSON file in the folder of compiled kernels for each GPU, driver and library; what another one of them found is worth
//! nothing. A file is written whole or not at all, together with what other processes have written meanwhile. One that cannot be
//! read counts as empty and is written anew. Where there is no folder, a process keeps its choices for itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::cache::keep;

/// Shapes that a file has at most. Each number of tokens brings its own.
const MOST_SHAPES: usize = 4096;

/// Machine that choices hold for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    /// The GPU as its driver calls it.
    pub gpu: String,
    /// Version of the driver's CUDA, and of the library of products.
    pub driver: i32,
    pub library: usize,
}

/// An algorithm that was the fastest of its shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Choice {
    /// The library's own description of it.
    pub algorithm: [u64; 8],
    /// Time of a product, and its time by the algorithm that the library named first.
    pub microseconds: f32,
    pub first_microseconds: f32,
}

/// Times of two ways to the same sum.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct WayTimes {
    pub microseconds: [f32; 2],
    /// Whether the second is taken.
    pub is_other: bool,
}

/// A file of choices.
#[derive(Debug, Serialize, Deserialize)]
struct File {
    machine: Machine,
    #[serde(flatten)]
    known: Known,
}

/// Choices that are known, by shape.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Known {
    choices: BTreeMap<String, Choice>,
    #[serde(default)]
    ways: BTreeMap<String, WayTimes>,
}

/// The choices of one machine.
#[derive(Debug)]
pub(super) struct ProductChoices {
    machine: Machine,
    path: Option<PathBuf>,
    known: Known,
    /// Whether something is known that was not written.
    is_new: bool,
}

impl ProductChoices {
    /// Opens the choices of products on this machine, with the place where they are kept.
    pub(super) fn open(machine: Machine, folder: Option<&Path>) -> Self {
        let path = folder.map(|folder| folder.join(machine.file_name()));
        Self {
            known: path.as_deref().map(|path| read(path, &machine)).unwrap_or_default(),
            machine,
            path,
            is_new: false,
        }
    }

    /// The choice for a shape.
    pub(super) fn find(&self, shape: &str) -> Option<&Choice> {
        self.known.choices.get(shape)
    }

    /// Keeps a choice, for this process until [`ProductChoices::write`].
    pub(super) fn insert(&mut self, shape: String, choice: Choice) {
        self.known.choices.insert(shape, choice);
        self.is_new = true;
    }

    /// Times of two ways to a sum, where they are known.
    pub(super) fn find_way(&self, shape: &str) -> Option<&WayTimes> {
        self.known.ways.get(shape)
    }

    /// Keeps what two ways took, as [`ProductChoices::insert`] does.
    pub(super) fn insert_way(&mut self, shape: String, times: WayTimes) {
        self.known.ways.insert(shape, times);
        self.is_new = true;
    }

    /// Writes what is new, with what others have written meanwhile.
    pub(super) fn write(&mut self) {
        let Some(path) = self.path.clone().filter(|_| self.is_new) else {
            return;
        };
        self.is_new = false;
        let mut known = read(&path, &self.machine);
        let mut mine = self.known.clone();
        known.choices.append(&mut mine.choices);
        known.ways.append(&mut mine.ways);
        cut(&mut known.choices);
        cut(&mut known.ways);
        let file = File {
            machine: self.machine.clone(),
            known,
        };
        let written = serde_json::to_vec_pretty(&file)
            .map_err(std::io::Error::other)
            .and_then(|text| keep(&path, &text));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "cannot keep the choice of products; each process makes it anew");
            self.path = None;
        }
        self.known = file.known;
    }
}

impl Machine {
    fn file_name(&self) -> String {
        let text = format!("{}\0{}\0{}", self.gpu, self.driver, self.library);
        let digest = Sha256::digest(text.as_bytes());
        let digest: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        format!("products-{digest}.json")
    }
}

/// Leaves as many shapes as a file has at most.
fn cut<T>(shapes: &mut BTreeMap<String, T>) {
    while shapes.len() > MOST_SHAPES {
        shapes.pop_first();
    }
}

/// The choices in a file, if they are this machine's.
fn read(path: &Path, machine: &Machine) -> Known {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "cannot read the choice of products");
            }
            return Known::default();
        }
    };
    match serde_json::from_slice::<File>(&text) {
        Ok(file) if file.machine == *machine => file.known,
        Ok(_) => Known::default(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "the choice of products is damaged; it is made anew");
            Known::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(library: usize) -> Machine {
        Machine {
            gpu: "GPU".to_owned(),
            driver: 13000,
            library,
        }
    }

    fn choice(number: u64) -> Choice {
        Choice {
            algorithm: [number; 8],
            microseconds: 2.5,
            first_microseconds: 5.0,
        }
    }

    #[test]
    fn another_process_finds_what_one_has_written_and_another_machine_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let open = |library| ProductChoices::open(machine(library), Some(folder.path()));
        let mut one = open(1);
        one.insert("a".to_owned(), choice(u64::MAX));
        assert!(open(1).find("a").is_none());
        one.write();
        assert_eq!(open(1).find("a"), Some(&choice(u64::MAX)));
        assert!(open(2).find("a").is_none());
    }

    #[test]
    fn processes_that_write_one_after_the_other_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let open = || ProductChoices::open(machine(1), Some(folder.path()));
        let (mut one, mut other) = (open(), open());
        one.insert("a".to_owned(), choice(1));
        other.insert("b".to_owned(), choice(2));
        one.write();
        other.write();
        let all = open();
        assert_eq!((all.find("a"), all.find("b")), (Some(&choice(1)), Some(&choice(2))));
        // Nothing is left beside the file.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_faster_of_two_ways_is_kept_beside_the_algorithms() {
        let folder = tempfile::tempdir().unwrap();
        let open = || ProductChoices::open(machine(1), Some(folder.path()));
        let times = WayTimes {
            microseconds: [5.0, 4.0],
            is_other: true,
        };
        let (mut one, mut other) = (open(), open());
        one.insert("a".to_owned(), choice(1));
        other.insert_way("a".to_owned(), times);
        one.write();
        other.write();
        assert_eq!(
            (open().find("a"), open().find_way("a")),
            (Some(&choice(1)), Some(&times))
        );
        // A file from before there were ways has its algorithms.
        let path = folder.path().join(machine(1).file_name());
        let mut file: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        file.as_object_mut().unwrap().remove("ways").unwrap();
        std::fs::write(&path, file.to_string()).unwrap();
        assert_eq!((open().find("a"), open().find_way("a")), (Some(&choice(1)), None));
    }

    #[test]
    fn a_file_does_not_grow_without_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut choices = ProductChoices::open(machine(1), Some(folder.path()));
        (0..MOST_SHAPES + 10).for_each(|shape| choices.insert(format!("{shape:05}"), choice(1)));
        choices.write();
        let again = ProductChoices::open(machine(1), Some(folder.path()));
        assert_eq!(again.known.choices.len(), MOST_SHAPES);
        assert!(again.find("00009").is_none() && again.find("00010").is_some());
    }

    #[test]
    fn a_damaged_file_is_ignored_and_written_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(machine(1).file_name());
        for damage in [
            "",
            "{\"machine\":",
            "[1]",
            "{\"machine\":{\"gpu\":\"GPU\",\"driver\":13000,\"library\":1},\"choices\":{\"a\":7}}",
        ] {
            std::fs::write(&path, damage).unwrap();
            let mut choices = ProductChoices::open(machine(1), Some(folder.path()));
            assert!(choices.find("a").is_none());
            choices.insert("a".to_owned(), choice(3));
            choices.write();
            let again = ProductChoices::open(machine(1), Some(folder.path()));
            assert_eq!(again.find("a"), Some(&choice(3)), "{damage}");
        }
    }

    #[test]
    fn without_a_folder_choices_are_kept_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("file"), "").unwrap();
        for place in [None, Some(folder.path().join("file/below"))] {
            let mut choices = ProductChoices::open(machine(1), place.as_deref());
            choices.insert("a".to_owned(), choice(1));
            choices.write();
            assert_eq!(choices.find("a"), Some(&choice(1)));
        }
    }
}
