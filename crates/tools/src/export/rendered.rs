//! [`Rendered`]: the files of an export before they are written.

use super::Warning;

/// The files of an export, and what they could not say.
#[derive(Debug)]
pub struct Rendered {
    /// Name and text of each file; the one that the tool is started with first.
    pub files: Vec<(&'static str, String)>,
    pub warnings: Vec<Warning>,
}

impl Rendered {
    /// An export of one file.
    pub fn new(file_name: &'static str, text: String, warnings: Vec<Warning>) -> Self {
        Self {
            files: vec![(file_name, text)],
            warnings,
        }
    }
}
