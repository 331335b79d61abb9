//! A file of rows before anything reads it: about how many rows it has, and how long they are.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use peft_tune_core::recipe::TrainingData;
use peft_tune_engine::data::rows_in;
use peft_tune_engine::hub::cached_data_files;

/// How long the rows of a file are, in bytes of text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RowLengths {
    /// Length that nineteen of twenty rows keep to.
    pub long_bytes: usize,
    pub mean_bytes: f64,
    /// Rows in the file, about.
    pub rows: u64,
}

/// Looks at the first lines of a file whose rows are lines; `None` for others.
pub(crate) fn row_lengths(path: &Path) -> Option<RowLengths> {
    const LOOKED_AT: u64 = 4 << 20;
    let ending = path.extension()?.to_string_lossy().to_lowercase();
    if !matches!(ending.as_str(), "jsonl" | "ndjson" | "csv" | "tsv") {
        return None;
    }
    let file = File::open(path).ok()?;
    let total = file.metadata().ok()?.len();
    let mut text = Vec::new();
    file.take(LOOKED_AT).read_to_end(&mut text).ok()?;
    let mut lengths: Vec<usize> = text
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::len)
        .filter(|length| *length > 0)
        .collect();
    if lengths.is_empty() {
        return None;
    }
    lengths.sort_unstable();
    let mean = text.len() as f64 / lengths.len() as f64;
    Some(RowLengths {
        long_bytes: lengths[(lengths.len() - 1) * 19 / 20],
        mean_bytes: mean,
        rows: (total as f64 / mean).round() as u64,
    })
}

/// Rows of a file whose rows are lines, about, or of Parquet.
pub(crate) fn about_rows(path: &Path) -> Option<u64> {
    let files = cached_data_files(path).ok()?;
    files.iter().map(|file| rows_of_file(file)).sum()
}

fn rows_of_file(file: &Path) -> Option<u64> {
    if file.extension().is_none_or(|end| !end.eq_ignore_ascii_case("parquet")) {
        return row_lengths(file).map(|lengths| lengths.rows);
    }
    let reader = SerializedFileReader::new(File::open(file).ok()?).ok()?;
    u64::try_from(reader.metadata().file_metadata().num_rows()).ok()
}

/// Bytes of files whose rows are counted one by one: a second's worth.
const COUNTED_BYTES: u64 = 1 << 30;

/// Rows of all files: counted, or about as many where they are large; `None` where one of them is not on this machine.
pub(crate) fn rows_of(data: &TrainingData) -> Option<u64> {
    let mut files = Vec::new();
    for path in data.files() {
        files.extend(cached_data_files(path).ok()?);
    }
    let sizes: Option<u64> = files.iter().map(|file| Some(file.metadata().ok()?.len())).sum();
    match sizes? {
        small if small <= COUNTED_BYTES => Some(rows_in(&files)),
        _ => files.iter().map(|file| rows_of_file(file)).sum(),
    }
}

/// The file itself, or the first one of a data set of the hub.
pub(crate) fn first_file(data: &Path) -> PathBuf {
    let files = cached_data_files(data).unwrap_or_default();
    files.into_iter().next().unwrap_or_else(|| data.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_counted_where_all_files_are_here() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.jsonl");
        std::fs::write(&path, "{\"text\": \"a\"}\n\n{\"text\": \"bbbb\"}\n").unwrap();
        assert_eq!(rows_of(&vec![path.clone()].into()), Some(2));
        assert_eq!(rows_of(&vec![path, folder.path().join("none.jsonl")].into()), None);
    }

    #[test]
    fn the_rows_of_a_file_are_counted_by_its_first_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("train.csv");
        std::fs::write(&path, "{\"text\": \"a\"}\n").unwrap();
        let lengths = row_lengths(&path).unwrap();
        assert_eq!((lengths.long_bytes, lengths.rows), (13, 1));
        assert_eq!(lengths.mean_bytes, 14.0);
        assert_eq!(about_rows(&path), Some(1));
        let parquet = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/data");
        let files = std::fs::read_dir(parquet).unwrap().map(|entry| entry.unwrap().path());
        let mut files = files.filter(|path| path.extension().is_some_and(|end| end == "parquet"));
        assert!(about_rows(&files.next().unwrap()).is_some_and(|rows| rows > 0));
    }
}
