//! Study files and recipe files.

/// Folders and files that the tests read.
mod files;
/// Meaning of a sound file.
mod meaning;
/// Messages for each kind of mistake.
mod mistakes;
/// Recipe files: written, read back, refused.
mod recipe_file;
