//! Study files and recipe files.

/// Folders and files that the tests read.
mod files;
/// What a sound file means.
mod meaning;
/// What each kind of mistake says.
mod mistakes;
/// Recipe files: written, read back, refused.
mod recipe_file;
