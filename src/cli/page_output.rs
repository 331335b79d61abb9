//! Pages and pictures that a command writes.

use std::fs::File;
use std::io;
use std::io::Read;
use std::path::Path;

use crate::cli::CliError;
use peft_tune_core::whole_file::write_whole;

/// Beginnings of what commands write: HTML, SVG and PNG.
const BEGINNINGS: [&[u8]; 4] = [b"<!doctype html", b"<svg", b"<?xml", b"\x89png"];

/// Writes a page or a picture to `path`, which `option` names. One that is there is replaced, and no other file.
///
/// # Errors
/// A file of another kind; a place that cannot be written.
pub(super) fn write_page(path: &Path, bytes: &[u8], option: &str) -> Result<(), CliError> {
    if is_something_else(path) {
        let path = path.display();
        return Err(CliError::bad(format!(
            "{path} is no page and no picture, and is not written over; choose another path with `{option}`"
        )));
    }
    write_whole(path, bytes, true).map_err(|error| CliError::cannot_write(path, &error, option))
}

/// Whether there is a file that begins otherwise than what commands write. One that cannot be read is told when it is written.
fn is_something_else(path: &Path) -> bool {
    let head = || -> io::Result<Vec<u8>> {
        let mut head = Vec::new();
        File::open(path)?.take(16).read_to_end(&mut head)?;
        Ok(head.to_ascii_lowercase())
    };
    head().is_ok_and(|head| !head.is_empty() && !BEGINNINGS.iter().any(|beginning| head.starts_with(beginning)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_and_pictures_are_written_over_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("page.html");
        let page = b"<!DOCTYPE html>\n<p>one";
        for before in [&b""[..], page, b"<svg></svg>", b"\x89PNG\r\n"] {
            std::fs::write(&path, before).unwrap();
            write_page(&path, page, "--html").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), page);
        }
        std::fs::write(&path, "study: mine\n").unwrap();
        let refused = write_page(&path, page, "--html").unwrap_err().to_string();
        assert!(
            refused.contains("not written over") && refused.contains("--html"),
            "{refused}"
        );
        assert_eq!(std::fs::read(&path).unwrap(), b"study: mine\n");
    }
}
