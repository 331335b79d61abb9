//! Study files and recipe files.

/// Backends: forms of the key, and what trials in TRL do not do.
mod backend;
/// Folders and files that the tests read.
mod files;
/// Meaning of a sound file.
mod meaning;
/// Messages for each kind of mistake.
mod mistakes;
/// Recipe files: written, read back, refused.
mod recipe_file;
/// Rows that a training has nothing to do with, and metrics of what it makes a model forget.
mod retain;
/// Load under which models are served, and the time of a served token.
mod serve;
/// Trainers of preferences: their rows, metrics and keys.
mod trainer;
